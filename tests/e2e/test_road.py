"""The whole road on the lab, walked with the commands that the two roles type, and what must hold afterwards."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from inventory.errors import OtherSide
from inventory.model import HostKey
from inventory.reach import open_session
from inventory.ticket import peek_receipt
from tests.e2e.labs import Lab, running_lab
from tests.require import need, need_command


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    need_command("ssh-keygen")
    with running_lab(tmp_path_factory.mktemp("state")) as made:
        yield made


@pytest.fixture(scope="module")
def road(lab: Lab) -> Lab:
    """gpu-01 has walked the whole road."""
    for words in (
        ("provision-node", "gpu-01", "--profile", "small", "--yes"),
        ("onboard-node", "gpu-01", "--yes"),
    ):
        done = lab.run(*words)
        assert done.returncode == 0, done.stderr
    return lab


def test_the_lab_sets_just_what_the_roles_need(lab: Lab) -> None:
    lines = lab.run("node-lab", "env").stdout.splitlines()

    assert [line.split("=")[0] for line in lines] == [
        "export MUSTER_SITE",
        "export MUSTER_INVENTORY",
        "export MUSTER_CA_DIR",
        "export MUSTER_PASSPHRASE_FILE",
        "export MUSTER_SSH_KEY",
    ]


def test_the_node_is_in_service_and_its_history_tells_the_road(road: Lab) -> None:
    states = [event["after"] for event in road.ask("node-inventory", "history", "gpu-01")["events"]]

    assert road.node("gpu-01")["state"] == "in-service"
    assert [state for state, before in zip(states, [None, *states], strict=False) if state != before] == [
        "provisioning",
        "awaiting-identity",
        "onboarding",
        "awaiting-verification",
        "verifying",
        "in-service",
    ]


def test_every_command_typed_again_changes_nothing(road: Lab) -> None:
    before = (road.node("gpu-01"), (road.folder / "ca" / "audit.jsonl").read_bytes())
    again = [
        road.ask("provision-node", "gpu-01", "--profile", "small", "--yes")["nodes"][0],
        road.ask("onboard-node", "gpu-01", "--yes")["nodes"][0],
    ]

    assert [node["changed"] for node in again] == [False, False]
    assert (road.node("gpu-01"), (road.folder / "ca" / "audit.jsonl").read_bytes()) == before


def test_infra_can_no_longer_log_in_to_the_node_and_the_holder_can(road: Lab) -> None:
    node = road.node("gpu-01")
    status = road.ask("node-lab", "status")
    need(
        status["backend"] == "namespaces",
        "a node with an authorized_keys file of its own",
        "run the tests as root",
    )
    pins = [HostKey(key["type"], key["base64"]) for key in node["host_keys"]]
    where = {"host": node["address"]["ip"], "port": node["ssh_port"], "user": node["user"], "host_keys": pins}

    with open_session(**where, key_file=Path(road.environ["MUSTER_SSH_KEY"])) as session:
        assert session.run("sudo -n true", timeout_s=120.0).exit_status != 0 or node["user"] == "root"
    with pytest.raises(OtherSide, match="refused the login"):
        open_session(**where, key_file=road.folder / "id_infra")


def test_status_lists_the_vm_and_the_node_behind_it(road: Lab) -> None:
    status = road.ask("node-lab", "status")
    vm = next(vm for vm in status["vms"] if vm["name"] == "gpu-01")

    assert status["running"] is True
    assert vm["vmid"] == road.node("gpu-01")["vmid"]
    assert vm["node"]["alive"] is True
    assert vm["node"]["address"] == road.node("gpu-01")["address"]["ip"]


def test_infra_believes_the_holders_receipt(road: Lab) -> None:
    done = road.run("provision-node", "gpu-01", "--profile", "small", "--yes")

    assert done.returncode == 0
    assert "holder@lab" in done.stderr


def test_the_authority_knows_what_its_receipts_saw_of_it(road: Lab) -> None:
    receipts = road.folder / "ca" / "receipts"
    told = road.ask("node-ca", "audit", "--receipt", str(receipts))

    assert peek_receipt((receipts / "gpu-01.receipt").read_text()).audit_head
    assert (told["ok"], told["unknown_receipts"]) == (True, [])


def test_the_passphrase_and_the_token_are_in_no_output_and_in_no_audit(road: Lab) -> None:
    secrets = [
        Path(road.environ["MUSTER_PASSPHRASE_FILE"]).read_text().strip(),
        (road.folder / "pve.token").read_text().strip().partition("=")[2],
    ]
    outputs = [
        road.run("provision-node", "gpu-01", "--profile", "small", "--yes", "-v"),
        road.run("onboard-node", "gpu-01", "--yes", "-v"),
        road.run("node-ca", "status", "--json"),
    ]
    told = (
        "".join(done.stdout + done.stderr for done in outputs)
        + (road.folder / "ca" / "audit.jsonl").read_text()
    )

    assert all(secrets)
    assert not [secret for secret in secrets if secret in told]


def test_a_ticket_travels_as_a_file_to_a_holder_with_a_record_of_his_own(road: Lab, tmp_path: Path) -> None:
    made = road.run(
        "provision-node", "gpu-02", "--profile", "small", "--yes", "--ticket-out", str(tmp_path / "ticket")
    )
    assert made.returncode == 0, made.stderr
    own = f"sqlite:///{tmp_path / 'holder.db'}"
    done = road.run(
        "onboard-node", "--ticket", str(tmp_path / "ticket"), "--yes", "--json", MUSTER_INVENTORY=own
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["nodes"][0]

    assert result["state"] == "in-service"
    assert result["verification"]["ranks"] == 8
    assert road.node("gpu-02")["state"] == "awaiting-identity"


def test_a_node_whose_identity_was_taken_away_does_not_pass_again(road: Lab) -> None:
    node = road.node("gpu-01")
    pins = [HostKey(key["type"], key["base64"]) for key in node["host_keys"]]
    folder = next(
        line.split("dir: ")[1].split(",")[0].strip('"')
        for line in (road.folder / "ca" / "policy.yaml").read_text().splitlines()
        if line.startswith("install:")
    )
    with open_session(
        host=node["address"]["ip"],
        port=node["ssh_port"],
        user=node["user"],
        host_keys=pins,
        key_file=Path(road.environ["MUSTER_SSH_KEY"]),
    ) as session:
        moved = session.run(f"cd {folder} && mv current/key.pem current/key.away", timeout_s=120.0)
        assert moved.exit_status == 0, moved.stderr
        done = road.run("verify-node", "gpu-01", "--json")
        session.run(f"cd {folder} && mv current/key.away current/key.pem", timeout_s=120.0)

    assert done.returncode == 5, done.stderr
    assert road.node("gpu-01")["state"] == "verify-failed"
    assert road.run("verify-node", "gpu-01").returncode == 0
    assert road.node("gpu-01")["state"] == "in-service"


def test_a_node_takes_a_second_identity_by_a_new_ticket_with_what_little_sudo_is_left(road: Lab) -> None:
    first = road.ask("node-ca", "list", "--node", "gpu-01")["certificates"]
    again = road.run("provision-node", "gpu-01", "--reissue-ticket", "--yes")
    done = road.run("onboard-node", "gpu-01", "--yes")

    assert again.returncode == 0, again.stderr
    assert done.returncode == 0, done.stderr
    assert road.node("gpu-01")["state"] == "in-service"
    now = {
        row["serial"]: row["state"] for row in road.ask("node-ca", "list", "--node", "gpu-01")["certificates"]
    }
    assert [now[row["serial"]] for row in first] == ["revoked"]
    assert sorted(now.values()) == ["installed", "revoked"]


def test_a_node_leaves_by_both_roles_and_its_vm_goes_last(road: Lab) -> None:
    vmid = road.node("gpu-01")["vmid"]
    too_early = road.run("provision-node", "gpu-01", "--retire", "--yes")
    ended = road.run("onboard-node", "gpu-01", "--decommission", "--yes")
    gone = road.run("provision-node", "gpu-01", "--retire", "--yes")
    again = road.run("provision-node", "gpu-01", "--retire", "--yes")

    assert (too_early.returncode, "--decommission" in too_early.stderr) == (3, True)
    assert ended.returncode == 0, ended.stderr
    assert gone.returncode == 0, gone.stderr
    assert again.returncode == 0, again.stderr
    assert road.node("gpu-01")["state"] == "retired"
    assert vmid not in [vm["vmid"] for vm in road.ask("node-lab", "status")["vms"]]
    states = {row["state"] for row in road.ask("node-ca", "list", "--node", "gpu-01")["certificates"]}
    assert states == {"revoked"}
