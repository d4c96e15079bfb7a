"""The scenarios of a run over several nodes: the same protocol as on one, with real networks and real identities."""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from verify.fleet import Fleet, Lost, Worker

_BEAT_S = 1.0
_QUICK_BEAT_S = 0.2
_MISSING_S = 2.0
_NOTICE_S = 2.0
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class Drill:
    """One scenario; a negative one passes when what it provokes failed as it must."""

    name: str
    kind: str
    expected: str
    run: Callable[["Stage"], str]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one: `ok` is None where it could not be judged."""

    name: str
    kind: str
    ok: bool | None
    seconds: float
    expected: str
    found: str


class Failed(Exception):
    """It was judged, and it is not good."""


class Stage:
    """One replica over all nodes, and what the drills do with it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._leader: tuple[str, int] = ("", 0)

    def open(self, *, deadline_s: float | None = None, beat_s: float = _BEAT_S) -> None:
        """A new replica, with rank 0 listening."""
        self.fleet.everyone("open", deadline_s=deadline_s or self.fleet.join_s, beat_s=beat_s)
        lead = self.fleet.lead
        self._leader = (lead.place.address, int(lead.ask("lead")["port"]))

    def join(self, *, but: Sequence[int] = ()) -> dict[int, int]:
        """Start every rank above 0 but those; rank to pid."""
        pids: dict[int, int] = {}
        for worker in self.fleet.workers:
            ranks = [rank for rank in self.fleet.ranks_of(worker) if rank not in but]
            worker.order("join", ranks=ranks, leader=self._leader)
        for worker in self.fleet.workers:
            said = worker.answer("join")
            if said.get("fault"):
                raise Lost(worker.place.name, str(said["fault"]))
            pids |= {int(rank): pid for rank, pid in said["pids"].items()}
        return pids

    def watch(self, until: str, *, within_s: float, but: Sequence[int] = ()) -> dict[int, dict[str, Any]]:
        """What every rank has told by then."""
        answers = self.fleet.everyone("watch", until=until, within_s=within_s, but=list(but))
        return {int(seen["rank"]): seen for said in answers for seen in said["ranks"]}

    def seated(self, count: int) -> None:
        """Wait until so many ranks sit."""
        said = self.fleet.lead.ask("watch", until="seated", count=count, within_s=self.fleet.join_s)
        if not said["held"]:
            raise Failed(
                f"{len(said['seated'])} of {count} ranks were seated within {self.fleet.join_s:.1f} s"
            )

    def assembled(self, *, beat_s: float = _BEAT_S) -> dict[int, int]:
        """Every rank has got GO; rank to pid."""
        self.open(beat_s=beat_s)
        pids = self.join()
        seen = self.watch("go", within_s=self.fleet.join_s + 1)
        without = {rank: _why(one) for rank, one in seen.items() if not one["go"]}
        if without:
            first = min(without)
            raise Failed(f"ranks {sorted(without)} got no GO; rank {first}: {without[first]}")
        return pids

    def end_well(self) -> None:
        """All leave in good order, and the API is down."""
        self.fleet.lead.ask("stop")
        seen = self.watch("ended", within_s=_END_S)
        bad = {rank: one["end"] for rank, one in seen.items() if one["status"] != 0}
        if bad:
            raise Failed(f"told to stop, not every rank ended well: {bad}")

    def pretend(self, worker: Worker, rank: int, **words: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON values
        """A process on that node that says what it is not."""
        return worker.ask("pretend", rank=rank, leader=self._leader, within_s=5.0, **words)

    def down_everywhere(
        self, rank: int, causes: set[str], *, but: Sequence[int], within_s: float
    ) -> dict[int, dict[str, Any]]:
        """Every other rank has ended and was told whose fault it was."""
        seen = self.watch("over", within_s=within_s, but=but)
        for each, one in seen.items():
            over = one["over"]
            if each not in but and (over is None or over["rank"] != rank or over["cause"] not in causes):
                raise Failed(f"rank {each} was not told of rank {rank}: {_why(one)}")
        return seen

    @property
    def last(self) -> int:
        """The last rank, on the last node."""
        return self.fleet.ranks - 1


def play(drill: Drill, fleet: Fleet) -> Result:
    """Run one, and end its replica whatever comes of it. Raises Lost when a node is gone."""
    began = time.monotonic()
    stage, ok = Stage(fleet), True
    try:
        found = drill.run(stage)
    except Failed as failed:
        ok, found = False, str(failed)
    fleet.everyone("end")
    return Result(drill.name, drill.kind, ok, time.monotonic() - began, drill.expected, found)


def _why(one: dict[str, Any]) -> str:
    over = one["over"]
    return str(one["broken"] or (over["text"] if over else one["end"]))


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
    stage.open(deadline_s=_MISSING_S)
    stage.join(but=[missing])
    began = time.monotonic()
    seen = stage.watch("over", within_s=_MISSING_S + _NOTICE_S)
    over = seen[0]["over"]
    if seen[0]["go"] or over is None or over["missing"] != [missing]:
        raise Failed(f"rank {missing} was never started, and the leader says: {_why(seen[0])}")
    if not stage.fleet.lead.ask("ask")["refused"]:
        raise Failed("the API answers although the replica never assembled")
    took = time.monotonic() - began
    return f"missing rank {missing}: failed {took:.3f} s later of {_MISSING_S:.3f} s, named rank {missing}"


def _killed(stage: Stage) -> str:
    victim = stage.last
    pids = stage.assembled()
    began = time.monotonic()
    stage.fleet.of(victim).ask("signal", rank=victim, signal="kill")
    seen = stage.down_everywhere(victim, {"lost"}, but=[victim], within_s=_NOTICE_S)
    took_ms = (time.monotonic() - began) * 1000
    if f"pid {pids[victim]}" not in seen[0]["over"]["text"]:
        raise Failed(f"the leader names another process than pid {pids[victim]}: {_why(seen[0])}")
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


def _refused(stage: Stage, said: dict[str, Any], values: Sequence[str], what: str) -> str:
    """Refused with both values; afterwards the real rank still comes."""
    over = said["over"]
    if said["welcome"] or over is None or over["cause"] not in ("refused", "tls"):
        raise Failed(f"{what} was not refused: {over['text'] if over else said['end']}")
    unsaid = [value for value in values if value not in over["text"]]
    if unsaid:
        raise Failed(f"{what} was refused, but {unsaid} was not told: {over['text']}")
    stage.join(but=[rank for rank in range(1, stage.fleet.ranks) if rank != stage.last])
    seen = stage.watch("go", within_s=stage.fleet.join_s)
    if not all(one["go"] for one in seen.values()):
        raise Failed(f"afterwards the real rank did not join: {_why(seen[0])}")
    stage.end_well()
    return f"{what} was refused: {over['text']}; then all joined"


def _waiting(stage: Stage) -> dict[int, int]:
    """Everybody sits but the last rank."""
    stage.open()
    pids = stage.join(but=[stage.last])
    stage.seated(len(pids))
    return pids


def _duplicate(stage: Stage) -> str:
    pids = _waiting(stage)
    if not pids:
        return _refused(stage, stage.pretend(stage.fleet.workers[-1], stage.last + 1), (), "a rank too many")
    rank = max(pids)
    said = stage.pretend(stage.fleet.of(rank), rank)
    return _refused(stage, said, (f"pid {pids[rank]}", f"pid {said['pid']}"), f"a second rank {rank}")


def _wrong_world(stage: Stage) -> str:
    _waiting(stage)
    said = stage.pretend(stage.fleet.of(stage.last), stage.last, surplus=1)
    ranks = stage.fleet.ranks
    values = (f"{ranks} here", f"{ranks + 1} in the hello")
    return _refused(stage, said, values, f"a rank of a world of {ranks + 1}")


def _old_run(stage: Stage) -> str:
    _waiting(stage)
    old = secrets.token_hex(16)
    said = stage.pretend(stage.fleet.of(stage.last), stage.last, run_id=old)
    return _refused(stage, said, (old,), f"a rank of run {old[:8]}")


def _wrong_node(stage: Stage) -> str:
    """The first node's real identity claims a seat of the last node."""
    _waiting(stage)
    thief, owner = stage.fleet.lead, stage.fleet.of(stage.last)
    said = stage.pretend(thief, stage.last)
    values = (owner.place.spiffe_id, thief.place.spiffe_id)
    return _refused(stage, said, values, f"{thief.place.name} in a seat of {owner.place.name}")


def _wrong_leader(stage: Stage) -> str:
    """The last node's real identity answers where rank 0 should be."""
    stage.fleet.everyone("open", deadline_s=stage.fleet.join_s, beat_s=_BEAT_S)
    thief, victim = stage.fleet.workers[-1], stage.fleet.lead
    port = int(thief.ask("lead")["port"])
    leader = (thief.place.address, port)
    said = victim.ask("pretend", rank=stage.last, leader=leader, within_s=5.0)
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


_NAMED = "is refused at once with both values, and the real rank still joins"
DRILLS = (
    Drill(
        "assemble", "positive", "the ranks of all nodes join over mutual TLS, and rank 0 serves", _assemble
    ),
    Drill("clean-shutdown", "positive", "all say goodbye, end with 0, and nothing answers", _shutdown),
    Drill("missing-rank", "negative", "fails by its deadline and names the rank", _missing),
    Drill("killed-rank", "negative", "the ranks of every node fail and know whose fault it was", _killed),
    Drill("frozen-rank", "negative", "the ranks of every node fail within a few heartbeats", _frozen),
    Drill("killed-leader", "negative", "the ranks of every node notice and end", _killed_leader),
    Drill("duplicate-rank", "negative", f"a second claimant of a seat {_NAMED}", _duplicate),
    Drill("wrong-world", "negative", f"a rank of another world size {_NAMED}", _wrong_world),
    Drill("old-run", "negative", f"a rank of another run {_NAMED}", _old_run),
    Drill(
        "wrong-identity-wrong-node",
        "negative",
        f"another node's real identity in a seat {_NAMED}",
        _wrong_node,
    ),
    Drill(
        "wrong-identity-wrong-leader", "negative", "another node's real identity is no leader", _wrong_leader
    ),
)
NAMES = tuple(drill.name for drill in DRILLS)
