"""The scenarios in which a rank is not there, or is there no more: the whole replica must fail, and say whose fault."""

from __future__ import annotations

import signal
from typing import Any, Callable

from .engine import ask
from .replica import Replica
from .stage import (
    ASK_S,
    DOWN_S,
    CannotJudge,
    Finding,
    Stage,
    all_told,
    assembled,
    every,
    fail,
    lead,
    serving,
)

# a death ends a connection at once; who needs longer than this was busy, and is given two more tries
_PROMPT_MS = 100
_TRIES = 3
_BEAT_S = 0.3


def missing_rank(stage: Stage) -> Finding:
    """One rank never starts: the run must fail by its deadline, and say which."""
    finding, others = _missing(stage, stage.short_deadline_s)
    if others:
        # nobody knew how long this machine takes until the others are there
        finding, _ = _missing(stage, stage.long_deadline_s)
    return finding


def _missing(stage: Stage, deadline_s: float) -> tuple[Finding, bool]:
    """The finding, and whether it is only that others had not come either by the deadline."""
    missing = stage.world // 2
    replica, _ = stage.replica(deadline_s)
    with replica:
        began = stage.loop.now()
        lead(replica)
        replica.start([rank for rank in range(1, stage.world) if rank != missing])
        replica.wait(lambda: replica.leader.first("over") is not None, deadline_s + DOWN_S)
        took = stage.loop.now() - began
        over = replica.leader.first("over")
        if replica.gone:
            return fail(f"GO came although rank {missing} was never started"), False
        if over is None:
            return fail(f"{took:.3f} s later the run still waits; its deadline was {deadline_s:.3f} s"), False
        if over["cause"] != "deadline" or over["missing"] != [missing]:
            others = over["cause"] == "deadline" and len(replica.seated) < stage.world - 2
            return fail(f"rank {missing} was never started, and the leader says: {over['text']}"), others
        if took < 0.9 * deadline_s:
            return fail(f"it gave up at {took:.3f} s, long before its deadline of {deadline_s:.3f} s"), False
        if not ask(replica.api_port, "/health", timeout_s=ASK_S).refused:
            return fail("the API answers although the replica never assembled"), False
        fault = all_told(replica, missing, {"deadline"}, but={missing})
        found = f"missing rank {missing}: failed at {took:.3f} s of {deadline_s:.3f} s, named rank {missing}"
        return Finding(not fault, fault or found), False


def killed_rank(stage: Stage) -> Finding:
    """A rank is killed after GO: the whole replica must fail within 100 ms, naming it, and stop serving."""
    return in_time(stage, _killed)


class Slow(Exception):
    """A rank that nobody has touched was too slow for this try."""


def in_time(stage: Stage, drill: Callable[[Stage], tuple[Finding, float]]) -> Finding:
    """Noticed late is not noticed; a busy machine is given two more tries. `drill` tells how late it was, in s."""
    slow = ""
    for _ in range(_TRIES):
        try:
            finding, late_s = drill(stage)
        except Slow as other:
            slow = str(other)
        else:
            slow = ""
            if not finding.ok or late_s <= 0:
                return finding
        if stage.left_s < stage.short_deadline_s:
            break
    if slow:
        return fail(slow)
    return fail(f"{finding.found}; {late_s * 1000:.0f} ms too late, in each of up to {_TRIES} tries")


def _killed(stage: Stage) -> tuple[Finding, float]:
    victim = stage.world - 1
    replica, _ = stage.replica(stage.patience_s)
    with replica:
        assembled(replica, stage)
        _must_serve(replica)
        killed = replica.ranks[victim]
        began = stage.loop.now()
        replica.kill(victim)
        over = _noticed(replica)
        if over is None:
            return fail(f"rank {victim} was killed, and {DOWN_S:.0f} s later the leader has not noticed"), 0
        noticed_ms = (over["at"] - began) * 1000
        if not _api_down(replica, stage, began + DOWN_S):
            return fail(f"rank {victim} was killed, and the API still answers {DOWN_S:.0f} s later"), 0
        down_ms = (stage.loop.now() - began) * 1000
        fault = all_told(replica, victim, {"lost"}, but={victim})
        replica.wait(lambda: killed.status is not None, DOWN_S)
        if not fault and f"pid {killed.pid}" not in over["text"]:
            fault = f"the leader names another process than pid {killed.pid}: {over['text']}"
        found = (
            f"rank {victim} (pid {killed.pid}) {killed.end}: noticed after {noticed_ms:.0f} ms of {_PROMPT_MS} ms,"
            f" API down after {down_ms:.0f} ms, {stage.world - 1} other ranks failed with it"
        )
        return Finding(not fault, fault or found), (noticed_ms - _PROMPT_MS) / 1000


