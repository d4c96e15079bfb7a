"""A node's way against a Proxmox that misbehaves: what fails is told, what was begun is finished."""

from typing import Any

import pytest

from inventory.errors import BadInput, OtherSide, Refused
from inventory.model import State
from tests.provision.kit import CLONE, CONFIG, RESIZE, START, Place, failure, make, state

FOREIGN = "99999999-8888-7777-6666-555555555555"
TAKEN = (
    "unable to create VM 100: config file already exists",
    "unable to create VM 100 - VM 100 already exists on node 'pve1'",
)


@pytest.mark.parametrize("wording", TAKEN, ids=["clone", "create"])
def test_a_vm_id_taken_meanwhile_is_drawn_again(place: Place, wording: str) -> None:
    place.pve.fail("POST", "/clone", 500, wording, times=1)

    made = make(place.road())

    assert made.node.vmid == 101
    assert place.requests.writes.count(CLONE) == 2


def test_any_other_refusal_of_the_clone_is_not_tried_again(place: Place) -> None:
    place.pve.fail("POST", "/clone", 500, "storage 'local-lvm' is disabled")

    error = failure(place)

    assert "storage 'local-lvm' is disabled" in error.why
    assert place.requests.writes == [CLONE]
    assert state(place) is State.PROVISION_FAILED


def test_a_foreign_vm_that_wins_the_id_is_left_alone(place: Place) -> None:
    def another_is_faster(_method: str, path: str) -> None:
        if path.endswith("/clone"):
            place.requests.on_next = None
            place.pve.add_vm(100, "others", config={"smbios1": f"uuid={FOREIGN}"})

    place.requests.on_next = another_is_faster

    made = make(place.road())

    assert made.node.vmid == 101
    assert place.pve.vm(100).config == {"smbios1": f"uuid={FOREIGN}", "name": "others"}


def test_ids_come_from_the_range_of_the_site_file(place: Place) -> None:
    place.write_site(vmids="{from: 5000, to: 5001}")
    place.pve.add_vm(5000, "others")

    assert make(place.road()).node.vmid == 5001
    assert "every id from 5000 to 5001 is taken" in failure(place, "gpu-02").why


def test_a_full_range_is_told_before_a_vm_exists(place: Place) -> None:
    place.write_site(vmids="{from: 5000, to: 5000}")
    place.pve.add_vm(5000, "others")

    assert isinstance(failure(place), OtherSide)
    assert place.requests.writes == []


def test_a_failed_task_is_told_with_the_end_of_its_log(place: Place) -> None:
    def fails_when_started(vm: Any) -> Any:
        vm.start_error = "bridge 'vmbr9' does not exist"
        return place.new_agent(vm)

    place.pve.vms.agent_for = fails_when_started

    error = failure(place)

    assert error.what == "the start of VM 100 failed"
    assert error.why.splitlines()[0] == "bridge 'vmbr9' does not exist"
    assert "log: TASK ERROR: bridge 'vmbr9' does not exist" in error.why
    assert "VM 100 on pve1" in error.next_step
    record = place.store.get("gpu-01")
    assert record is not None
    assert record.state is State.PROVISION_FAILED
    assert "vmbr9" in str(record.reason)


def test_a_task_that_ends_with_warnings_is_success_and_shows_them(place: Place) -> None:
    def warns(_method: str, path: str) -> None:
        if "/tasks/" in path and path.endswith("/status"):
            task = place.pve.tasklog[-1]
            task["exitstatus"] = "WARNINGS: 1"
            task["log"] = ["WARN: no efidisk configured! Using temporary efivars disk.", "TASK WARNINGS: 1"]

    place.requests.on_next = warns

    made = make(place.road())

    assert made.node.state is State.AWAITING_IDENTITY
    assert "no efidisk configured! Using temporary efivars disk." in made.warnings


def test_a_poll_that_does_not_get_through_is_tried_again(place: Place) -> None:
    place.pve.fail("GET", "/nodes/{node}/tasks/{upid}/status", 599, "Too many redirections", times=2)

    assert make(place.road()).node.state is State.AWAITING_IDENTITY


def test_a_config_that_somebody_else_changed_is_not_overwritten(place: Place) -> None:
    def changed_meanwhile(method: str, _path: str) -> None:
        if method == "PUT":
            place.requests.on_next = None
            place.pve.vm(100).config["cores"] = 7

    place.requests.on_next = changed_meanwhile

    error = failure(place)

    assert "checksum mismatch" in error.why
    assert place.pve.vm(100).config["cores"] == 7
    assert make(place.road()).node.state is State.AWAITING_IDENTITY
    assert [vm.vmid for vm in place.pve.vms] == [9000, 100]


def test_a_recycled_vm_id_is_refused_and_its_vm_untouched(place: Place) -> None:
    make(place.road())
    place.pve.vms.remove(place.pve.vm(100))
    place.pve.add_vm(100, "others", config={"smbios1": f"uuid={FOREIGN}", "description": "muster: gpu-01 x"})
    before, writes = dict(place.pve.vm(100).config), len(place.requests.writes)

    error = failure(place)

    assert isinstance(error, Refused)
    assert FOREIGN in error.why
    assert place.pve.vm(100).config == before
    assert len(place.requests.writes) == writes
    assert state(place) is State.AWAITING_IDENTITY


