"""The bootstrap's login key and sudo go with the installation, and come back with its failure.

The scripts run in a mount namespace that has users, home and sudo rules of the test's own.
"""

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from inventory.document import dump
from onboard import facts as node_facts
from onboard import scripts
from onboard.plan import agent_config
from tests.onboard.kit import PASSPHRASE, UUID, Bench, bench, ticket
from tests.require import need_command, need_root
from tests.sshd import Sshd, keygen, sshd

HOLDER = "ssh-ed25519 AAAAholder"
LOGIN = f"# infra made this\nssh-ed25519 AAAAinfra infra@lab\n{HOLDER} holder@ca\n"
RULE = "muster ALL=(ALL) NOPASSWD: ALL\n"


@dataclass(frozen=True, slots=True)
class Machine:
    """One with the users `muster`, who logs in, and `agent`, who owns the identity."""

    holder: Bench
    root: Path
    owner: str = "agent"

    @property
    def keys(self) -> Path:
        """Whose keys may log in."""
        return self.root / "home" / ".ssh" / "authorized_keys"

    def rules(self, name: str = "90-cloud-init") -> Path:
        """A file of sudo's."""
        return self.root / "sudoers.d" / name

    @property
    def place(self) -> scripts.Place:
        """Where the identity lies."""
        return scripts.Place(str(self.holder.install_dir), self.owner, self.owner)

    def run(self, script: bytes) -> str:
        """What a script says there."""
        binds = " && ".join(
            f"mount --bind {self.root}/{name} /etc/{name}" for name in ("passwd", "group", "sudoers.d")
        )
        command = ["unshare", "--mount", "sh", "-c", f"{binds} && exec sh -s"]
        done = subprocess.run(command, input=script, capture_output=True, timeout=600, check=False)
        return done.stdout.decode() + done.stderr.decode()

    def enrol(self, **other: str | None) -> str:
        """Key, certificate, installation; the last one's word."""
        asked = self.run(scripts.make_key(self.place, generation=1, ticket="ab12", node="gpu-01"))
        authority = self.holder.authority()
        issued = authority.issue(
            node_facts.csr(asked.encode()),
            node="gpu-01",
            vm_uuid=UUID,
            static_address=None,
            signer=authority.unlock(PASSPHRASE),
            now=datetime.now(UTC),
            actor="holder",
        )
        files = {
            "chain.pem": issued.chain_pem,
            "bundle.pem": authority.bundle_pem,
            "agent.yaml": dump(agent_config(ticket(), self.place, {})).encode(),
            "uuid": f"{UUID}\n".encode(),
        }
        settings: dict[str, str | None] = {"check_command": None, "reload_command": None, **other}
        return self.run(
            scripts.install(
                self.place,
                generation=1,
                files=files,
                login="muster",
                holder_key=HOLDER,
                bootstrap="remove",
                check_command=settings["check_command"],
                reload_command=settings["reload_command"],
            )
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("bootstrap")) as running:
        yield running


@pytest.fixture
def machine(tmp_path: Path, server: Sshd) -> Machine:
    need_root()
    need_command("unshare", "visudo")
    root = tmp_path / "root"
    (root / "home" / ".ssh").mkdir(parents=True)
    (root / "sudoers.d").mkdir()
    home = root / "home"
    users = f"muster:x:4242:4242::{home}:/bin/sh\nagent:x:4243:4243::/nonexistent:/bin/sh\n"
    (root / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\n{users}")
    (root / "group").write_text("root:x:0:\nmuster:x:4242:\nagent:x:4243:\n")
    made = Machine(bench(tmp_path, server), root)
    made.keys.write_text(LOGIN)
    made.keys.chmod(0o600)
    made.rules().write_text(f"# made by cloud-init\n{RULE}")
    made.rules().chmod(0o440)
    return made


def test_only_the_holders_key_and_the_sudo_of_the_upkeep_are_left(machine: Machine) -> None:
    told = machine.enrol()
    rules = machine.rules().read_text()
    key = machine.holder.current("key.pem").stat()

    assert told.endswith("end=install\n"), told
    assert machine.keys.read_text() == f"{HOLDER} holder@ca\n"
    assert machine.keys.stat().st_mode & 0o777 == 0o600
    assert RULE not in rules
    assert rules.startswith("# made by cloud-init\nmuster ALL=(root) NOPASSWD: /")
    assert rules.endswith("/cat /sys/class/dmi/id/product_uuid\nmuster ALL=(agent) NOPASSWD: ALL\n")
    assert (machine.rules().stat().st_mode & 0o777, machine.rules().stat().st_uid) == (0o440, 0)
    assert (key.st_uid, key.st_gid, key.st_mode & 0o777) == (4243, 4243, 0o600)
    assert _left_over(machine) == []


def test_what_cannot_be_cut_down_is_put_back_with_all_the_rest(machine: Machine) -> None:
    odd = machine.rules("95-odd")
    odd.write_text(f"{RULE}this is no rule of sudo's\n")
    told = machine.enrol()

    assert "failed=sudo: /etc/sudoers.d/95-odd would be no rules any more" in told
    assert machine.keys.read_text() == LOGIN
    assert machine.rules().read_text() == f"# made by cloud-init\n{RULE}"
    assert odd.read_text().startswith(RULE)
    assert not machine.holder.current(".").is_symlink()
    assert list(machine.holder.install_dir.glob("generations/*")) == []
    assert _left_over(machine) == []


def test_a_run_that_was_killed_there_is_undone_by_the_next_ones_failure(machine: Machine) -> None:
    """The saved key file of the killed run is the one that was there before."""
    machine.keys.rename(machine.keys.with_name("authorized_keys.muster-before"))
    machine.keys.write_text(f"{HOLDER} holder@ca\n")
    told = machine.enrol(check_command="exit 1")

    assert "failed=check_command" in told
    assert machine.keys.read_text() == LOGIN
    assert _left_over(machine) == []


def test_an_identity_of_root_leaves_the_sudo_that_its_upkeep_needs(machine: Machine) -> None:
    told = replace(machine, owner="root").enrol()

    assert told.endswith("end=install\n"), told
    assert machine.keys.read_text() == f"{HOLDER} holder@ca\n"
    assert machine.rules().read_text().endswith(RULE)


def test_two_runs_do_not_work_there_at_once(machine: Machine, tmp_path: Path) -> None:
    slow = keygen(tmp_path / "unused").with_suffix(".pub")  # any file that is there only while one waits
    held = tmp_path / "held"
    both = f"touch {held}; while [ -e {slow} ]; do sleep 0.1; done"
    machine.holder.install_dir.mkdir()
    script = scripts.make_key(machine.place, generation=1, ticket="ab12", node="gpu-01")
    holding = subprocess.Popen(["flock", machine.holder.install_dir, "sh", "-c", both])
    try:
        while not held.exists():
            assert holding.poll() is None
            time.sleep(0.02)
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(["sh", "-s"], input=script, capture_output=True, timeout=1.0, check=False)
        assert list(machine.holder.install_dir.glob("generations/*")) == []
    finally:
        slow.unlink()
        holding.wait(timeout=600)
    assert "end=key" in machine.run(script)


def _left_over(machine: Machine) -> list[Path]:
    return [file for file in machine.root.rglob("*muster*") if "ssh" in file.parts or file.name[0] == "."]
