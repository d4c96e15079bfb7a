"""The policy: what its file may say, and what it grants."""

import ipaddress
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ca.kinds import KeyType
from ca.policy import Install, Policy, Request, Ssh, allow, minimal
from inventory.document import dump, load, loads
from inventory.errors import BadFile, BadInput, Refused
from tests.ca.material import policy

EXAMPLE = Path(__file__).parents[2] / "examples" / "policy.yaml"


def test_every_key_of_the_example_arrives_with_its_value() -> None:
    found = load(EXAMPLE, Policy)

    assert found == Policy(
        trust_domain="lab.example",
        names=("{node}.nodes.lab.example", "{node}.gpu.lab.example"),
        addresses=("10.0.0.0/16", "fd00:20::/64"),
        nodes=("gpu-[01-64]", "cpu-[1-8]"),
        node_keys=(KeyType.P256, KeyType.P384, KeyType.ED25519),
        lifetime_days=14,
        ticket_signers=EXAMPLE.parent / "allowed_signers",
        ticket_revoked_keys=EXAMPLE.parent / "revoked_keys",
        max_ticket_age_h=48,
        max_clock_skew_s=120,
        machine_uuid="optional",
        unattended=True,
        bootstrap_keys="keep",
        ssh=Ssh(key_file=EXAMPLE.parent / "id_holder"),
        install=Install(
            dir="/opt/agent/identity",
            owner="agent",
            group="agents",
            check_command="/usr/bin/agent --check-config /opt/agent/identity/current/agent.yaml",
            reload_command="systemctl reload agent",
        ),
    )
    defaults = Policy(trust_domain="x", names=("{node}.x",))
    same = [key for key in Policy.model_fields if getattr(found, key) == getattr(defaults, key)]
    assert same == []
    same = [key for key in Install.model_fields if getattr(found.install, key) == getattr(Install(), key)]
    assert same == []


def test_a_policy_reads_back_as_it_was_written() -> None:
    found = load(EXAMPLE, Policy)

    assert loads(dump(found), Policy, name="again", base=Path("/elsewhere")) == found


def test_the_smallest_policy_has_the_documented_defaults() -> None:
    found = loads("trust_domain: lab\nnames: ['{node}.lab']\n", Policy, name="p", base=Path("/"))

    assert (found.addresses, found.nodes, found.lifetime_days, found.ticket_signers) == ((), None, 30, None)
    assert (found.max_ticket_age_h, found.max_clock_skew_s, found.machine_uuid) == (72, 300, "required")
    assert (found.unattended, found.bootstrap_keys, found.ssh) == (False, "remove", None)
    assert found.install == Install(dir="/etc/muster", owner="muster", group="muster")


@pytest.mark.parametrize(
    ("right", "wrong", "place"),
    [
        ("trust_domain: lab.example", "trust_domian: lab.example", "trust_domian"),
        ("lifetime_days: 14", "lifetime_day: 14", "lifetime_day"),
        ("ssh: {key_file: id_holder}", "ssh: {keyfile: id_holder}", "ssh.keyfile"),
        ("  owner: agent", "  ower: agent", "install.ower"),
        ("  reload_command: systemctl", "  reload_comand: systemctl", "install.reload_comand"),
    ],
)
def test_a_misspelt_key_is_refused_with_its_line_at_every_depth(right: str, wrong: str, place: str) -> None:
    text = EXAMPLE.read_text()
    line = next(number for number, found in enumerate(text.splitlines(), 1) if found.startswith(right))

    with pytest.raises(BadFile) as caught:
        loads(text.replace(right, wrong), Policy, name="policy.yaml", base=Path("/"))

    assert any(
        fault.place.startswith(f"policy.yaml:{line}:")
        and fault.text.startswith(f"{place}: unknown key (did you mean ")
        for fault in caught.value.faults
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trust_domain", "Lab.example"),
        ("names", []),
        ("names", ["nodes.lab"]),
        ("names", ["{node}.lab", "{node}.lab"]),
        ("addresses", ["10.0.0.1/16"]),
        ("nodes", []),
        ("nodes", ["gpu-[9-1]"]),
        ("lifetime_days", 0),
        ("lifetime_days", 367),
        ("lifetime_days", "30"),
        ("max_ticket_age_h", 0),
        ("max_clock_skew_s", 3601),
        ("machine_uuid", "never"),
        ("unattended", "no"),
        ("bootstrap_keys", "maybe"),
        ("ssh", {}),
        ("install", {"dir": "etc/muster"}),
        ("install", {"dir": "/"}),
        ("install", {"dir": "/etc/../muster"}),
        ("install", {"dir": "/etc/muster/"}),
        ("install", {"dir": "/etc/mus ter"}),
        ("install", {"dir": "/etc/$(id)"}),
        ("install", {"owner": "Root"}),
        ("install", {"group": "-r"}),
        ("install", {"check_command": " "}),
        ("install", {"reload_command": "a\nb"}),
    ],
)
def test_each_value_is_checked_and_its_key_is_named(key: str, value: object) -> None:
    with pytest.raises(BadFile) as caught:
        policy(**{key: value})

    assert len(caught.value.faults) == 1
    assert caught.value.faults[0].text.startswith(key)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(BadFile) as caught:
        policy(
            trust_domain="A", names=["x", "{node}.lab"], addresses=["1"], lifetme_days=3, install={"dir": "x"}
        )

    told = [re.split(r"[:\[]", fault.text)[0] for fault in caught.value.faults]
    assert sorted(told) == ["addresses", "install.dir", "lifetme_days", "names", "trust_domain"]


