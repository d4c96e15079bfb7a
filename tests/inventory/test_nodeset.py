"""Node sets: what they hold, and what they are spelled out to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.nodeset import NodeSet, expand


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("gpu-[01-64]", ["gpu-01", "gpu-64"], ["gpu-1", "gpu-65", "gpu-001", "gpu-", "xgpu-01", "gpu-01x"]),
        ("gpu-[1-12]", ["gpu-1", "gpu-12"], ["gpu-01", "gpu-13", "gpu-0"]),
        ("gpu-[01-04,80]", ["gpu-04", "gpu-80"], ["gpu-05", "gpu-81"]),
        ("r[1-2]n[08-10]", ["r1n08", "r2n10"], ["r3n08", "r1n8"]),
        ("login", ["login"], ["login1"]),
    ],
)
def test_a_node_set_holds_what_it_says(text: str, inside: list[str], outside: list[str]) -> None:
    nodes = NodeSet.parse(text)

    assert [name for name in inside if name not in nodes] == []
    assert [name for name in outside if name in nodes] == []


@pytest.mark.parametrize(
    "text",
    ["", "gpu-[]", "gpu-[a-b]", "gpu-[64-01]", "gpu-[1-064]", "gpu-[1", "gpu-1]", "GPU-1", "g p", "-gpu", "gpu-",
     "gpu-[1,,2]", "[[1]]"],
)  # fmt: skip
def test_a_malformed_node_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"node set|range|digits|backwards"):
        NodeSet.parse(text)


@given(st.integers(1, 999), st.integers(0, 50), st.integers(0, 1200))
def test_a_padded_range_holds_exactly_its_numbers(low: int, more: int, number: int) -> None:
    high = min(low + more, 999)

    assert (f"n{number:03}" in NodeSet.parse(f"n[{low:03}-{high:03}]")) is (low <= number <= high)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu-[08-10]", ["gpu-08", "gpu-09", "gpu-10"]),
        ("gpu-[8-10]", ["gpu-8", "gpu-9", "gpu-10"]),
        ("gpu-[1,1,3]", ["gpu-1", "gpu-3"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
        ("login", ["login"]),
    ],
)
def test_a_node_set_is_spelled_out_in_the_order_of_writing(text: str, names: list[str]) -> None:
    assert list(NodeSet.parse(text).names()) == names


def test_several_sets_name_each_node_once() -> None:
    assert expand(["b", "a-[1-2]", "a-[2-3]", "b"]) == ("b", "a-1", "a-2", "a-3")


@pytest.mark.parametrize("texts", [["n[1-999999999]"], ["n[1-4097]"], ["a[1-64]b[1-65]"], ["a[1-4096]", "b"]])
def test_more_nodes_than_one_command_takes_are_refused_before_they_are_spelled_out(texts: list[str]) -> None:
    with pytest.raises(ValueError, match="one command takes 4096"):
        expand(texts)


@given(st.integers(0, 99), st.integers(0, 40), st.sampled_from([0, 3]))
def test_a_set_holds_every_name_that_it_is_spelled_out_to(low: int, more: int, width: int) -> None:
    nodes = NodeSet.parse(f"n[{low:0{width}}-{low + more:0{width}}]-x")

    assert len(nodes.names()) == more + 1
    assert all(name in nodes for name in nodes.names())
