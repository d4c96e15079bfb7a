"""The rules before any write: what Proxmox would refuse, or fail at when the VM starts."""

from typing import Any

import pytest

from inventory.errors import Refused
from provision.config import wanted_config
from provision.plan import StorageFound, TemplateFound
from provision.rules import check_change, check_rules
from provision.wanted import NodeSpec, WantedFabric, WantedNuma
from tests.provision.cluster_kit import answers
from tests.provision.kit import Place, failure
from tests.provision.test_plan import LOCAL, UUID, spec, template

Q35 = {"machine": "pc-q35-9.2+pve1"}
BRIDGES = {"vmbr0": 1500, "vmbr1": 9000}
FABRIC = WantedFabric("f0", "vmbr1", mtu=9000)
TWO_NUMA = (WantedNuma("0-1", 1024, 0), WantedNuma("2-3", 1024, 1))
SHARED = {"ceph": StorageFound(active=True, images=True, shared=True)} | LOCAL


def told(
    wants: dict[str, Any] | None = None,
    found: dict[str, Any] | None = None,
    bridges: dict[str, int] | None = None,
) -> list[str]:
    """The faults, or none."""
    try:
        check_rules(spec(**wants or {}), template(**found or {}), LOCAL, bridges or BRIDGES)
    except Refused as error:
        return error.why.splitlines()
    return []


def warned(wants: dict[str, Any], found: dict[str, Any], bridges: dict[str, int] | None = None) -> list[str]:
    return check_rules(spec(**wants), template(**found), LOCAL, BRIDGES if bridges is None else bridges)


@pytest.mark.parametrize(
    ("wants", "found", "fault"),
    [
        ({"gpu_mapping": "h100", "gpu_count": 1}, {}, "GPUs need a q35 machine (pcie=1), and template 9000"),
        ({}, {"hostpci0": "mapping=nic,pcie=1"}, "PCI devices need a q35 machine"),
        ({"bios": "ovmf"}, {}, "bios ovmf needs an EFI disk"),
        ({"queues": 3}, {}, "net0 has 3 queues, and the VM has 2 CPUs"),
        ({"fabrics": (WantedFabric("f0", "vmbr1", queues=8),)}, {}, "net1 has 8 queues"),
        ({}, {"hugepages": "1024"}, "hugepages need numa, and it is off"),
        ({"memory_mib": 2049}, {"hugepages": "2", "numa": 1}, "2049 MiB, which is no multiple of its hugepages"),
        ({"memory_mib": 4096}, {"numa": 1, "numa0": "cpus=0-1,memory=2048"}, "have 2048 MiB together, and the VM"),
        ({"numa": (WantedNuma("0-1", 1024), WantedNuma("1-2", 1024)), "cores": 3}, {}, "CPU 1 is in two NUMA"),
        ({"numa": (WantedNuma("0-7", 2048),)}, {}, "name CPU 7, and the VM's 2 end at 1"),
        ({"numa": (WantedNuma("0", 2048),)}, {}, "the NUMA nodes have 1 CPUs, and the VM has 2"),
        ({}, {"boot": "order=scsi0;scsi5"}, "would boot from scsi5, which it does not have"),
        ({}, {"lock": "backup"}, "is locked (backup)"),
        ({}, {"hostpci0": "0000:81:00,pcie=1", **Q35}, "only root@pam may clone a device that is not mapped"),
        ({"linked": True, "storage": "ceph"}, {}, "storage ceph is not on pve1"),
    ],
)  # fmt: skip
def test_what_would_fail_later_is_refused_now(
    wants: dict[str, Any], found: dict[str, Any], fault: str
) -> None:
    assert any(fault in line for line in told(wants, found)), told(wants, found)


def test_with_hugepages_each_numa_node_has_exactly_one_host_node_and_whole_pages() -> None:
    nodes = {"numa0": "cpus=0,memory=1000,hostnodes=0-1,policy=bind", "numa1": "cpus=1,memory=1048"}

    found = told({}, {"hugepages": "1024", "numa": 1, **nodes})

    assert "numa0 has 1000 MiB, which is no multiple of its hugepages of 1024 MiB" in found
    assert "numa0 needs exactly one host node (0 to 9) with hugepages: give its host_node" in found
    assert "numa1 needs exactly one host node (0 to 9) with hugepages: give its host_node" in found


@pytest.mark.parametrize(
    ("wants", "key", "line"),
    [
        ({"hugepages_mib": 1024, "numa": TWO_NUMA, "cores": 4}, "hugepages", "qm set VMID --hugepages 1024"),
        ({"affinity": "0-31;64-95"}, "affinity", "qm set VMID --affinity '0-31;64-95'"),
    ],
)
def test_what_only_root_may_set_is_refused_with_the_way_out(
    wants: dict[str, Any], key: str, line: str
) -> None:
    (fault,) = told(wants)

    assert fault.startswith(f"{key} (")
    assert "for root@pam only, never for a token; a clone keeps it" in fault
    assert fault.endswith(line)


def test_what_only_root_may_set_comes_with_the_template() -> None:
    carried = {"hugepages": "1024", "numa": 1, "affinity": "0-31", "args": "-cpu host", "balloon": 0}
    wants = {"hugepages_mib": 1024, "numa": TWO_NUMA, "cores": 4, "affinity": "0-31"}

    assert told(wants, carried) == []


def test_a_change_that_only_root_may_make_is_refused_on_a_vm_that_is_there() -> None:
    config = dict(template().config)

    with pytest.raises(Refused, match="for root@pam only"):
        check_change(spec(affinity="0-3"), config, vmid=100, host="pve1")
    check_change(spec(), config, vmid=100, host="pve1")
    check_change(spec(affinity="0-3"), config | {"affinity": "0-3"}, vmid=100, host="pve1")


