"""Which VMs are not adopted, and why: nothing is on record then, and Proxmox was only read."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from inventory.model import Address, HostKey, Node, State
from inventory.store import Store
from tests.inventory.filled import fill
from tests.provision.kit import Place, make
from tests.provision.leaving import OTHER_UUID, record
from tests.provision.test_adopt import UUID, adopt, by_hand, imported, only_read

ZERO = "00000000-0000-0000-0000-000000000000"
Change = Callable[[Place, Any], None]


def _set(**config: Any) -> Change:
    def change(_place: Place, vm: Any) -> None:
        vm.config.update(config)

    return change


def _stopped(_place: Place, vm: Any) -> None:
    vm.status = "stopped"


def _silent(_place: Place, vm: Any) -> None:
    vm.agent = None


def _on_record(**facts: Any) -> Change:
    def change(place: Place, _vm: Any) -> None:
        place.store.add(Node("gpu-09", State.AWAITING_IDENTITY, **facts), why="a test")

    return change


def _retired(place: Place, _vm: Any) -> None:
    node = place.store.add(Node("gpu-09", State.PLANNED, uuid=UUID, vmid=500, spec_hash="00"), why="a test")
    for state in (State.RETIRING, State.RETIRED):
        node = place.store.save(replace(node, state=state), why="a test")


def _copied(place: Place, _vm: Any) -> None:
    by_hand(place, 122)


def _twin(place: Place, vm: Any) -> None:
    key = HostKey.from_line(vm.agent["files"]["/etc/ssh/ssh_host_ed25519_key.pub"])
    _on_record(uuid=OTHER_UUID, host_keys=(key,), spec_hash="ab" * 32)(place, vm)


REFUSED: dict[str, tuple[Change, int, str]] = {
    "gone": (lambda place, _vm: place.pve.vms.remove(place.pve.vm(121)), 3, "VM 121 does not exist"),
    "stopped": (_stopped, 3, "VM 121 on pve1 is stopped"),
    "without-agent": (_set(agent="0"), 3, "VM 121 on pve1 has no guest agent"),
    "silent-agent": (_silent, 4, "the guest agent of VM 121 on pve1 does not answer"),
    "without-uuid": (_set(smbios1="manufacturer=QUNNRQ=="), 3, "has no uuid of its own in smbios1"),
    "zero-uuid": (_set(smbios1=f"uuid={ZERO}"), 3, "has no uuid of its own in smbios1"),
    "copied": (_copied, 3, "VM 121 and VM 122 have the same uuid"),
    "uuid-of-another": (_on_record(uuid=UUID, vmid=500), 3, f"uuid {UUID} is on record as gpu-09's"),
    "uuid-of-a-retired": (_retired, 3, "on record as gpu-09's, which is retired"),
    "id-of-another": (_on_record(uuid=OTHER_UUID, vmid=121), 3, "VM 121 is on record as gpu-09's, with uuid"),
    "twin": (_twin, 3, "it cannot be told from gpu-09: both have SSH host key SHA256:"),
    "without-nic": (_set(net0=""), 3, "has no net0"),
    "locked": (_set(lock="clone"), 3, "VM 121 is still being made (clone)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_with_the_reason_and_nothing_is_on_record(place: Place, case: str) -> None:
    change, code, why = REFUSED[case]
    change(place, by_hand(place))

    done = adopt(place)

    assert done.returncode == code, done.stderr
    assert "gpu-21 was not adopted" in done.stderr
    assert why in done.stderr
    assert place.store.get("gpu-21") is None
    assert only_read(place)


def test_a_template_is_no_node(place: Place) -> None:
    assert "VM 9000 'debian-12' is a template" in adopt(place, "--vmid", "9000", "--yes").stderr


def test_a_uuid_that_no_vm_has_is_refused(place: Place) -> None:
    by_hand(place)

    done = adopt(place, "--uuid", OTHER_UUID, "--yes")
    both = adopt(place, "--uuid", OTHER_UUID, "--vmid", "121", "--yes")

    assert (done.returncode, both.returncode) == (3, 3)
    assert f"no VM that this token may see has uuid {OTHER_UUID}" in done.stderr
    assert f"VM 121 has uuid {UUID}, not {OTHER_UUID}" in both.stderr


def test_a_name_that_is_another_machines_is_refused(place: Place) -> None:
    by_hand(place)
    make(place.road())

    done = adopt(place, name="gpu-01")

    assert done.returncode == 3
    assert f"VM 121 has uuid {UUID}, not {record(place).uuid}" in done.stderr


@pytest.mark.parametrize(
    ("states", "why"),
    [
        ((State.PROVISIONING,), "a VM is being made for it"),
        ((State.RETIRING,), "it is retiring"),
    ],
)
def test_a_name_on_its_way_is_left_alone(place: Place, states: tuple[State, ...], why: str) -> None:
    by_hand(place)
    node = place.store.add(Node("gpu-21", State.PLANNED), why="a test")
    for state in states:
        node = place.store.save(replace(node, state=state), why="a test")

    done = adopt(place)

    assert done.returncode == 3
    assert why in done.stderr
    assert place.requests == []


def test_a_name_whose_machine_is_retired_is_free_again(place: Place) -> None:
    by_hand(place)
    node = place.store.add(Node("gpu-21", State.PLANNED, uuid=OTHER_UUID, vmid=300), why="a test")
    for state in (State.RETIRING, State.RETIRED):
        node = place.store.save(replace(node, state=state), why="a test")

    assert adopt(place).returncode == 0
    assert record(place, "gpu-21").uuid == UUID
    assert [event.after for event in place.store.history("gpu-21")][-2:] == [
        State.PLANNED, State.AWAITING_IDENTITY,
    ]  # fmt: skip


def test_a_vm_that_a_list_had_under_a_wrong_name_is_adopted_under_the_right_one(place: Place) -> None:
    by_hand(place)
    imported(place, f"nodes: [{{name: gpu-09, uuid: {UUID}, vmid: 121}}]")
    wrong = adopt(place)
    retired = place.run("gpu-09", "--retire", "--yes")

    done = adopt(place)

    assert (wrong.returncode, retired.returncode, done.returncode) == (3, 0, 0), done.stderr
    assert (record(place, "gpu-21").uuid, record(place, "gpu-09").uuid) == (UUID, None)
    assert "its uuid is gpu-21's" in place.store.history("gpu-09")[-1].why


def test_a_vm_id_of_another_site_is_another_machines(place: Place) -> None:
    vm = by_hand(place)
    _on_record(uuid=OTHER_UUID, vmid=121, site="elsewhere:8006", spec_hash="ab" * 32)(place, vm)

    assert adopt(place).returncode == 0
    assert {node.name for node in place.store.claimants(vmid=121)} == {"gpu-09", "gpu-21"}


@pytest.mark.parametrize(("site", "code"), [(None, 3), ("elsewhere:8006", 0)])
def test_a_static_address_that_another_node_has_here_is_refused(
    place: Place, site: str | None, code: int
) -> None:
    vm = by_hand(place)
    place.write_site(profile_network="{bridge: vmbr0, address: {from: 10.0.0.2/24, to: 10.0.0.99/24}}")
    taken = Address("10.0.0.10", 24, "static")
    _on_record(uuid=OTHER_UUID, site=site, address=taken, spec_hash="ab" * 32)(place, vm)

    done = adopt(place)

    assert done.returncode == code, done.stderr
    assert ("10.0.0.10 is on record as gpu-09's" in done.stderr) == bool(code)


def test_a_fleet_on_record_makes_the_adoption_of_a_vm_no_dearer(place: Place) -> None:
    for vmid, uuid in ((50121, UUID), (50122, OTHER_UUID)):
        by_hand(place, vmid, uuid)
    place.write_site(profile_network="{bridge: vmbr0, address: {from: 10.0.0.2/24, to: 10.0.0.99/24}}")
    url = f"sqlite:///{place.folder / 'inventory.db'}"
    Store.open(url)

    place.address = "10.0.0.10"
    alone = steps(lambda: adopt(place, "--vmid", "50121", "--yes"))
    fill(url, 2000)
    place.address = "10.0.0.11"
    among_many = steps(lambda: adopt(place, "--vmid", "50122", "--yes", name="gpu-22"))

    assert {record(place, name).state for name in ("gpu-21", "gpu-22")} == {State.AWAITING_IDENTITY}
    assert 0 < among_many <= 1.5 * alone, (alone, among_many)


def steps(work: Callable[[], object]) -> int:
    """What a piece of work costs SQLite, in whichever store: the steps of its virtual machine, by tens."""
    taken = 0

    def step() -> int:
        nonlocal taken
        taken += 1
        return 0

    def watch(connection: Any, _record: object) -> None:
        connection.set_progress_handler(step, 10)

    sa.event.listen(sa.Engine, "connect", watch)
    try:
        work()
    finally:
        sa.event.remove(sa.Engine, "connect", watch)
    return taken
