"""What the report reckons before it draws: spreads, roads, kept verifications, whose section is written."""

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.model import Event, KeptReport, State
from inventory.report import facts, fleet, robust
from inventory.report.facts import chosen, last_run
from inventory.report.reading import MAX_ITEMS, read
from inventory.report.road import stays
from inventory.report.timeline import ends
from tests.verify import reported

from . import fleets
from .fleets import NOW

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=20,
)
_NAMES = (
    "name",
    "rank",
    "start_ms",
    "joined_ms",
    "go_ms",
    "end_ms",
    "ok",
    "seconds",
    "detail",
    "ms",
    "verdict",
    "kind",
)
_ITEM = st.dictionaries(st.sampled_from(_NAMES), JSON)
RUN = st.fixed_dictionaries(
    {},
    optional={
        "ranks": JSON,
        **{
            part: JSON | st.lists(_ITEM, max_size=3)
            for part in ("phases", "time_line", "checks", "scenarios")
        },
        "not_checked": JSON | st.lists(st.text(), max_size=3),
    },
)
DOCUMENT = JSON | st.fixed_dictionaries(
    {},
    optional={"verification": JSON | RUN, "outcome": JSON, "seconds": JSON, "error": JSON, "identity": JSON},
)


def kept(document: Any, *, passed: bool = True) -> KeptReport:
    return KeptReport("gpu-01", NOW, passed, document)


def event(hours: float, before: State | None, after: State) -> Event:
    return Event(NOW + timedelta(hours=hours), "mira", "ops-1", before, after, "so")


def test_one_slow_node_stands_out_and_does_not_move_the_median() -> None:
    values = {f"n{number}": 1.0 + number / 100 for number in range(9)}
    found = robust.spread({**values, "slow": 400.0})

    assert found is not None
    assert [(each.name, each.value) for each in found.outliers] == [("slow", 400.0)]
    assert found.median == pytest.approx(1.045)
    assert found.mad == pytest.approx(0.025)
    assert (found.low, found.high) == (1.0, 1.08)
    assert found.outliers[0].score == pytest.approx(0.6745 * (400 - 1.045) / 0.025, rel=1e-6)


def test_a_node_that_is_too_quick_stands_out_as_well() -> None:
    found = robust.spread({**{f"n{number}": 1.0 + number / 100 for number in range(9)}, "quick": 0.01})

    assert found is not None
    assert [each.name for each in found.outliers] == ["quick"]
    assert found.outliers[0].score < 0


def test_nodes_that_take_the_same_time_are_not_told_apart_by_noise() -> None:
    found = robust.spread({**{f"n{number}": 1.0 for number in range(20)}, "same": 1.05})

    assert found is not None
    assert found.outliers == ()


def test_few_nodes_are_described_and_not_judged() -> None:
    found = robust.spread({"a": 1.0, "b": 1.0, "c": 1.0, "d": 900.0})

    assert found is not None
    assert not found.judged
    assert found.outliers == ()
    assert robust.spread({}) is None


@given(st.dictionaries(st.text(max_size=4), st.floats(0, 1e9), min_size=1))
def test_a_spread_is_in_order_and_half_of_the_nodes_never_stand_out(values: dict[str, float]) -> None:
    found = robust.spread(values)

    assert found is not None
    assert min(values.values()) <= found.q1 <= found.median <= found.q3 <= max(values.values())
    assert found.low <= found.high
    assert len(found.outliers) <= len(values) / 2
    assert all(math.isfinite(each.score) for each in found.outliers)


def test_a_road_is_told_as_stays_with_what_happened_in_them() -> None:
    walked = stays(
        (
            event(0, None, State.VERIFYING),
            event(1, State.VERIFYING, State.IN_SERVICE),
            event(5, State.IN_SERVICE, State.IN_SERVICE),
            event(24, State.IN_SERVICE, State.VERIFY_FAILED),
        )
    )

    assert [stay.state for stay in walked] == [State.VERIFYING, State.IN_SERVICE, State.VERIFY_FAILED]
    assert [len(stay.notes) for stay in walked] == [0, 1, 0]
    later = NOW + timedelta(hours=30)
    assert [stay.lasted(later) / timedelta(hours=1) for stay in walked] == [1, 23, 6]
    assert stays(()) == ()


def test_a_clock_that_went_back_makes_no_stay_negative() -> None:
    walked = stays((event(5, None, State.PLANNED), event(2, State.PLANNED, State.PROVISIONING)))

    assert walked[0].lasted(NOW) == timedelta(0)
    assert walked[1].lasted(NOW) == timedelta(0)