def test_names_and_identity_come_from_the_policy() -> None:
    granted = allow(policy(names=["{node}.nodes.lab.example", "n-{node}.lab"]), Request("gpu-01", "10.0.0.7"))

    assert granted.names == ("gpu-01.nodes.lab.example", "n-gpu-01.lab")
    assert granted.addresses == (ipaddress.ip_address("10.0.0.7"),)
    assert granted.spiffe_id == "spiffe://lab.example/node/gpu-01"
    assert granted.lifetime.days == 30


def test_a_leased_address_is_not_certified() -> None:
    assert allow(policy(), Request("gpu-01")).addresses == ()


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Request("10.20.0.11"), "cannot name a node"),
        (Request("GPU-01"), "cannot name a node"),
        (Request("../etc"), "cannot name a node"),
        (Request("gpu-65"), "do not include 'gpu-65'"),
        (Request("gpu-01", "10.1.0.1"), "10.1.0.1 is in none of the policy's addresses"),
        (Request("gpu-01", "fd00::1"), "fd00::1 is in none"),
        (Request("gpu-01", "fe80::1%eth0"), "not an IP address"),
        (Request("gpu-01", "gpu"), "not an IP address"),
        (Request("gpu-01", "10.0.0.7/24"), "not an IP address"),
    ],
)
def test_what_the_policy_does_not_grant_is_refused(request_: Request, said: str) -> None:
    with pytest.raises(Refused) as caught:
        allow(policy(nodes=["gpu-[01-64]"]), request_)

    assert said in caught.value.why


def test_all_reasons_of_a_refusal_are_told_at_once() -> None:
    with pytest.raises(Refused) as caught:
        allow(policy(nodes=["gpu-[01-64]"]), Request("Cpu-1", "192.0.2.1"))

    assert len(caught.value.why.splitlines()) == 3


def test_a_name_that_becomes_too_long_is_refused() -> None:
    with pytest.raises(Refused, match="longer than a label"):
        allow(policy(names=["node-{node}.lab"]), Request("a" * 60))


@given(st.text(max_size=70), st.one_of(st.none(), st.text(max_size=20), st.ip_addresses().map(str)))
def test_whatever_is_asked_for_the_answer_lies_within_the_policy(node: str, address: str | None) -> None:
    rules = policy(nodes=["gpu-[01-64]"])
    try:
        granted = allow(rules, Request(node, address))
    except Refused:
        return

    assert re.fullmatch(r"gpu-[0-9]{2}\.nodes\.lab\.example", granted.names[0])
    assert all(address in ipaddress.ip_network("10.0.0.0/16") for address in granted.addresses)


def test_names_and_addresses_may_be_picked_from_what_the_policy_gives() -> None:
    rules = policy(names=["{node}.nodes.lab.example", "{node}.gpu.lab.example"])
    asked = Request("gpu-01", "10.0.0.7", ("gpu-01.gpu.lab.example",), ("10.0.0.8", "10.0.0.7"))

    granted = allow(rules, asked)

    assert granted.names == ("gpu-01.gpu.lab.example",)
    assert [str(address) for address in granted.addresses] == ["10.0.0.7", "10.0.0.8"]
    both = tuple(reversed(allow(rules, Request("gpu-01")).names))
    assert allow(rules, Request("gpu-01", names=(*both, *both))).names == tuple(reversed(both))


@pytest.mark.parametrize(
    "name",
    [
        "gpu-02.nodes.lab.example",
        "GPU-01.nodes.lab.example",
        "gpu-01.nodes.lab.example.",
        "*.nodes.lab.example",
        "",
    ],
)
def test_a_name_that_the_policy_would_not_give_is_refused(name: str) -> None:
    with pytest.raises(Refused) as caught:
        allow(policy(), Request("gpu-01", names=("gpu-01.nodes.lab.example", name)))
    assert f"{name!r} is none of the names" in caught.value.why


def test_every_fault_of_what_was_picked_is_told_at_once() -> None:
    with pytest.raises(Refused) as caught:
        allow(policy(), Request("gpu-01", names=("a.b", "c.d"), addresses=("8.8.8.8", "words", "10.0.0.1")))
    assert len(caught.value.why.splitlines()) == 4


@pytest.mark.parametrize("domain", ["", "Lab Example", "a" * 250, "-lab.example"])
def test_no_policy_is_made_of_what_is_no_trust_domain(domain: str) -> None:
    with pytest.raises(BadInput, match="gives no policy"):
        minimal(domain)