def test_a_foreign_vm_at_the_id_of_an_unfinished_node_is_left_alone(place: Place) -> None:
    place.pve.fail("POST", "/clone", 500, "storage 'local-lvm' is disabled", times=1)
    failure(place)
    place.pve.add_vm(100, "others", config={"smbios1": f"uuid={FOREIGN}"})

    made = make(place.road())

    assert made.node.vmid == 101
    assert "VM 100 on pve1 is not gpu-01's" in made.warnings[0]
    assert place.pve.vm(100).config["name"] == "others"


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"profile_storage": "nosuch"}, "storage nosuch is not on pve1"),
        ({"profile_storage": "local"}, "storage local holds no VM images"),
        (
            {"profile_disk_gib": "7"},
            "disk_gib asks for 7 GiB, and scsi0 of template 9000 'debian-12' on pve1 has 8 GiB",
        ),
        ({"profile_template": "debian-11"}, "template debian-11 does not exist"),
        ({"profile_node": "pve9"}, "there is no Proxmox node 'pve9'"),
        ({"profile_gpus": "{mapping: h100, count: 1}"}, "GPUs need a q35 machine"),
    ],
)
def test_what_cannot_work_is_refused_before_any_write(
    place: Place, broken: dict[str, str], reason: str
) -> None:
    place.write_site(ticket=True, **broken)

    error = failure(place)

    assert isinstance(error, Refused)
    assert reason in error.why
    assert place.requests.writes == []
    assert state(place) is None


def test_an_inactive_storage_is_refused(place: Place) -> None:
    place.pve.storages["local-lvm"]["active"] = 0

    assert "storage local-lvm is not active on pve1" in failure(place).why


def test_an_offline_host_is_refused(place: Place) -> None:
    place.pve.set_node_offline("pve1")

    assert failure(place).why == "Proxmox node pve1 is offline"
    assert place.requests.writes == []


def test_a_vm_that_is_no_template_is_not_cloned(place: Place) -> None:
    place.pve.add_vm(300, "somebodys")
    place.write_site(profile_template="300")

    assert "VM 300 'somebodys' is not a template" in failure(place).why


def test_a_template_is_found_by_its_name(place: Place) -> None:
    place.write_site(profile_template="debian-12")

    assert make(place.road()).node.vmid == 100


def test_a_larger_disk_is_grown_once(place: Place) -> None:
    place.write_site(profile_disk_gib="12")

    make(place.road())

    assert place.requests.writes == [CLONE, CONFIG, RESIZE, START]
    assert place.requests.body_of("PUT", "/resize") == {"disk": "scsi0", "size": "12G"}


def test_drift_that_would_change_host_keys_is_refused_and_nothing_is_mended(place: Place) -> None:
    make(place.road())
    place.pve.vm(100).config["ciuser"] = "somebody"
    place.pve.vm(100).config["tags"] = "theirs"

    prepared = place.road().prepare("gpu-01", profile=None)
    with pytest.raises(Refused, match="new SSH host keys"):
        place.road().carry_out(prepared)

    assert [change.key for change in prepared.drift] == ["ciuser"]
    assert place.pve.vm(100).config["ciuser"] == "somebody"
    assert place.pve.vm(100).config["tags"] == "theirs"
    assert state(place) is State.AWAITING_IDENTITY


def test_a_ticket_that_could_not_be_made_before_is_made_by_the_next_run(place: Place) -> None:
    place.write_site(ticket=False)
    make(place.road())
    place.write_site(ticket=True)
    before = len(place.requests.writes)

    made = make(place.road())

    assert made.node.ticket is not None
    assert len(place.requests.writes) == before


def test_a_new_ticket_of_a_node_that_is_not_made_is_refused(place: Place) -> None:
    with pytest.raises(Refused, match="not on record"):
        place.road().reissue("gpu-01")


def test_a_new_ticket_without_a_key_for_it_is_refused(place: Place) -> None:
    make(place.road())
    place.write_site(ticket=False)

    with pytest.raises(BadInput, match="names no key"):
        place.road().reissue("gpu-01")


def test_a_node_keeps_its_profile(place: Place) -> None:
    make(place.road())
    text = place.site_file.read_text()
    place.site_file.write_text(text + "  big: {extends: small, cores: 4}\n")

    with pytest.raises(Refused, match="made from profile small, not big"):
        place.road().prepare("gpu-01", profile="big")


def test_a_pool_is_passed_to_the_clone(place: Place) -> None:
    place.pve.pools["gpu"] = set()
    place.site_file.write_text(place.site_file.read_text().replace("proxmox:\n", "proxmox:\n  pool: gpu\n"))

    make(place.road())

    assert place.pve.pools["gpu"] == {100}
    assert place.requests.body_of("POST", "/clone")["full"] == "1"