def test_what_verify_node_writes_is_read_whole() -> None:
    told = reported.report(
        error=reported.ERROR, scenarios=(reported.scenario("killed-rank", ok=False, detail="late"),)
    )
    found = read(kept(told.to_json(), passed=False))

    assert (found.outcome, found.seconds, found.ranks, found.unread) == ("failed", 1.5, 8, False)
    assert found.why == "killed-rank: too late"
    assert found.failed == ("killed-rank",)
    assert [(each.rank, each.joined_ms) for each in found.time_line][:2] == [(0, 10.0), (1, 11.0)]
    assert found.phases == (("start", 99.0), ("go", 200.0), ("teardown", 110.0))
    assert [(each.name, each.verdict) for each in found.checks] == [
        ("expiry", "pass"),
        ("open-files", "warning"),
    ]
    assert found.not_checked == ("GPUs", "between nodes")
    assert found.probe_sha256 == "ab" * 32


def test_a_node_out_of_reach_has_a_report_that_says_only_why() -> None:
    found = read(kept(reported.report(error=reported.LOST).to_json(), passed=False))

    assert found.unread
    assert (found.outcome, found.why) == ("not judged", "no answer within 20 s")


@given(DOCUMENT)
def test_no_document_makes_the_reader_fail(document: Any) -> None:
    found = read(kept(document))
    numbers = [found.seconds, *(ms for _, ms in found.phases), *(each.seconds for each in found.scenarios)]
    numbers += [
        at for each in found.time_line for at in (each.start_ms, each.joined_ms, each.go_ms, each.end_ms)
    ]

    assert all(number is None or (math.isfinite(number) and number >= 0) for number in numbers)
    assert all(math.isfinite(value) for _, value in last_run(kept(document)).times)


def test_a_document_cannot_fill_the_page() -> None:
    scenarios = [{"name": "n" * 10**6, "ok": True, "seconds": 10**400}] * 10**4
    found = read(kept({"verification": {"scenarios": scenarios}}))

    assert len(found.scenarios) == MAX_ITEMS
    assert len(found.scenarios[0].name) < 1100
    assert found.scenarios[0].seconds is None


def test_a_failed_run_gives_its_good_scenarios_to_the_timings_and_no_total() -> None:
    times = dict(last_run(fleets.report("gpu-01", NOW, passed=False)).times)

    assert "scenario assemble" in times
    assert "scenario killed-leader" not in times
    assert not [name for name in times if not name.startswith("scenario ")]


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (timedelta(0), "ended"),
        (timedelta(seconds=1), "within 7 days"),
        (timedelta(days=7), "within 7 days"),
        (timedelta(days=7, seconds=1), "within 30 days"),
        (timedelta(days=30), "within 30 days"),
        (timedelta(days=30, seconds=1), "later"),
    ],
)
def test_the_drawing_and_the_words_agree_on_when_a_certificate_ends(left: timedelta, told: str) -> None:
    words, fill = fleet.BUCKETS[fleet.bucket(NOW + left, NOW)]

    assert words == told
    assert f'<g class="{fill}">' in ends([("gpu-01", NOW + left)], NOW)


def test_certificates_that_were_ended_on_purpose_are_not_counted() -> None:
    retired = fleets.whole(1, State.RETIRED, waited=timedelta(days=1), left=timedelta(days=3))
    serving = fleets.whole(2, State.IN_SERVICE, waited=timedelta(days=1), left=timedelta(days=3))

    assert fleets.row(retired).certified is None
    assert fleets.row(serving).certified == NOW + timedelta(days=3)


def test_a_small_fleet_has_every_section_and_a_great_one_those_that_need_somebody() -> None:
    few = tuple(map(fleets.row, fleets.fleet()))
    many = tuple(_named(few[number % len(few)], number) for number in range(2000))
    asking = [row.summary.name for row in many if row.summary.state not in (State.IN_SERVICE, State.RETIRED)]

    assert len(chosen(few, ())) == len(few)
    assert len(asking) > facts.SECTIONS_OF_ALL
    found = chosen(many, ())
    assert len(found) == facts.SECTIONS_OF_ALL
    assert set(found) < set(asking)
    failed = {row.summary.name for row in many if row.summary.state.endswith("-failed")}
    assert failed <= set(found)
    assert chosen(many, ("n-0001",)) == ("n-0001",)


def _named(row: facts.Row, number: int) -> facts.Row:
    return replace(row, summary=replace(row.summary, name=f"n-{number:04}"))
