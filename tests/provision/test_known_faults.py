"""Faults that other tools for Proxmox were reported to have; each by the behaviour that is right."""

from typing import Any

import pytest

from inventory.errors import BadInput, OtherSide, Refused
from inventory.model import check_node_name
from provision.config import wanted_config
from provision.placement import Candidate, Load
from provision.plan import Resize, plan
from provision.survey import Survey
from tests.provision.cluster_kit import answers
from tests.provision.kit import CONFIG, Place, failure, make
from tests.provision.test_plan import UUID, changed, machine, spec, template


@pytest.mark.parametrize("name", ["gpu_01", "-gpu", "gpu-", "gpu-01.", "gpu-01\n", "x" * 64, "", "GPU"])
def test_a_name_that_is_no_dns_label_is_refused_though_proxmox_may_take_it(name: str) -> None:
    with pytest.raises(BadInput):
        check_node_name(name)


def test_the_proxys_mistrust_of_its_own_node_is_not_taken_for_ours(place: Place) -> None:
    place.pve.fail(
        "GET", "/nodes/{node}/storage", 596, "tls_process_server_certificate: certificate verify failed"
    )

    error = failure(place)

    assert "it is its own node pve1 that it does not trust" in error.why
    assert "as Proxmox lists it" in error.next_step


def test_one_host_that_does_not_answer_does_not_stop_the_others(place: Place) -> None:
    place.pve.add_node("pve0", online=False)

    assert make(place.road()).node.proxmox_node == "pve1"


def test_templates_and_idle_vms_do_not_count_as_memory_in_use(place: Place) -> None:
    place.pve.vm(9000).config["memory"] = str(64 * 1024)
    place.pve.add_vm(200, "idle", config={"memory": str(64 * 1024)})
    place.road()
    place.pve.add_vm(201, "ours", config={"memory": "1024", "tags": "muster"})

    found = Survey(place.adapters[0]).candidate(spec(), "pve1")

    assert isinstance(found, Candidate)
    assert (found.promised_mib, found.waiting_mib) == (1024, 1024)
    assert found.load == Load(online=True, memory_mib=8192, used_mib=2048, cpus=4)


def test_a_clone_gets_every_setting_and_it_is_read_back(place: Place) -> None:
    place.write_site(profile_cores="4", profile_memory_mib="4096")

    make(place.road())

    config = place.pve.vm(100).config
    assert (str(config["cores"]), str(config["memory"]), config["ciuser"]) == ("4", "4096", "muster")
    assert [path for method, path, _ in place.requests if method == "GET" and path.endswith("/100/config")]


def test_a_nic_is_never_sent_without_its_mac(place: Place) -> None:
    make(place.road())

    before = place.pve.vm(100).config["net0"]
    place.write_site(profile_network="{bridge: vmbr0, vlan: 7, queues: 2, address: dhcp}")
    make(place.road())

    assert place.requests.body_of(*CONFIG)["net0"] == f"{before},queues=2,tag=7"


def test_a_pool_is_sent_for_rights_may_stand_on_it_alone(place: Place) -> None:
    place.pve.pools["gpu"] = set()
    text = place.site_file.read_text()
    place.site_file.write_text(text.replace("proxmox:\n", "proxmox:\n  pool: gpu\n"))
    for who in ("muster@pve", "muster@pve!t"):
        place.pve.grant(who, "/vms/9000", "VM.Clone", "VM.Audit")
        place.pve.grant(who, "/storage/local-lvm", "Datastore.AllocateSpace")
        place.pve.grant(who, "/sdn/zones/localnetwork/vmbr0", "SDN.Use")
        config = ("CPU", "Cloudinit", "HWType", "Memory", "Network", "Options")
        names = [*(f"VM.Config.{name}" for name in config), "VM.Allocate", "VM.Audit", "VM.PowerMgmt"]
        place.pve.grant(who, "/pool/gpu", *names, "VM.GuestAgent.Audit", "VM.GuestAgent.FileRead")

    assert make(place.road()).node.vmid == 100


@pytest.mark.parametrize("key", ["efidisk0", "tpmstate0", "ide2"])
def test_only_the_boot_disk_is_ever_grown(key: str) -> None:
    found = changed(machine(), key, f"local-lvm:vm-100-x,size=4M{',media=cdrom' if key == 'ide2' else ''}")

    steps = plan(spec(disk_gib=20), template=None, machine=found, uuid=UUID, known=True)

    assert [step.disk for step in steps if isinstance(step, Resize)] == ["scsi0"]


def test_a_raw_device_in_a_template_is_told_with_the_way_out(place: Place) -> None:
    place.pve.vm(9000).config |= {"machine": "q35", "hostpci0": "0000:81:00,pcie=1"}

    error = failure(place)

    assert isinstance(error, Refused)
    assert "make a resource mapping" in error.why
    assert place.requests.writes == []


def test_a_locked_template_is_told_and_its_lock_is_left(place: Place) -> None:
    vm = place.pve.vm(9000)
    vm.lock = vm.config["lock"] = "backup"

    assert "is locked (backup)" in failure(place).why
    assert vm.config["lock"] == "backup"
    assert place.requests.writes == []


def test_no_privilege_of_another_proxmox_version_is_asked_for(place: Place) -> None:
    answers(place)
    for who in ("muster@pve", "muster@pve!t"):
        place.pve.grant(who, "/", "VM.Audit", "Datastore.AllocateSpace", "SDN.Use", "VM.Monitor")

    error = failure(place)

    assert "VM.GuestAgent.FileRead" in error.why
    assert "VM.Monitor" not in error.why + error.next_step


def test_the_balloon_goes_with_any_passed_device() -> None:
    found: dict[str, Any] = dict(
        template(machine="q35", hostpci0="mapping=nvme,pcie=1", balloon="1024").config
    )

    assert wanted_config(spec(), found, UUID)["balloon"] == "0"
    assert "balloon" not in wanted_config(spec(), dict(template().config), UUID)


def test_a_missing_right_on_the_way_names_the_way_to_print_the_lines(place: Place) -> None:
    place.pve.fail(
        "POST", "/clone", 403, "Permission check failed (/sdn/zones/localnetwork/vmbr3/10, SDN.Use)"
    )

    error = failure(place)

    assert isinstance(error, OtherSide)
    assert "/sdn/zones/localnetwork/vmbr3/10, SDN.Use" in error.why
    assert "--grants" in error.next_step
