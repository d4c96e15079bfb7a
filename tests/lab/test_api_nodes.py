"""A VM that the lab's API starts is a real node, and its guest agent tells of it."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lab import running
from tests.lab.api import CONFIG_GONE, Api, banner, serving
from tests.lab.processes import descendants
from tests.require import need


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The API of a lab without an authority."""
    with serving(tmp_path_factory.mktemp("lab")) as served:
        yield served


@pytest.fixture(scope="module")
def on(api: Api) -> str:
    """A clone that runs."""
    return api.boot("on", 11)


def test_a_started_vm_is_a_node_with_an_ssh_server(api: Api, on: str) -> None:
    row = next(vm for vm in running.vms(api.lab) if vm["name"] == "on")

    assert row["status"] == "running"
    assert row["node"]["address"] == api.address(11)
    assert row["node"]["alive"]
    assert banner(row["node"]["address"], row["node"]["ssh_port"]).startswith(b"SSH-2.0")
    assert api.get(f"{on}/status/current").data["status"] == "running"


def test_the_guest_agent_tells_of_the_live_node(api: Api, on: str) -> None:
    config = api.get(f"{on}/config").data
    interfaces: list[dict[str, Any]] = api.get(f"{on}/agent/network-get-interfaces").data["result"]
    mac = next(part for part in config["net0"].lower().split(",")).partition("=")[2]
    management = next(nic for nic in interfaces if nic["hardware-address"] == mac)

    assert api.call("POST", f"{on}/agent/ping").data == {"result": {}}
    assert api.get(f"{on}/agent/get-host-name").data["result"] == {"host-name": "on"}
    assert "pretty-name" in api.get(f"{on}/agent/get-osinfo").data["result"]
    assert [found["ip-address"] for found in management["ip-addresses"]] == [api.address(11)]


def test_the_guest_agent_reads_files_of_the_node(api: Api, on: str) -> None:
    key = api.get(f"{on}/agent/file-read", file="/etc/ssh/ssh_host_ed25519_key.pub").data
    missing = api.get(f"{on}/agent/file-read", file="/nope")

    assert key["content"].startswith("ssh-ed25519 AAAA")
    assert key["bytes-read"] == len(key["content"])
    assert (missing.status, missing.reason) == (
        500,
        "Agent error: failed to open file '/nope' (mode: 'r'): No such file or directory",
    )


def test_the_guest_agent_runs_nothing(api: Api, on: str) -> None:
    refused = api.call("POST", f"{on}/agent/exec", command="id")
    vmid = on.rpartition("/")[2]

    assert (refused.status, refused.reason) == (
        403,
        f"Permission check failed (/vms/{vmid}, VM.GuestAgent.Unrestricted)",
    )


def test_an_agent_that_is_not_there_says_why(api: Api) -> None:
    off = api.clone("off")
    vmid = off.rpartition("/")[2]
    stopped = api.call("POST", f"{off}/agent/ping")
    api.call("PUT", f"{off}/config", delete="agent")
    absent = api.call("POST", f"{off}/agent/ping")

    assert stopped.reason == f"VM {vmid} is not running"
    assert absent.reason == "No QEMU guest agent configured"


def test_a_stopped_vm_has_no_node_and_starts_again_as_the_same(api: Api) -> None:
    vm = api.boot("again", 12)
    port = next(vm["node"]["ssh_port"] for vm in running.vms(api.lab) if vm["name"] == "again")
    key = api.get(f"{vm}/agent/file-read", file="/etc/ssh/ssh_host_ed25519_key.pub").data["content"]
    twice = api.task("POST", f"{vm}/status/start")
    stopped = api.task("POST", f"{vm}/status/shutdown")
    silence = banner(api.address(12), port)
    stopped_again = api.task("POST", f"{vm}/status/stop")
    api.task("POST", f"{vm}/status/start")
    api.wait_for_agent(vm)

    assert twice == f"VM {vm.rpartition('/')[2]} already running"
    assert (stopped, stopped_again, silence) == ("OK", "OK", b"")
    assert api.get(f"{vm}/agent/file-read", file="/etc/ssh/ssh_host_ed25519_key.pub").data["content"] == key


def test_a_running_vm_is_not_destroyed_and_a_destroyed_one_is_gone(api: Api) -> None:
    vm = api.boot("goes", 13)
    vmid = vm.rpartition("/")[2]
    refused = api.call("DELETE", vm)
    api.task("POST", f"{vm}/status/stop")
    destroyed = api.task("DELETE", vm)

    assert refused.reason == f"VM {vmid} is running - destroy failed"
    assert destroyed == "OK"
    assert api.get(f"{vm}/config").reason == CONFIG_GONE.format(vmid)


def test_a_node_that_dies_is_a_vm_that_is_stopped(api: Api) -> None:
    need(api.lab.backend == "namespaces", "nodes with processes of their own", "run the tests as root")
    before = descendants(api.lab.pid)
    vm = api.boot("dies", 14)
    for pid in set(descendants(api.lab.pid)) - set(before):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while api.get(f"{vm}/status/current").data["status"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.1)

    assert api.call("POST", f"{vm}/agent/ping").reason == f"VM {vm.rpartition('/')[2]} is not running"


def test_an_address_that_is_not_the_labs_fails_the_start(api: Api) -> None:
    vm = api.clone("far")
    api.call("PUT", f"{vm}/config", ipconfig0="ip=10.0.0.7/24")
    outside = api.task("POST", f"{vm}/status/start")

    assert outside.startswith("address 10.0.0.7 of ipconfig0 is not the lab's to give")
    assert api.get(f"{vm}/status/current").data["status"] == "stopped"


def test_an_address_in_use_fails_the_start(api: Api, on: str) -> None:
    vm = api.clone("same")
    api.configure(vm, 11)

    assert (
        api.task("POST", f"{vm}/status/start") == f"address {api.address(11)} is in use by VM {on[-3:]} (on)"
    )


def test_dhcp_gives_a_lease(api: Api) -> None:
    vm = api.clone("leased")
    api.call("PUT", f"{vm}/config", ipconfig0="ip=dhcp")
    started = api.task("POST", f"{vm}/status/start")
    node = next(vm["node"] for vm in running.vms(api.lab) if vm["name"] == "leased")
    api.task("POST", f"{vm}/status/stop")

    assert (started, node["address"]) == ("OK", api.address(221))


def test_a_missing_bridge_and_too_many_cores_fail_the_start(api: Api) -> None:
    vm = api.clone("greedy")
    api.call("PUT", f"{vm}/config", cores=64)
    cores = api.task("POST", f"{vm}/status/start")
    api.call("PUT", f"{vm}/config", cores=1, net0="virtio,bridge=vmbr9")
    bridge = api.task("POST", f"{vm}/status/start")

    assert cores == "MAX 4 vcpus allowed per VM on this node"
    assert bridge == "bridge 'vmbr9' does not exist"
