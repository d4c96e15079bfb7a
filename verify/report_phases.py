"""How long the parts of a run took, and how they spread over the ranks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verify.events import RankTimes
from verify.runner import Findings

_MEANING = {
    "start": "every rank's process was started",
    "listen": "rank 0 listened",
    "first_join": "the first rank had its seat",
    "last_join": "the last rank had its seat",
    "go": "rank 0 gave GO",
    "go_everywhere": "the last rank had got GO",
    "drills": "all scenarios together",
    "teardown": "from the order to stop to the last process's end",
}


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One phase.

    ms: when it was over, counted from the first process's start; teardown and drills are durations.
    p50_ms, p99_ms: over the ranks (nearest rank), where every rank has a time of its own; None elsewhere.
    """

    name: str
    ms: float
    p50_ms: float | None
    p99_ms: float | None

    @property
    def meaning(self) -> str:
        """The phase in words."""
        return _MEANING.get(self.name, "")

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"name": self.name, "ms": self.ms, "p50_ms": self.p50_ms, "p99_ms": self.p99_ms}


def phase_rows(findings: Findings) -> tuple[PhaseRow, ...]:
    """The phases in the order of the run, the drills before the teardown's end at the last."""
    spread = _spread(findings)
    return tuple(
        PhaseRow(phase.name, phase.ms, *_percentiles(spread.get(phase.name, ()))) for phase in findings.phases
    )


def percentile(values: Sequence[float], part: int) -> float:
    """The nearest-rank percentile: a value that was measured, never one between two."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * part / 100) - 1)]


def _percentiles(values: Sequence[float]) -> tuple[float | None, float | None]:
    if not values:
        return None, None
    return percentile(values, 50), percentile(values, 99)


def _spread(findings: Findings) -> dict[str, list[float]]:
    """Each rank's own time, for the phases that every rank goes through."""
    ranks = findings.ranks
    teardown = next((phase.ms for phase in findings.phases if phase.name == "teardown"), 0.0)
    ends = _told(ranks, "end_ms")
    stopped = max(ends) - teardown if ends else 0.0
    return {
        "start": _told(ranks, "start_ms"),
        "last_join": _told(ranks, "joined_ms"),
        "go_everywhere": _told(ranks, "go_ms"),
        "teardown": [max(0.0, end - stopped) for end in ends],
    }


def _told(ranks: Sequence[RankTimes], name: str) -> list[float]:
    return [at for at in (getattr(rank, name) for rank in ranks) if at is not None]
