"""A node that is retired: only with the holder's word, only its own VM, and its record stays."""

import json
import subprocess
import sys
from typing import Any

import pytest

from inventory.model import State
from tests.provision.kit import Place, make, state
from tests.provision.leaving import (
    DESTROY,
    ENDED,
    IN_SERVICE,
    LEAVE_HA,
    OTHER_UUID,
    STOP,
    ended,
    in_ha,
    keep_receipt,
    killed_at,
    made,
    record,
    trust_the_holder,
    vmids,
)


def test_a_node_whose_identity_ended_is_retired_and_its_record_stays(place: Place) -> None:
    node = ended(place)
    before = len(place.requests.writes)

    done = place.run("gpu-01", "--retire", "--yes", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nodes"][0]["state"] == "retired"
    assert place.requests.writes[before:] == [STOP, DESTROY]
    assert vmids(place) == [9000]
    kept = record(place)
    assert (kept.state, kept.uuid, kept.vmid, kept.ticket) == (State.RETIRED, node.uuid, 100, None)
    assert [event.after for event in place.store.history("gpu-01")][-2:] == [State.RETIRING, State.RETIRED]
    assert place.store.history("gpu-01")[-1].why == "VM 100 on pve1 was destroyed"


def test_what_goes_is_shown_and_nothing_is_touched_by_a_plan(place: Place) -> None:
    node = ended(place)
    before = len(place.requests.writes)

    plan = place.run("gpu-01", "--retire", "--plan", "--detailed-exitcode")

    assert plan.returncode == 10
    assert plan.stdout.splitlines()[:2] == [
        "gpu-01: is to be retired",
        f"  - VM 100 on pve1, uuid {node.uuid}, with its disks, backup jobs and HA entry",
    ]
    assert "its identity 0a was ended by holder" in plan.stdout
    assert len(place.requests.writes) == before


def test_it_is_not_done_unasked(place: Place) -> None:
    ended(place)

    done = place.run("gpu-01", "--retire")

    assert done.returncode == 2
    assert "asks for the name of gpu-01" in done.stderr
    assert vmids(place) == [9000, 100]


def test_a_retired_node_is_retired_no_second_time(place: Place) -> None:
    ended(place)
    place.run("gpu-01", "--retire", "--yes")
    before = len(place.requests.writes)

    again = place.run("gpu-01", "--retire", "--yes")

    assert again.returncode == 0
    assert "nothing is left to do" in again.stderr
    assert len(place.requests.writes) == before


def test_a_node_in_service_is_refused_with_the_way_to_go(place: Place) -> None:
    made(place, *IN_SERVICE)
    trust_the_holder(place)

    done = place.run("gpu-01", "--retire", "--yes")

    assert done.returncode == 3
    assert "no receipt says that its identity ended" in done.stderr
    assert "onboard-node gpu-01 --decommission" in done.stderr
    assert vmids(place) == [9000, 100]
    assert state(place) is State.IN_SERVICE


def _other_kind(place: Place) -> None:
    keep_receipt(place, "onboarded")


def _other_vm(place: Place) -> None:
    keep_receipt(place, "decommissioned", vm_uuid=OTHER_UUID)


def _other_signer(place: Place) -> None:
    (place.folder / "receipt_signers").write_text("# nobody\n")


def _nobody_trusted(place: Place) -> None:
    place.write_site()


@pytest.mark.parametrize(
    ("spoil", "code", "reason"),
    [
        (_other_kind, 3, "its receipt, by holder, says onboarded"),
        (_other_vm, 3, f"is for gpu-01, VM {OTHER_UUID}"),
        (_other_signer, 3, "receipt"),
        (_nobody_trusted, 2, "the site file does not say whose receipts count"),
    ],
)
def test_a_receipt_that_does_not_say_so_is_not_enough(
    place: Place, spoil: Any, code: int, reason: str
) -> None:
    ended(place)
    spoil(place)

    done = place.run("gpu-01", "--retire", "--yes")

    assert done.returncode == code, done.stderr
    assert reason in done.stderr
    assert vmids(place) == [9000, 100]
    assert state(place) is State.AWAITING_RETIREMENT


@pytest.mark.parametrize("moved", [IN_SERVICE, IN_SERVICE[:1], IN_SERVICE[:3], ENDED[:-1]])
def test_an_orphaned_identity_is_told_loudly(place: Place, moved: tuple[State, ...]) -> None:
    made(place, *moved)

    done = place.run("gpu-01", "--retire", "--orphan-identity", "--yes", "-q")

    assert done.returncode == 0, done.stderr
    assert "warning: gpu-01 goes with --orphan-identity: a certificate of it may stay valid" in done.stderr
    assert vmids(place) == [9000]
    whys = [event.why for event in place.store.history("gpu-01")]
    assert any("--orphan-identity" in why for why in whys)


def test_a_node_that_never_had_an_identity_needs_no_receipt(place: Place) -> None:
    make(place.road())

    assert place.run("gpu-01", "--retire", "--yes").returncode == 0
    assert state(place) is State.RETIRED


def test_the_vm_leaves_ha_before_it_is_stopped(place: Place) -> None:
    ended(place)
    in_ha(place)
    before = len(place.requests.writes)

    done = place.run("gpu-01", "--retire", "--yes")

    assert done.returncode == 0, done.stderr
    assert place.requests.writes[before:] == [LEAVE_HA, STOP, DESTROY]


def test_a_vm_that_may_not_leave_ha_is_stopped_through_it(place: Place) -> None:
    ended(place)
    place.pve.vm(100).ha_state = "started"
    place.pve.fail("DELETE", "/cluster/ha/resources/vm:100", 403, "Permission check failed (/, Sys.Console)")

    done = place.run("gpu-01", "--retire", "--yes")

    assert done.returncode == 0, done.stderr
    assert "warning: VM 100 stays in HA until it is destroyed" in done.stderr
    # Without purge=1 Proxmox refuses to destroy what HA still has.
    assert vmids(place) == [9000]


def test_a_recycled_vm_id_is_refused_and_its_vm_untouched(place: Place) -> None:
    ended(place)
    place.pve.vms.remove(place.pve.vm(100))
    place.pve.add_vm(
        100, "others", config={"smbios1": f"uuid={OTHER_UUID}", "description": "muster: gpu-01 x"}
    )
    before = len(place.requests.writes)

    done = place.run("gpu-01", "--retire", "--yes")

    assert done.returncode == 3
    assert "leave VM 100 alone" in done.stderr
    assert len(place.requests.writes) == before
    assert state(place) is State.RETIRE_FAILED


def test_a_vm_that_is_gone_already_is_retired(place: Place) -> None:
    ended(place)
    place.pve.vms.remove(place.pve.vm(100))

    assert place.run("gpu-01", "--retire", "--yes").returncode == 0
    assert place.store.history("gpu-01")[-1].why == "its VM was gone"


@pytest.mark.parametrize(
    ("method", "path", "text"),
    [
        ("POST", "/nodes/pve1/qemu/100/status/stop", "VM is locked (backup)"),
        ("DELETE", "/nodes/pve1/qemu/100", "can't remove VM 100 - protection mode enabled"),
    ],
    ids=["stop", "destroy"],
)
def test_a_step_that_fails_is_on_record_and_the_same_command_goes_on(
    place: Place, method: str, path: str, text: str
) -> None:
    node = ended(place)
    place.pve.fail(method, path, 500, text, times=1)

    done = place.run("gpu-01", "--retire", "--yes")

    assert done.returncode == 4
    assert text in done.stderr
    assert f"VM 100 on pve1 (uuid {node.uuid}) may still be there" in done.stderr
    assert state(place) is State.RETIRE_FAILED
    assert text in str(record(place).reason)
    assert place.run("gpu-01", "--retire", "--yes").returncode == 0
    assert vmids(place) == [9000]


@pytest.mark.fakepve(time_scale=0.05)
@pytest.mark.parametrize("at", [LEAVE_HA, STOP, DESTROY], ids=["leave ha", "stop", "destroy"])
def test_a_run_killed_at_any_write_is_finished_by_the_same_command(place: Place, at: tuple[str, str]) -> None:
    ended(place)
    in_ha(place)
    place.pve.vm(100).stop_secs = 4
    killed_at(place, at, "gpu-01", "--retire", "--yes")
    assert state(place) is State.RETIRING

    done = place.run("gpu-01", "--retire", "--yes")

    assert done.returncode == 0, done.stderr
    assert vmids(place) == [9000]
    assert state(place) is State.RETIRED
    assert place.requests.writes.count(DESTROY) == 1


def test_a_failed_node_does_not_stop_the_others(place: Place) -> None:
    ended(place)
    make(place.road(), "gpu-02")
    place.pve.fail("POST", "/nodes/pve1/qemu/100/status/stop", 500, "VM is locked (backup)", times=1)

    done = place.run("gpu-[01-03]", "--retire", "--yes", "--json")

    states = {node["name"]: node["state"] for node in json.loads(done.stdout)["nodes"]}
    assert done.returncode == 4
    assert states == {"gpu-01": "retire-failed", "gpu-02": "retired", "gpu-03": None}


def test_its_addresses_are_free_again(place: Place) -> None:
    place.address = "10.0.0.11"
    ranged = "{bridge: vmbr0, address: {from: 10.0.0.11/24, to: 10.0.0.11/24}}"
    place.write_site(profile_network=ranged)
    make(place.road())
    assert place.run("gpu-02", "--yes").returncode == 3

    place.run("gpu-01", "--retire", "--yes")

    assert place.run("gpu-02", "--yes").returncode == 0


def test_a_person_types_the_name(place: Place) -> None:
    ended(place)
    script = f"import pty, sys; sys.exit(pty.spawn({place.command('gpu-01', '--retire')!r}) >> 8)"
    typed = [
        subprocess.run(
            [sys.executable, "-c", script],
            input=text,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        for text in ("gpu-1\n", "gpu-01\n")
    ]

    assert [done.returncode for done in typed] == [3, 0], typed
    assert "type gpu-01 to go on:" in typed[0].stdout
    assert vmids(place) == [9000]
