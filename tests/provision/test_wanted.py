"""The VM that a node wants, and the addresses it is given."""

from dataclasses import replace
from pathlib import Path

import pytest

from inventory.errors import BadFile, BadInput, Refused
from inventory.model import Address, Fabric, Node, State
from provision.spec import Site
from provision.wanted import NodeSpec, login_keys, want
from tests.provision.kit import public_line
from tests.provision.test_spec import WHOLE, site

RANGE = WHOLE.replace("address: dhcp", "address: {from: 10.0.0.2/24, to: 10.0.0.4/24, gateway: 10.0.0.3}")
FABRIC = "    fabrics: [{name: f0, bridge: vmbr1, addresses: {from: 192.168.9.1/24, to: 192.168.9.2/24}}]\n"


def wanted(found: Site, name: str = "gpu-01", *nodes: Node) -> NodeSpec:
    return want(found, name, "small", ssh_keys=("ssh-ed25519 AAAA",), nodes=nodes)


def recorded(name: str, ip: str, state: State = State.PROVISIONING, fabric: str | None = None) -> Node:
    fabrics = (Fabric("f0", address=fabric),) if fabric else ()
    return Node(name=name, state=state, address=Address(ip, 24, "static"), fabrics=fabrics)


def test_the_first_free_address_is_taken_and_the_gateway_is_passed_over() -> None:
    found = site(RANGE)

    assert wanted(found).address == "10.0.0.2/24"
    assert wanted(found, "gpu-01", recorded("gpu-00", "10.0.0.2")).address == "10.0.0.4/24"
    assert wanted(found).gateway == "10.0.0.3"


def test_a_full_range_is_refused() -> None:
    nodes = recorded("a", "10.0.0.2"), recorded("b", "10.0.0.4")

    with pytest.raises(Refused, match="no address left for gpu-01"):
        wanted(site(RANGE), "gpu-01", *nodes)


def test_a_retired_nodes_address_is_free_again() -> None:
    assert wanted(site(RANGE), "gpu-01", recorded("a", "10.0.0.2", State.RETIRED)).address == "10.0.0.2/24"


def test_a_node_keeps_the_address_on_record() -> None:
    assert wanted(site(RANGE), "gpu-01", recorded("gpu-01", "10.0.0.4")).address == "10.0.0.4/24"


def test_an_address_of_ones_own_goes_before_all_others() -> None:
    text = RANGE + "nodes: {gpu-01: {address: 10.0.0.77/24}, gpu-02: {address: 10.0.0.2/24}}\n"

    assert wanted(site(text)).address == "10.0.0.77/24"
    assert wanted(site(text), "gpu-03").address == "10.0.0.4/24"


def test_an_address_of_ones_own_needs_no_range() -> None:
    found = wanted(site(WHOLE + "nodes: {gpu-01: {address: 10.0.0.77/24}}\n"))

    assert (found.address, found.gateway) == ("10.0.0.77/24", None)


def test_an_address_of_ones_own_must_lie_in_the_profiles_network() -> None:
    with pytest.raises(BadInput, match="is not in the profile's network"):
        wanted(site(RANGE + "nodes: {gpu-01: {address: 10.9.0.77/24}}\n"))


def test_fabric_addresses_are_given_like_the_others() -> None:
    found = site(WHOLE + FABRIC)
    other = recorded("gpu-00", "10.0.0.9", fabric="192.168.9.1/24")

    assert wanted(found).fabrics[0].address == "192.168.9.1/24"
    assert wanted(found, "gpu-01", other).fabrics[0].address == "192.168.9.2/24"
    assert wanted(found, "gpu-00", other).fabrics[0].address == "192.168.9.1/24"


def test_the_hash_tells_two_wishes_apart_and_nothing_else() -> None:
    first = wanted(site(WHOLE))

    assert first.hash == wanted(site(WHOLE)).hash
    assert first.hash != replace(first, cores=3).hash
    assert len(first.hash) == 64


def test_login_keys_are_read_without_blanks_and_comments(tmp_path: Path) -> None:
    line = public_line("infra")
    (tmp_path / "keys").write_text(f"# infra\n\n  {line}  \n")

    assert login_keys(tmp_path / "keys") == (line,)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "nobody could log in"),
        ("# none\n", "nobody could log in"),
        ("hello world\n", ":1:1: not a public key line"),
    ],
)
def test_a_file_without_login_keys_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "keys").write_text(text)

    with pytest.raises(BadFile) as caught:
        login_keys(tmp_path / "keys")
    assert told in caught.value.why


def test_an_absent_file_of_login_keys_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        login_keys(tmp_path / "keys")
