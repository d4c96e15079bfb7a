"""Templates as they are in life: what provision-node and onboard-node say to each of them today."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.places import Places
from lab.running import find
from lab.scenarios import KNOWN
from lab.spawner import find_program
from tests.e2e.labs import Lab, running_lab
from tests.lab.api import Api, vm_path
from tests.require import need, need_command

CAN_ASK = os.geteuid() == 0 and find_program("sudo") is not None


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab with every template that nodes can have here."""
    need_command("ssh-keygen")
    names = [name for name in KNOWN if CAN_ASK or name != "sudo-asks"]
    words = (word for name in names for word in ("--template", name))
    with running_lab(tmp_path_factory.mktemp("state"), *words) as made:
        yield made


def provision(lab: Lab, name: str, *words: str) -> tuple[int, str, Any]:
    """The exit code of provision-node, what it said, and its document's entry for the node."""
    done = lab.run("provision-node", name, "--yes", "--json", *words)
    return done.returncode, done.stderr, json.loads(done.stdout)["nodes"][0]


def onboard(lab: Lab, name: str, **more: str) -> tuple[int, str]:
    """The exit code of onboard-node, and what it said."""
    done = lab.run("onboard-node", name, "--yes", "--no-verify", **more)
    return done.returncode, done.stderr


def test_the_lab_comes_with_a_profile_for_each_template(lab: Lab) -> None:
    status = lab.ask("node-lab", "status")
    templates = [vm["name"] for vm in status["vms"] if vm["template"]]

    assert templates == ["debian-12-lab", *status["templates"]]
    assert set(status["templates"]) <= set(KNOWN)


def test_a_second_clone_of_a_template_that_kept_its_identity_is_refused(lab: Lab) -> None:
    first, _, one = provision(lab, "twin-1", "--profile", "cloned")
    second, said, two = provision(lab, "twin-2", "--profile", "cloned")

    assert (first, one["state"]) == (0, "awaiting-identity")
    assert (second, two["state"]) == (3, "provision-failed")
    assert "twin-2 cannot be told from twin-1" in said
    assert re.search(r"both have SSH host key SHA256:\S+, so it came from the template", said)
    assert "remove /etc/ssh/ssh_host_* and empty /etc/machine-id in the template" in said


def test_a_template_without_an_agent_is_waited_for_no_longer_than_was_asked(lab: Lab) -> None:
    code, said, node = provision(lab, "mute-1", "--profile", "no-agent", "--wait", "2")

    assert (code, node["state"]) == (4, "provision-failed")
    assert "did not tell its address in 2 s" in said
    assert "the guest agent does not answer (is it installed and enabled in the template?)" in said
    assert "the same command goes on from there" in said


def test_a_degraded_cloud_init_is_a_warning(lab: Lab) -> None:
    code, said, node = provision(lab, "degraded-1", "--profile", "degraded")

    assert (code, node["state"]) == (0, "awaiting-identity")
    assert [warning.split(":")[:2] for warning in node["warnings"]] == [["cloud-init", " WARNING"]]
    assert "Invalid cloud-config provided" in said


def test_a_cloud_init_that_failed_is_named_and_no_ticket_is_made(lab: Lab) -> None:
    code, said, node = provision(lab, "failed-1", "--profile", "cloud-init-fails")

    assert (code, node["state"], node["ticket"]) == (4, "provision-failed", None)
    assert "cloud-init failed in VM" in said
    assert "Runparts: 1 failures (runcmd)" in said
    assert "look at /var/log/cloud-init.log there" in said


def test_a_template_that_takes_long_to_boot_is_waited_for_and_a_short_wait_can_be_taken_up_again(
    lab: Lab,
) -> None:
    hasty, said, _ = provision(lab, "slow-1", "--profile", "slow", "--wait", "2")
    patient, _, node = provision(lab, "slow-1", "--profile", "slow")

    assert hasty == 4
    assert "did not tell its address in 2 s" in said
    assert (patient, node["state"]) == (0, "awaiting-identity")


@pytest.mark.parametrize(
    ("profile", "skew"), [("clock-off", r"0:0[67]:\d\d"), ("clock-1970", r"\d{5} days, \d+:\d\d:\d\d")]
)
def test_a_node_whose_clock_is_off_gets_no_identity_and_the_skew_is_told(
    lab: Lab, profile: str, skew: str
) -> None:
    name = f"{profile}-1"
    made, _, _ = provision(lab, name, "--profile", profile)
    code, said = onboard(lab, name)

    assert made == 0
    assert code == 3
    assert re.search(rf"the node's clock is {skew} behind of ours; the policy allows 300 s", said), said


def test_a_lease_that_moved_is_found_again_by_a_new_ticket(lab: Lab) -> None:
    _, _, made = provision(lab, "lease-1", "--profile", "moving-lease")
    reboot(lab, made["vmid"])
    gone = onboard(lab, "lease-1")
    _, _, other = provision(lab, "lease-2", "--profile", "moving-lease")
    stranger = onboard(lab, "lease-1")
    again, _, mended = provision(lab, "lease-1", "--reissue-ticket")
    code, said = onboard(lab, "lease-1")

    assert other["address"] == made["address"]
    assert gone[0] == stranger[0] == 4
    assert f"no SSH session to {made['address']}" in gone[1]
    assert f"{made['address']} is not the machine it should be" in stranger[1]
    assert "if the VM was rebuilt, ask infra for a new ticket" in stranger[1]
    assert (again, mended["address"] == made["address"]) == (0, False)
    assert code == 0, said


def reboot(lab: Lab, vmid: int) -> None:
    running = find(Places(lab.folder))
    assert running is not None
    api = Api(running)
    assert api.task("POST", f"{vm_path(vmid)}/status/reboot") == "OK"
    api.wait_for_agent(vm_path(vmid))


def test_a_sudo_that_asks_is_refused_with_the_line_that_mends_it(lab: Lab, tmp_path: Path) -> None:
    need(CAN_ASK, "sudo in a node", "run the tests as root, and apt-get install sudo")
    made, _, _ = provision(lab, "sudo-1", "--profile", "sudo-asks")
    as_it_is = onboard(lab, "sudo-1")
    authority = another_policy(lab, tmp_path, owner="root")
    for_root = onboard(lab, "sudo-1", MUSTER_CA_DIR=authority)

    assert made == 0
    assert as_it_is[0] == for_root[0] == 3
    uuid = "it takes the line 'muster ALL=(root) NOPASSWD: /usr/bin/cat /sys/class/dmi/id/product_uuid'"
    root = "it takes the line 'muster ALL=(ALL) NOPASSWD: ALL' in /etc/sudoers.d"
    # The login may own the identity and need no sudo for that, but its machine uuid is readable to root alone.
    assert f"(/sys/class/dmi/id/product_uuid); only root may: {uuid}" in as_it_is[1]
    assert "muster may not become root there (sudo -n says: " in for_root[1]
    assert root in for_root[1]


def another_policy(lab: Lab, folder: Path, *, owner: str) -> str:
    """A copy of the lab's authority, whose policy gives the identity to another owner."""
    shutil.copytree(lab.folder / "ca", folder / "ca")
    policy = folder / "ca/policy.yaml"
    text = policy.read_text()
    policy.write_text(re.sub(r'owner: "[^"]+", group: "[^"]+"', f'owner: "{owner}", group: "{owner}"', text))
    assert policy.read_text() != text
    return str(folder / "ca")
