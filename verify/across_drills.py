"""The scenarios of a run over several nodes: the same protocol as on one, with real networks and real identities."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from verify import across_visits as visits
from verify.across_stage import BEAT_S, Failed, Result, Stage, Unjudged, why
from verify.fleet import Fleet

__all__ = ["DRILLS", "NAMES", "Drill", "Result", "Stage", "play"]

_QUICK_BEAT_S = 0.2
_MISSING_S = (2.0, 16.0)  # a busy machine may need longer until all the others are there
_NOTICE_S = 5.0
_EARLY_ASKS = 5


@dataclass(frozen=True, slots=True)
class Drill:
    """One scenario; a negative one passes when what it provokes failed as it must.

    twin: the scenario of the other kind that shows that this one could have ended otherwise.
    """

    name: str
    kind: str
    twin: str
    expected: str
    run: Callable[[Stage], str]


def play(drill: Drill, fleet: Fleet) -> Result:
    """Run one, and end its replica whatever comes of it. Raises Lost when a node is gone."""
    began = time.monotonic()
    stage = Stage(fleet)
    ok: bool | None = True
    try:
        found = drill.run(stage)
    except Failed as failed:
        ok, found = False, str(failed)
    except Unjudged as fault:
        ok, found = None, f"could not be judged: {fault}"
    except (TypeError, ValueError, AttributeError, LookupError) as odd:  # what nodes say may be anything
        ok, found = (
            None,
            f"could not be judged: an answer of a node made no sense ({type(odd).__name__}: {odd})"[:500],
        )
    took = time.monotonic() - began
    line = stage.times() if drill.run is _assemble else ()
    fleet.everyone("end")
    return Result(drill.name, drill.kind, ok, took, drill.expected, found, line)


# -- the scenarios -------------------------------------------------------------------------------------------------


def _assemble(stage: Stage) -> str:
    began = time.monotonic()
    stage.assembled()
    took = time.monotonic() - began
    answer = stage.fleet.lead.ask("ask")
    if answer["status"] != 200:
        raise Failed(f"rank 0 does not serve after GO: {answer}")
    stage.end_well()
    return f"{stage.fleet.ranks} ranks on {len(stage.fleet.workers)} nodes joined in {took:.3f} s, then left"


def _missing(stage: Stage) -> str:
    missing = stage.last
    for deadline_s in _MISSING_S:
        stage.open(deadline_s=deadline_s)
        stage.join(but=[missing])
        began = time.monotonic()
        seen = stage.watch("over", within_s=deadline_s + _NOTICE_S)
        over = seen[0]["over"]
        if over is None or len(over["missing"]) < 2:
            break
    if seen[0]["go"] or over is None or over["missing"] != [missing]:
        raise Failed(f"rank {missing} was never started, and the leader says: {why(seen[0])}")
    if not stage.fleet.lead.ask("ask")["refused"]:
        raise Failed("the API answers although the replica never assembled")
    took = time.monotonic() - began
    return f"missing rank {missing}: failed {took:.3f} s later of {deadline_s:.3f} s, named rank {missing}"


def _killed(stage: Stage) -> str:
    victim = stage.last
    pids = stage.assembled()
    began = time.monotonic()
    stage.fleet.of(victim).ask("signal", rank=victim, signal="kill")
    seen = stage.down_everywhere(victim, {"lost"}, but=[victim], within_s=_NOTICE_S)
    took_ms = (time.monotonic() - began) * 1000
    if f"pid {pids[victim]}" not in seen[0]["over"]["text"]:
        raise Failed(f"the leader names another process than pid {pids[victim]}: {why(seen[0])}")
    if not stage.fleet.lead.ask("ask")["refused"]:
        raise Failed("the API still answers")
    return (
        f"rank {victim} (pid {pids[victim]}) of {stage.fleet.of(victim).place.name} was killed:"
        f" every node knew within {took_ms:.0f} ms, the way there and back included"
    )


def _frozen(stage: Stage) -> str:
    victim = stage.last
    stage.assembled(beat_s=_QUICK_BEAT_S)
    began = time.monotonic()
    stage.fleet.of(victim).ask("signal", rank=victim, signal="freeze")
    stage.down_everywhere(victim, {"frozen"}, but=[victim], within_s=_NOTICE_S)
    return f"rank {victim} was stopped: every node knew within {time.monotonic() - began:.3f} s"


def _killed_leader(stage: Stage) -> str:
    stage.assembled()
    began = time.monotonic()
    stage.fleet.lead.ask("signal", rank=0, signal="kill")
    stage.down_everywhere(0, {"leader_lost"}, but=[0], within_s=_NOTICE_S)
    return f"rank 0 was killed: every other rank knew within {(time.monotonic() - began) * 1000:.0f} ms"


def _duplicate(stage: Stage) -> str:
    pids = stage.waiting()
    if not pids:
        return stage.refused(stage.pretend(stage.fleet.workers[-1], stage.last + 1), (), "a rank too many")
    rank = max(pids)
    said = stage.pretend(stage.fleet.of(rank), rank)
    return stage.refused(said, (f"pid {pids[rank]}", f"pid {said['pid']}"), f"a second rank {rank}")


def _wrong_world(stage: Stage) -> str:
    stage.waiting()
    said = stage.pretend(stage.fleet.of(stage.last), stage.last, surplus=1)
    ranks = stage.fleet.ranks
    values = (f"{ranks} here", f"{ranks + 1} in the hello")
    return stage.refused(said, values, f"a rank of a world of {ranks + 1}")


def _old_run(stage: Stage) -> str:
    stage.waiting()
    old = secrets.token_hex(16)
    said = stage.pretend(stage.fleet.of(stage.last), stage.last, run_id=old)
    return stage.refused(said, (old,), f"a rank of run {old[:8]}")


def _wrong_node(stage: Stage) -> str:
    """The first node's real identity claims a seat of the last node."""
    stage.waiting()
    thief, owner = stage.fleet.lead, stage.fleet.of(stage.last)
    said = stage.pretend(thief, stage.last)
    values = (owner.place.spiffe_id, thief.place.spiffe_id)
    return stage.refused(said, values, f"{thief.place.name} in a seat of {owner.place.name}")