@pytest.mark.parametrize(
    ("bridge", "mtu", "model", "fault"),
    [
        ("vmbr0", 9000, "virtio", "net1 asks for MTU 9000, and bridge vmbr0 on pve1 has 1500"),
        ("vmbr1", 9001, "virtio", "net1 asks for MTU 9001, and bridge vmbr1 on pve1 has 9000"),
        ("vmbr1", 9000, "e1000", "net1 is e1000: an MTU reaches the guest by virtio only"),
    ],
)
def test_an_mtu_that_its_bridge_does_not_carry_is_refused(
    bridge: str, mtu: int, model: str, fault: str
) -> None:
    found = {"net1": f"{model}=BC:24:11:00:00:01,bridge={bridge}"}

    assert told({"fabrics": (WantedFabric("f0", bridge, mtu=mtu),)}, found) == [fault]


def test_an_mtu_that_fits_or_is_the_bridges_own_is_fine() -> None:
    assert told({"fabrics": (FABRIC,)}) == []
    assert told({}, {"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0,mtu=1"}) == []


def test_a_bridge_that_is_not_seen_may_be_hidden() -> None:
    (told_,) = warned({"bridge": "vmbr7"}, {})

    assert told_ == "bridge vmbr7 is not on pve1, or this token may not see it (it sees: vmbr0, vmbr1)"


def test_a_gpu_under_secure_boot_is_warned_of() -> None:
    efi = {"efidisk0": "local-lvm:base-9000-disk-1,efitype=4m,pre-enrolled-keys=1", "bios": "ovmf", **Q35}

    assert "is not signed will not load" in warned({"gpu_mapping": "h100", "gpu_count": 1}, efi)[0]
    assert warned({}, efi) == []


def test_more_than_sixteen_pci_devices_are_refused() -> None:
    passed = tuple(WantedFabric(f"f{number}", None, mapping="vf") for number in range(9))

    (fault,) = told({"gpu_mapping": "h100", "gpu_count": 8, "fabrics": passed}, Q35)

    assert fault == "17 mapped PCI devices are asked for, and Proxmox takes 16 in all"


def test_passed_functions_become_pci_devices_beside_the_gpus() -> None:
    passed = WantedFabric("f0", None, mapping="vf", mtu=9000)
    wants = spec(gpu_mapping="h100", gpu_count=1, fabrics=(passed,))

    config = wanted_config(wants, {}, UUID)

    assert (config["hostpci0"], config["hostpci1"]) == ("mapping=h100,pcie=1", "mapping=vf,pcie=1")
    assert "net1" not in config
    assert "the guest has to know them" in warned({"fabrics": (passed,)}, Q35)[0]


def test_a_linked_clone_stays_on_its_templates_storage() -> None:
    with pytest.raises(
        Refused, match="stays on its template's storage, local-lvm, and the profile names ceph"
    ):
        check_rules(spec(linked=True, storage="ceph"), template(), SHARED, BRIDGES)
    assert check_rules(spec(linked=True), template(), SHARED, BRIDGES) == []


def test_all_faults_are_told_at_once() -> None:
    wants = {"disk_gib": 1, "bios": "ovmf", "queues": 9, "affinity": "0", "storage": "x"}

    assert len(told(wants)) == 5


def gpu_vm() -> tuple[NodeSpec, TemplateFound]:
    wants = spec(
        cores=32, sockets=2, memory_mib=524288, gpu_mapping="h100", gpu_count=8, machine="q35", bios="ovmf",
        cpu="host", hugepages_mib=1024, queues=8, fabrics=(FABRIC,),
        numa=(WantedNuma("0-31", 262144, 0), WantedNuma("32-63", 262144, 1)),
    )  # fmt: skip
    golden = {
        "efidisk0": "local-lvm:base-9000-disk-1,efitype=4m,pre-enrolled-keys=0", "hugepages": "1024",
    } | Q35  # fmt: skip
    return wants, template(**golden)


def test_a_whole_gpu_profile_on_a_golden_template_is_fine() -> None:
    wants, golden = gpu_vm()

    assert check_rules(wants, golden, LOCAL, BRIDGES) == []
    config = wanted_config(wants, golden.config, UUID)
    assert (config["machine"], config["numa"]) == ("pc-q35-9.2+pve1", "1")
    assert config["numa1"] == "cpus=32-63,memory=262144,hostnodes=1,policy=bind"
    assert (config["cpu"], config["sockets"], config["balloon"]) == ("host", "2", "0")
    assert str(config["net0"]).endswith("bridge=vmbr0,queues=8")
    assert sum(key.startswith("hostpci") for key in config) == 8


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        ({"profile_affinity": "0-3"}, "affinity (0-3) is for root@pam only"),
        ({"profile_bios": "ovmf"}, "bios ovmf needs an EFI disk"),
        ({"profile_fabrics": "[{name: f0, bridge: vmbr1, mtu: 9000}]"}, "and bridge vmbr1 on pve1 has 1500"),
        ({"profile_network": "{bridge: vmbr0, queues: 4, address: dhcp}"}, "net0 has 4 queues"),
    ],
)
def test_nothing_is_written_when_a_rule_does_not_hold(
    place: Place, profile: dict[str, str], reason: str
) -> None:
    answers(place).bridges = {"vmbr0": None, "vmbr1": None}
    place.write_site(ticket=True, **profile)

    error = failure(place)

    assert isinstance(error, Refused)
    assert reason in error.why
    assert place.requests.writes == []
    assert place.store.get("gpu-01") is None
