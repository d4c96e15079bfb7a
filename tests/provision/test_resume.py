"""A run that is cut short at any point: the same command finishes it, with one VM."""

from collections.abc import Mapping, Sequence

import pytest

from inventory.errors import Refused
from inventory.model import State
from provision.config import marker
from provision.hypervisor import TaskStatus, Unanswered
from provision.plan import Clone, Create
from provision.proxmox import Proxmox
from tests.provision.kit import CLONE, CONFIG, RESIZE, START, Place, failure, make, state


class Dies(Proxmox):
    """The adapter of a process that is killed at one of its writes, before it is sent or after it was answered."""

    def __init__(self, inner: Proxmox, *, at: str, after: bool) -> None:
        self.__dict__.update(inner.__dict__)
        self._at, self._after = at, after

    def clone(self, order: Clone | Create, *, vmid: int, name: str, description: str) -> str:
        self._die("clone", after=False)
        upid = super().clone(order, vmid=vmid, name=name, description=description)
        self._die("clone", after=True)
        return upid

    def configure(
        self, host: str, vmid: int, *, changes: Mapping[str, str], delete: Sequence[str], digest: str | None
    ) -> None:
        self._die("configure", after=False)
        super().configure(host, vmid, changes=changes, delete=delete, digest=digest)
        self._die("configure", after=True)

    def start(self, host: str, vmid: int) -> str:
        self._die("start", after=False)
        upid = super().start(host, vmid)
        self._die("start", after=True)
        return upid

    def _die(self, at: str, *, after: bool) -> None:
        if (at, after) == (self._at, self._after):
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", ["clone", "configure", "start"])
def test_what_was_begun_is_finished_with_one_vm(place: Place, at: str, *, after: bool) -> None:
    road = place.road(adapter=lambda proxmox: Dies(proxmox, at=at, after=after))
    with pytest.raises(KeyboardInterrupt):
        make(road)
    assert state(place) is State.PROVISIONING

    made = make(place.road())

    assert made.node.state is State.AWAITING_IDENTITY
    assert [vm.vmid for vm in place.pve.vms] == [9000, 100]
    assert place.requests.writes == [CLONE, CONFIG, START]


class DiesWaiting(Proxmox):
    """The adapter of a process that is killed while it follows a task of one kind."""

    def __init__(self, inner: Proxmox, kind: str) -> None:
        self.__dict__.update(inner.__dict__)
        self._kind = kind

    def task(self, upid: str) -> TaskStatus | None:
        if f":{self._kind}:" in upid:
            raise KeyboardInterrupt
        return super().task(upid)


@pytest.mark.fakepve(time_scale=0.05)
@pytest.mark.parametrize("kind", ["qmclone", "qmstart"])
def test_a_task_in_flight_is_followed_and_not_begun_again(place: Place, kind: str) -> None:
    slow_disks(place)
    with pytest.raises(KeyboardInterrupt):
        make(place.road(adapter=lambda proxmox: DiesWaiting(proxmox, kind)))

    made = make(place.road())

    assert made.node.state is State.AWAITING_IDENTITY
    assert place.requests.writes == [CLONE, CONFIG, START]


@pytest.mark.fakepve(time_scale=0.05)
def test_a_start_in_flight_whose_upid_was_not_noted_is_found(place: Place) -> None:
    slow_disks(place)
    with pytest.raises(KeyboardInterrupt):
        make(place.road(adapter=lambda proxmox: Dies(proxmox, at="start", after=True)))

    assert make(place.road()).node.state is State.AWAITING_IDENTITY
    assert place.requests.writes == [CLONE, CONFIG, START]


def slow_disks(place: Place) -> None:
    """Each task takes ten of Proxmox's seconds."""
    place.pve.add_ceph_storage("ceph")
    place.pve.ceph_slow(10)
    place.pve.vm(9000).config["scsi0"] = "ceph:base-9000-disk-0,size=8G"
    place.write_site(profile_storage="ceph")


def test_a_clone_that_failed_is_begun_again_at_the_same_id(place: Place) -> None:
    place.pve.add_ceph_storage("ceph")
    place.write_site(profile_storage="ceph")
    place.pve.vm(9000).config["scsi0"] = "ceph:base-9000-disk-0,size=8G"
    place.pve.ceph["down"] = True

    error = failure(place)

    assert "couldn't connect to the cluster" in error.why
    place.pve.ceph_recover()
    assert make(place.road()).node.vmid == 100
    assert place.requests.writes.count(CLONE) == 2


