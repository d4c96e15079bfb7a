"""The scenarios that must succeed: meeting, waiting for a late leader, serving only then, and leaving."""

from __future__ import annotations

from .engine import Answer, ask
from .replica import Replica
from .stage import (
    ASK_S,
    WATCH_S,
    Finding,
    Stage,
    assembled,
    end_well,
    every,
    everybody,
    fail,
    lead,
    listeners,
    seated,
    serving,
    shown,
    why_not,
)
from .timeline import time_line

_LATE_S = 0.3


def assemble(stage: Stage) -> Finding:
    """All ranks join, all get GO, all leave in good order."""
    began = stage.loop.now()
    replica, _ = stage.replica(stage.patience_s)
    with replica:
        lead(replica)
        replica.start(list(range(1, stage.world)))
        replica.wait(lambda: replica.everybody_gone or bool(replica.trouble), stage.patience_s)
        if not replica.everybody_gone:
            return fail(why_not(replica, stage))
        took = stage.loop.now() - began
        strange = {rank: pid for rank, pid in replica.seated.items() if replica.ranks[rank].pid != pid}
        if strange:
            return fail(f"seats are held by processes that are not the ranks: {strange}")
        stage.assembled_in_s = took
        ends = stage.loop.now()
        ended = end_well(replica)
        stage.phases = [*_phases(replica, began), ("teardown", (stage.loop.now() - ends) * 1000)]
        stage.time_line = time_line(replica, began)
        return Finding(
            not ended, ended or f"{stage.world} ranks joined over mutual TLS in {took:.3f} s, then left"
        )


def _phases(replica: Replica, began: float) -> list[tuple[str, float]]:
    """How far the assembly was when, in milliseconds since the first process was started."""
    came = sorted(event["at"] for event in replica.leader.events if event["event"] == "seated")
    listening, given = replica.leader.first("listening"), replica.leader.first("go")
    went = [event["at"] for event in (view.first("go") for view in replica.ranks.values()) if event]
    started = [view.began for view in replica.ranks.values() if view.began is not None]
    times = [
        ("start", max(started)),
        ("listen", listening["at"] if listening else began),
        ("first_join", came[0]),
        ("last_join", came[-1]),
        ("go", given["at"] if given else came[-1]),
        ("go_everywhere", max(went)),
    ]
    return [(name, (at - began) * 1000) for name, at in times]


def late_leader(stage: Stage) -> Finding:
    """Every other rank dials before rank 0 listens; when it does, all join at once."""
    replica, _ = stage.replica(stage.patience_s)
    with replica:
        replica.reserve()
        replica.start(list(range(1, stage.world)))
        workers = list(replica.ranks.values())
        replica.wait(
            lambda: all(view.first("retry") for view in workers) or bool(replica.trouble),
            stage.patience_s / 2,
        )
        early = [view.rank for view in workers if view.first("retry")]
        if len(early) < len(workers) or replica.trouble:
            return fail(f"of {len(workers)} ranks {len(early)} tried again: {replica.trouble or 'no answer'}")
        replica.wait(lambda: bool(replica.trouble), _LATE_S)
        if replica.trouble:
            return fail(f"a rank did not wait for its leader: {replica.trouble}")
        began = stage.loop.now()
        lead(replica)
        everybody(replica, stage)
        took = stage.loop.now() - began
        fault = end_well(replica)
        return Finding(
            not fault,
            fault
            or f"{len(early)} ranks were refused and waited; {took:.3f} s after the leader had come all had joined",
        )


def gate(stage: Stage) -> Finding:
    """The API refuses before GO and answers after it; no rank but 0 ever listens."""
    held_back = stage.world - 1
    replica, _ = stage.replica(stage.patience_s)
    with replica:
        lead(replica)
        replica.start(list(range(1, held_back)))
        seated(replica, stage, held_back - 1)
        early: list[Answer] = []

        def asked_early() -> bool:
            early.append(ask(replica.api_port, "/health", timeout_s=ASK_S))
            return not early[-1].refused

        every(stage.loop, asked_early, WATCH_S)
        if not early[-1].refused:
            return fail(f"the API answered before GO: {shown(early[-1])}")
        fault = listeners(replica, {replica.port}, "before GO")
        if fault or replica.gone:
            return fail(fault or f"GO came while rank {held_back} had not been started")
        replica.start([held_back])
        replica.wait(lambda: replica.everybody_gone or bool(replica.trouble), stage.patience_s)
        if not replica.everybody_gone:
            return fail(why_not(replica, stage))
        fault = serving(replica) or listeners(replica, {replica.port, replica.api_port}, "after GO")
        fault = fault or end_well(replica)
        if not fault and not ask(replica.api_port, "/health", timeout_s=ASK_S).refused:
            fault = "the API still answers after the replica has ended"
        return Finding(
            not fault,
            fault
            or f"the API refused {len(early)} times before GO and answered after it; only rank 0 listened",
        )


def clean_shutdown(stage: Stage) -> Finding:
    """Told to stop, every rank says goodbye and ends well; nothing answers and nothing runs afterwards."""
    replica, _ = stage.replica(stage.patience_s)
    with replica:
        assembled(replica, stage)
        fault = serving(replica)
        if fault:
            return fail(fault)
        began = stage.loop.now()
        fault = end_well(replica)
        took = stage.loop.now() - began
        if fault:
            return fail(fault)
        for view in replica.ranks.values():
            over = view.first("over")
            if over is None or over["cause"] != "stopped":
                return fail(
                    f"rank {view.rank} did not end by a goodbye: {(over or {}).get('text', view.end)}"
                )
        for what, port in (("the API", replica.api_port), ("the rendezvous", replica.port)):
            if not ask(port, "/health", timeout_s=ASK_S).refused:
                return fail(f"{what} still answers on port {port} after the end")
        return Finding(
            ok=True,
            found=f"{stage.world} ranks said goodbye and ended with 0 in {took:.3f} s; both ports refuse",
        )
