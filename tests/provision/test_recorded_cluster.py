"""The adapter reads what a real Proxmox VE 9.2 said of its nodes, mappings, bridges, images and of a token's rights."""

from typing import Any

import pytest

from inventory.errors import OtherSide
from provision.grants import holds
from provision.placement import Devices
from provision.proxmox import Proxmox
from tests.lab.recorded.answers import ANSWERS
from tests.provision.test_recorded import Host, host, proxmox

__all__ = ["host", "proxmox"]  # fixtures

GPU = ["node=pve1,path=0000:00:01.0,id=1af4:1045"]
ABSENT = "Invalid configuration: pci device '0000:00:99.0' not found\n"
NO_SUBSYSTEM = "Invalid configuration: missing expected property 'subsystem-id' for device '0000:00:01.0'\n"
BRIDGE = {"method": "static", "method6": "manual", "type": "bridge", "bridge_stp": "off", "bridge_fd": "0"}
PROVISIONER = (
    *(f"VM.Config.{name}" for name in ("CPU", "Cloudinit", "Disk", "HWType", "Memory", "Network", "Options")),
    *("VM.Allocate", "VM.Audit", "VM.Clone", "VM.GuestAgent.Audit", "VM.PowerMgmt"),
    *("Datastore.AllocateSpace", "Datastore.Audit", "SDN.Use"),
)
RECORDED: dict[int, Any] = {
    247: [
        {"volid": "local:import/debian12-cloud.qcow2", "ctime": 1796029523, "format": "qcow2", "content": "import",
         "size": 546832384},
    ],
    271: {path: dict.fromkeys(PROVISIONER, 1) for path in ("/storage/local", "/vms", "/sdn/zones/localnetwork")},
    653: [],
    717: [
        {"id": "gpu2", "checks": [{"message": ABSENT, "severity": "error"}], "type": "pci",
         "map": ["node=pve1,path=0000:00:99.0,id=ffff:ffff"]},
        {"id": "gpu", "type": "pci", "map": GPU, "checks": [{"severity": "error", "message": NO_SUBSYSTEM}]},
    ],
    731: [{"id": "gpu", "type": "pci", "map": GPU, "digest": "4fdbe7ac1dbda165bd6e5dcffc50c705ae227831"}],
    787: [
        BRIDGE | {"iface": "vmbr1", "autostart": 1, "cidr": "10.78.0.1/24", "priority": 4},
        BRIDGE | {"iface": "vmbr0", "autostart": 1, "cidr": "10.77.0.1/24", "priority": 3, "active": 1},
    ],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, data in RECORDED.items():
        monkeypatch.setitem(ANSWERS, number, {"status": 200, "reason": "OK", "body": {"data": data}})


@pytest.mark.parametrize(("version", "major"), [("9.2.11", 9), ("8.4.1", 8), ("10.0~rc1", 10)])
def test_the_major_version(
    host: Host, proxmox: Proxmox, monkeypatch: pytest.MonkeyPatch, version: str, major: int
) -> None:
    body = {"data": ANSWERS[1]["body"]["data"] | {"version": version}}
    monkeypatch.setitem(ANSWERS, 1, ANSWERS[1] | {"body": body})
    host.numbers = [1]

    assert proxmox.version() == major


@pytest.mark.parametrize(("number", "memory"), [(3, 24105), (36, None)])
def test_a_hosts_load_is_known_only_where_it_may_be_looked_at(
    host: Host, proxmox: Proxmox, number: int, memory: int | None
) -> None:
    host.numbers = [number]

    load = proxmox.hosts()["pve1"]

    assert load.online
    assert load.memory_mib == memory
    assert (load.used_mib, load.cpus) == ((1593, 2) if memory else (None, load.cpus))


def test_a_vm_that_was_not_counted_yet_has_but_its_id_and_tags(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [433]

    found = {guest.vmid: guest for guest in proxmox.guests()}

    assert (found[201].running, found[201].memory_mib, found[201].cpus) == (True, 768, 2)
    assert (found[301].name, found[301].running, found[301].tags) == ("", False, ("debian", "tpl"))


def test_a_mapping_whose_device_is_gone_or_changed_is_told_with_proxmoxs_words(
    host: Host, proxmox: Proxmox
) -> None:
    host.numbers = [717]

    assert proxmox.devices("pve1") == {
        "gpu2": Devices(1, ABSENT.strip()),
        "gpu": Devices(1, NO_SUBSYSTEM.strip()),
    }
    assert host.asked == ["GET /cluster/mapping/pci?check-node=pve1"]


def test_a_mapping_without_faults_and_none_at_all(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [731, 653]

    assert proxmox.devices("pve1") == {"gpu": Devices(1)}
    assert proxmox.devices("pve1") == {}


def test_a_bridge_that_is_only_staged_is_none_yet(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [787]

    assert proxmox.bridges("pve1") == {"vmbr0": 1500}
    assert host.asked == ["GET /nodes/pve1/network?type=any_bridge"]


def test_the_images_of_a_storage(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [247]

    assert proxmox.images("pve1", "local") == {"local:import/debian12-cloud.qcow2"}
    assert host.asked == ["GET /nodes/pve1/storage/local/content?content=import"]


def test_a_storage_that_may_not_be_looked_into_is_told(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [41]

    with pytest.raises(OtherSide, match="Datastore"):
        proxmox.images("pve1", "local")


def test_a_tokens_rights_hold_on_what_lies_below_their_paths(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [271, 39, 571]

    held, none, few = (proxmox.permissions() for _ in range(3))

    assert holds(held, "/vms/5000", "VM.Allocate")
    assert holds(held, "/sdn/zones/localnetwork/vmbr0/10", "SDN.Use")
    assert not holds(held, "/storage/other", "Datastore.AllocateSpace")
    assert not holds(none, "/vms/9000", "VM.Audit")
    assert holds(few, "/vms/9000", "VM.Audit")
    assert not holds(few, "/vms/9001", "VM.Audit")
