"""The scenarios as the node runs and judges them; one that cannot judge has not passed."""

from __future__ import annotations

import os
from typing import Callable, NamedTuple

from . import listening
from .engine import MODEL, Answer, ask
from .loop import Loop
from .rank import Parts
from .replica import Replica
from .seats import Plan, Seat
from .strangers import Visit, silent, visit
from .tls import Contexts

_ASK_S = 1.0
_DOWN_S = 1.0
_WATCH_S = 0.2
_ENDING_S = 3.0
_LEAST_DEADLINE_S = 1.0
_MOST_DEADLINE_S = 15.0


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
        contexts: Contexts,
        *,
        seats: tuple[Seat, ...],
        run_id: bytes,
        ends: float,
        parts: Parts,
    ) -> None:
        self.loop, self._contexts, self._seats, self._run_id = loop, contexts, seats, run_id
        self._ends, self._parts = ends, parts
        self.assembled_in_s: float | None = None

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
        return max(0.5, min(self.left_s, 10.0 + 0.1 * self.world))

    @property
    def short_deadline_s(self) -> float:
        """A deadline for a run that is meant to miss it: several times what an assembly took here."""
        if self.assembled_in_s is None:
            usual = _LEAST_DEADLINE_S + 0.05 * self.world
        else:
            usual = max(_LEAST_DEADLINE_S, 5 * self.assembled_in_s)
        return min(usual, _MOST_DEADLINE_S, max(0.5, self.left_s / 2))

    def replica(self, deadline_s: float) -> tuple[Replica, Plan]:
        """A new replica, none of whose ranks runs yet."""
        plan = Plan(self._run_id, self._seats, deadline_s)
        return Replica(self.loop, plan, self._contexts, self._parts, lifetime_s=self.left_s), plan


def assemble(stage: Stage) -> Finding:
    """All ranks join, all get GO, all leave in good order."""
    began = stage.loop.now()
    replica, _ = stage.replica(stage.patience_s)
    with replica:
        _lead(replica)
        replica.start(list(range(1, stage.world)))
        replica.wait(lambda: replica.everybody_gone or bool(replica.trouble), stage.patience_s)
        if not replica.everybody_gone:
            return _fail(_why_not(replica, stage))
        took = stage.loop.now() - began
        strange = {rank: pid for rank, pid in replica.seated.items() if replica.ranks[rank].pid != pid}
        if strange:
            return _fail(f"seats are held by processes that are not the ranks: {strange}")
        stage.assembled_in_s = took
        ended = _end_well(replica)
        return Finding(
            not ended, ended or f"{stage.world} ranks joined over mutual TLS in {took:.3f} s, then left"
        )


def gate(stage: Stage) -> Finding:
    """The API refuses before GO and answers after it; no rank but 0 ever listens."""
    held_back = stage.world - 1
    replica, _ = stage.replica(stage.patience_s)
    with replica:
        _lead(replica)
        replica.start(list(range(1, held_back)))
        _seated(replica, stage, held_back - 1)
        early: list[Answer] = []

        def asked_early() -> bool:
            early.append(ask(replica.api_port, "/health", timeout_s=_ASK_S))
            return not early[-1].refused

        _every(stage.loop, asked_early, _WATCH_S)
        if not early[-1].refused:
            return _fail(f"the API answered before GO: {_shown(early[-1])}")
        fault = _listeners(replica, {replica.port}, "before GO")
        if fault or replica.gone:
            return _fail(fault or f"GO came while rank {held_back} had not been started")
        replica.start([held_back])
        replica.wait(lambda: replica.everybody_gone or bool(replica.trouble), stage.patience_s)
        if not replica.everybody_gone:
            return _fail(_why_not(replica, stage))
        fault = _serving(replica) or _listeners(replica, {replica.port, replica.api_port}, "after GO")
        fault = fault or _end_well(replica)
        if not fault and not ask(replica.api_port, "/health", timeout_s=_ASK_S).refused:
            fault = "the API still answers after the replica has ended"
        return Finding(
            not fault,
            fault
            or f"the API refused {len(early)} times before GO and answered after it; only rank 0 listened",
        )


