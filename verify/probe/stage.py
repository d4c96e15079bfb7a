"""What every scenario is played on, and what several of them do and look at; one that cannot judge has not passed."""

from __future__ import annotations

import os
from typing import Any, Callable, NamedTuple

from . import listening
from .engine import MODEL, Answer, ask
from .loop import Loop
from .rank import Parts
from .replica import Replica
from .seats import Plan, Seat
from .tls import Loaded

# how long a busy machine may take to do what it must, where nothing says sooner; who is fast costs none of it
ASK_S = 5.0
DOWN_S = 4.0
WATCH_S = 0.2
_ENDING_S = 8.0
HELLO_S = 2.0
_LEAST_DEADLINE_S = 1.0
_MOST_DEADLINE_S = 15.0
_BEAT_PER_RANK_S = 0.02


class Finding(NamedTuple):
    """A scenario's verdict: what was found, and what could not be tried."""

    ok: bool
    found: str
    not_tried: tuple[str, ...] = ()


class CannotJudge(Exception):
    """The scenario did not get far enough to say anything."""


class Stage:
    """What every scenario is run on.

    Args:
        ends: when the whole probe must have ended, on the loop's clock.
    """

    def __init__(
        self,
        loop: Loop,
        loaded: Loaded,
        *,
        seats: tuple[Seat, ...],
        run_id: bytes,
        ends: float,
        parts: Parts,
    ) -> None:
        self.loop, self.loaded, self._seats, self._run_id = loop, loaded, seats, run_id
        self._ends, self._parts = ends, parts
        self.assembled_in_s: float | None = None
        self.phases: list[tuple[str, float]] = []
        self.time_line: list[dict[str, Any]] = []

    @property
    def world(self) -> int:
        """How many ranks."""
        return len(self._seats)

    @property
    def left_s(self) -> float:
        """What the probe's deadline has left."""
        return max(0.0, self._ends - self.loop.now())

    @property
    def patience_s(self) -> float:
        """How long an assembly may take that should succeed."""
        return max(0.5, min(self.left_s, 20.0 + 0.2 * self.world))

    @property
    def short_deadline_s(self) -> float:
        """A deadline for a run that is meant to miss it: several times what an assembly took here."""
        if self.assembled_in_s is None:
            usual = _LEAST_DEADLINE_S + 0.05 * self.world
        else:
            usual = max(_LEAST_DEADLINE_S, 5 * self.assembled_in_s)
        return min(usual, self.long_deadline_s)

    @property
    def long_deadline_s(self) -> float:
        """The longest deadline for a run that is meant to miss it."""
        return min(_MOST_DEADLINE_S, max(0.5, self.left_s / 2))

    @property
    def hello_s(self) -> float:
        """How long a connection may be silent: where ranks are slow, about as long as an assembly took here."""
        return max(HELLO_S, min(self.assembled_in_s or 0.0, self.patience_s / 2))

    def replica(
        self, deadline_s: float, *, beat_s: float | None = None, hello_timeout_s: float | None = None
    ) -> tuple[Replica, Plan]:
        """A new replica, none of whose ranks runs yet."""
        if beat_s is None:
            # hundreds of ranks on a few busy cores are slow to answer, and not frozen
            beat_s = max(1.0, _BEAT_PER_RANK_S * self.world)
        plan = Plan(self._run_id, self._seats, deadline_s, hello_timeout_s or self.hello_s, beat_s)
        return Replica(self.loop, plan, self.loaded, self._parts, lifetime_s=self.left_s), plan

    def pair(self, loaded: Loaded, spiffe_id: str) -> tuple[Replica, Plan]:
        """A replica of two ranks that trusts another identity than the node's own."""
        seats = (Seat(self._seats[0].node, spiffe_id),) * 2
        plan = Plan(self._run_id, seats, self.patience_s, self.hello_s)
        return Replica(self.loop, plan, loaded, self._parts, lifetime_s=self.left_s), plan

    @property
    def seat(self) -> Seat:
        """The node's own seat: its name and its SPIFFE id."""
        return self._seats[0]


def fail(found: str) -> Finding:
    """It was judged, and it is not good."""
    return Finding(ok=False, found=found)


def lead(replica: Replica) -> None:
    """Start rank 0; raises CannotJudge where it does not listen."""
    if not replica.start_leader():
        raise CannotJudge(f"rank 0 does not listen: {replica.trouble or 'it said nothing'}")


