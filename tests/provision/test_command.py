"""The command as a person meets it, against a Proxmox served over TLS."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inventory.model import State
from inventory.store import utc_now
from inventory.ticket import read_ticket
from tests.provision.kit import CLONE, CONFIG, RESIZE, SECRET, START, Place


def node_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    node: dict[str, Any] = document["nodes"][0]
    return node


def test_a_node_reaches_awaiting_identity(place: Place) -> None:
    done = place.run_process("gpu-01", "--profile", "small", "--yes", "--json")

    assert done.returncode == 0, done.stderr
    node = node_of(done)
    assert (node["vmid"], node["address"], node["state"]) == (100, "10.0.0.10", "awaiting-identity")
    assert node["changed"] is True
    assert [step["step"] for step in node["plan"]] == ["clone", "configure", "start", "read-facts"]
    assert "onboard-node gpu-01" in done.stderr
    assert place.requests.writes == [CLONE, CONFIG, START]
    record = place.store.get("gpu-01")
    assert record is not None
    assert record.state is State.AWAITING_IDENTITY
    assert f"uuid={record.uuid}" in place.pve.vm(100).config["smbios1"]
    assert record.uuid == node["uuid"]


def test_the_ticket_is_believed_by_whoever_trusts_the_operators_key(place: Place) -> None:
    done = place.run("gpu-01", "--yes", "--json", "--ticket-out", str(place.folder))

    text = (place.folder / "gpu-01.ticket").read_text()
    believed = read_ticket(text, signers=place.folder / "allowed_signers", now=utc_now())
    record = place.store.get("gpu-01")
    assert record is not None
    assert believed.signer == "infra"
    assert believed.fingerprint == node_of(done)["ticket"]["fingerprint"]
    assert believed.ticket.vm_uuid == record.uuid
    assert believed.ticket.host_keys == record.host_keys
    assert believed.ticket.profile_hash == record.spec_hash


def test_without_a_ticket_key_it_warns_and_still_arrives(place: Place) -> None:
    place.write_site(ticket=False)

    done = place.run("gpu-01", "--yes", "--json")

    node = node_of(done)
    assert done.returncode == 0
    assert node["state"] == "awaiting-identity"
    assert node["ticket"] is None
    assert "no ticket was made" in node["warnings"][0]
    assert "warning: no ticket was made" in done.stderr


def test_the_same_command_again_writes_nothing_and_says_so(place: Place) -> None:
    place.run("gpu-01", "--yes")
    before = len(place.requests.writes)

    again = place.run("gpu-01", "--json", "--no-input")

    assert again.returncode == 0
    assert node_of(again)["changed"] is False
    assert node_of(again)["plan"] == []
    assert "nothing was changed" in again.stderr
    assert len(place.requests.writes) == before


def test_a_plan_writes_nothing_and_is_data(place: Place) -> None:
    plan = place.run("gpu-01", "--plan", "--detailed-exitcode")

    assert plan.returncode == 10
    assert "+ clone      template 9000 'debian-12' on pve1" in plan.stdout
    assert "~ configure  cores: 1 -> 2" in plan.stdout
    assert place.requests.writes == []
    assert place.store.get("gpu-01") is None


def test_a_plan_of_a_finished_node_has_no_changes(place: Place) -> None:
    place.run("gpu-01", "--yes")

    plan = place.run("gpu-01", "-n", "--detailed-exitcode")

    assert plan.returncode == 0
    assert plan.stdout == "gpu-01: no changes\n"


def test_without_a_terminal_it_needs_yes(place: Place) -> None:
    done = place.run("gpu-01")

    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert done.stdout == ""
    assert place.requests.writes == []
    assert place.store.get("gpu-01") is None


def test_a_misspelt_key_is_refused_with_its_line_before_anything_is_asked(place: Place) -> None:
    place.site_file.write_text(place.site_file.read_text().replace("memory_mib", "memroy_mib"))

    done = place.run("gpu-01", "--yes")

    assert done.returncode == 2
    assert "site.yaml:12:5: profiles.small.memroy_mib: unknown key (did you mean memory_mib?)" in done.stderr
    assert done.stdout == ""
    assert place.requests == []


def test_a_refused_token_is_not_tried_again_and_not_shown(place: Place) -> None:
    place.pve.apitokens.clear()

    done = place.run_process("gpu-01", "--yes", "-v")

    assert done.returncode == 4
    assert "Proxmox refused the token muster@pve!t" in done.stderr
    assert SECRET not in done.stderr + done.stdout
    assert len(place.requests) == 1
    assert place.store.get("gpu-01") is None


def test_a_server_that_the_ca_file_does_not_vouch_for_is_not_spoken_to(place: Place) -> None:
    other = place.folder / "other.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
         "-subj", "/CN=other", "-keyout", "/dev/null", "-out", other],
        check=True, capture_output=True,
    )  # fmt: skip
    place.ca_file = other
    place.write_site()

    done = place.run("gpu-01", "--yes")

    assert done.returncode == 4
    assert f"its certificate is not from {other}" in done.stderr
    assert "SHA-256" in done.stderr
    assert place.requests == []


def test_an_absent_template_is_refused_before_any_write(place: Place) -> None:
    place.write_site(profile_template="9001")

    done = place.run("gpu-01", "--yes")

    assert done.returncode == 3
    assert "template 9001 does not exist" in done.stderr
    assert "9000 'debian-12'" in done.stderr
    assert place.requests.writes == []
    assert place.store.get("gpu-01") is None


def test_one_node_that_fails_does_not_stop_the_others(place: Place) -> None:
    place.pve.add_vm(100, "others", config={"smbios1": "uuid=99999999-8888-7777-6666-555555555555"})
    place.pve.fail("POST", "/nodes/pve1/qemu/101/status/start", 500, "VM is locked (backup)", times=1)

    done = place.run("gpu-01", "gpu-02", "--yes", "--json")

    document = json.loads(done.stdout)
    assert done.returncode == 4
    assert document["ok"] is False
    assert [node["state"] for node in document["nodes"]] == ["provision-failed", "awaiting-identity"]
    error = document["nodes"][0]["error"]
    assert "VM is locked (backup)" in error["why"]
    assert "VM 101 on pve1" in error["next"]
    assert place.run("gpu-01", "gpu-02", "--yes").returncode == 0


def test_a_new_ticket_needs_no_write(place: Place) -> None:
    first = node_of(place.run("gpu-01", "--yes", "--json"))
    before = len(place.requests.writes)

    second = place.run("gpu-01", "--reissue-ticket", "--json", "--ticket-out", str(place.folder / "new"))

    assert second.returncode == 0, second.stderr
    assert node_of(second)["ticket"]["id"] != first["ticket"]["id"]
    assert (place.folder / "new").read_text() == place.store.get("gpu-01").ticket  # type: ignore[union-attr]  # it is there
    assert len(place.requests.writes) == before


@pytest.mark.parametrize(
    "killed_at", [CLONE, CONFIG, RESIZE, START], ids=["clone", "config", "resize", "start"]
)
def test_a_run_killed_at_any_write_is_finished_by_the_same_command(
    place: Place, killed_at: tuple[str, str]
) -> None:
    place.write_site(profile_disk_gib="12")
    process = subprocess.Popen(
        place.command("gpu-01", "--yes"), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    place.requests.on_next = _killing(process, killed_at)
    assert process.wait(120) == -signal.SIGKILL
    place.requests.on_next = None
    if killed_at == RESIZE:
        place.pve.vm(100).config["scsi0"] = "local-lvm:vm-100-disk-0,size=12G"

    done = place.run("gpu-01", "--yes", "--json")

    assert done.returncode == 0, done.stderr
    assert node_of(done)["state"] == "awaiting-identity"
    assert [vm.vmid for vm in place.pve.vms] == [9000, 100]
    assert [write for write in place.requests.writes if write == CLONE] == [CLONE]
    assert f"uuid={node_of(done)['uuid']}" in place.pve.vm(100).config["smbios1"]


def _killing(process: "subprocess.Popen[bytes]", at: tuple[str, str]) -> Callable[[str, str], None]:
    def on_next(method: str, path: str) -> None:
        if (method, path.removeprefix("/api2/json")) == at:
            process.kill()

    return on_next


def test_a_table_on_a_pipe_is_one_record_a_line(place: Place) -> None:
    done = place.run("gpu-01", "--yes")

    assert done.stdout == "NAME\tVMID\tADDRESS\tSTATE\ngpu-01\t100\t10.0.0.10\tawaiting-identity\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--plan", "--reissue-ticket"],
        ["--detailed-exitcode"],
        ["--ticket-out", "/nowhere/at/all", "gpu-02"],
        ["GPU_2", "--yes"],
    ],
    ids=["plan and reissue", "exit code of no plan", "two tickets into one file", "no node's name"],
)
def test_what_cannot_be_meant_is_wrong_usage(place: Place, arguments: list[str]) -> None:
    done = place.run("gpu-01", *arguments)

    assert done.returncode == 2
    assert done.stdout == ""
    assert place.requests == []


def test_no_site_file_is_wrong_usage_and_names_the_ways_to_give_one() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "provision.cli", "gpu-01"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 2
    assert "--site" in done.stderr
    assert "MUSTER_SITE" in done.stderr


def test_help_has_examples_and_the_exit_codes_in_eighty_columns() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "provision.cli", "-h"],
        capture_output=True, text=True, timeout=600, check=True, env={"COLUMNS": "80", "PATH": "/usr/bin"},
    )  # fmt: skip

    assert "provision-node gpu-07 --site site.yaml --profile h100x8 --plan" in done.stdout
    assert "10 the plan has changes" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_an_unreadable_token_file_is_told_with_its_form(place: Place) -> None:
    Path(place.folder / "pve.token").write_text("not a token\n")

    done = place.run("gpu-01", "--yes")

    assert done.returncode == 2
    assert "user@realm!name=secret" in done.stderr
    assert "not a token" not in done.stderr
