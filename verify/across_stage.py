"""What every scenario over several nodes is played on: one replica over all of them, and what is done with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from verify.events import RankTimes
from verify.fleet import Fleet, Lost, Worker

BEAT_S = 1.0
HELLO_TIMEOUT_S = 2.0
_END_S = 10.0
_ANSWER_S = 15.0


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one: `ok` is None where it could not be judged.

    line: when each rank of `assemble` did what; empty for the others.
    """

    name: str
    kind: str
    ok: bool | None
    seconds: float
    expected: str
    found: str
    line: tuple[RankTimes, ...] = ()


class Failed(Exception):
    """It was judged, and it is not good."""


class Unjudged(Exception):
    """It did not get far enough to say anything."""


class Stage:
    """One replica over all nodes, and what the drills do with it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._leader: tuple[str, int] = ("", 0)

    @property
    def leader(self) -> tuple[str, int]:
        """Where rank 0 is dialled."""
        return self._leader

    def open(self, **times: float) -> None:
        """A new replica, with rank 0 listening; `times` as for `prepare`."""
        self.prepare(**times)
        self.lead()

    def prepare(
        self,
        *,
        deadline_s: float | None = None,
        beat_s: float = BEAT_S,
        hello_timeout_s: float = HELLO_TIMEOUT_S,
    ) -> None:
        """A new replica, none of whose ranks runs yet."""
        times = {"beat_s": beat_s, "hello_timeout_s": hello_timeout_s}
        self.fleet.everyone("open", deadline_s=deadline_s or self.fleet.join_s, **times)

    def reserve(self) -> None:
        """Rank 0's port is bound, so that whoever dials it is refused; nobody listens yet."""
        lead = self.fleet.lead
        self._leader = (lead.place.address, int(lead.ask("reserve")["port"]))

    def lead(self, port: int = 0) -> str:
        """Start rank 0, on that port where one is given; why it does not listen, empty where it does."""
        lead = self.fleet.lead
        lead.order("lead", port=port)
        said = lead.answer("lead")
        if said.get("fault") and not port:
            raise Lost(lead.place.name, str(said["fault"])[:500])
        if said.get("fault"):
            return str(said["fault"])
        self._leader = (lead.place.address, int(said["port"]))
        return ""

    def attempt(self, worker: Worker, do: str, **words: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON values
        """An order that a node may be unable to carry out; raises Unjudged then."""
        worker.order(do, **words)
        said = worker.answer(do)
        if said.get("fault"):
            raise Unjudged(f"{worker.place.name}: {said['fault']}"[:500])
        return said

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

    def assembled(self, *, beat_s: float = BEAT_S) -> dict[int, int]:
        """Every rank has got GO; rank to pid."""
        self.open(beat_s=beat_s)
        pids = self.join()
        self.everybody()
        return pids

    def everybody(self) -> None:
        """Wait until every rank has got GO."""
        seen = self.watch("go", within_s=self.fleet.join_s + 1)
        without = {rank: why(one) for rank, one in seen.items() if not one["go"]}
        if without:
            first = min(without)
            raise Failed(f"ranks {sorted(without)} got no GO; rank {first}: {without[first]}")

    def end_well(self) -> None:
        """All leave in good order, and the API is down."""
        self.fleet.lead.ask("stop")
        seen = self.watch("ended", within_s=_END_S)
        bad = {rank: one["end"] for rank, one in seen.items() if one["status"] != 0}
        if bad:
            raise Failed(f"told to stop, not every rank ended well: {bad}")

    def pretend(self, worker: Worker, rank: int, **words: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON values
        """A process on that node that says what it is not; raises Unjudged where it cannot be made there."""
        return self.attempt(worker, "pretend", rank=rank, leader=self._leader, within_s=_ANSWER_S, **words)

    def waiting(self, **times: float) -> dict[int, int]:
        """Everybody sits but the last rank; rank to pid."""
        self.open(**times)
        pids = self.join(but=[self.last])
        self.seated(len(pids))
        return pids

    def complete(self) -> None:
        """The last rank comes, all get GO and leave: a leader that refuses everybody is no good."""
        self.join(but=[rank for rank in range(1, self.fleet.ranks) if rank != self.last])
        seen = self.watch("go", within_s=self.fleet.join_s)
        if not all(one["go"] for one in seen.values()):
            raise Failed(f"afterwards the real rank did not join: {why(seen[0])}")
        self.end_well()

    def refused(self, said: dict[str, Any], values: Sequence[str], what: str) -> str:
        """Refused with both values; afterwards the real rank still comes."""
        over = said["over"]
        if said["welcome"] or over is None or over["cause"] not in ("refused", "tls"):
            raise Failed(f"{what} was not refused: {over['text'] if over else said['end']}")
        unsaid = [value for value in values if value not in over["text"]]
        if unsaid:
            raise Failed(f"{what} was refused, but {unsaid} was not told: {over['text']}")
        self.complete()
        return f"{what} was refused: {over['text']}; then all joined"

    def down_everywhere(
        self, rank: int, causes: set[str], *, but: Sequence[int], within_s: float
    ) -> dict[int, dict[str, Any]]:
        """Every other rank has ended and was told whose fault it was."""
        seen = self.watch("over", within_s=within_s, but=but)
        for each, one in seen.items():
            over = one["over"]
            if each not in but and (over is None or over["rank"] != rank or over["cause"] not in causes):
                raise Failed(f"rank {each} was not told of rank {rank}: {why(one)}")
        return seen

    def times(self) -> tuple[RankTimes, ...]:
        """When each rank did what, by its own node's clock since that was told to open; raises Lost."""
        told = self.fleet.everyone("times")
        rows = []
        for worker, said in zip(self.fleet.workers, told, strict=True):
            try:
                own = [RankTimes.model_validate(row) for row in said["ranks"]]
            except (KeyError, TypeError, ValidationError) as error:
                raise Lost(worker.place.name, "it told times that are none") from error
            rows += [row for row in own if self.fleet.of(min(row.rank, self.last)) is worker]
        return tuple(sorted(rows, key=lambda row: row.rank))

    @property
    def last(self) -> int:
        """The last rank, on the last node."""
        return self.fleet.ranks - 1


def why(one: dict[str, Any]) -> str:
    """What became of a rank, in its own words where it had any."""
    over = one["over"]
    return str(one["broken"] or (over["text"] if over else one["end"]))