def missing_rank(stage: Stage) -> Finding:
    """One rank never starts: the run must fail by its deadline, and say which."""
    missing, deadline_s = stage.world // 2, stage.short_deadline_s
    replica, _ = stage.replica(deadline_s)
    with replica:
        began = stage.loop.now()
        _lead(replica)
        replica.start([rank for rank in range(1, stage.world) if rank != missing])
        replica.wait(lambda: replica.leader.first("over") is not None, deadline_s + _DOWN_S)
        took = stage.loop.now() - began
        over = replica.leader.first("over")
        if replica.gone:
            return _fail(f"GO came although rank {missing} was never started")
        if over is None:
            return _fail(f"{took:.3f} s later the run still waits; its deadline was {deadline_s:.3f} s")
        if over["cause"] != "deadline" or over["missing"] != [missing]:
            return _fail(f"rank {missing} was never started, and the leader says: {over['text']}")
        if took < 0.9 * deadline_s:
            return _fail(f"it gave up at {took:.3f} s, long before its deadline of {deadline_s:.3f} s")
        if not ask(replica.api_port, "/health", timeout_s=_ASK_S).refused:
            return _fail("the API answers although the replica never assembled")
        fault = _all_told(replica, missing, {"deadline"}, but={missing})
        return Finding(
            not fault,
            fault
            or f"missing rank {missing}: failed at {took:.3f} s of {deadline_s:.3f} s, named rank {missing}",
        )


def killed_rank(stage: Stage) -> Finding:
    """A rank is killed after GO: the whole replica must fail, naming it, and stop serving."""
    victim = stage.world - 1
    replica, _ = stage.replica(stage.patience_s)
    with replica:
        _lead(replica)
        replica.start(list(range(1, stage.world)))
        replica.wait(lambda: replica.everybody_gone or bool(replica.trouble), stage.patience_s)
        if not replica.everybody_gone:
            raise CannotJudge(_why_not(replica, stage))
        fault = _serving(replica)
        if fault:
            raise CannotJudge(fault)
        killed = replica.ranks[victim]
        began = stage.loop.now()
        replica.kill(victim)
        replica.wait(lambda: replica.leader.first("over") is not None, _DOWN_S)
        over = replica.leader.first("over")
        if over is None:
            return _fail(f"rank {victim} was killed, and {_DOWN_S:.0f} s later the leader has not noticed")
        noticed_ms = (over["at"] - began) * 1000
        down = _every(
            stage.loop,
            lambda: ask(replica.api_port, "/health", timeout_s=_ASK_S).refused,
            began + _DOWN_S - stage.loop.now(),
        )
        if not down:
            return _fail(f"rank {victim} was killed, and the API still answers {_DOWN_S:.0f} s later")
        down_ms = (stage.loop.now() - began) * 1000
        fault = _all_told(replica, victim, {"lost"}, but={victim})
        if not fault and f"pid {killed.pid}" not in over["text"]:
            fault = f"the leader names another process than pid {killed.pid}: {over['text']}"
        return Finding(
            not fault,
            fault
            or f"rank {victim} (pid {killed.pid}) {killed.end}: noticed after {noticed_ms:.0f} ms, API down after"
            f" {down_ms:.0f} ms, {stage.world - 1} other ranks failed with it",
        )


def stranger(stage: Stage) -> Finding:
    """Connections without the identity stand in for a missing rank; then the rank comes."""
    absent = stage.world // 2
    replica, plan = stage.replica(stage.patience_s)
    visits: list[Visit] = []
    with replica:
        try:
            _lead(replica)
            replica.start([rank for rank in range(1, stage.world) if rank != absent])
            _seated(replica, stage, stage.world - 2)
            visits += visit(replica.port, plan, absent)
            replica.wait(lambda: replica.gone or bool(replica.trouble), _WATCH_S)
            counted = [seen.kind for seen in visits if seen.seated]
            if counted or replica.gone or absent in replica.seated:
                return _fail(f"strangers were counted: {', '.join(counted) or 'GO came without a rank'}")
            visits.append(silent(replica.port))
            began = stage.loop.now()
            replica.start([absent])
            replica.wait(lambda: replica.everybody_gone or bool(replica.trouble), plan.hello_timeout_s)
            took = stage.loop.now() - began
            if not replica.everybody_gone:
                return _fail(f"beside strangers rank {absent} did not join: {_why_not(replica, stage)}")
            ended = _end_well(replica)
        except OSError as error:
            raise CannotJudge(f"a stranger could not visit: {error}; {_why_not(replica, stage)}") from error
        finally:
            for seen in visits:
                if seen.held:
                    seen.held.close()
    kinds = ", ".join(seen.kind for seen in visits[:-1] if seen.tried)
    return Finding(
        not ended,
        ended or f"none was counted ({kinds}); beside them rank {absent} joined in {took:.3f} s",
        tuple(f"stranger: {seen.kind}" for seen in visits if not seen.tried),
    )


