"""Drift that would give a guest new SSH host keys: shown, refused, and accepted by a new ticket alone."""

import json
from typing import Any

import pytest

from inventory.model import State
from inventory.ticket import peek_ticket
from tests.provision.kit import Place, make
from tests.provision.leaving import IN_SERVICE, made, record

REFUSED = (
    "why: ciuser is somebody, profile small wants muster: the guest would make new SSH host keys",
    "next: set the VM right in Proxmox, or the profile in the site file; or keep the VM as it is, with a new",
    "provision-node gpu-01 --reissue-ticket",
)


def drifted(place: Place) -> Any:
    """A made node whose VM somebody changed in what the run may mend and in what it may not."""
    make(place.road())
    vm = place.pve.vm(100)
    vm.config["ciuser"], vm.config["tags"] = "somebody", "theirs"
    return vm


@pytest.mark.parametrize("arguments", [["--yes"], ["--plan"], ["--plan", "--detailed-exitcode"]])
def test_a_run_and_a_plan_refuse_it_and_mend_nothing(place: Place, arguments: list[str]) -> None:
    vm = drifted(place)
    before, version = len(place.requests.writes), record(place).version

    done = place.run("gpu-01", *arguments)

    assert done.returncode == 3
    assert all(line in done.stderr for line in REFUSED)
    told = done.stdout if "--plan" in arguments else done.stderr
    assert "-/+ ciuser     differs, and is refused: the guest would make new host keys" in told
    assert "configure" not in told
    assert (len(place.requests.writes), vm.config["tags"]) == (before, "theirs")
    assert record(place).version == version


def test_nobody_is_asked_about_a_run_that_is_refused(place: Place) -> None:
    drifted(place)

    assert place.run("gpu-01", "--no-input").returncode == 3


def test_the_other_nodes_of_the_run_are_made(place: Place) -> None:
    drifted(place)

    done = place.run("gpu-[01-02]", "--yes", "--json")

    first, second = json.loads(done.stdout)["nodes"]
    assert done.returncode == 3
    assert (first["changed"], first["plan"], first["drift"]) == (False, [], ["ciuser"])
    assert "new SSH host keys" in first["error"]["why"]
    assert second["state"] == "awaiting-identity"


def test_a_new_ticket_accepts_the_vm_as_it_is_without_a_write(place: Place) -> None:
    made(place, *IN_SERVICE)
    place.pve.vm(100).config["ciuser"] = "somebody"
    before = len(place.requests.writes)

    again = place.run("gpu-01", "--reissue-ticket", "--yes")

    assert again.returncode == 0, again.stderr
    assert "warning: VM 100 keeps ciuser as found" in again.stderr
    assert "this ticket is wrong then" in again.stderr
    assert len(place.requests.writes) == before
    assert record(place).state is State.AWAITING_IDENTITY
    assert place.run("gpu-01", "--yes").returncode == 0
    assert place.run("gpu-01", "--drift", "--detailed-exitcode").returncode == 0


def test_what_was_accepted_is_still_shown(place: Place) -> None:
    drifted(place)
    place.run("gpu-01", "--reissue-ticket")
    place.pve.vm(100).config["tags"] = "muster"

    drift = place.run("gpu-01", "--drift")
    plan = place.run("gpu-01", "--plan", "--detailed-exitcode")

    assert drift.stdout.splitlines() == [
        "gpu-01: no changes",
        "  = ciuser: somebody -> muster  # accepted with its ticket",
    ]
    assert plan.returncode == 0
    assert plan.stdout.splitlines() == [
        "gpu-01: no changes",
        "  =   ciuser     differs, and was accepted with the ticket",
    ]
    assert json.loads(place.run("gpu-01", "--plan", "--json").stdout)["nodes"][0]["accepted"] == ["ciuser"]


def test_it_outlives_a_mending_of_the_rest(place: Place) -> None:
    vm = drifted(place)
    place.run("gpu-01", "--reissue-ticket")

    assert place.run("gpu-01", "--yes").returncode == 0
    assert vm.config["tags"] == "muster;theirs"
    assert vm.config["ciuser"] == "somebody"
    assert place.run("gpu-01", "--yes").returncode == 0


@pytest.mark.parametrize("further", [("ciuser", "a-third"), ("ipconfig0", "ip=10.9.9.9/24")])
def test_further_drift_is_refused_again(place: Place, further: tuple[str, str]) -> None:
    vm = drifted(place)
    place.run("gpu-01", "--reissue-ticket")
    vm.config[further[0]] = further[1]

    done = place.run("gpu-01", "--yes")

    assert done.returncode == 3
    assert f"{further[0]} is {further[1]}" in done.stderr
    assert "somebody" not in done.stderr


def test_a_later_ticket_drops_what_is_right_again(place: Place) -> None:
    vm = drifted(place)
    place.run("gpu-01", "--reissue-ticket")
    vm.config["ciuser"] = "muster"
    place.run("gpu-01", "--reissue-ticket")
    vm.config["ciuser"] = "somebody"

    assert place.run("gpu-01", "--yes").returncode == 3


def test_a_profile_that_was_changed_is_the_same_drift(place: Place) -> None:
    make(place.road())
    place.write_site(profile_user="other")

    assert place.run("gpu-01", "--yes").returncode == 3
    assert place.run("gpu-01", "--reissue-ticket").returncode == 0
    assert place.run("gpu-01", "--yes").returncode == 0


def test_the_command_makes_the_former_ticket_void(place: Place) -> None:
    former = peek_ticket(str(made(place).ticket))

    place.run("gpu-01", "--reissue-ticket")

    assert peek_ticket(str(record(place).ticket)).supersedes == (former.id,)
    assert f"ticket {former.id} is void" in place.store.history("gpu-01")[-1].why
