from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ca.policy import Install as InstallPolicy
from ca.policy import Policy
from inventory.errors import OtherSide, Refused
from inventory.model import Fabric
from onboard import facts as node_facts
from onboard.facts import Facts, Generation
from onboard.plan import Certify, Install, MakeKey, Plan, RemoveBootstrap, plan
from tests.onboard.kit import NOW, ticket

CERTIFY = Certify(
    ("gpu-01.nodes.lab.example",), ("127.20.0.5",), "spiffe://lab.example/node/gpu-01", timedelta(30)
)


def policy(**other: object) -> Policy:
    return Policy.model_validate_json(
        '{"trust_domain": "lab.example", "names": ["{node}.nodes.lab.example"]}'
    ).model_copy(update=other)


def facts(**other: object) -> Facts:
    told = Facts(
        uid=0,
        clock=NOW,
        machine_id="ab" * 16,
        machine_uuid="0e1a2b3c-0000-4000-8000-000000000001",
        owner_uid=1000,
        group_known=True,
        missing=(),
        openssl="3.0.19",
        current=None,
        current_sha256=None,
        generations=(),
        interfaces={"bc:24:11:00:00:02": "eth1"},
    )
    return replace(told, **other)  # type: ignore[arg-type]  # facts vary by test


def planned(told: Facts, rules: Policy | None = None, **other: object) -> Plan:
    return plan(replace(ticket(), **other), told, rules or policy(), CERTIFY, now=NOW)  # type: ignore[arg-type]  # vary


def test_a_fresh_node_gets_key_certificate_installation_and_loses_the_bootstrap_key() -> None:
    steps = planned(facts()).steps

    assert [type(step) for step in steps] == [MakeKey, Certify, Install, RemoveBootstrap]
    assert steps[0] == MakeKey(1, again=False)


def test_a_policy_may_keep_the_bootstrap_keys() -> None:
    steps = planned(facts(), policy(bootstrap_keys="keep")).steps

    assert not any(isinstance(step, RemoveBootstrap) for step in steps)


def test_an_interrupted_run_finds_the_key_made_for_its_ticket() -> None:
    told = facts(generations=(Generation(3, "ffff"), Generation(4, ticket().id)))

    assert planned(told).steps[0] == MakeKey(4, again=True)


def test_an_older_identity_stays_and_the_new_one_gets_the_next_number() -> None:
    made = planned(facts(current=3, generations=(Generation(3, "ffff"),)))

    assert made.steps[0] == MakeKey(4, again=False)
    assert "older identity" in made.warnings[0]


def test_every_reason_against_a_node_is_told_at_once() -> None:
    told = facts(
        machine_uuid="0e1a2b3c-0000-4000-8000-00000000ffff",
        machine_id="cd" * 16,
        clock=NOW - timedelta(hours=2),
        missing=("openssl", "python3"),
        owner_uid=None,
        group_known=False,
        uid=1000,
    )
    with pytest.raises(Refused) as refused:
        planned(told)

    for word in (
        "machine uuid is 0e1a2b3c-0000-4000-8000-00000000ffff",
        "machine-id is cdcd",
        "2:00:00 behind",
        "lacks openssl",
        "lacks python3",
        "no user muster",
        "no group muster",
    ):
        assert word in refused.value.why


def test_a_uuid_that_cannot_be_read_is_refused_unless_policy_says_optional() -> None:
    with pytest.raises(Refused, match="could not be read"):
        planned(facts(machine_uuid=None))

    assert (
        "could not be read" in planned(facts(machine_uuid=None), policy(machine_uuid="optional")).warnings[0]
    )


def test_another_uuid_is_refused_even_where_it_is_optional() -> None:
    with pytest.raises(Refused, match="machine uuid"):
        planned(facts(machine_uuid="0e1a2b3c-0000-4000-8000-00000000ffff"), policy(machine_uuid="optional"))


@given(st.integers(min_value=-4000, max_value=4000))
def test_a_clock_is_taken_just_as_far_as_the_policy_says(skew: int) -> None:
    told = facts(clock=NOW + timedelta(seconds=skew))
    if abs(skew) <= 300:
        assert planned(told).skew == timedelta(seconds=skew)
    else:
        with pytest.raises(Refused, match="clock"):
            planned(told)


def test_a_login_without_sudo_will_do_only_for_its_own_folder() -> None:
    own = policy(install=InstallPolicy(owner="muster", group="muster"))
    other = policy(install=InstallPolicy(owner="agent", group="agent"))

    assert planned(facts(uid=1000), own).steps
    assert planned(facts(uid=1000, owner_uid=1000), other).steps  # it may act as the owner, and did
    with pytest.raises(Refused, match=r"'muster ALL=\(ALL\) NOPASSWD: ALL'"):
        planned(facts(uid=1000, owner_uid=1001), other)


def test_the_sudo_line_that_is_needed_is_told_to_the_letter_and_why_sudo_would_not() -> None:
    told = facts(
        uid=1000, owner_uid=1001, machine_uuid=None, cat="/bin/cat", sudo="sudo: a password is required"
    )
    with pytest.raises(Refused) as refused:
        planned(told)

    assert "(sudo -n says: sudo: a password is required)" in refused.value.why
    assert "'muster ALL=(root) NOPASSWD: /bin/cat /sys/class/dmi/id/product_uuid'" in refused.value.why


def test_a_fabrics_interface_is_found_by_its_mac() -> None:
    fabric = Fabric("fabric0", mac="bc:24:11:00:00:02", mtu=9000, rate_gbps=400.0)
    install = next(step for step in planned(facts(), fabrics=(fabric,)).steps if isinstance(step, Install))

    assert install.agent.fabrics[0].interface == "eth1"
    assert install.agent.fabrics[0].rate_gbps == 400.0
    with pytest.raises(Refused, match="no interface with the MAC"):
        planned(facts(interfaces={}), fabrics=(fabric,))


@given(st.binary(max_size=400))
def test_what_a_node_babbles_is_parsed_or_refused(output: bytes) -> None:
    with pytest.raises(OtherSide):
        node_facts.parse(output)
    with pytest.raises(OtherSide):
        node_facts.csr(output)


@pytest.mark.parametrize(
    "line",
    [
        "machine_uuid=$(reboot)",
        "current=generations/../../root",
        "current_sha256=xyz",
        "machine_id=\x1b[31m",
        "generation=1 ../x",
        "interface=eth0 zz",
        "unknown=1",
    ],
)
def test_a_value_of_another_form_counts_as_not_told(line: str) -> None:
    told = node_facts.parse(f"uid=0\nclock=1796040000\n{line}\nend=facts\n".encode())

    assert (told.machine_uuid, told.current, told.current_sha256, told.machine_id) == (None, None, None, None)
    assert told.generations == ()
    assert told.interfaces == {}
    assert told.clock == datetime.fromtimestamp(1796040000, UTC)