def frozen_rank(stage: Stage) -> Finding:
    """A rank is stopped after GO: silent, yet connected; three heartbeats later the whole replica has failed."""
    # many ranks on few cores answer late without being frozen, and so do few where others are at work
    beat_s = max(_BEAT_S, 0.005 * stage.world)
    beats = iter([beat_s * 2**n for n in range(_TRIES)])
    return in_time(stage, lambda stage: _frozen(stage, next(beats)))


def _frozen(stage: Stage, beat_s: float) -> tuple[Finding, float]:
    victim = stage.world - 1
    replica, plan = stage.replica(stage.patience_s, beat_s=beat_s)
    with replica:
        try:
            assembled(replica, stage)
            _must_serve(replica)
        except CannotJudge as error:
            if (replica.leader.first("over") or {}).get("cause") == "frozen":
                raise Slow(f"before a rank was frozen: {error}") from error
            raise
        frozen, began = replica.ranks[victim], stage.loop.now()
        replica.signal(victim, signal.SIGSTOP)
        allowed_s = plan.lost_after * beat_s
        replica.wait(lambda: replica.leader.first("over") is not None, allowed_s + DOWN_S)
        over = replica.leader.first("over")
        if over is None:
            return fail(
                f"rank {victim} was frozen, and {allowed_s + DOWN_S:.1f} s later nobody has noticed"
            ), 0
        noticed_s = over["at"] - began
        if over["cause"] == "frozen" and over["rank"] != victim:
            raise Slow(f"rank {victim} (pid {frozen.pid}) was frozen, and the leader says: {over['text']}")
        if over["cause"] != "frozen" or f"pid {frozen.pid}" not in over["text"]:
            return fail(
                f"rank {victim} (pid {frozen.pid}) was frozen, and the leader says: {over['text']}"
            ), 0
        fault = all_told(replica, victim, {"frozen"}, but={victim})
        replica.signal(victim, signal.SIGCONT)
        if not fault and not replica.wait(lambda: frozen.status is not None, DOWN_S + allowed_s):
            fault = f"rank {victim} goes on alone after it was woken"
        found = (
            f"rank {victim} (pid {frozen.pid}) was stopped: noticed after {noticed_s:.3f} s of {allowed_s:.3f} s"
            f" (three heartbeats), {stage.world - 1} other ranks failed with it; woken, it left too"
        )
        return Finding(not fault, fault or found), noticed_s - allowed_s


def killed_leader(stage: Stage) -> Finding:
    """Rank 0 is killed after GO: every other rank notices by itself, and nothing serves any more."""
    replica, _ = stage.replica(stage.patience_s)
    with replica:
        assembled(replica, stage)
        _must_serve(replica)
        leader, began = replica.leader, stage.loop.now()
        replica.kill(0)
        others = [view for view in replica.ranks.values() if view.rank]
        replica.wait(lambda: all(view.first("over") for view in others), DOWN_S)
        late = [view.rank for view in others if view.first("over") is None]
        if late:
            return fail(f"rank 0 was killed, and {DOWN_S:.0f} s later ranks {late} have not noticed")
        took_ms = (max((view.first("over") or {})["at"] for view in others) - began) * 1000
        fault = all_told(replica, 0, {"leader_lost"}, but={0})
        replica.wait(lambda: leader.status is not None, DOWN_S)
        if not fault and not _api_down(replica, stage, began + DOWN_S):
            fault = "the API still answers although its process was killed"
        return Finding(
            not fault,
            fault
            or f"rank 0 (pid {leader.pid}) {leader.end}: {len(others)} other ranks noticed within {took_ms:.0f} ms"
            " and ended",
        )


def _must_serve(replica: Replica) -> None:
    fault = serving(replica)
    if fault:
        raise CannotJudge(fault)


def _noticed(replica: Replica) -> dict[str, Any] | None:
    replica.wait(lambda: replica.leader.first("over") is not None, DOWN_S)
    return replica.leader.first("over")


def _api_down(replica: Replica, stage: Stage, until: float) -> bool:
    port = replica.api_port
    return every(stage.loop, lambda: ask(port, "/health", timeout_s=ASK_S).refused, until - stage.loop.now())
