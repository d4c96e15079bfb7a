"""Ships the probe, streams its events, and enforces the deadline on this side too; nothing it says is trusted."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from inventory.errors import MusterError, OtherSide
from verify import events
from verify.artefact import artefact, command, stdin_for

_MAX_EVENTS = 200
_GRACE_S = 20.0


class Ended(Protocol):
    """How a command ended."""

    @property
    def exit_status(self) -> int:
        """Its exit status."""

    @property
    def stderr(self) -> bytes:
        """What it wrote there."""


class RemoteProcess(Protocol):
    """One running command, its stdin open; `inventory.reach.Remote` is one."""

    def send(self, data: bytes, *, timeout_s: float = ...) -> None:
        """Write to its stdin; raises OtherSide."""

    def close_stdin(self) -> None:
        """Tell it that its input has ended."""

    def lines(self, *, timeout_s: float) -> Iterator[bytes]:
        """Its lines of stdout until they end; raises OtherSide when the time is over first."""

    def finish(self, *, timeout_s: float) -> Ended:
        """Wait for its end; raises OtherSide."""

    def kill(self) -> None:
        """Cut it off."""


class Exec(Protocol):
    """Where the probe is run; `inventory.reach.Session` is one."""

    def start(self, command: str) -> RemoteProcess:
        """Start a command that a POSIX shell reads, its stdin open; raises OtherSide."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked of the probe.

    run_id: 32 hex digits, new for each run.
    identity: the files of the node's identity, as the probe's settings name them.
    spiffe_id: what the node must show; None where nobody here knows it.
    deadline_s: for the whole verification on the node.
    spawn: how ranks are started, "fork" or "exec" (an interpreter of its own for each).
    disruptive: may run what would disturb a serving node.
    about: what its checks are measured against: fabrics, the certified machine, GPUs.
    """

    node: str
    run_id: str
    ranks: int
    scenarios: tuple[str, ...]
    identity: Mapping[str, str | None]
    spiffe_id: str | None
    deadline_s: float
    spawn: str = "fork"
    disruptive: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """The probe's settings, as JSON values."""
        return {
            "schema": 1,
            "node": self.node,
            "run_id": self.run_id,
            "ranks": self.ranks,
            "scenarios": list(self.scenarios),
            "identity": dict(self.identity),
            "spiffe_id": self.spiffe_id,
            "deadline_s": self.deadline_s,
            "spawn": self.spawn,
            "disruptive": self.disruptive,
            "about": dict(self.about),
        }


@dataclass(frozen=True, slots=True)
class Findings:
    """What the probe found, each scenario that was asked exactly once and in order."""

    probe: events.Began
    identity: events.IdentityFacts
    scenarios: tuple[events.ScenarioResult, ...]
    not_checked: tuple[str, ...]
    seconds: float
    probe_sha256: str
    phases: tuple[events.Phase, ...] = ()
    checks: tuple[events.Check, ...] = ()
    ranks: tuple[events.RankTimes, ...] = ()


def run_probe(
    place: Exec,
    order: Order,
    *,
    python: str = "python3",
    login: str | None = None,
    owner: str | None = None,
    on_event: Callable[[events.Event], None] = lambda _event: None,
) -> Findings:
    """Run the probe once and read all it says.

    Raises:
        OtherSide: it could not be started, ended early, said what it may not, or passed its deadline.
    """
    process = place.start(command(python=python, login=login, owner=owner))
    heard = _Heard(order)
    try:
        _listen(process, order, heard, on_event)
    except OtherSide as error:
        process.kill()
        raise _not_judged(
            order, why=f"{error.why}; last seen: {heard.last}", next_step=error.next_step
        ) from error
    except BaseException:
        # the end of its stdin tells the probe to end its ranks and itself
        process.kill()
        raise
    return heard.findings()


def _listen(
    process: RemoteProcess, order: Order, heard: "_Heard", on_event: Callable[[events.Event], None]
) -> None:
    timeout_s = order.deadline_s + _GRACE_S
    try:
        process.send(stdin_for(order.settings()), timeout_s=timeout_s)
    except OtherSide as error:
        # it has ended before it read everything: how it ended tells more than the broken pipe
        raise _ended(process, order, heard) or error from error
    for line in process.lines(timeout_s=timeout_s):
        try:
            event = events.read(line)
            heard.take(event)
        except ValueError as error:
            raise _not_judged(
                order,
                why=f"it sent what is no event of the probe: {error}",
                next_step="look at what the node's login shell prints before it runs a command",
            ) from error
        on_event(event)
        if heard.done:
            break
    if not heard.done:
        raise _ended(process, order, heard) or _not_judged(order, why="its stream ended early")
    process.close_stdin()
    process.finish(timeout_s=_GRACE_S)


