"""What guest agents say, in the forms that real ones say it."""

import json
from typing import Any

import pytest

from inventory.errors import Refused
from provision import guest
from tests.provision.kit import public_line

MAC = "BC:24:11:F8:48:89"


def nic(name: str, mac: str, *addresses: str) -> dict[str, Any]:
    entries = [
        {
            "ip-address": ip,
            "ip-address-type": "ipv6" if ":" in ip else "ipv4",
            "prefix": 64 if ":" in ip else 24,
        }
        for ip in addresses
    ]
    return {"name": name, "hardware-address": mac, "statistics": {"rx-bytes": 0}, "ip-addresses": entries}


LO = nic("lo", "00:00:00:00:00:00", "127.0.0.1", "::1")
DOCKER = nic("docker0", "02:42:ac:11:00:01", "172.17.0.1")


def address(*interfaces: dict[str, Any], wanted: str | None = None) -> str | None:
    seen = guest.management_address(interfaces, MAC, wanted=wanted)
    return seen.ip if seen else None


def test_the_address_is_the_one_of_the_management_nic_whatever_the_case_of_its_mac() -> None:
    assert address(LO, DOCKER, nic("eth0", "bc:24:11:f8:48:89", "10.77.0.51")) == "10.77.0.51"


@pytest.mark.parametrize(
    "useless", ["fe80::1", "169.254.3.4", "127.0.0.1", "::1", "224.0.0.1", "::", "nonsense"]
)
def test_an_address_that_serves_nobody_else_is_passed_over(useless: str) -> None:
    assert address(nic("eth0", MAC, useless)) is None
    assert address(nic("eth0", MAC, useless, "10.0.0.5")) == "10.0.0.5"


def test_a_loopback_address_of_a_real_nic_serves() -> None:
    assert address(LO, nic("eth0", MAC, "127.20.0.1")) == "127.20.0.1"


def test_ipv4_goes_before_ipv6_and_ipv6_serves_alone() -> None:
    assert address(nic("eth0", MAC, "2001:db8::5", "10.0.0.5")) == "10.0.0.5"
    assert address(nic("eth0", MAC, "fe80::1%eth0", "2001:db8::5")) == "2001:db8::5"


def test_a_nic_without_addresses_yet_has_none() -> None:
    assert address({"name": "eth0", "hardware-address": MAC}) is None
    assert address({"name": "eth0", "hardware-address": MAC, "ip-addresses": None}) is None
    assert address({"name": "sit0"}) is None


def test_a_static_address_must_be_the_wanted_one() -> None:
    assert address(nic("eth0", MAC, "10.0.0.5", "10.0.0.6"), wanted="10.0.0.6") == "10.0.0.6"
    assert address(nic("eth0", MAC, "10.0.0.5"), wanted="10.0.0.6") is None


def test_what_was_seen_is_told_in_one_line() -> None:
    told = guest.addresses_seen([LO, DOCKER, {"name": "eth0", "hardware-address": MAC}])

    assert told == f"docker0 (02:42:ac:11:00:01): 172.17.0.1; eth0 ({MAC}): no address"


def test_an_interface_is_named_by_its_mac() -> None:
    assert guest.interface_of([LO, nic("ens19", "02:00:00:00:00:01")], "02:00:00:00:00:01") == "ens19"
    assert guest.interface_of([LO], "02:00:00:00:00:01") is None


def result(**v1: Any) -> str:
    return json.dumps({"v1": v1})


def test_a_finished_cloud_init_is_done() -> None:
    assert guest.cloud_init(result(datasource="DataSourceNoCloud", errors=[]), None) == guest.CloudInit(
        done=True
    )


def test_a_cloud_init_with_errors_failed() -> None:
    found = guest.cloud_init(result(errors=["('scripts_user', RuntimeError())"]), None)

    assert found == guest.CloudInit(done=True, errors=("('scripts_user', RuntimeError())",))


def test_a_degraded_cloud_init_is_done_with_warnings() -> None:
    stage = {"errors": [], "recoverable_errors": {"WARNING": ["Failed at merging in cloud config part"]}}
    found = guest.cloud_init(result(errors=[]), result(stage=None, init=stage, datasource="x"))

    assert found == guest.CloudInit(done=True, warnings=("WARNING: Failed at merging in cloud config part",))


def test_a_cloud_init_that_runs_is_not_done() -> None:
    assert guest.cloud_init(None, result(stage="modules-final")) == guest.CloudInit(done=False)


@pytest.mark.parametrize("nothing", [None, "", "not json", "[]", '{"v2": 1}'])
def test_a_cloud_init_that_left_nothing_is_none(nothing: str | None) -> None:
    assert guest.cloud_init(nothing, nothing) is None


def test_host_keys_and_machine_ids_are_taken_only_in_their_form() -> None:
    line = public_line("root@node1")

    key = guest.host_key(line + "\n")
    assert key is not None
    assert line.startswith(key.line)
    assert [guest.host_key(text) for text in (None, "", "ssh-ed25519", "ssh-rsa " + line.split()[1])] == [
        None
    ] * 4
    assert guest.machine_id("0123456789abcdef0123456789abcdef\n") == "0123456789abcdef0123456789abcdef"
    assert [guest.machine_id(text) for text in (None, "", "uninitialized\n", "XY")] == [None] * 4


def test_only_listed_files_are_read() -> None:
    for path in guest.READABLE:
        guest.check_readable(path)
    for path in ("/etc/shadow", "/etc/ssh/ssh_host_ed25519_key", "/etc/ssh/../shadow", ""):
        with pytest.raises(Refused, match="fixed list"):
            guest.check_readable(path)
