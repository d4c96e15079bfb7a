"""Statistics that a few wild values cannot move: median, quartiles, and outliers by the median absolute deviation."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

FEWEST = 8
"""Fewer values than this are described and not judged."""
CUT = 3.5
_TO_SIGMA = 0.6745  # the MAD of a normal distribution, in its standard deviations
_FLOOR = 0.02
_FLOOR_S = 0.002

HOW = (
    f"A node stands out where 0.6745 times its distance from the median, divided by MAD, is more than {CUT}"
    " (modified z-score, Iglewicz and Hoaglin, 1993). MAD is the median of all those distances: half of the nodes"
    " would have to be wild to move either. It is taken as at least"
    f" {_FLOOR:.0%} of the median and {_FLOOR_S * 1000:g} ms, so that nodes which all take the same time"
    f" are not told apart by the clock's noise. Under {FEWEST} nodes nothing is judged."
)
"""The rule in words, for the page."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """One value that stands out. score: the modified z-score, negative for one that is low."""

    name: str
    value: float
    score: float


@dataclass(frozen=True, slots=True)
class Spread:
    """How one measure spreads over the nodes; all in the unit of the values.

    low, high: the least and the greatest of those that do not stand out.
    outliers: the furthest first. judged: there were enough values to call any an outlier.
    """

    count: int
    median: float
    mad: float
    q1: float
    q3: float
    low: float
    high: float
    outliers: tuple[Outlier, ...]
    judged: bool


def spread(values: Mapping[str, float]) -> Spread | None:
    """The spread of named values; None of none."""
    if not values:
        return None
    ordered = sorted(values.values())
    middle = quantile(ordered, 0.5)
    mad = quantile(sorted(abs(value - middle) for value in ordered), 0.5)
    floor = max(mad, _FLOOR * middle, _FLOOR_S)
    judged = len(ordered) >= FEWEST
    scored = (Outlier(name, value, _TO_SIGMA * (value - middle) / floor) for name, value in values.items())
    outliers = sorted(
        (each for each in scored if judged and abs(each.score) > CUT),
        key=lambda each: (-abs(each.score), each.name),
    )
    out = {each.name for each in outliers}
    rest = [value for name, value in values.items() if name not in out]
    return Spread(
        count=len(ordered),
        median=middle,
        mad=mad,
        q1=quantile(ordered, 0.25),
        q3=quantile(ordered, 0.75),
        low=min(rest),
        high=max(rest),
        outliers=tuple(outliers),
        judged=judged,
    )


def median(values: Iterable[float]) -> float | None:
    """The middle value; None of none."""
    ordered = sorted(values)
    return quantile(ordered, 0.5) if ordered else None


def quantile(ordered: Sequence[float], part: float) -> float:
    """The quantile of sorted values, between two of them by their distance (type 7 of Hyndman and Fan, 1996)."""
    at = (len(ordered) - 1) * part
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)