def test_a_vm_that_somebody_else_started_is_success(place: Place) -> None:
    def faster(_method: str, path: str) -> None:
        if path.endswith("/status/start"):
            place.pve.vm(100).status = "running"

    place.requests.on_next = faster

    assert make(place.road()).node.state is State.AWAITING_IDENTITY


def test_a_vm_that_did_not_take_its_config_is_told_and_not_started(place: Place) -> None:
    def forgets(method: str, path: str) -> None:
        if method == "GET" and path.endswith("/100/config") and "ciuser" in place.pve.vm(100).config:
            place.pve.vm(100).config["memory"] = "4096"

    place.requests.on_next = forgets

    error = failure(place)

    assert error.what == "VM 100 did not take its config"
    assert error.why == "memory is '4096' instead of '2048'"
    assert place.requests.writes == [CLONE, CONFIG]


def test_two_runs_at_once_on_one_node_leave_one_vm(place: Place) -> None:
    first = place.road()
    prepared = first.prepare("gpu-01", profile=None)

    def second_overtakes(method: str, _path: str) -> None:
        if method == "PUT":
            place.requests.on_next = None
            node = place.store.get("gpu-01")
            assert node is not None
            place.store.save(node, why="another run was here")

    place.requests.on_next = second_overtakes

    with pytest.raises(Refused, match="somebody else changed it meanwhile"):
        first.carry_out(prepared)
    assert state(place) is State.PROVISIONING
    assert make(place.road()).node.vmid == 100
    assert [vm.vmid for vm in place.pve.vms] == [9000, 100]


class LosesAnswers(Proxmox):
    """The adapter when the network eats the answer to a clone and to a config change."""

    def __init__(self, inner: Proxmox) -> None:
        self.__dict__.update(inner.__dict__)

    def clone(self, order: Clone | Create, *, vmid: int, name: str, description: str) -> str:
        super().clone(order, vmid=vmid, name=name, description=description)
        raise Unanswered("lost", why="lost", next_step="again")

    def configure(
        self, host: str, vmid: int, *, changes: Mapping[str, str], delete: Sequence[str], digest: str | None
    ) -> None:
        super().configure(host, vmid, changes=changes, delete=delete, digest=digest)
        raise Unanswered("lost", why="lost", next_step="again")

    def resize(self, host: str, vmid: int, *, disk: str, size_gib: int) -> str | None:
        super().resize(host, vmid, disk=disk, size_gib=size_gib)
        raise Unanswered("lost", why="lost", next_step="again")

    def start(self, host: str, vmid: int) -> str:
        super().start(host, vmid)
        raise Unanswered("lost", why="lost", next_step="again")


def test_a_write_whose_answer_is_lost_is_looked_for_and_never_sent_twice(place: Place) -> None:
    place.write_site(profile_disk_gib="12")

    made = make(place.road(adapter=LosesAnswers))

    assert made.node.state is State.AWAITING_IDENTITY
    assert place.requests.writes == [CLONE, CONFIG, RESIZE, START]


def test_a_clone_that_never_arrived_is_told_and_sent_again_by_the_next_run(place: Place) -> None:
    place.pve.fail("POST", "/clone", 596, "Broken pipe", times=1)

    error = failure(place)

    assert isinstance(error, Unanswered)
    assert place.requests.writes == [CLONE]
    assert make(place.road()).node.vmid == 100
    assert place.requests.writes.count(CLONE) == 2


def test_a_clone_in_progress_is_waited_for(place: Place) -> None:
    road = place.road(adapter=lambda proxmox: Dies(proxmox, at="clone", after=True))
    with pytest.raises(KeyboardInterrupt):
        make(road)
    vm, record = place.pve.vm(100), place.store.get("gpu-01")
    assert record is not None
    vm.lock = vm.config["lock"] = "clone"
    vm.config["description"] = " qmclone temporary file"
    asked = 0

    def goes_on(method: str, path: str) -> None:
        nonlocal asked
        asked += path.endswith("/100/config") and method == "GET"
        if asked == 3:
            vm.config["description"] = marker("gpu-01", str(record.uuid))
        if asked == 5:
            place.pve.unlock(100)

    place.requests.on_next = goes_on

    assert make(place.road()).node.state is State.AWAITING_IDENTITY
    assert place.requests.writes.count(CLONE) == 1
