"""A write whose answer was lost is looked for among the tasks, and no older task is taken for it."""

import subprocess
from typing import Any

import pytest

from inventory.model import State
from provision.hypervisor import Unanswered
from provision.proxmox import Proxmox
from provision.upid import began_at, host_of, is_newer, kind_of
from tests.provision.kit import CLONE, START, Place, make, state
from tests.provision.leaving import record, vmids
from tests.provision.test_resume import Dies

OLD = "UPID:pve1:000003E9:00001B5F:6B0D7300:qmclone:9000:muster@pve!t:"


def test_what_an_id_tells() -> None:
    assert (host_of(OLD), kind_of(OLD), began_at(OLD)) == ("pve1", "qmclone", 0x6B0D7300)
    assert began_at("no id at all") == 0


@pytest.mark.parametrize(
    ("upid", "newer"),
    [
        (OLD, False),
        (OLD.replace("6B0D7300", "6B0D7301"), True),
        (OLD.replace("6B0D7300", "6B0D72FF"), False),
        (OLD.replace("00001B5F", "00001B60"), True),
        (OLD.replace("00001B5F", "00001B5E"), False),
        (OLD.replace("pve1", "pve2"), True),
    ],
)
def test_a_task_is_newer_by_its_time_and_within_a_second_by_its_process(upid: str, *, newer: bool) -> None:
    assert is_newer(upid, OLD) is newer
    assert is_newer(upid, None)


class NeverSends(Proxmox):
    """The adapter when the network breaks before a start has reached Proxmox."""

    def __init__(self, inner: Proxmox) -> None:
        self.__dict__.update(inner.__dict__)

    def start(self, host: str, vmid: int) -> str:
        raise Unanswered("lost", why=f"the start of {vmid} on {host} was not sent", next_step="again")


def a_former_vm_with_the_id(place: Place) -> None:
    """VM 100 was another node's, which is retired; its tasks are still in the log of Proxmox."""
    make(place.road(), "gpu-00")
    assert place.run("gpu-00", "--retire", "--yes").returncode == 0
    assert any(task["type"] == "qmstart" and task["id"] == "100" for task in place.pve.tasklog)


def test_the_start_of_a_former_vm_with_its_id_is_not_taken_for_its_own(place: Place) -> None:
    a_former_vm_with_the_id(place)

    with pytest.raises(Unanswered):
        make(place.road(adapter=NeverSends))

    assert record(place).vmid == 100
    assert state(place) is State.PROVISION_FAILED
    assert make(place.road()).node.state is State.AWAITING_IDENTITY


def test_a_run_that_died_before_its_start_does_not_take_an_older_one_for_it(place: Place) -> None:
    a_former_vm_with_the_id(place)
    with pytest.raises(KeyboardInterrupt):
        make(place.road(adapter=lambda proxmox: Dies(proxmox, at="start", after=False)))
    before = place.requests.writes.count(START)

    make(place.road())

    assert place.requests.writes.count(START) == before + 1
    assert place.pve.vm(100).status == "running"


def test_an_earlier_start_of_the_same_vm_is_not_taken_for_a_new_one(place: Place) -> None:
    make(place.road())
    place.pve.vm(100).status = "stopped"

    with pytest.raises(Unanswered):
        make(place.road(adapter=NeverSends))
    assert place.pve.vm(100).status == "stopped"


def test_two_hosts_with_records_of_their_own_make_each_vm_once(place: Place) -> None:
    processes = [
        subprocess.Popen(
            [*place.command(f"{name}-[1-8]", "--yes")[:-1], f"sqlite:///{place.folder / name}.db"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in ("a", "b")
    ]  # fmt: skip
    ends: list[Any] = [process.communicate(timeout=600) for process in processes]

    assert [process.returncode for process in processes] == [0, 0], ends
    assert len(vmids(place)) == len(set(vmids(place))) == 17
    names = {vm.config["name"] for vm in place.pve.vms} - {"debian-12"}
    assert names == {f"{host}-{number}" for host in "ab" for number in range(1, 9)}
    started = [path for method, path in place.requests.writes if path.endswith("/status/start")]
    assert len(started) == len(set(started)) == 16
    assert place.requests.writes.count(CLONE) >= 16
