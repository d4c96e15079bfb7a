"""A node's way against a Proxmox that misbehaves: what fails is told, what was begun is finished."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from inventory.errors import BadInput, MusterError, OtherSide, Refused
from inventory.model import State
from inventory.ticket import peek_ticket
from provision.config import marker
from provision.hypervisor import TaskStatus, Unanswered
from provision.plan import Clone
from provision.proxmox import Proxmox
from provision.road import Made, Road
from tests.provision.kit import Place, public_line
from tests.provision.test_command import CLONE, CONFIG, RESIZE, START

FOREIGN = "99999999-8888-7777-6666-555555555555"
TAKEN = (
    "unable to create VM 100: config file already exists",
    "unable to create VM 100 - VM 100 already exists on node 'pve1'",
)


def make(road: Road, name: str = "gpu-01") -> Made:
    return road.carry_out(road.prepare(name, profile=None))


def failure(place: Place, name: str = "gpu-01") -> MusterError:
    with pytest.raises(MusterError) as caught:
        make(place.road(), name)
    return caught.value


def state(place: Place, name: str = "gpu-01") -> State | None:
    node = place.store.get(name)
    return node.state if node else None


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


class Dies(Proxmox):
    """The adapter of a process that is killed at one of its writes, before it is sent or after it was answered."""

    def __init__(self, inner: Proxmox, *, at: str, after: bool) -> None:
        self.__dict__.update(inner.__dict__)
        self._at, self._after = at, after

    def clone(self, order: Clone, *, vmid: int, name: str, description: str) -> str:
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

    def clone(self, order: Clone, *, vmid: int, name: str, description: str) -> str:
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


def test_two_machines_with_one_host_key_are_refused(place: Place) -> None:
    place.files["/etc/ssh/ssh_host_ed25519_key.pub"] = public_line()
    make(place.road(), "gpu-01")

    error = failure(place, "gpu-02")

    assert error.what == "gpu-02 cannot be told from gpu-01"
    assert "in the template" in error.next_step
    assert state(place, "gpu-02") is State.PROVISION_FAILED


def test_two_machines_with_one_machine_id_are_refused(place: Place) -> None:
    place.files["/etc/machine-id"] = "0123456789abcdef0123456789abcdef\n"
    make(place.road(), "gpu-01")

    assert "machine-id 0123456789abcdef0123456789abcdef" in failure(place, "gpu-02").why


def test_a_cloud_init_that_failed_fails_the_node(place: Place) -> None:
    place.files["/run/cloud-init/result.json"] = '{"v1": {"datasource": null, "errors": ["no user muster"]}}'

    error = failure(place)

    assert (error.what, error.why) == ("cloud-init failed in VM 100", "no user muster")


def test_a_guest_without_cloud_init_is_taken_with_a_warning(place: Place) -> None:
    place.files["/run/cloud-init/result.json"] = ""

    assert "cloud-init has left no result here" in make(place.road()).warnings[0]


def test_a_cloud_init_that_runs_is_waited_for(place: Place) -> None:
    place.files["/run/cloud-init/result.json"] = ""
    place.files["/run/cloud-init/status.json"] = '{"v1": {"stage": "modules-final"}}'

    assert "cloud-init did not end" in failure(place).what


def test_a_guest_without_an_address_is_told_with_what_it_showed(place: Place) -> None:
    place.address = "169.254.7.7"

    error = failure(place)

    assert "eth0" in error.why
    assert "169.254.7.7" in error.why


def test_a_guest_without_host_keys_is_told(place: Place) -> None:
    place.files["/etc/ssh/ssh_host_ed25519_key.pub"] = ""

    assert "showed no SSH host key" in failure(place).what


def test_a_guest_without_machine_id_gets_no_ticket(place: Place) -> None:
    place.files["/etc/machine-id"] = ""

    made = make(place.road())

    assert made.node.ticket is None
    assert any("machine-id" in warning for warning in made.warnings)


def test_a_static_address_is_reserved_sent_and_must_appear(place: Place) -> None:
    place.write_site(
        profile_network="{bridge: vmbr0, address: {from: 10.0.0.10/24, to: 10.0.0.11/24, gateway: 10.0.0.1}}"
    )

    made = make(place.road())

    assert place.requests.body_of("PUT", "/config")["ipconfig0"] == "ip=10.0.0.10/24,gw=10.0.0.1"
    assert made.node.address is not None
    assert (made.node.address.ip, made.node.address.source) == ("10.0.0.10", "static")
    place.address = "10.0.0.99"
    assert "no 10.0.0.11 on" in failure(place, "gpu-02").why
    place.address = "10.0.0.11"
    assert "no address left" not in str(make(place.road(), "gpu-02"))


def test_login_keys_are_encoded_twice_on_the_wire(place: Place) -> None:
    make(place.road())

    body = next(body for method, _, body in place.requests if method == "PUT")
    assert b"sshkeys=ssh-ed25519%2520AAAA" in body
    assert b"%250Assh-ed25519" in body


def test_fabrics_and_gpus_reach_the_vm_and_the_ticket(place: Place) -> None:
    place.pve.vm(9000).config["machine"] = "q35"
    place.write_site(
        profile_gpus="{mapping: h100, count: 2}",
        profile_fabrics="[{name: fabric0, bridge: vmbr1, mtu: 9000, rate_gbps: 400,"
        " addresses: {from: 192.168.50.1/24, to: 192.168.50.9/24}}]",
    )

    made = make(place.road())

    config = place.pve.vm(100).config
    assert config["hostpci0"] == config["hostpci1"] == "mapping=h100,pcie=1"
    assert str(config["balloon"]) == "0"
    assert config["ipconfig1"] == "ip=192.168.50.1/24"
    assert config["net1"].endswith(",bridge=vmbr1,mtu=9000")
    fabric = peek_ticket(str(made.node.ticket)).fabrics[0]
    assert (fabric.name, fabric.interface, fabric.mtu, fabric.address) == (
        "fabric0",
        "eth1",
        9000,
        "192.168.50.1/24",
    )
    assert fabric.mac == made.node.macs[1]
    assert place.road().prepare("gpu-01", profile=None).steps == ()


def test_the_nic_keeps_its_mac_when_its_vlan_changes(place: Place) -> None:
    place.write_site(profile_network="{bridge: vmbr0, vlan: 10, address: dhcp}")

    make(place.road())

    nic = place.pve.vm(100).config["net0"]
    assert nic.endswith(",bridge=vmbr0,firewall=1,tag=10")
    assert place.store.get("gpu-01").macs[0] in nic.lower()  # type: ignore[union-attr]  # it is there


def test_drift_that_would_change_host_keys_is_shown_and_stays(place: Place) -> None:
    make(place.road())
    place.pve.vm(100).config["ciuser"] = "somebody"
    place.pve.vm(100).config["tags"] = "theirs"

    prepared = place.road().prepare("gpu-01", profile=None)
    place.road().carry_out(prepared)

    assert [change.key for change in prepared.drift] == ["ciuser"]
    assert place.pve.vm(100).config["ciuser"] == "somebody"
    assert place.pve.vm(100).config["tags"] == "muster;theirs"
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
