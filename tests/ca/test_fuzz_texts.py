"""Whatever comes as a policy or a ticket: a sentence, or exactly what it says and grants.

MUSTER_FUZZ=20 makes twenty times as many attempts as there are in every run.
"""

import ipaddress
import json
import subprocess
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ca.policy import Policy, Request, allow
from ca.profile import constraints
from inventory.document import dump, loads
from inventory.errors import MusterError, Refused
from inventory.model import Address
from inventory.ticket import TICKET_NAMESPACE, Ticket, peek_ticket, read_ticket, sign_ticket
from tests.ca.fuzz import ADDRESSES, NODES, attempts, mangled
from tests.ca.material import NOW, UUID, host_key, policy_text

EXAMPLE = (Path(__file__).parents[2] / "examples" / "policy.yaml").read_bytes()


def within(granting: Policy, request: Request) -> None:
    """What a policy grants lies below its own domains and in its own ranges, whatever is asked for."""
    try:
        granted = allow(granting, request)
    except Refused:
        return
    domains = {name.partition(".")[2] for name in granted.names}
    assert domains <= set(granting.domains)
    assert all(request.node in name.partition(".")[0] for name in granted.names)
    ranges = [ipaddress.ip_network(text) for text in granting.addresses]
    assert all(any(address in whole for whole in ranges) for address in granted.addresses)
    assert granted.spiffe_id == f"spiffe://{granting.trust_domain}/node/{request.node}"
    assert timedelta(days=1) <= granted.lifetime <= timedelta(days=366)


def read_policy(text: str) -> Policy | None:
    try:
        read = loads(text, Policy, name="policy.yaml", base=Path("/etc/ca"))
    except MusterError as error:
        assert error.why  # noqa: PT017 - both ends are right
        return None
    assert loads(dump(read), Policy, name="again", base=Path("/etc/ca")) == read
    constraints(read)
    return read


WORDS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        [
            *(
                "{node}.nodes.lab.example",
                "{node}.lab",
                "{node}",
                "*.lab",
                "{node}.{node}.lab",
                "gpu-[01-99]",
            ),
            *("10.0.0.0/8", "10.0.0.1/8", "::/0", "0.0.0.0/0", "fd00::/64", "lab.example", "LAB.example"),
            *("required", "optional", "p256", "ed25519", "/etc/muster", "../x", "a;b", "366", "0"),
        ]
    ),
)
VALUES = st.recursive(
    WORDS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["key_file", "dir", "owner", "x", "check_command"]), inner, max_size=3
        ),
    ),
    max_leaves=5,
)


@attempts(150)
@given(
    changes=st.dictionaries(st.sampled_from([*Policy.model_fields, "unknown", ""]), VALUES, max_size=3),
    node=NODES,
    address=ADDRESSES,
)
def test_a_policy_of_any_values_is_refused_or_grants_only_what_it_says(
    changes: dict[str, Any], node: str, address: str | None
) -> None:
    read = read_policy(policy_text(**changes))

    if read is not None:
        within(read, Request(node, address))


RANGES = st.builds(
    lambda address, bits: str(
        ipaddress.ip_network((address, min(bits, address.max_prefixlen)), strict=False)
    ),
    st.ip_addresses(),
    st.integers(0, 128),
)


@attempts(100)
@given(
    ranges=st.lists(RANGES, max_size=3, unique=True),
    address=st.one_of(st.ip_addresses(), st.ip_addresses(v=4, network="10.0.0.0/15")).map(str),
    node=st.sampled_from(["gpu-01", "a", "n" * 63]),
)
def test_a_policy_of_any_ranges_grants_no_address_beyond_them(
    ranges: list[str], address: str, node: str
) -> None:
    for some in (ranges, ["10.0.0.0/16", *ranges]):
        read = read_policy(policy_text(addresses=list(dict.fromkeys(some))))

        assert read is not None
        within(read, Request(node, address))


@attempts(60)
@given(text=st.one_of(mangled(EXAMPLE), st.binary(max_size=80)).map(lambda raw: raw.decode("latin-1")))
def test_a_policy_of_any_text_is_refused_or_read(text: str) -> None:
    read = read_policy(text)

    if read is not None:
        within(read, Request("gpu-01", "10.0.0.7"))


# Tickets


def ticket() -> Ticket:
    return Ticket(
        id="ab12",
        node="gpu-01",
        site="pve.example",
        vmid=5000,
        proxmox_node="pve1",
        vm_uuid=UUID,
        machine_id="ab" * 16,
        macs=("bc:24:11:00:00:01",),
        address=Address("10.0.0.7", 24, "static"),
        ssh_port=22,
        host_keys=(host_key(),),
        user="muster",
        fabrics=(),
        profile_hash="00ff",
        made_by="operator@lab",
        made_at=NOW,
        expires=NOW + timedelta(hours=72),
        nonce="cc",
    )


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A real ticket, and the file that says whose tickets count."""
    folder = tmp_path_factory.mktemp("tickets")
    key, signers = folder / "infra", folder / "signers"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "operator@lab", "-f", str(key)]
    subprocess.run(command, check=True, timeout=600)
    public = key.with_suffix(".pub").read_text()
    signers.write_text(f'operator@lab namespaces="{TICKET_NAMESPACE}" {public}')
    return sign_ticket(ticket(), key_file=key), signers


@attempts(40)
@given(data=st.data())
def test_a_mangled_ticket_says_what_was_signed_or_nothing(
    signed: tuple[str, Path], data: st.DataObject
) -> None:
    text, signers = signed
    changed = data.draw(mangled(text.encode())).decode("latin-1")
    try:
        believed = read_ticket(changed, signers=signers, now=NOW)
    except MusterError as error:
        assert error.next_step  # noqa: PT017 - both ends are right
    else:
        assert believed.ticket == ticket()


@attempts(150)
@given(
    key=st.sampled_from([part.name for part in fields(Ticket)]),
    value=st.one_of(
        VALUES,
        st.sampled_from(["\x1b[2J", "-oProxyCommand=x", "../../etc", "a\nb", "gpu-01\u202e", "a" * 70_000]),
    ),
)
def test_no_value_whatsoever_in_a_ticket_ends_in_a_traceback_or_paints(
    signed: tuple[str, Path], key: str, value: Any
) -> None:
    line = json.loads(signed[0].partition("\n")[0])
    line[key] = value
    try:
        peek_ticket(json.dumps(line, separators=(",", ":"), sort_keys=True))
    except Refused as error:
        assert error.why.replace("\n", "").isprintable()  # noqa: PT017 - both ends are right
