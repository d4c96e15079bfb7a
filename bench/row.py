"""A row: one question, two contestants, measured turn by turn so that a busy machine slows both alike."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Contest:
    """Two things to run.

    name: what is measured, "node-ca --help".
    ours: runs ours once; returns its cost, CPU or wall seconds, or a count.
    floor: the same of what it is measured against.
    against: what the floor is, for the reader.
    unit: of the cost, "CPU s".
    """

    name: str
    ours: Callable[[], float]
    floor: Callable[[], float]
    against: str
    unit: str


@dataclass(frozen=True, slots=True)
class Result:
    """What one contest gave: the medians, their ratio, and how far the middle half of the ratios spreads."""

    name: str
    against: str
    unit: str
    rounds: int
    ours: float
    floor: float
    ratio: float
    ratio_quartiles: tuple[float, float]

    def to_json(self) -> Mapping[str, object]:
        """The members as JSON has them."""
        return {
            "name": self.name,
            "against": self.against,
            "unit": self.unit,
            "rounds": self.rounds,
            "ours": round(self.ours, 6),
            "floor": round(self.floor, 6),
            "ratio": round(self.ratio, 3),
            "ratio_quartiles": [round(value, 3) for value in self.ratio_quartiles],
        }


def measure(contests: list[Contest], *, rounds: int) -> list[Result]:
    """Every contest, `rounds` times; in a round each contestant runs once, and the order turns every round.

    One unmeasured round goes before, for what is only cold the first time.
    """
    ours: dict[str, list[float]] = {contest.name: [] for contest in contests}
    floor: dict[str, list[float]] = {contest.name: [] for contest in contests}
    for number in range(-1, rounds):
        for contest in contests:
            if number % 2:
                theirs, own = contest.floor(), contest.ours()
            else:
                own, theirs = contest.ours(), contest.floor()
            if number >= 0:
                ours[contest.name].append(own)
                floor[contest.name].append(theirs)
    return [_result(contest, ours[contest.name], floor[contest.name]) for contest in contests]


def _result(contest: Contest, ours: list[float], floor: list[float]) -> Result:
    ratios = sorted(own / theirs for own, theirs in zip(ours, floor, strict=True))
    quarter = len(ratios) // 4
    return Result(
        name=contest.name,
        against=contest.against,
        unit=contest.unit,
        rounds=len(ours),
        ours=median(ours),
        floor=median(floor),
        ratio=median(ours) / median(floor),
        ratio_quartiles=(ratios[quarter], ratios[-1 - quarter]),
    )
