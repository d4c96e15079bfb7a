"""A VM is known by its uuid: two processes at once make each node's VM once, and nothing foreign is touched."""

import json
import subprocess
from typing import Any

import pytest

from inventory.errors import OtherSide, Refused
from inventory.store import Store
from provision.config import is_ours, marker
from tests.provision.kit import CLONE, Place, failure, make
from tests.provision.test_plan import UUID

FOREIGN = "99999999-8888-7777-6666-555555555555"


def test_thirty_nodes_from_two_processes_are_thirty_vms(place: Place) -> None:
    place.write_site(profile_memory_mib="16", profile_node="pve1")
    hosts = {"a": "gpu-[01-15]", "b": "gpu-[16-30]"}
    processes = [
        subprocess.Popen(
            [*place.command(names, "--yes", "--json")[:-1], f"sqlite:///{place.folder / host}.db"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for host, names in hosts.items()
    ]  # fmt: skip
    ends: list[Any] = [process.communicate(timeout=600) for process in processes]

    assert [process.returncode for process in processes] == [0, 0], ends
    made = [node for out, _ in ends for node in json.loads(out)["nodes"]]
    vms = {vm.vmid: vm.config for vm in place.pve.vms if vm.vmid != 9000}
    assert len(made) == len(vms) == len({node["vmid"] for node in made}) == 30
    assert len({node["uuid"] for node in made}) == 30
    for node in made:
        assert vms[node["vmid"]]["name"] == node["name"]
        assert f"uuid={node['uuid']}" in vms[node["vmid"]]["smbios1"]
    records = [node for host in hosts for node in Store.open(f"sqlite:///{place.folder / host}.db").all()]
    assert {(node.name, node.vmid, node.uuid) for node in records} == {
        (node["name"], node["vmid"], node["uuid"]) for node in made
    }


def test_a_lost_answer_and_then_already_exists_does_not_adopt_a_foreign_vm(place: Place) -> None:
    def another_is_there(_method: str, path: str) -> None:
        if path.endswith("/clone"):
            place.requests.on_next = None
            place.pve.add_vm(100, "others", config={"smbios1": f"uuid={FOREIGN}"})

    place.requests.on_next = another_is_there
    place.pve.fail("POST", "/clone", 596, "Broken pipe", times=1)

    assert isinstance(failure(place), OtherSide)
    made = make(place.road())

    assert made.node.vmid == 101
    assert place.pve.vm(100).config == {"smbios1": f"uuid={FOREIGN}", "name": "others"}


@pytest.mark.parametrize(
    "profile", [{"profile_cores": "1"}, {"profile_disk_gib": "20"}, {"profile_memory_mib": "512"}]
)
def test_a_foreign_vm_is_not_changed_whatever_the_profile_wants(
    place: Place, profile: dict[str, str]
) -> None:
    make(place.road())
    place.pve.vm(100).config["smbios1"] = f"uuid={FOREIGN}"
    before, writes = dict(place.pve.vm(100).config), len(place.requests.writes)
    place.write_site(ticket=True, **profile)

    error = failure(place)

    assert isinstance(error, Refused)
    assert FOREIGN in error.why
    assert place.pve.vm(100).config == before
    assert len(place.requests.writes) == writes


def test_a_vm_without_a_uuid_is_nobodys() -> None:
    assert not is_ours({"name": "gpu-01"}, "gpu-01", UUID, configured=True)
    assert not is_ours(
        {"smbios1": "serial=1", "description": marker("gpu-01", UUID)}, "gpu-01", UUID, configured=True
    )


def test_the_uuid_is_on_record_before_the_first_write(place: Place) -> None:
    seen: list[str | None] = []

    def look(method: str, path: str) -> None:
        if (method, path.removeprefix("/api2/json")) == CLONE:
            record = place.store.get("gpu-01")
            seen.append(record.uuid if record else None)

    place.requests.on_next = look

    made = make(place.road())

    assert seen == [made.node.uuid]
