"""The scenarios in which somebody comes who may not: refused at once, never counted, and in nobody's way."""

from __future__ import annotations

import os

from .engine import HOST
from .listening import at, bind
from .member import Address
from .replica import Rank, Replica
from .seats import Plan
from .stage import (
    WATCH_S,
    CannotJudge,
    Finding,
    Stage,
    end_well,
    everybody,
    fail,
    lead,
    seated,
    why_not,
)
from .strangers import Visit, silent, visit

_PORTS_TO_TRY = 3


def duplicate_rank(stage: Stage) -> Finding:
    """A second process says that it is a rank that has its seat: refused, and both are named to both."""
    # in a world of two the first rank completes it, and the second is one too many
    replica, _ = _waiting(stage, absent=0 if stage.world == 2 else stage.world - 1)
    with replica:
        holder = replica.ranks[1]
        second = replica.intrude(1)
        values = (f"pid {holder.pid}", f"pid {second.pid}")
        return _refused(replica, stage, second, values, f"a second rank 1 (pid {second.pid})")


def wrong_world(stage: Stage) -> Finding:
    """A process of a replica of another size: refused, and both sizes are named to both."""
    replica, plan = _waiting(stage, absent=stage.world - 1)
    with replica:
        larger = plan._replace(seats=(*plan.seats, plan.seats[0]))
        second = replica.intrude(stage.world - 1, plan=larger)
        values = (f"{plan.world} here", f"{larger.world} in the hello")
        return _refused(replica, stage, second, values, f"a rank of a world of {larger.world}")


def old_run(stage: Stage) -> Finding:
    """A process that is left over from another run: refused, and both runs are named to both."""
    replica, plan = _waiting(stage, absent=stage.world - 1)
    with replica:
        old = os.urandom(16)
        second = replica.intrude(stage.world - 1, plan=plan._replace(run_id=old))
        values = (plan.run_id.hex(), old.hex())
        return _refused(replica, stage, second, values, f"a rank of run {old.hex()[:8]}")


def _waiting(stage: Stage, *, absent: int) -> tuple[Replica, Plan]:
    """A replica in which everybody sits but `absent` (0 is nobody)."""
    replica, plan = stage.replica(stage.patience_s)
    try:
        lead(replica)
        replica.start([rank for rank in range(1, stage.world) if rank != absent])
        seated(replica, stage, len(replica.ranks) - 1)
    except BaseException:
        replica.end()
        raise
    return replica, plan


def _refused(replica: Replica, stage: Stage, second: Rank, values: tuple[str, ...], what: str) -> Finding:
    """The intruder must be refused with both values, on both sides; then whoever is missing comes."""
    began = stage.loop.now()
    answered(replica, second, stage)
    took_ms = (stage.loop.now() - began) * 1000
    over = second.first("over")
    if second.first("welcome"):
        return fail(f"{what} was given a seat")
    if over is None or over["cause"] != "refused":
        return fail(f"{what} was not refused: {(over or {}).get('text', second.end)}")
    replica.wait(lambda: replica.leader.first("refused") is not None, WATCH_S)
    told = (replica.leader.first("refused") or {}).get("text", "nothing")
    missing = [value for value in values if value not in over["text"] or value not in told]
    if missing:
        return fail(f"{what} was refused, but {missing} was not told to both: {over['text']} / {told}")
    if replica.gone and stage.world > 2:
        return fail(f"{what} completed the replica")
    fault = complete(replica, stage)
    return Finding(not fault, fault or f"{what} was refused after {took_ms:.0f} ms: {told}; then all joined")


def answered(replica: Replica, second: Rank, stage: Stage) -> None:
    """Wait until an intruder was given a seat, or none."""
    replica.wait(
        lambda: bool(second.first("over") or second.first("welcome")) or second.status is not None,
        stage.patience_s,
    )


def complete(replica: Replica, stage: Stage) -> str:
    """Whoever is missing comes, all get GO and leave: empty when they did, for a leader that refuses all is no good."""
    replica.start([rank for rank in range(1, replica.world) if rank not in replica.ranks])
    try:
        everybody(replica, stage)
    except CannotJudge as error:
        return f"afterwards the real rank did not join: {error}"
    return end_well(replica)


def port_taken(stage: Stage) -> Finding:
    """The rendezvous' port is in use: rank 0 says so at once, with the holder; once it is free all join."""
    finding = fail("no port was tried")
    for _ in range(_PORTS_TO_TRY):
        finding, snatched = _one_port_taken(stage)
        if not snatched:
            break
    return finding


def _one_port_taken(stage: Stage) -> tuple[Finding, bool]:
    """The finding with one port, and whether it is only that somebody else was faster once the port was free."""
    replica, _ = stage.replica(stage.patience_s)
    taken = bind(HOST, 0)
    taken.listen(1)
    port = int(taken.getsockname()[1])
    with taken, replica:
        began = stage.loop.now()
        came = replica.start_leader(port)
        took_ms = (stage.loop.now() - began) * 1000
        if not came:
            # a busy machine may be slow to let it end; that is not what is judged here
            replica.wait(lambda: bool(replica.trouble), stage.patience_s)
        said = replica.trouble
    wanted = (at(HOST, port), f"pid {os.getpid()}")
    if came or any(value not in said for value in wanted):
        return fail(f"port {port} was held by pid {os.getpid()}, and rank 0 says: {said or 'nothing'}"), False
    second, _ = stage.replica(stage.patience_s)
    with second:
        if not second.start_leader(port):
            trouble = second.trouble
            found = fail(f"port {port} is free again, and rank 0 does not listen: {trouble}")
            return found, f"{at(HOST, port)} is taken" in trouble
        fault = complete(second, stage)
    found = Finding(not fault, fault or f"told after {took_ms:.0f} ms: {said}; on the freed port all joined")
    return found, False


def stranger(stage: Stage) -> Finding:
    """Connections without the identity stand in for a missing rank; then the rank comes."""
    absent = stage.world // 2
    # one that is silent is sent away after this time: the rank must come before, also where machines are slow
    hello_timeout_s = max(stage.hello_s, stage.short_deadline_s)
    replica, plan = stage.replica(stage.patience_s, hello_timeout_s=hello_timeout_s)
    visits: list[Visit] = []
    with replica:
        try:
            lead(replica)
            replica.start([rank for rank in range(1, stage.world) if rank != absent])
            seated(replica, stage, stage.world - 2)
            visits += visit(Address(HOST, replica.port), plan, absent)
            replica.wait(lambda: replica.gone or bool(replica.trouble), WATCH_S)
            counted = [seen.kind for seen in visits if seen.seated]
            if counted or replica.gone or absent in replica.seated:
                return fail(f"strangers were counted: {', '.join(counted) or 'GO came without a rank'}")
            visits.append(silent(Address(HOST, replica.port)))
            began = stage.loop.now()
            replica.start([absent])
            replica.wait(lambda: replica.everybody_gone or bool(replica.trouble), plan.hello_timeout_s)
            took = stage.loop.now() - began
            if not replica.everybody_gone:
                return fail(f"beside strangers rank {absent} did not join: {why_not(replica, stage)}")
            ended = end_well(replica)
        except OSError as error:
            raise CannotJudge(f"a stranger could not visit: {error}; {why_not(replica, stage)}") from error
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
