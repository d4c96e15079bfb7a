"""What a ticket says of fabrics must be true of the node, by the MAC of each device."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.errors import Refused
from inventory.model import Fabric
from onboard import facts as node_facts
from onboard.fabrics import contradictions
from onboard.plan import Install
from tests.onboard.test_plan import facts, planned

ONE, TWO, GONE = "bc:24:11:00:00:01", "bc:24:11:00:00:02", "bc:24:11:00:00:99"
NODE = {ONE: "eth1", TWO: "eth2"}


@pytest.mark.parametrize(
    ("fabric", "words"),
    [
        (Fabric("f", mac=ONE), None),
        (Fabric("f", interface="eth2"), None),
        (Fabric("f", mac=ONE, interface="eth1"), None),
        (Fabric("f", mac=ONE, interface="eth2"), "f is said to be eth2, but its MAC"),
        (Fabric("f", mac=ONE, interface="eth9"), "that of eth1"),
        (Fabric("f", mac=GONE), f"no interface with the MAC {GONE} of f"),
        (Fabric("f", mac=GONE, interface="eth1"), "nor is that of eth1"),
        (Fabric("f", interface="eth9"), "no interface eth9"),
        (Fabric("f"), "neither MAC nor interface"),
    ],
)
def test_mac_and_interface_must_be_one_device_of_the_node(fabric: Fabric, words: str | None) -> None:
    told = contradictions([fabric], NODE)

    assert len(told) == (words is not None)
    assert words is None or words in told[0]


def test_two_fabrics_are_two_devices() -> None:
    told = contradictions([Fabric("a", mac=ONE), Fabric("b", interface="eth1")], NODE)

    assert told == ["a and b are both eth1"]


@given(macs=st.permutations([ONE, TWO]), named=st.booleans())
def test_fabrics_that_are_told_by_the_nodes_own_macs_are_all_right(*, macs: list[str], named: bool) -> None:
    fabrics = [
        Fabric(f"f{place}", mac=mac, interface=NODE[mac] if named else None) for place, mac in enumerate(macs)
    ]

    assert contradictions(fabrics, NODE) == []


def test_a_node_with_such_a_contradiction_gets_no_identity_and_hears_all_of_them() -> None:
    with pytest.raises(Refused) as refused:
        planned(
            facts(interfaces=NODE),
            fabrics=(Fabric("a", mac=ONE, interface="eth2"), Fabric("b", mac=GONE)),
        )

    assert "but its MAC" in refused.value.why
    assert GONE in refused.value.why


def test_the_agent_is_told_the_device_that_has_the_mac() -> None:
    made = planned(facts(interfaces=NODE), fabrics=(Fabric("a", mac=TWO), Fabric("b", mac=ONE)))
    step = next(step for step in made.steps if isinstance(step, Install))

    assert [(fabric.name, fabric.interface) for fabric in step.agent.fabrics] == [
        ("a", "eth2"),
        ("b", "eth1"),
    ]


def test_a_vlan_on_top_of_a_device_is_not_taken_for_it() -> None:
    """Both have one MAC, and the kernel lists the device first."""
    told = node_facts.parse(
        f"uid=0\nclock=1\ninterface=eth1 {ONE}\ninterface=eth1.50 {ONE}\nend=facts\n".encode()
    )

    assert told.interfaces == {ONE: "eth1"}
