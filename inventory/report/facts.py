"""The values that a report is made of: a light row for every node, and the whole of those that get a section."""

import functools
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from inventory.model import Event, KeptReceipt, KeptReport, Node, State, Summary
from inventory.report.reading import Verification, read

SECTIONS_OF_ALL = 500
"""A fleet of at most so many nodes gets a section for each; of a greater one the nodes that are not in service do."""
_NO_IDENTITY = frozenset(
    {State.AWAITING_RETIREMENT, State.RETIRING, State.RETIRE_FAILED, State.RETIRED, State.PLANNED}
)


@dataclass(frozen=True, slots=True)
class LastRun:
    """The little that the fleet's part needs of a node's last verification; the document itself is let go.

    measures, values: seconds of each measure ("all", "phase go", "scenario assemble"), only of what passed.
    """

    at: datetime
    passed: bool
    outcome: str
    why: str
    failed: tuple[str, ...]
    ranks: int | None
    measures: tuple[str, ...]
    values: "array[float]"

    @property
    def times(self) -> Iterator[tuple[str, float]]:
        """Each measure with its seconds."""
        return zip(self.measures, self.values, strict=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One node in the fleet's part. since: when it came to its state."""

    summary: Summary
    since: datetime | None
    last: LastRun | None

    def waited(self, now: datetime) -> timedelta | None:
        """How long it has been in its state; never negative."""
        return None if self.since is None else max(timedelta(0), now - self.since)

    @property
    def certified(self) -> datetime | None:
        """When its certificate ends; None without one, and where the identity was ended on purpose."""
        return None if self.summary.state in _NO_IDENTITY else self.summary.not_after


@dataclass(frozen=True, slots=True)
class Whole:
    """One node with a section. events: oldest first. reports: newest first. receipts: oldest first."""

    node: Node
    events: tuple[Event, ...]
    reports: tuple[KeptReport, ...]
    receipts: tuple[KeptReceipt, ...]


def last_run(kept: KeptReport) -> LastRun:
    """The fleet's share of a kept report."""
    whole = read(kept)
    times = dict(_times(whole))
    return LastRun(
        at=whole.at,
        passed=whole.passed,
        outcome=whole.outcome,
        why=whole.why,
        failed=whole.failed,
        ranks=whole.ranks,
        measures=_shared(tuple(times)),
        values=array("d", times.values()),
    )


@functools.lru_cache(maxsize=64)
def _shared(measures: tuple[str, ...]) -> tuple[str, ...]:
    """One tuple for all nodes that were measured alike: a hundred thousand of them fit in memory."""
    return measures


def _times(whole: Verification) -> Iterator[tuple[str, float]]:
    """A run that failed spends its time in waiting for what does not come; only its good scenarios count."""
    if whole.passed:
        if whole.seconds is not None:
            yield "all", whole.seconds
        for name, ms in whole.phases:
            yield f"phase {name}", ms / 1000
    for each in whole.scenarios:
        if each.ok and each.seconds is not None:
            yield f"scenario {each.name}", each.seconds


def chosen(rows: tuple[Row, ...], named: tuple[str, ...]) -> tuple[str, ...]:
    """Which nodes get a section, by name: the named ones; else all of a small fleet, else those not in service.

    Of more than `SECTIONS_OF_ALL` those that failed come first, then whoever has waited longest.
    """
    if named:
        return named
    if len(rows) <= SECTIONS_OF_ALL:
        return tuple(row.summary.name for row in rows)
    asking = [row for row in rows if row.summary.state not in (State.IN_SERVICE, State.RETIRED)]
    asking.sort(
        key=lambda row: (
            not row.summary.state.endswith("-failed"),
            row.since.timestamp() if row.since else float("inf"),
            row.summary.name,
        )
    )
    return tuple(sorted(row.summary.name for row in asking[:SECTIONS_OF_ALL]))
