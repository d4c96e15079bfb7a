"""Two people, each with a user, a folder and a record: only the ticket and the receipt pass between them."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.places import Places
from tests.people import Person, people

NODE = "gpu-01"


@dataclass(frozen=True, slots=True)
class Scene:
    """The two, the folder through which they hand things over, and the secrets that must not pass."""

    infra: Person
    holder: Person
    between: Path
    token: str
    passphrase: str

    @property
    def authority(self) -> Path:
        return self.holder.folder / "ca"

    @property
    def ticket(self) -> Path:
        return self.between / f"{NODE}.ticket"

    @property
    def receipt(self) -> Path:
        return self.between / f"{NODE}.receipt"


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """A lab as the Proxmox and its nodes; the two people have of it what each of them would have."""
    folder = Path(tempfile.mkdtemp(prefix="muster-people-"))
    folder.chmod(0o755)
    environ = {**os.environ, "XDG_STATE_HOME": str(folder / "lab"), "HOME": str(folder / "lab")}

    def lab(verb: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("node-lab")), verb]
        return subprocess.run(
            command,
            env=environ,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    try:
        infra, holder = people(folder, "infra", "holder")
        (folder / "lab").mkdir(mode=0o700)
        up = lab("up")
        assert up.returncode == 0, up.stderr
        settings = dict(shlex.split(line)[1].split("=", 1) for line in lab("env").stdout.splitlines())
        places = Places(Path(settings["MUSTER_SITE"]).parent)
        infra.takes(places.site, places.token, places.api_ca, places.infra_key, public(places.infra_key))
        infra.takes(places.login_keys, places.receipt_signers)
        holder.takes(places.policy, places.ticket_signers, places.passphrase)
        holder.takes(places.holder_key, public(places.holder_key))
        between = folder / "between"
        between.mkdir()
        between.chmod(0o1777)
        yield Scene(
            infra,
            holder,
            between,
            token=places.token.read_text().strip().partition("=")[2],
            passphrase=places.passphrase.read_text().strip(),
        )
    finally:
        if (folder / "lab").exists():
            down = lab("down")
            assert down.returncode == 0, down.stderr
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def road(scene: Scene) -> Scene:
    """Authority, VM, ticket, identity, proof, receipt: each by the one whose work it is."""
    infra, holder = scene.infra, scene.holder
    done(
        holder.command(
            "node-ca",
            "init",
            *("--ca-dir", scene.authority, "--policy", holder.folder / "policy.yaml"),
            *("--passphrase-file", holder.folder / "passphrase"),
        )
    )
    site = infra.folder / "site.yaml"
    done(
        infra.command(
            "provision-node",
            NODE,
            "--site",
            site,
            "--profile",
            "small",
            "--ticket-out",
            scene.ticket,
            "--yes",
        )
    )
    done(holder.command("onboard-node", "--ticket", scene.ticket, "--yes", *holders(scene)))
    done(
        holder.run("install", "-m", "0644", scene.authority / "receipts" / scene.receipt.name, scene.receipt)
    )
    done(infra.command("node-inventory", "import", scene.receipt, "--site", site))
    return scene


def public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


def done(what: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert what.returncode == 0, what.stdout + what.stderr
    return what


def holders(scene: Scene) -> tuple[str | Path, ...]:
    folder = scene.holder.folder
    return (
        *("--ca-dir", scene.authority, "--passphrase-file", folder / "passphrase"),
        *("--ssh-key", folder / "id_holder"),
    )


def on_record(person: Person) -> Any:
    return json.loads(done(person.command("node-inventory", "show", NODE, "--json")).stdout)["node"]


def holding(person: Person, secret: str, where: Path) -> list[str]:
    """The files with a secret in them, of all that a person can read."""
    found = person.run("grep", "-rlsF", "-e", secret, where)
    assert found.returncode in {0, 1, 2}  # 2: some could not be read, which is the point
    return found.stdout.splitlines()


def test_the_node_is_in_service_on_both_records(road: Scene) -> None:
    theirs, ours = on_record(road.infra), on_record(road.holder)

    assert (theirs["state"], ours["state"]) == ("in-service", "in-service")
    assert theirs["uuid"] == ours["uuid"]
    assert theirs["vmid"] == ours["vmid"]


def test_only_ticket_and_receipt_passed_and_each_was_written_by_its_maker(road: Scene) -> None:
    passed = {file.name: file.stat().st_uid for file in road.between.iterdir()}

    assert passed == {road.ticket.name: road.infra.uid, road.receipt.name: road.holder.uid}
    for file in road.between.iterdir():
        assert not [
            secret for secret in (road.token, road.passphrase, "PRIVATE KEY") if secret in file.read_text()
        ]


def test_infra_can_read_nothing_of_the_authority(road: Scene) -> None:
    files = [file for file in road.authority.rglob("*") if file.is_file()]
    assert [file for file in files if "key" in file.name]

    for file in (*files, road.holder.folder / "passphrase", road.holder.folder / "id_holder"):
        tried = road.infra.run("cat", file)
        assert (tried.returncode, tried.stdout) == (1, ""), file
        assert "Permission denied" in tried.stderr
    listed = road.infra.run("ls", road.holder.folder)
    assert "Permission denied" in listed.stderr


def test_infras_own_commands_cannot_work_with_that_authority(road: Scene) -> None:
    for words in (
        ("node-ca", "status", "--ca-dir", road.authority),
        (
            "onboard-node",
            NODE,
            "--yes",
            "--ca-dir",
            road.authority,
            "--ssh-key",
            road.infra.folder / "id_infra",
        ),
    ):
        tried = road.infra.command(*map(str, words))
        assert tried.returncode in {2, 3}, tried.stderr
        assert "bug" not in tried.stderr


def test_the_holder_has_no_token_for_proxmox(road: Scene) -> None:
    token = road.infra.folder / "pve.token"
    tried = road.holder.run("cat", token)
    own = road.holder.command(
        "provision-node", "gpu-02", "--site", road.infra.folder / "site.yaml", "--profile", "small", "--yes"
    )

    assert (tried.returncode, tried.stdout) == (1, "")
    assert "Permission denied" in tried.stderr
    assert own.returncode == 2
    assert "bug" not in own.stderr


def test_of_all_that_each_can_read_nothing_has_the_others_secret(road: Scene) -> None:
    everything = road.between.parent

    assert holding(road.infra, road.token, everything) == [str(road.infra.folder / "pve.token")]
    assert holding(road.holder, road.passphrase, everything) == [str(road.holder.folder / "passphrase")]
    assert holding(road.holder, road.token, everything) == []
    assert holding(road.infra, road.passphrase, everything) == []


def test_infra_can_no_longer_reach_the_node_and_the_holders_receipt_says_who_can(road: Scene) -> None:
    node = on_record(road.infra)
    options = ("-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")

    def logs_in(person: Person, key: str) -> bool:
        where = (f"{node['user']}@{node['address']['ip']}", "-p", str(node["ssh_port"]))
        tried = person.run(
            "ssh", *options, "-i", person.folder / key, "-o", "IdentitiesOnly=yes", *where, "true"
        )
        return tried.returncode == 0

    assert logs_in(road.holder, "id_holder")
    assert not logs_in(road.infra, "id_infra")


def test_the_node_leaves_by_both_hands_too(road: Scene) -> None:
    site = road.infra.folder / "site.yaml"
    too_early = road.infra.command("provision-node", NODE, "--site", site, "--retire", "--yes")
    done(road.holder.command("onboard-node", NODE, "--decommission", "--yes", *holders(road)))
    done(
        road.holder.run(
            "install", "-m", "0644", road.authority / "receipts" / road.receipt.name, road.receipt
        )
    )
    done(road.infra.command("node-inventory", "import", road.receipt, "--site", site))
    done(road.infra.command("provision-node", NODE, "--site", site, "--retire", "--yes"))

    assert too_early.returncode == 3
    assert on_record(road.infra)["state"] == "retired"