def _wrong_leader(stage: Stage) -> str:
    """The last node's real identity answers where rank 0 should be."""
    stage.prepare(beat_s=BEAT_S)
    thief, victim = stage.fleet.workers[-1], stage.fleet.lead
    port = int(thief.ask("lead")["port"])
    leader = (thief.place.address, port)
    said = victim.ask("pretend", rank=stage.last, leader=leader, within_s=15.0)
    over, values = said["over"], (victim.place.spiffe_id, thief.place.spiffe_id)
    if (
        said["welcome"]
        or over is None
        or over["cause"] != "tls"
        or any(v not in over["text"] for v in values)
    ):
        raise Failed(f"{thief.place.name} was taken for the leader: {over['text'] if over else said['end']}")
    return f"{thief.place.name} in the leader's place was refused: {over['text']}"


def _shutdown(stage: Stage) -> str:
    stage.assembled()
    began = time.monotonic()
    stage.end_well()
    if not stage.fleet.lead.ask("ask")["refused"]:
        raise Failed("the API still answers after the end")
    return f"{stage.fleet.ranks} ranks said goodbye and ended with 0 in {time.monotonic() - began:.3f} s"


def _late_leader(stage: Stage) -> str:
    """The ranks of every node dial before rank 0 listens; when it does, all join at once."""
    stage.prepare()
    stage.reserve()
    stage.join()
    seen = stage.watch("retry", within_s=stage.fleet.join_s / 2)
    gave_up = {rank: why(one) for rank, one in seen.items() if one["status"] is not None or one["over"]}
    if gave_up:
        raise Failed(f"ranks {sorted(gave_up)} did not wait for their leader: {gave_up[min(gave_up)]}")
    early = [rank for rank, one in seen.items() if one["retry"]]
    if len(early) < len(seen):
        raise Failed(f"of {len(seen)} ranks {len(early)} tried again")
    began = time.monotonic()
    stage.lead()
    stage.everybody()
    took = time.monotonic() - began
    stage.end_well()
    return f"{len(early)} ranks waited; {took:.3f} s after the leader had come all had joined"


