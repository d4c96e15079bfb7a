"""An unfinished node undone: its VM and no other goes, and the same name can be made anew."""

import json

import pytest

from inventory.model import State
from provision.config import marker
from provision.hypervisor import Unanswered
from provision.proxmox import Proxmox
from provision.rollback import Rollback
from tests.provision.kit import CLONE, CONFIG, START, Place, failure, make, state
from tests.provision.leaving import DESTROY, OTHER_UUID, STOP, killed_at, made, record, vmids
from tests.provision.test_resume import Dies, DiesWaiting, slow_disks


def failed(place: Place) -> None:
    """A node whose VM was made and configured, and did not start."""
    place.pve.fail("POST", "/status/start", 500, "VM is locked (backup)", times=1)
    failure(place)


def test_a_failed_node_is_undone_and_can_be_made_anew(place: Place) -> None:
    failed(place)
    first = record(place)
    before = len(place.requests.writes)

    done = place.run("gpu-01", "--rollback", "--yes", "--json")

    assert done.returncode == 0, done.stderr
    assert place.requests.writes[before:] == [DESTROY]
    assert vmids(place) == [9000]
    undone = record(place)
    assert (undone.state, undone.vmid, undone.uuid) == (State.PLANNED, None, None)
    assert (
        place.store.history("gpu-01")[-1].why == f"undone: VM 100 on pve1 (uuid {first.uuid}) was destroyed"
    )
    assert place.run("gpu-01", "--yes").returncode == 0
    assert record(place).state is State.AWAITING_IDENTITY
    assert record(place).uuid != first.uuid


def test_a_running_vm_is_stopped_first(place: Place) -> None:
    place.files["/etc/ssh/ssh_host_ed25519_key.pub"] = ""
    failure(place)
    before = len(place.requests.writes)

    assert place.run("gpu-01", "--rollback", "--yes").returncode == 0
    assert place.requests.writes[before:] == [STOP, DESTROY]


def test_what_goes_is_shown_and_nothing_is_touched_by_a_plan(place: Place) -> None:
    failed(place)
    before = len(place.requests)

    plan = place.run("gpu-01", "--rollback", "-n", "--detailed-exitcode", "--json")

    assert plan.returncode == 10
    assert json.loads(plan.stdout)["nodes"][0]["goes"] == [
        f"- VM 100 on pve1, uuid {record(place).uuid}, as far as it was made"
    ]
    assert len(place.requests) == before


def test_it_is_not_done_unasked(place: Place) -> None:
    failed(place)

    assert place.run("gpu-01", "--rollback").returncode == 2
    assert vmids(place) == [9000, 100]


@pytest.mark.parametrize(
    ("moved", "reason"),
    [([], "it is awaiting-identity"), ([State.ONBOARDING], "it is onboarding")],
)
def test_a_finished_node_is_not_undone(place: Place, moved: list[State], reason: str) -> None:
    made(place, *moved)

    done = place.run("gpu-01", "--rollback", "--yes")

    assert done.returncode == 3
    assert reason in done.stderr
    assert vmids(place) == [9000, 100]


def test_an_unknown_node_is_refused(place: Place) -> None:
    assert "it is not on record" in place.run("gpu-09", "--rollback", "--yes").stderr


def test_what_is_undone_already_is_success(place: Place) -> None:
    failed(place)
    place.run("gpu-01", "--rollback", "--yes")

    again = place.run("gpu-01", "--rollback", "--yes")

    assert again.returncode == 0
    assert "nothing is left to do" in again.stderr


def test_a_foreign_vm_at_its_id_is_left_alone(place: Place) -> None:
    place.pve.fail("POST", "/clone", 500, "storage 'local-lvm' is disabled", times=1)
    failure(place)
    place.pve.add_vm(100, "others", config={"smbios1": f"uuid={OTHER_UUID}"})
    before = len(place.requests.writes)

    done = place.run("gpu-01", "--rollback", "--yes")

    assert done.returncode == 3
    assert OTHER_UUID in done.stderr
    assert len(place.requests.writes) == before
    assert vmids(place) == [9000, 100]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", ["clone", "configure", "start"])
