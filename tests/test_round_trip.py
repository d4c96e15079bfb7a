"""Every file of ours, as hypothesis makes them: loaded, dumped and loaded again it is the same, and says the same."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ca.ceremony import Ceremony
from ca.policy import Policy
from inventory.agent_config import AgentConfig, AgentFabric, Identity
from inventory.document import Model, dump, loads
from inventory.server_config import ServerConfig
from provision.spec import Site

FEW = settings(max_examples=30)  # each example is a file of many keys
BASE, ELSEWHERE = Path("/etc/muster"), Path("/somewhere/else")
Plain = dict[str, Any]

# What YAML 1.1 and careless dumpers make something else of.
HOSTILE = [
    "no",
    "on",
    "~",
    "null",
    "012",
    "0x1f",
    "1e3",
    "22:22",
    "2026-11-30",
    "- a",
    "a: b",
    "#",
    "'",
    '"',
    "%",
]
TEXT = st.sampled_from(HOSTILE) | st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=200
)
FILES = st.sampled_from(["a.pem", "no", "/etc/ssl/a b.pem", "../up", "012", "ä", "keys/x: y"])
WORDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,11}", fullmatch=True) | st.sampled_from(
    ["no", "012", "1e3"]
)
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
PRINTABLE = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=90)


def some(required: Plain, **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Plain]:
    """A mapping with these keys, and some of those."""
    return st.fixed_dictionaries(required, optional=optional)


def several(
    items: st.SearchStrategy[Any], *, least: int = 0, key: str | None = None
) -> st.SearchStrategy[Any]:
    by = None if key is None else lambda item: item[key]
    return st.lists(items, min_size=least, max_size=3, unique_by=by or json.dumps)


RATES = st.floats(min_value=0, exclude_min=True, allow_infinity=False) | st.integers(1, 10**6)
AGENT = some(
    {
        "node": NAMES,
        "identity": some(
            {"cert_file": FILES, "key_file": FILES, "ca_file": FILES}, crl_file=FILES | st.none()
        ),
    },
    fabrics=several(
        some(
            {"name": TEXT, "interface": st.sampled_from(HOSTILE) | PRINTABLE.map(lambda text: text[:15])},
            rate_gbps=RATES | st.none(),
            mtu=st.integers(576, 65520) | st.none(),
        )
    ),
)
PARALLEL = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
SERVER = st.fixed_dictionaries(
    {
        "models": several(
            st.builds(
                lambda name, source, engine, shape: {
                    "name": name,
                    "source": source,
                    "engine": engine,
                    "nnodes": shape[0],
                    "tensor_parallel": shape[0] * shape[1],
                    "pipeline_parallel": shape[2],
                },
                TEXT,
                TEXT,
                st.sampled_from(["sim", "vllm", "sglang"]),
                PARALLEL,
            ),
            least=1,
            key="name",
        )
    }
)
DOMAINS = st.sampled_from(["lab.example", "no", "012.lab.example", "x_y.example"])
KEYS = st.sampled_from(["p256", "p384", "ed25519"])
POLICY = some(
    {
        "trust_domain": DOMAINS,
        "names": several(
            st.sampled_from(["{node}.a.example", "{node}.b.example", "x-{node}.a.example"]), least=1
        ),
    },
    addresses=several(st.sampled_from(["10.0.0.0/8", "fd00::/8", "127.0.0.0/8"])),
    nodes=several(st.sampled_from(["gpu-[01-64]", "cpu-1", "no"]), least=1) | st.none(),
    node_keys=several(KEYS, least=1),
    lifetime_days=st.integers(1, 366),
    ticket_signers=FILES | st.none(),
    ticket_revoked_keys=FILES | st.none(),
    max_ticket_age_h=st.integers(1, 720),
    max_clock_skew_s=st.integers(0, 3600),
    machine_uuid=st.sampled_from(["required", "optional"]),
    unattended=st.booleans(),
    bootstrap_keys=st.sampled_from(["remove", "keep"]),
    ssh=st.fixed_dictionaries({"key_file": FILES}) | st.none(),
    install=some(
        {},
        dir=st.sampled_from(["/etc/muster", "/opt/a.b/c_d"]),
        owner=st.sampled_from(["root", "no", "muster"]),
        group=st.sampled_from(["root", "no"]),
        check_command=PRINTABLE | st.sampled_from(HOSTILE) | st.none(),
        reload_command=PRINTABLE | st.none(),
    ),
)
CEREMONY = some(
    {"trust_domain": DOMAINS},
    organisation=TEXT,
    policy=FILES | st.none(),
    root=some(
        {},
        key=KEYS,
        lifetime_days=st.integers(366, 9131),
        passphrase_file=FILES | st.none(),
        out=FILES | st.none(),
    )
    | some({}, request_out=FILES),
    issuing=some({}, key=KEYS, lifetime_days=st.integers(31, 3652), passphrase_file=FILES)
    | st.fixed_dictionaries(
        {"token": st.just("pkcs11:token=ca;object=a?module-path=/lib/a.so"), "pin_file": FILES}
    ),
)
RANGES = st.sampled_from(
    [{"from": "10.0.0.2/24", "to": "10.0.0.9/24"}, {"from": "fd00::2/64", "to": "fd00::ffff/64"}]
)
PART: dict[str, st.SearchStrategy[Any]] = {
    "linked": st.booleans(),
    "node": WORDS,
    "sockets": st.integers(1, 16) | st.none(),
    "ssh_port": st.integers(1, 65535),
    "gpus": st.none() | st.fixed_dictionaries({"mapping": WORDS, "count": st.integers(1, 16)}),
    "fabrics": several(
        some(
            {"name": NAMES, "bridge": WORDS.map(lambda text: text[:15])},
            vlan=st.integers(1, 4094) | st.none(),
            queues=st.integers(1, 64),
            mtu=st.integers(576, 65520),
            rate_gbps=RATES,
            addresses=RANGES,
        )
        | st.fixed_dictionaries({"name": NAMES, "mapping": WORDS}),
        key="name",
    ),
    "machine": st.sampled_from(["q35", "pc-q35-9.2", "pc"]) | st.none(),
    "bios": st.sampled_from(["seabios", "ovmf"]) | st.none(),
    "secure_boot": st.booleans(),
    "cpu": st.sampled_from(["host", "host,flags=+pcid", "no"]) | st.none(),
    "numa": several(
        some(
            {"cpus": st.sampled_from(["0-31", "1;3"]), "memory_mib": st.integers(1)},
            host_node=st.integers(0, 9),
        )
    ),
    "hugepages_mib": st.sampled_from([2, 1024]) | st.none(),
    "affinity": st.sampled_from(["0-31", "012"]) | st.none(),
}
TEMPLATES = (
    st.integers(100, 999_999_999)
    | st.sampled_from(["tmpl", "no", "9000"])
    | st.builds(lambda tag: {"tag": tag}, WORDS)
)
IMAGE = st.sampled_from(
    [{"volume": "local:import/a.qcow2"}, {"url": "https://x.example/a.img", "sha256": "ab" * 32}]
)
WHOLE: Plain = {
    "storage": WORDS,
    "cores": st.integers(1),
    "memory_mib": st.integers(16),
    "disk_gib": st.integers(1),
    "user": st.sampled_from(["muster", "no"]),
    "ssh_keys_file": FILES,
    "network": some(
        {
            "bridge": WORDS.map(lambda text: text[:15]),
            "address": st.sampled_from(["dhcp", "dhcp6", "auto"])
            | RANGES
            | st.just({"from": "10.0.0.2/24", "to": "10.0.0.9/24", "gateway": "10.0.0.1"}),
        },
        vlan=st.integers(1, 4094),
        queues=st.integers(1, 64) | st.none(),
    ),
}
SITE = some(
    {
        "proxmox": some(
            {"url": st.just("https://pve.example:8006"), "token_file": FILES, "ca_file": FILES}, pool=WORDS
        ),
        "profiles": st.fixed_dictionaries(
            {
                "base": some({**WHOLE, "template": TEMPLATES}, **PART),
                "no": some({"extends": st.just("base")}, **PART, template=TEMPLATES),
                "012": some({"extends": st.just("no"), "image": IMAGE}, **PART),
            }
        ),
    },
    ticket=some({"signing_key": FILES}, valid_h=st.integers(1)) | st.none(),
    receipt_signers=FILES | st.none(),
    vmids=st.builds(
        lambda low, more: {"from": low, "to": low + more}, st.integers(100, 9999), st.integers(0, 9999)
    ),
    nodes=st.just({}) | some({}, **{"gpu-07": some({}, address=st.just("10.0.0.7/24"))}),
)


def again(model: type[Model], document: Plain) -> tuple[Model, Model]:
    """The document as loaded, and as loaded from what was dumped of it, from another folder."""
    first = loads(json.dumps(document), model, name="first", base=BASE)
    return first, loads(dump(first), model, name="again", base=ELSEWHERE)


@FEW
@given(AGENT)
def test_an_agent_file_is_the_same_again(document: Plain) -> None:
    first, second = again(AgentConfig, document)

    assert second == first


@FEW
@given(SERVER)
def test_a_server_file_is_the_same_again(document: Plain) -> None:
    first, second = again(ServerConfig, document)

    assert second == first


@FEW
@given(POLICY)
def test_a_policy_is_the_same_again(document: Plain) -> None:
    first, second = again(Policy, document)

    assert second == first


@FEW
@given(CEREMONY)
@example({"trust_domain": "lab.example", "organisation": "\x85"})
def test_a_ceremony_is_the_same_again_and_comes_to_the_same_plan(document: Plain) -> None:
    first, second = again(Ceremony, document)

    assert isinstance(first, Ceremony)
    assert isinstance(second, Ceremony)
    assert second == first
    assert second.plan == first.plan


@FEW
@given(SITE)
def test_a_site_is_the_same_again_and_its_profiles_inherit_the_same(document: Plain) -> None:
    first, second = again(Site, document)

    assert isinstance(first, Site)
    assert isinstance(second, Site)
    assert second == first
    for name in first.profiles:
        assert second.profile(name) == first.profile(name)


@FEW
@given(SITE)
def test_what_a_site_file_leaves_out_is_not_written_and_what_it_sets_to_null_is(document: Plain) -> None:
    _, second = again(Site, document)

    assert isinstance(second, Site)
    for name, profile in document["profiles"].items():
        assert second.profiles[name].model_fields_set == {*profile}


def test_values_that_are_absent_are_not_written_for_the_nodes_agent() -> None:
    identity = Identity.model_validate_json('{"cert_file": "/a", "key_file": "/b", "ca_file": "/c"}')
    config = AgentConfig(
        node="gpu-07",
        identity=identity,
        fabrics=(AgentFabric(name="f", interface="eth1", rate_gbps=None, mtu=None),),
    )

    assert "null" not in dump(config)
    assert loads(dump(config), AgentConfig, name="again", base=BASE) == config


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_that_looks_like_something_else_stays_a_text(text: str) -> None:
    config = AgentConfig.model_validate_json(
        json.dumps(
            {
                "node": "gpu-07",
                "identity": {"cert_file": "/a", "key_file": "/b", "ca_file": "/c"},
                "fabrics": [{"name": text, "interface": text}],
            }
        )
    )
    found = loads(dump(config), AgentConfig, name="again", base=BASE)

    assert (found.fabrics[0].name, found.fabrics[0].interface) == (text, text)
