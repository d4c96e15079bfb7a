"""A VM behind the lab's API is a machine: it is what the config says, and walks the whole road."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import running
from lab.places import Places
from tests.lab.api import Api, vm_path
from tests.lab.processes import descendants, still_there, with_text
from tests.lab.qemu_kit import NODE, Vm, until, vm_lab

USER_DATA = """\
#cloud-config
write_files: [{path: /etc/own-user-data, content: "written\\n"}]
runcmd: [[sh, -c, 'echo ran >>/etc/own-user-data']]
"""


@pytest.fixture(scope="module")
def vm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vm]:
    """One VM for all tests here, as provision-node makes it, with user-data of its own."""
    with vm_lab(tmp_path_factory.mktemp("vms")) as lab:
        (lab.places.site.parent / "user-data").write_text(USER_DATA)
        site = lab.places.site.read_text()
        more = "  small:\n    user_data_file: user-data\n    seed_storage: local\n"
        lab.places.site.write_text(site.replace("  small:\n", more, 1))
        made = Vm(lab, Api(lab), "")
        node = made.ask("provision-node", NODE, "--profile", "small", "--yes")["nodes"][0]
        made.path = vm_path(node["vmid"])
        yield made


def test_the_guest_is_the_machine_that_the_config_describes(vm: Vm) -> None:
    config = vm.api.get(f"{vm.path}/config").data
    meta = vm.api.get(f"{vm.path}/cloudinit/dump", type="meta").data
    with vm.log_in() as session:
        told = session.run(
            "sudo cat /sys/class/dmi/id/product_uuid; nproc; hostname; systemctl is-system-running --wait; "
            "df --output=size -BM / | tail -1; sudo cat /var/lib/cloud/data/instance-id; cat /proc/1/comm; "
            "python3 -c 'import ssl'; openssl version; grep MemTotal /proc/meminfo",
            timeout_s=120.0,
        )
    uuid, cores, hostname, state, size, instance, init, openssl, memory = told.stdout.decode().splitlines()

    assert config["smbios1"] == f"uuid={uuid}"
    assert (int(cores), hostname, state, init) == (
        min(config["cores"], os.cpu_count() or 1),
        NODE,
        "running",
        "systemd",
    )
    assert 7500 < int(size.strip().removesuffix("M")) < 8192  # of 8 GiB, of which the template had 4
    assert 1800 < int(memory.split()[1]) // 1024 < 2048
    assert f"instance-id: {instance}\n" == meta
    assert openssl.startswith("OpenSSL 3")


def test_its_own_user_data_was_carried_out_and_its_disc_is_no_more(vm: Vm) -> None:
    config = vm.api.get(f"{vm.path}/config").data
    discs = vm.api.get(f"{vm.path.partition('/qemu')[0]}/storage/local/content", content="iso").data

    assert vm.file("/etc/own-user-data") == "written\nran\n"
    assert ":vm-" in config["ide2"]
    assert "cloudinit" in config["ide2"]
    assert discs == []


def test_the_guests_own_agent_answers(vm: Vm) -> None:
    net0 = vm.api.get(f"{vm.path}/config").data["net0"]
    interfaces = {row["name"]: row for row in vm.agent("network-get-interfaces")["result"]}
    eth0 = interfaces["eth0"]
    lost = vm.api.get(f"{vm.path}/agent/file-read", file="/etc/no-such-file")
    folder = vm.api.get(f"{vm.path}/agent/file-read", file="/etc")

    assert vm.api.call("POST", f"{vm.path}/agent/ping").data == {"result": {}}
    assert eth0["hardware-address"].upper() in net0
    assert {"ip-address": vm.api.address(10), "ip-address-type": "ipv4", "prefix": 24} in eth0["ip-addresses"]
    assert eth0["statistics"]["rx-bytes"] > 0
    assert vm.agent("get-osinfo")["result"]["id"] == "debian"
    assert "cloud" in vm.agent("get-osinfo")["result"]["kernel-release"]
    assert vm.agent("get-host-name")["result"] == {"host-name": NODE}
    assert "\nroot:" in vm.file("/etc/shadow")  # the agent is root
    assert "No such file" in lost.reason
    assert folder.status == 500


def test_the_node_walks_the_whole_road(vm: Vm) -> None:
    onboarded = vm.ask("onboard-node", NODE, "--yes", "--no-verify")["nodes"][0]
    verified = vm.ask("verify-node", NODE, "--deadline", "900")["nodes"][0]
    infra_can = vm.run("node-inventory", "show", NODE, "--json")

    assert onboarded["identity"]["spiffe_id"] == f"spiffe://lab.example/node/{NODE}"
    assert verified["state"] == "in-service"
    assert all(scenario["ok"] for scenario in verified["verification"]["scenarios"])
    assert vm.file("/etc/muster/current/uuid").strip() in vm.api.get(f"{vm.path}/config").data["smbios1"]
    assert infra_can.returncode == 0


def test_a_shut_down_vm_keeps_its_disk_and_other_cloud_init_data_makes_other_host_keys(vm: Vm) -> None:
    before = vm.host_keys(), vm.file("/etc/machine-id")
    with vm.log_in() as session:
        assert session.run("echo kept >~/note", timeout_s=60.0).exit_status == 0
    ended = vm.task("POST", f"{vm.path}/status/shutdown")
    off = vm.status(), list(Path(vm.lab.places.nodes).rglob("*.sock")), with_text(str(vm.lab.places.nodes))
    changed = vm.api.call(
        "PUT", f"{vm.path}/config", nameserver=vm.api.address(2), searchdomain="nodes.lab.example"
    )
    started = vm.task("POST", f"{vm.path}/status/start")
    said = vm.wait_for_cloud_init()
    dumped = {
        kind: vm.api.get(f"{vm.path}/cloudinit/dump", type=kind).data for kind in ("user", "network", "meta")
    }
    with vm.log_in() as session:
        session.run("sudo mount -o ro /dev/sr0 /mnt", timeout_s=60.0)
        drive = {
            kind: session.run(f"sudo cat /mnt/{kind}", timeout_s=60.0).stdout.decode()
            for kind in ("user-data", "network-config", "meta-data")
        }

    assert (ended, off, changed.status, started) == ("OK", ("stopped", [], []), 200, "OK")
    assert said["errors"] == []
    assert not set(vm.host_keys()) & set(before[0])
    assert vm.file("/etc/machine-id") == before[1]
    assert vm.file("/home/muster/note") == "kept\n"
    assert vm.agent("get-host-name")["result"] == {"host-name": NODE}
    assert drive == {
        "user-data": dumped["user"],
        "network-config": dumped["network"],
        "meta-data": dumped["meta"],
    }


def test_a_guest_that_powers_off_is_a_vm_that_is_stopped_and_a_destroyed_one_leaves_nothing(vm: Vm) -> None:
    with vm.log_in() as session:
        session.run("sudo systemctl --no-block poweroff", timeout_s=60.0)
    until(lambda: vm.status() == "stopped")
    disks = list(vm.lab.places.nodes.rglob("disk.qcow2"))
    ended = vm.task("DELETE", vm.path)

    assert len(disks) == 1
    assert ended == "OK"
    assert list(vm.lab.places.nodes.rglob("disk.qcow2")) == []
    assert with_text(str(vm.lab.places.nodes)) == []


def test_a_killed_lab_leaves_no_vm_not_even_one_that_boots(tmp_path: Path) -> None:
    with vm_lab(tmp_path) as lab:
        api = Api(lab)
        path = api.clone("doomed")
        api.configure(path, 10)
        assert api.task("POST", f"{path}/status/start") == "OK"
        until(lambda: with_text(f"{lab.places.nodes}"), within_s=120.0)
        processes = descendants(lab.pid)
        os.kill(lab.pid, signal.SIGKILL)
        left = still_there(processes), with_text(str(lab.places.nodes))
        until(lambda: running.find(lab.places) is None, within_s=60.0)

    assert processes
    assert left == ([], [])


def test_a_lab_that_ends_while_a_vm_boots_ends_at_once(tmp_path: Path) -> None:
    with vm_lab(tmp_path) as lab:
        api = Api(lab)
        path = api.clone("doomed")
        api.configure(path, 10)
        assert api.task("POST", f"{path}/status/start") == "OK"
        processes = descendants(lab.pid)
        stopped = api.task("POST", f"{path}/status/stop")
        assert api.task("POST", f"{path}/status/start") == "OK"

    assert stopped == "OK"
    assert still_there(processes) == []
    assert not Places(tmp_path / "lab").root.exists()