def _gate(stage: Stage) -> str:
    """The API refuses before GO and answers after it; no rank of any node but 0 ever listens."""
    stage.waiting()
    lead = stage.fleet.lead
    for _ in range(_EARLY_ASKS):
        answer = lead.ask("ask")
        if not answer["refused"]:
            raise Failed(f"the API answered before GO: status {answer['status']}")
    _listeners(stage, 1, "before GO")
    stage.join(but=[rank for rank in range(1, stage.fleet.ranks) if rank != stage.last])
    stage.everybody()
    answer = lead.ask("ask")
    if answer["status"] != 200:
        raise Failed(
            f"the API does not answer after GO: {'refused' if answer['refused'] else answer['status']}"
        )
    _listeners(stage, 2, "after GO")
    stage.end_well()
    if not lead.ask("ask")["refused"]:
        raise Failed("the API still answers after the replica has ended")
    return (
        f"the API refused {_EARLY_ASKS} times before GO and answered after it;"
        f" of the ranks on {len(stage.fleet.workers)} nodes only rank 0 listened"
    )


def _listeners(stage: Stage, wanted: int, when: str) -> None:
    """Rank 0 listens on so many ports, the rendezvous' among them, and nobody else on any."""
    for worker in stage.fleet.workers:
        for text, ports in stage.attempt(worker, "listeners")["ports"].items():
            rank = int(text)
            good = len(ports) == wanted and stage.leader[1] in ports if rank == 0 else not ports
            if not good:
                raise Failed(f"{when} rank {rank} of {worker.place.name} listens on {ports or 'no port'}")


_NAMED = "is refused at once with both values, and the real rank still joins"
_NO_SEAT = "no seat for it, a seat for the right identity; CA: the installed bundle"


def _good(name: str, twin: str, expected: str, run: Callable[[Stage], str]) -> Drill:
    return Drill(name, "positive", twin, expected, run)


def _bad(name: str, twin: str, expected: str, run: Callable[[Stage], str]) -> Drill:
    return Drill(name, "negative", twin, expected, run)


DRILLS = (
    _good(
        "assemble",
        "missing-rank",
        "the ranks of all nodes join over mutual TLS, and rank 0 serves",
        _assemble,
    ),
    _good("late-leader", "killed-leader", "ranks that dial before rank 0 listens wait for it", _late_leader),
    _good(
        "gate", "missing-rank", "the API refuses before GO and answers after it; only rank 0 listens", _gate
    ),
    _good("clean-shutdown", "killed-rank", "all say goodbye, end with 0, and nothing answers", _shutdown),
    _bad("missing-rank", "assemble", "fails by its deadline and names the rank", _missing),
    _bad(
        "killed-rank", "clean-shutdown", "the ranks of every node fail and know whose fault it was", _killed
    ),
    _bad("frozen-rank", "clean-shutdown", "the ranks of every node fail within a few heartbeats", _frozen),
    _bad("killed-leader", "late-leader", "the ranks of every node notice and end", _killed_leader),
    _bad("duplicate-rank", "assemble", f"a second claimant of a seat {_NAMED}", _duplicate),
    _bad("wrong-world", "assemble", f"a rank of another world size {_NAMED}", _wrong_world),
    _bad("old-run", "assemble", f"a rank of another run {_NAMED}", _old_run),
    _bad(
        "stranger",
        "assemble",
        "connections without an identity are neither counted nor in the way",
        visits.stranger,
    ),
    _bad("wrong-identity-foreign-ca", "assemble", _NO_SEAT, visits.foreign_ca),
    _bad("wrong-identity-cn-only", "assemble", _NO_SEAT, visits.cn_only),
    _bad("wrong-identity-plain-tcp", "assemble", _NO_SEAT, visits.plain_tcp),
    _bad(
        "wrong-identity-wrong-node",
        "assemble",
        f"another node's real identity in a seat {_NAMED}",
        _wrong_node,
    ),
    _bad(
        "wrong-identity-wrong-leader", "assemble", "another node's real identity is no leader", _wrong_leader
    ),
    _bad(
        "port-taken",
        "assemble",
        "rank 0 says at once who holds the port; freed, it serves",
        visits.port_taken,
    ),
)
NAMES = tuple(drill.name for drill in DRILLS)