class Drill(NamedTuple):
    """One named scenario.

    kind: positive must succeed; negative must be refused or must fail, and passes when it did.
    """

    name: str
    kind: str
    expected: str
    run: Callable[[Stage], Finding]


DRILLS = (
    Drill("assemble", "positive", "every rank joins over mutual TLS before the deadline", assemble),
    Drill("gate", "positive", "the API refuses before GO and answers after it; only rank 0 listens", gate),
    Drill("missing-rank", "negative", "fails by its deadline and names the rank", missing_rank),
    Drill(
        "killed-rank", "negative", "the whole replica fails, the rank is named, the API is down", killed_rank
    ),
    Drill(
        "stranger",
        "negative",
        "connections without the identity are neither counted nor in the way",
        stranger,
    ),
)


def _fail(found: str) -> Finding:
    return Finding(ok=False, found=found)


# -- what several scenarios share ------------------------------------------------------------------------------------


def _lead(replica: Replica) -> None:
    if not replica.start_leader():
        raise CannotJudge(f"rank 0 does not listen: {replica.trouble or 'it said nothing'}")


def _seated(replica: Replica, stage: Stage, wanted: int) -> None:
    replica.wait(lambda: len(replica.seated) >= wanted or bool(replica.trouble), stage.patience_s)
    if len(replica.seated) < wanted:
        raise CannotJudge(_why_not(replica, stage))


def _why_not(replica: Replica, stage: Stage) -> str:
    # consequences may arrive before their cause
    replica.wait(lambda: replica.all_ended, _WATCH_S)
    joined = len(replica.seated) + 1
    return replica.trouble or f"{joined} of {stage.world} ranks had joined when the time was over"


def _every(loop: Loop, holds: Callable[[], bool], timeout_s: float) -> bool:
    """Ask again every 20 ms until it holds, at most for `timeout_s`, and at least once."""
    end = loop.now() + timeout_s
    while not holds():
        if loop.now() >= end:
            return False
        loop.run(lambda: False, 0.02)
    return True


def _serving(replica: Replica) -> str:
    """Empty when the API answers as it must."""
    health = ask(replica.api_port, "/health", timeout_s=_ASK_S)
    if health.status != 200:
        return f"/health after GO: {_shown(health)}"
    models = ask(replica.api_port, "/v1/models", timeout_s=_ASK_S)
    if models.status != 200 or MODEL not in str(models.body):
        return f"/v1/models after GO: {_shown(models)}"
    return ""


def _shown(answer: Answer) -> str:
    return "refused" if answer.refused else f"status {answer.status}, {str(answer.body)[:80]}"


def _listeners(replica: Replica, wanted: set[int], when: str) -> str:
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


def _end_well(replica: Replica) -> str:
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


def _all_told(replica: Replica, rank: int, causes: set[str], *, but: set[int]) -> str:
    """Empty when every process has ended and each rank was told the cause and whose fault it was."""
    if not replica.wait(lambda: replica.all_ended, _ENDING_S + 0.02 * len(replica.ranks)):
        running = [view.rank for view in replica.ranks.values() if view.status is None]
        return f"ranks {running} still run although the replica has failed"
    for view in replica.ranks.values():
        over = view.first("over")
        if view.rank in but:
            continue
        if over is None or over["rank"] != rank or over["cause"] not in causes:
            return f"rank {view.rank} was not told of rank {rank}: {(over or {}).get('text', view.end)}"
    return ""
