"""A name that is used again: after its node was retired, or its making undone."""

import json
from dataclasses import replace

import pytest

from inventory.errors import Refused
from inventory.lifecycle import MOVES, anew, check_move
from inventory.model import Node, State
from provision.rollback import Rollback
from tests.provision.kit import Place, failure, make, public_line, state
from tests.provision.leaving import ended, record, vmids
from tests.provision.test_resume import Dies


def retired(place: Place) -> Node:
    """The record of a node that was in service and is retired."""
    ended(place)
    place.run("gpu-01", "--retire", "--yes")
    assert state(place) is State.RETIRED
    return record(place)


def test_only_retired_and_undone_nodes_are_planned_again() -> None:
    assert {state for state, after in MOVES.items() if State.PLANNED in after} == {
        State.RETIRED,
        State.PROVISION_FAILED,
    }
    with pytest.raises(Refused, match="after which may come: planned"):
        check_move("gpu-01", State.RETIRED, State.PROVISIONING)


def test_a_node_made_anew_keeps_its_name_and_its_profile_alone() -> None:
    former = Node("gpu-01", State.RETIRED, version=7, uuid="u", vmid=100, profile="small", receipt="r")

    assert anew(former) == Node("gpu-01", State.PLANNED, version=7, profile="small")


def test_a_retired_name_is_made_again_as_another_machine_with_its_history(place: Place) -> None:
    former = retired(place)
    before = len(place.store.history("gpu-01"))

    plan = place.run("gpu-01", "--plan")
    done = place.run("gpu-01", "--yes", "--json")

    assert "warning: gpu-01 was retired, and is made again as another machine" in plan.stderr
    assert done.returncode == 0, done.stderr
    now = record(place)
    assert json.loads(done.stdout)["nodes"][0]["state"] == "awaiting-identity"
    assert now.uuid != former.uuid
    assert not set(now.host_keys) & set(former.host_keys)
    assert now.receipt is None
    events = place.store.history("gpu-01")[before:]
    assert [event.after for event in events] == [State.PLANNED, State.PROVISIONING, State.AWAITING_IDENTITY]
    assert events[0].why == f"its name is used again; it was VM 100, uuid {former.uuid}"


def test_a_plan_leaves_a_retired_node_retired(place: Place) -> None:
    former = retired(place)

    assert place.run("gpu-01", "--plan", "--detailed-exitcode").returncode == 10
    assert record(place) == former


def test_its_former_host_keys_and_machine_id_do_not_stand_in_its_way(place: Place) -> None:
    place.files = {"/etc/machine-id": "a" * 32, "/etc/ssh/ssh_host_ed25519_key.pub": public_line()}
    former = retired(place)

    assert place.run("gpu-01", "--yes").returncode == 0
    assert record(place).machine_id == former.machine_id


def test_another_nodes_machine_id_still_does(place: Place) -> None:
    retired(place)
    place.files = {"/etc/machine-id": "a" * 32}
    make(place.road(), "gpu-02")

    done = place.run("gpu-01", "--yes")

    assert done.returncode == 3
    assert "gpu-01 cannot be told from gpu-02" in done.stderr
    assert state(place) is State.PROVISION_FAILED


def test_its_second_life_needs_no_receipt_of_its_first(place: Place) -> None:
    retired(place)
    make(place.road())

    done = place.run("gpu-01", "--retire", "--yes")

    assert done.returncode == 0, done.stderr
    assert vmids(place) == [9000]


def test_the_receipt_of_its_first_life_ends_no_second_identity(place: Place) -> None:
    former = retired(place)
    make(place.road())
    for after in (State.ONBOARDING, State.ONBOARD_FAILED, State.DECOMMISSIONING, State.AWAITING_RETIREMENT):
        place.store.save(replace(record(place), state=after, receipt=former.receipt), why="a test")

    done = place.run("gpu-01", "--retire", "--yes")

    assert done.returncode == 3
    assert f"is for gpu-01, VM {former.uuid}" in done.stderr


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_run_that_dies_on_its_way_to_a_second_life_is_finished(place: Place, *, after: bool) -> None:
    retired(place)
    with pytest.raises(KeyboardInterrupt):
        make(place.road(adapter=lambda proxmox: Dies(proxmox, at="clone", after=after)))

    make(place.road())

    assert state(place) is State.AWAITING_IDENTITY
    assert len(vmids(place)) == 2


def test_an_undone_node_is_planned_and_its_addresses_are_free(place: Place) -> None:
    place.write_site(profile_network="{bridge: vmbr0, address: {from: 10.0.0.11/24, to: 10.0.0.11/24}}")
    place.address = "10.0.0.11"
    with pytest.raises(KeyboardInterrupt):
        make(place.road(adapter=lambda proxmox: Dies(proxmox, at="start", after=False)))

    assert place.run("gpu-01", "--rollback", "--yes").returncode == 0
    assert state(place) is State.PLANNED
    assert place.run("gpu-02", "--yes").returncode == 0


def test_a_planned_node_can_be_struck_off(place: Place) -> None:
    place.pve.fail("POST", "/clone", 500, "storage 'local-lvm' is disabled", times=1)
    failure(place)
    Rollback(place.store, place.road()._tools).carry_out(record(place))  # noqa: SLF001 - the kit's tools
    assert state(place) is State.PLANNED

    assert place.run("gpu-01", "--retire", "--yes").returncode == 0
    assert state(place) is State.RETIRED
