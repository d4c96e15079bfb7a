"""The planner of a rotation, by itself: where it stands, what comes next, what blocks it."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ca.phases import Phase
from ca.rotation import (
    ACTIVATED,
    BEGUN,
    DISTRIBUTED,
    LINES,
    PREPARED,
    RETIRED,
    UNDONE,
    Facts,
    Stage,
    Standing,
    plan,
    remaining,
    standing,
)

FIRST = {"root_sha256": "r1", "issuing_sha256": "i1", "root_key": "/away/root-key.json"}
BEGINS: tuple[str, Mapping[str, Any]] = (BEGUN, {"waits": False})


def new(root: str = "r1", name: str = "i2") -> tuple[str, Mapping[str, Any]]:
    return PREPARED, {"id": name, "root_sha256": root, "issuing_sha256": name, "root_key": ""}


def after(*lines: tuple[str, Mapping[str, Any]]) -> Standing:
    return standing(FIRST, [(10 * n, kind, body) for n, (kind, body) in enumerate(lines, 1)])


def test_an_authority_that_was_never_rotated_prepares_next() -> None:
    assert after().current.issuing_sha256 == "i1"
    assert plan(after(), Facts()).phase is Phase.PREPARE


def test_a_new_root_goes_through_every_phase_and_a_new_issuing_authority_leaves_distribute_out() -> None:
    whole: list[tuple[str, Mapping[str, Any]]] = [
        new("r2"),
        (DISTRIBUTED, {}),
        (ACTIVATED, {}),
        (RETIRED, {}),
    ]

    phases = [plan(after(*whole[:n]), Facts()).phase for n in range(1, 5)]
    phases.append(plan(after(new()), Facts()).phase)

    assert phases == [Phase.DISTRIBUTE, Phase.ACTIVATE, Phase.RETIRE, Phase.PREPARE, Phase.ACTIVATE]


def test_nodes_trust_both_roots_from_distribute_to_retire() -> None:
    lines: list[tuple[str, Mapping[str, Any]]] = [
        BEGINS,
        new("r2"),
        (DISTRIBUTED, {}),
        (ACTIVATED, {}),
        (RETIRED, {}),
    ]

    trusted = [[each.root_sha256 for each in after(*lines[:n]).trusted] for n in range(6)]

    assert trusted == [["r1"], ["r1"], ["r1"], ["r1", "r2"], ["r1", "r2"], ["r2"]]


def test_each_certificate_belongs_to_the_authority_that_issued_at_its_line() -> None:
    found = after(new(), (ACTIVATED, {}), (RETIRED, {}), new(name="i3"), (ACTIVATED, {}))

    assert [(each.issuing_sha256, each.since, found.until(each)) for each in found.all] == [
        ("i1", 0, 20),
        ("i2", 20, 50),
        ("i3", 50, None),
    ]
    assert [each.issuing_sha256 for each in found.listing] == ["i3", "i2"]


@pytest.mark.parametrize(
    "lines",
    [
        [(ACTIVATED, {})],
        [(DISTRIBUTED, {})],
        [(RETIRED, {})],
        [new(), new()],
        [new("r2"), (ACTIVATED, {}), (UNDONE, {})],
        [("rotation-unheard-of", {})],
    ],
)
def test_a_line_that_cannot_follow_is_refused(lines: list[tuple[str, Mapping[str, Any]]]) -> None:
    with pytest.raises(ValueError, match="cannot follow"):
        after(*lines)


def test_only_naming_every_node_that_is_left_behind_lifts_a_block() -> None:
    blocks = plan(after(new("r2"), (DISTRIBUTED, {})), Facts(lacking=("a", "b"))).blocks

    assert [block.nodes for block in remaining(blocks, ["a"])] == [("b",)]
    assert remaining(blocks, ["a", "b", "c"]) == ()
    retiring = plan(after(new("r2"), (DISTRIBUTED, {}), (ACTIVATED, {})), Facts(lacking=("a",))).blocks
    assert remaining(retiring, ["a"]) == retiring != ()


def test_lists_that_lack_the_successor_block_whatever_is_named() -> None:
    blocks = plan(after(new()), Facts(lists_lack=True, holding_older=("a",))).blocks

    assert len(remaining(blocks, ["a"])) == 1


def test_retiring_waits_for_live_certificates_and_for_revoked_ones_where_the_root_stays() -> None:
    same, other = after(new(), (ACTIVATED, {})), after(new("r2"), (DISTRIBUTED, {}), (ACTIVATED, {}))
    end = datetime(2026, 12, 30, tzinfo=UTC)
    live = Facts(live_below=("a",), ends=end)
    revoked = Facts(revoked_below=2, ends=end)

    assert all(plan(each, live).blocks for each in (same, other))
    assert "2026-12-30T00:00:00Z" in plan(same, revoked).blocks[0].mend
    assert plan(other, revoked).blocks == ()
    assert plan(same, Facts()).blocks == ()


@given(st.lists(st.sampled_from(LINES), max_size=12))
def test_whatever_the_lines_say_there_is_one_issuer_and_a_root_for_it(kinds: list[str]) -> None:
    bodies: dict[str, Mapping[str, Any]] = {BEGUN: {"waits": True}}
    lines = [
        (kind, bodies.get(kind, new(f"r{n % 2}", f"n{n}")[1] if kind == PREPARED else {}))
        for n, kind in enumerate(kinds, 2)
    ]
    try:
        found = after(*lines)
    except ValueError:
        return

    assert found.current in found.listing
    assert found.current.root_sha256 in {each.root_sha256 for each in found.trusted}
    assert len({each.root_sha256 for each in found.trusted}) == len(found.trusted) <= 2
    assert (found.stage is Stage.ACTIVATED) is (found.former is not None)
    assert plan(found, Facts()).blocks == ()