def test_a_run_that_died_at_a_write_is_undone_without_a_rest(place: Place, at: str, *, after: bool) -> None:
    with pytest.raises(KeyboardInterrupt):
        make(place.road(adapter=lambda proxmox: Dies(proxmox, at=at, after=after)))
    assert state(place) is State.PROVISIONING

    undo(place)

    assert vmids(place) == [9000]
    assert record(place).vmid is None
    assert state(place) is State.PLANNED


def undo(place: Place) -> None:
    """--rollback, with the little patience of the tests."""
    road = place.road()
    node = place.store.get("gpu-01")
    assert node is not None
    Rollback(place.store, road._tools).carry_out(node)  # noqa: SLF001 - the tools that the kit made


@pytest.mark.fakepve(time_scale=0.05)
def test_a_clone_that_runs_is_stopped_and_what_it_made_goes(place: Place) -> None:
    slow_disks(place)
    with pytest.raises(KeyboardInterrupt):
        make(place.road(adapter=lambda proxmox: DiesWaiting(proxmox, "qmclone")))
    asked: list[str] = []
    place.requests.on_next = lambda method, path: asked.append(path) if method == "DELETE" else None

    undo(place)

    assert "/tasks/UPID:" in asked[0]
    assert vmids(place) == [9000]


@pytest.mark.fakepve(time_scale=0.05)
@pytest.mark.parametrize("at", [STOP, DESTROY], ids=["stop", "destroy"])
def test_a_rollback_killed_at_any_write_is_finished_by_the_same_command(
    place: Place, at: tuple[str, str]
) -> None:
    place.files["/etc/ssh/ssh_host_ed25519_key.pub"] = ""
    failure(place)
    place.pve.vm(100).stop_secs = 4
    killed_at(place, at, "gpu-01", "--rollback", "--yes")

    done = place.run("gpu-01", "--rollback", "--yes")

    assert done.returncode == 0, done.stderr
    assert vmids(place) == [9000]
    assert place.requests.writes.count(DESTROY) == 1


@pytest.mark.parametrize("at", [CLONE, CONFIG, START], ids=["clone", "config", "start"])
def test_a_making_killed_at_any_write_can_be_undone(place: Place, at: tuple[str, str]) -> None:
    killed_at(place, at, "gpu-01", "--yes")
    assert state(place) is State.PROVISIONING

    done = place.run("gpu-01", "--rollback", "--yes")

    assert done.returncode == 0, done.stderr
    assert vmids(place) == [9000]


def test_a_rollback_that_fails_names_the_vm(place: Place) -> None:
    failed(place)
    place.pve.fail("DELETE", "/nodes/pve1/qemu/100", 500, "can't remove VM 100 - protection mode enabled")

    done = place.run("gpu-01", "--rollback", "--yes")

    assert done.returncode == 4
    assert f"VM 100 on pve1 (uuid {record(place).uuid}) may still be there" in done.stderr
    assert record(place).vmid == 100


class LosesAnswers(Proxmox):
    """The adapter when the network eats the answers to a stop and to a destroy."""

    def __init__(self, inner: Proxmox) -> None:
        self.__dict__.update(inner.__dict__)

    def stop(self, host: str, vmid: int) -> str:
        super().stop(host, vmid)
        raise unanswered()

    def destroy(self, host: str, vmid: int) -> str:
        super().destroy(host, vmid)
        raise unanswered()


def unanswered() -> Unanswered:
    return Unanswered("lost", why="lost", next_step="again")


def test_a_stop_and_a_destroy_whose_answers_are_lost_are_looked_for_and_never_sent_twice(
    place: Place,
) -> None:
    place.files["/etc/ssh/ssh_host_ed25519_key.pub"] = ""
    failure(place)
    before = len(place.requests.writes)

    Rollback(place.store, place.road(adapter=LosesAnswers)._tools).carry_out(record(place))  # noqa: SLF001

    assert place.requests.writes[before:] == [STOP, DESTROY]
    assert vmids(place) == [9000]


def test_the_marker_alone_is_enough_before_the_vm_was_configured(place: Place) -> None:
    with pytest.raises(KeyboardInterrupt):
        make(place.road(adapter=lambda proxmox: Dies(proxmox, at="configure", after=False)))
    assert place.pve.vm(100).config["description"] == marker("gpu-01", str(record(place).uuid))

    undo(place)

    assert vmids(place) == [9000]