class _Heard:
    """The events so far, in the only order they may come in."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._count = 0
        self._probe: events.Began | None = None
        self._identity: events.IdentityFacts | None = None
        self._scenarios: list[events.ScenarioResult] = []
        self._not_checked: tuple[str, ...] = ()
        self._phases: tuple[events.Phase, ...] = ()
        self._checks: list[events.Check] = []
        self._ranks: tuple[events.RankTimes, ...] = ()
        self._seconds = math.nan
        self.broken: str | None = None
        self.done = False
        self.last = "nothing"

    def take(self, event: events.Event) -> None:
        """One more event; raises ValueError when it may not come here."""
        self._count += 1
        if self._count > _MAX_EVENTS:
            raise ValueError(f"more than {_MAX_EVENTS} events")
        if self._probe is None and not isinstance(event, events.Began | events.Broken):
            raise ValueError(f"{event.event!r} came before the probe said who it is")
        match event:
            case events.Began():
                self._probe, self.last = event, "the probe's start"
            case events.IdentityFacts():
                self._identity, self.last = event, "the identity's facts"
            case events.Check():
                self._checks.append(event)
                self.last = f"check {event.name}"
            case events.Phases():
                self._phases, self.last = event.items, "the phases"
            case events.TimeLine():
                self._ranks, self.last = event.ranks, "the time line"
            case events.Started():
                self.last = f"scenario {event.name} had begun"
            case events.ScenarioResult():
                self._scenarios.append(event)
                self.last = f"scenario {event.name} had ended"
            case events.NotChecked():
                self._not_checked, self.last = event.items, "what was not checked"
            case events.Broken():
                self.broken, self.last = event.text, "its own failure"
            case events.Done():
                self._finish(event)

    def _finish(self, event: events.Done) -> None:
        ran = tuple(result.name for result in self._scenarios)
        if self._identity is None or ran != self._order.scenarios:
            raise ValueError(
                f"asked were {', '.join(self._order.scenarios)}; told were {', '.join(ran) or 'none'}"
            )
        if event.ok != all(result.ok for result in self._scenarios):
            raise ValueError("the verdict contradicts the scenarios")
        self.done, self._seconds, self.last = True, event.seconds, "the end"

    def findings(self) -> Findings:
        """All of it, once `done`."""
        if self._probe is None or self._identity is None:
            raise ValueError("the probe has not finished")
        return Findings(
            probe=self._probe,
            identity=self._identity,
            scenarios=tuple(self._scenarios),
            not_checked=self._not_checked,
            seconds=self._seconds,
            probe_sha256=artefact().sha256,
            phases=self._phases,
            checks=tuple(self._checks),
            ranks=self._ranks,
        )


def _ended(process: RemoteProcess, order: Order, heard: _Heard) -> OtherSide | None:
    """Why the command ended before the probe had said everything; None when it does not tell."""
    if heard.broken:
        return _not_judged(order, why=f"the probe failed: {heard.broken}")
    try:
        ended = process.finish(timeout_s=_GRACE_S)
    except MusterError:
        return None
    said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
    last = said[-1][:300] if said else "no word on stderr"
    if ended.exit_status == 127 or "No such file" in last:
        return _not_judged(order, why=last, next_step="install python3 (3.9 or newer) on the node")
    if last.startswith("sudo:"):
        return _not_judged(
            order,
            why=f"the login may not run the probe as the key's owner: {last}",
            next_step="log in as the owner of the node's key, or let the login run python3 as that user (sudoers)",
        )
    return _not_judged(order, why=f"the probe ended with exit status {ended.exit_status}: {last}")


def _not_judged(order: Order, *, why: str, next_step: str | None = None) -> OtherSide:
    return OtherSide(
        f"{order.node} could not be verified",
        why=why,
        next_step=next_step or f"look at the node's load and log, then run verify-node {order.node} again",
    )