def seated(replica: Replica, stage: Stage, wanted: int) -> None:
    """Wait until so many ranks beside the leader sit; raises CannotJudge where they do not come."""
    replica.wait(lambda: len(replica.seated) >= wanted or bool(replica.trouble), stage.patience_s)
    if len(replica.seated) < wanted:
        raise CannotJudge(why_not(replica, stage))


def why_not(replica: Replica, stage: Stage) -> str:
    """Why the replica did not assemble, the cause before its consequences."""
    # consequences may arrive before their cause
    replica.wait(lambda: replica.all_ended, WATCH_S)
    joined = len(replica.seated) + 1
    return replica.trouble or f"{joined} of {stage.world} ranks had joined when the time was over"


def every(loop: Loop, holds: Callable[[], bool], timeout_s: float) -> bool:
    """Ask again every 20 ms until it holds, at most for `timeout_s`, and at least once."""
    end = loop.now() + timeout_s
    while not holds():
        if loop.now() >= end:
            return False
        loop.run(lambda: False, 0.02)
    return True


def serving(replica: Replica) -> str:
    """Empty when the API answers as it must."""
    health = ask(replica.api_port, "/health", timeout_s=ASK_S)
    if health.status != 200:
        return f"/health after GO: {shown(health)}"
    models = ask(replica.api_port, "/v1/models", timeout_s=ASK_S)
    if models.status != 200 or MODEL not in str(models.body):
        return f"/v1/models after GO: {shown(models)}"
    return ""


def shown(answer: Answer) -> str:
    """An answer of the API, in short."""
    return "refused" if answer.refused else f"status {answer.status}, {str(answer.body)[:80]}"


def listeners(replica: Replica, wanted: set[int], when: str) -> str:
    """Empty when rank 0 listens on exactly these ports and nobody else on any."""
    views = list(replica.ranks.values())
    try:
        listens = listening.ports([view.pid for view in views])
    except OSError as error:
        raise CannotJudge(f"/proc does not tell which ports the ranks listen on: {error}") from error
    for view in views:
        found = listens[view.pid]
        if found != (wanted if view.rank == 0 else set()):
            return f"{when} rank {view.rank} listens on {sorted(found) or 'no port'}"
    return ""


def end_well(replica: Replica) -> str:
    """Stop the replica; empty when every rank left in good order."""
    try:
        replica.stop()
    except OSError as error:
        return f"rank 0 takes no orders: {os.strerror(error.errno or 0)}"
    if not replica.wait(lambda: replica.all_ended, _ENDING_S + 0.02 * len(replica.ranks)):
        running = [view.rank for view in replica.ranks.values() if view.status is None]
        return f"told to stop, ranks {running} still run"
    for view in replica.ranks.values():
        if view.status != 0:
            return f"told to stop, rank {view.rank} {view.end}: {(view.first('over') or {}).get('text', 'no word')}"
    return ""


def assembled(replica: Replica, stage: Stage) -> None:
    """Start every rank and wait for GO everywhere; raises CannotJudge where it does not come."""
    lead(replica)
    replica.start(list(range(1, stage.world)))
    everybody(replica, stage)


def everybody(replica: Replica, stage: Stage) -> None:
    """Wait for GO everywhere; raises CannotJudge where it does not come."""
    replica.wait(lambda: replica.everybody_gone or bool(replica.trouble), stage.patience_s)
    if not replica.everybody_gone:
        raise CannotJudge(why_not(replica, stage))


def all_told(replica: Replica, rank: int, causes: set[str], *, but: set[int]) -> str:
    """Empty when every process has ended and each rank was told the cause and whose fault it was."""
    others = [view for view in replica.ranks.values() if view.rank not in but]
    if not replica.wait(
        lambda: all(view.status is not None for view in others), _ENDING_S + 0.02 * len(replica.ranks)
    ):
        running = [view.rank for view in others if view.status is None]
        return f"ranks {running} still run although the replica has failed"
    for view in replica.ranks.values():
        over = view.first("over")
        if view.rank in but:
            continue
        if over is None or over["rank"] != rank or over["cause"] not in causes:
            return f"rank {view.rank} was not told of rank {rank}: {(over or {}).get('text', view.end)}"
    return ""
