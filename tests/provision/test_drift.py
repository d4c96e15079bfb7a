"""Drift: what differs between a VM and its profile, key by key, and nothing where they only are written differently."""

import json

import pytest

from inventory.errors import Refused
from inventory.model import State
from tests.provision.kit import Place, make, state


def test_a_vm_as_its_profile_wants_it_has_no_drift(place: Place) -> None:
    make(place.road())

    done = place.run("gpu-01", "--drift", "--detailed-exitcode")

    assert done.returncode == 0, done.stderr
    assert done.stdout == "gpu-01: no changes\n"


def test_drift_is_told_key_by_key_and_nothing_is_changed(place: Place) -> None:
    make(place.road())
    vm = place.pve.vm(100)
    vm.config["cores"], vm.config["ciuser"] = 7, "somebody"
    vm.pending["memory"] = "4096"
    before = len(place.requests.writes)

    done = place.run("gpu-01", "--drift", "--detailed-exitcode")

    assert done.returncode == 10
    assert done.stdout.splitlines() == [
        "gpu-01: VM 100 and profile small differ",
        "  ~ cores: 7 -> 2",
        "  -/+ ciuser: somebody -> muster  # would replace the SSH host keys, so it stays",
        "  ~ memory: 2048 -> 4096  # pending: at the next stop and start",
    ]
    assert len(place.requests.writes) == before


def test_drift_is_data(place: Place) -> None:
    make(place.road())
    place.pve.vm(100).config["ciuser"] = "somebody"
    place.pve.vm(100).pending["onboot"] = None
    place.pve.vm(100).config["onboot"] = 1
    place.pve.vm(100).status = "stopped"

    done = place.run("gpu-01", "--drift", "--json")

    found = json.loads(done.stdout)["nodes"][0]["drift"]
    assert done.returncode == 0
    assert found == {
        "mendable": [{"step": "start"}],
        "stays": [{"key": "ciuser", "before": "somebody", "after": "muster"}],
        "accepted": [],
        "pending": [{"key": "onboot", "before": "1", "after": None}],
    }


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("tags", "muster"),
        ("memory", 2048),
        ("agent", "1"),
        ("agent", "enabled=1"),
        ("ipconfig0", "ip=dhcp"),
        ("cores", "2"),
    ],
)
def test_another_way_of_writing_the_same_is_no_drift(place: Place, key: str, written: object) -> None:
    make(place.road())
    place.pve.vm(100).config[key] = written

    assert place.run("gpu-01", "--drift", "--detailed-exitcode").returncode == 0


def test_the_order_of_a_nics_properties_and_the_case_of_its_mac_are_no_drift(place: Place) -> None:
    make(place.road())
    vm = place.pve.vm(100)
    model, *rest = str(vm.config["net0"]).split(",")
    vm.config["net0"] = ",".join([*reversed(rest), model.lower()])

    assert place.run("gpu-01", "--drift", "--detailed-exitcode").returncode == 0


def test_a_node_that_is_not_made_has_nothing_to_compare(place: Place) -> None:
    done = place.run("gpu-01", "--drift")

    assert done.returncode == int(Refused.exit_code)
    assert "its VM is not made yet" in done.stderr


def test_drift_is_mended_by_the_same_command_without_it(place: Place) -> None:
    make(place.road())
    place.pve.vm(100).config["cores"] = 7

    done = place.run("gpu-01", "--yes")

    assert done.returncode == 0, done.stderr
    assert "gpu-01: VM 100 on pve1 is awaiting-identity" in done.stderr
    assert place.run("gpu-01", "--drift", "--detailed-exitcode").returncode == 10  # it runs, so it waits
    assert "at the next stop and start" in place.run("gpu-01", "--drift").stdout


def test_what_a_running_vm_takes_on_later_is_told_when_it_is_changed(place: Place) -> None:
    make(place.road())
    place.pve.vm(100).config["cores"] = 7

    done = place.run("gpu-01", "--yes")

    assert "VM 100 takes on cores when it is next stopped and started" in done.stderr
    assert state(place) is State.AWAITING_IDENTITY


def test_the_count_line_tells_what_a_plan_does(place: Place) -> None:
    make(place.road())
    place.pve.vm(100).config["cores"] = 7

    plan = place.run("gpu-[01-03]", "--plan")

    assert plan.stdout.splitlines()[-1] == "plan: 2 to make, 1 to change"
    assert place.run("gpu-01", "--plan").stdout.splitlines()[-1] == "plan: 0 to make, 1 to change"


def test_a_plan_of_several_without_changes_says_so_once_more(place: Place) -> None:
    for name in ("gpu-01", "gpu-02"):
        make(place.road(), name)

    plan = place.run("gpu-[01-02]", "--plan", "--detailed-exitcode")

    assert plan.returncode == 0
    assert plan.stdout.splitlines() == ["gpu-01: no changes", "gpu-02: no changes", "plan: no changes"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--drift", "--plan"],
        ["--drift", "--retire"],
        ["--rollback", "--retire"],
        ["--rollback", "--reissue-ticket"],
        ["--orphan-identity"],
        ["--orphan-identity", "--rollback"],
        ["--retire", "--detailed-exitcode"],
        ["--retire", "--ticket-out", "."],
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(place: Place, flags: list[str]) -> None:
    done = place.run("gpu-01", *flags)

    assert done.returncode == 2
    assert done.stdout == ""
    assert place.requests == []
