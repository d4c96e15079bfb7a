"""Many nodes in one run: one screen, one word of the holder's, a thread for each, one end for each.

Each node is worked on as if it were alone, up to the point where the holder must agree; there it waits for all
the others. What fails before or after that fails alone.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from inventory.console import Console
from inventory.errors import BadInput, MusterError, Refused
from onboard.desk import Desk, Outcome, Shown

AT_ONCE = 16
"""Nodes that are worked on at a time; those that wait for the holder's word do not count."""
MOST = 512
"""Nodes of one run; each of them has a session open while the holder reads."""
_TICK_S = 0.2


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done for one node, under the name that its row gets."""

    label: str
    do: Callable[[Desk], Outcome]


@dataclass(frozen=True, slots=True)
class End:
    """How it went: one of the two is there. bug: no MusterError, but a fault of ours."""

    label: str
    outcome: Outcome | None = None
    error: MusterError | None = None
    bug: BaseException | None = None


@dataclass(slots=True)
class _Gate:
    """Where the nodes wait for the holder's word."""

    total: int
    slots: threading.Semaphore
    moved: threading.Condition = field(default_factory=threading.Condition)
    said: threading.Event = field(default_factory=threading.Event)
    waiting: int = 0
    ended: int = 0
    open: bool = False
    closed: MusterError | None = None
    shown: dict[str, tuple[str, Shown]] = field(default_factory=dict)
    ends: dict[int, End] = field(default_factory=dict)

    def agree(self, _name: str) -> None:
        """Wait for the word; while a node waits, another one may work."""
        self.slots.release()
        try:
            with self.moved:
                self.waiting += 1
                self.moved.notify_all()
            self.said.wait()
        finally:
            self.slots.acquire()
        self.go_on()

    def go_on(self) -> None:
        """Raise what forbids to begin anything more.

        Raises:
            MusterError: the holder did not agree, or the run was interrupted.
        """
        if self.closed is not None:
            raise self.closed

    def all_wait(self) -> bool:
        return self.waiting + self.ended == self.total

    def all_ended(self) -> bool:
        return self.ended == self.total

    def until(self, done: Callable[[], bool]) -> None:
        """In ticks, so that an interruption comes through."""
        while True:
            with self.moved:
                if done():
                    return
                self.moved.wait(_TICK_S)


def run_many(
    works: Sequence[Work],
    *,
    at_desk: Callable[[Desk], AbstractContextManager[Desk]],
    desk: Desk,
    agree: Callable[[int], None],
    at_once: int = AT_ONCE,
) -> tuple[tuple[End, ...], BaseException | None]:
    """Do all works; how each ended, in their order, and what interrupted the run if something did.

    at_desk: makes a desk of a thread's own, with an authority opened anew.
    agree: asks the holder for so many nodes, and unlocks what must be unlocked; raises where there is no agreement.

    Raises:
        BadInput: they are too many.
    """
    if len(works) > MOST:
        raise BadInput(
            f"{len(works)} nodes are too many for one run",
            why=f"each keeps a session open while you read; at most {MOST} can",
            next_step="name fewer nodes, as in gpu-[001-256]",
        )
    gate = _Gate(len(works), threading.Semaphore(at_once))
    for number, work in enumerate(works):
        threading.Thread(target=_alone, args=(number, work, gate, desk, at_desk), daemon=True).start()
    stop: BaseException | None = None
    try:
        gate.until(gate.all_wait)
        _ask(works, gate, desk.console, agree)
        gate.until(gate.all_ended)
    except (KeyboardInterrupt, SystemExit) as interruption:
        stop = interruption
        _close(gate, _interrupted())
        left = gate.total - gate.ended
        desk.console.trouble(
            f"interrupted: {left} nodes are brought to an end first; once more leaves at once"
        )
        gate.until(gate.all_ended)
    return tuple(gate.ends[number] for number in range(len(works))), stop


def _alone(
    number: int,
    work: Work,
    gate: _Gate,
    desk: Desk,
    at_desk: Callable[[Desk], AbstractContextManager[Desk]],
) -> None:
    def put(name: str, shown: Shown) -> None:
        gate.shown[work.label] = (name, shown)

    end = End(work.label)
    with gate.slots:
        try:
            gate.go_on()
            with at_desk(desk) as own:
                end = End(work.label, outcome=work.do(replace(own, agree=gate.agree, show=put)))
        except MusterError as error:
            end = End(work.label, error=error)
        except BaseException as bug:  # noqa: BLE001 - one node's fault of ours stops no other; it is raised at the end
            end = End(work.label, bug=bug)
    with gate.moved:
        gate.ends[number] = end
        gate.ended += 1
        gate.moved.notify_all()
    if gate.open:
        verdict = "done" if end.error is None and end.bug is None else "failed"
        desk.console.say(f"{work.label}: {verdict} ({gate.ended} of {gate.total})")


def _ask(works: Sequence[Work], gate: _Gate, console: Console, agree: Callable[[int], None]) -> None:
    """One screen, one word; nothing is asked where no node waits."""
    waiting = gate.waiting
    if gate.shown:
        for line in screen(works, gate.shown, gate.ends):
            console.say(line)
    if not waiting:
        return
    try:
        agree(waiting)
    except MusterError as error:
        console.error(error)
        _close(gate, Refused("nothing was begun", why=error.why, next_step=error.next_step))
        return
    gate.open = True
    gate.said.set()


def screen(works: Sequence[Work], shown: dict[str, tuple[str, Shown]], ends: dict[int, End]) -> list[str]:
    """The one table that the holder reads: every node, also those that cannot go on."""
    rows = [("NODE", "BY", "MACHINE", "CLOCK", "VERDICT")]
    for number, work in enumerate(works):
        end = ends.get(number)
        name, told = shown.get(work.label, (work.label, None))
        if end is not None and end.error is not None:
            why = f"{end.error.what}: {' '.join(end.error.why.split())}"
            rows.append((name, *(told.row[:3] if told else ("-", "-", "-")), f"NO: {why}"))
        elif told is not None:
            rows.append((name, *told.row))
        else:
            rows.append((work.label, "-", "-", "-", "nothing to do" if end and end.outcome else "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join((*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[4]))
        for row in rows
    ]


def _close(gate: _Gate, error: MusterError) -> None:
    gate.closed = error
    gate.said.set()


def _interrupted() -> Refused:
    return Refused(
        "it was not begun",
        why="the run was interrupted before",
        next_step="run the same command again",
    )
