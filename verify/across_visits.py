"""The scenarios over several nodes in which somebody from another node comes who may not: no seat, in nobody's way."""

from typing import Any

from verify.across_stage import Failed, Stage, Unjudged, why

_WATCH_S = 0.2
# who is silent is sent away after it, and the rank must come before, also where machines are slow
_HELLO_S = 5.0
_PORTS_TO_TRY = 3
_INSTALLED = "CA: the installed bundle"


def stranger(stage: Stage) -> str:
    """Connections without the identity come from the last node in its missing rank's place; then the rank comes."""
    stage.waiting(hello_timeout_s=_HELLO_S)
    there, absent = stage.fleet.of(stage.last), stage.last
    seen = _visit(stage)
    said = stage.fleet.lead.ask("watch", until="go", within_s=_WATCH_S)
    counted = [str(one["kind"]) for one in seen if one["seated"]]
    if counted or str(absent) in said["seated"] or any(one["go"] for one in said["ranks"]):
        raise Failed(f"strangers were counted: {', '.join(counted) or 'GO came without a rank'}")
    # the last before the rank itself is one that says nothing
    _visit(stage, silent=True)
    stage.join(but=[rank for rank in range(1, stage.fleet.ranks) if rank != absent])
    told = stage.watch("go", within_s=_HELLO_S)
    if not all(one["go"] for one in told.values()):
        raise Failed(f"beside strangers rank {absent} did not join: {why(told[0])}")
    stage.end_well()
    tried = [str(one["kind"]) for one in seen if one["tried"]]
    left = [str(one["kind"]) for one in seen if not one["tried"]]
    untried = f"; not tried: {', '.join(left)}" if left else ""
    return (
        f"of those from {there.place.name} none was counted ({', '.join(tried)}{untried});"
        f" beside them rank {absent} joined"
    )


def _visit(stage: Stage, *, silent: bool = False) -> list[dict[str, Any]]:
    """What became of each stranger; where none could come because rank 0 has ended, that is its fault."""
    there = stage.fleet.of(stage.last)
    try:
        said = stage.attempt(there, "visit", rank=stage.last, leader=stage.leader, silent=silent)
    except Unjudged:
        told = stage.fleet.lead.ask("watch", until="over", within_s=_WATCH_S)["ranks"][0]
        if told["over"] is None and told["status"] is None:
            raise
        raise Failed(f"beside strangers rank 0 ended: {why(told)}") from None
    return list(said["visits"])


def foreign_ca(stage: Stage) -> str:
    """The seat's own SPIFFE id, in a certificate of a CA that the leader's bundle does not hold."""
    return _foreign(stage, "good", "the seat's own SPIFFE id from a foreign CA")


def cn_only(stage: Stage) -> str:
    """A certificate that names the node in its CN alone."""
    return _foreign(stage, "bare", "a certificate with a CN and no SPIFFE id")


def _foreign(stage: Stage, kind: str, what: str) -> str:
    stage.waiting()
    there = stage.fleet.of(stage.last)
    said = stage.pretend(there, stage.last, ca=kind)
    return f"{_INSTALLED}: {stage.refused(said, ('unknown ca',), f'{what}, from {there.place.name},')}"


def plain_tcp(stage: Stage) -> str:
    """A perfect hello without any TLS."""
    stage.open()
    there = stage.fleet.of(stage.last)
    fault = str(stage.attempt(there, "plain", rank=stage.last, leader=stage.leader)["wrong"])
    if fault:
        raise Failed(fault)
    stage.join()
    stage.everybody()
    stage.end_well()
    return (
        f"{_INSTALLED}: a hello without TLS from {there.place.name} was sent away; the right identity joined"
    )


def port_taken(stage: Stage) -> str:
    """The rendezvous' port is in use on the network's own address: rank 0 says by whom; freed, all join on it."""
    lead = stage.fleet.lead
    for _ in range(_PORTS_TO_TRY):
        stage.prepare()
        held = stage.attempt(lead, "squat")
        port, wanted = int(held["port"]), (str(held["at"]), f"pid {held['pid']}")
        said = stage.lead(port).removeprefix("OSError: ")
        if not said or any(value not in said for value in wanted):
            raise Failed(f"{held['at']} was held by pid {held['pid']}, and rank 0 says: {said or 'nothing'}")
        stage.prepare()
        again = stage.lead(port)
        if f"{held['at']} is taken" in again:
            # somebody else was faster once it was free, which says nothing of rank 0
            continue
        if again:
            raise Failed(f"{held['at']} is free again, and rank 0 does not listen: {again}")
        stage.join()
        stage.everybody()
        stage.end_well()
        return f"{said}; on the freed port all joined"
    raise Unjudged(f"{_PORTS_TO_TRY} ports were taken by others as soon as they were free")
