"""A security holder's desk for tests: an authority with a cheap key derivation, keys, a record, a real SSH node."""

import getpass
import grp
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ca.authority import Authority
from ca.keystore import Kdf
from ca.signer import Signer
from inventory.console import Console
from inventory.model import Address, HostKey
from inventory.store import Store
from inventory.ticket import TICKET_NAMESPACE, Ticket, sign_ticket
from onboard.desk import Desk
from tests.sshd import ADDRESS, Sshd, keygen

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
CHEAP = Kdf(memory_kib=64, iterations=1, lanes=1)
PASSPHRASE = b"correct horse battery staple"
UUID = "0e1a2b3c-0000-4000-8000-000000000001"
KEY = HostKey("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIN0vJAn+qf44X7TfV4Xj8QW/1U1bQqBFTBFdo/rCnrY5")


def ticket() -> Ticket:
    """A ticket for gpu-01."""
    return Ticket(
        id="ab12",
        node="gpu-01",
        site="pve.example",
        vmid=5000,
        proxmox_node="pve1",
        vm_uuid=UUID,
        machine_id="ab" * 16,
        macs=("bc:24:11:00:00:01",),
        address=Address("127.20.0.5", 24, "static"),
        ssh_port=22,
        host_keys=(KEY,),
        user="muster",
        fabrics=(),
        profile_hash="00ff",
        made_by="infra@lab",
        made_at=NOW,
        expires=NOW + timedelta(hours=72),
        nonce="cc",
    )


@dataclass(slots=True)
class Bench:
    """All that one test of onboarding works with; `agreed` has each name that was asked for."""

    folder: Path
    server: Sshd
    infra: Path
    install_dir: Path
    agreed: list[str] = field(default_factory=list)
    unlocked: int = 0

    def ticket(self, **other: object) -> Ticket:
        """A ticket for this very machine, as infra would have made it."""
        now = datetime.now(UTC)
        machine_id = Path("/etc/machine-id")
        told = replace(
            ticket(),
            machine_id=machine_id.read_text().strip() if machine_id.exists() else None,
            vm_uuid=_own_uuid() or UUID,
            address=Address(ADDRESS, 8, "leased"),
            ssh_port=self.server.port,
            host_keys=(self.server.host_key,),
            user=self.server.user,
            made_at=now,
            expires=now + timedelta(hours=1),
        )
        return replace(told, **other)  # type: ignore[arg-type]  # tests vary what they need

    def signed(self, **other: object) -> str:
        """The ticket as it travels."""
        return sign_ticket(self.ticket(**other), key_file=self.infra)

    def authority(self) -> Authority:
        """The authority, opened anew."""
        return Authority.open(self.folder / "ca", now=datetime.now(UTC), kdf_floor=CHEAP)

    def store(self) -> Store:
        """The holder's record."""
        return Store.open(f"sqlite:///{self.folder / 'record.db'}")

    def set_policy(self, **lines: str) -> None:
        """Write the policy anew, with these lines in place of those of the same key."""
        file = self.folder / "ca" / "policy.yaml"
        file.write_text(policy_text(self, **lines))

    def install(self, **more: str) -> str:
        """The policy's install, with more lines."""
        user, group = getpass.getuser(), grp.getgrgid(os.getgid()).gr_name
        lines = {"dir": str(self.install_dir), "owner": user, "group": group, **more}
        return "{" + ", ".join(f"{key}: {value}" for key, value in lines.items()) + "}"

    def desk(
        self, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC), dry_run: bool = False
    ) -> Desk:
        """The holder sits down."""
        authority = self.authority()

        def signer() -> Signer:
            self.unlocked += 1
            return authority.unlock(PASSPHRASE)

        return Desk(
            authority=authority,
            store=self.store(),
            console=Console(quiet=True),
            key_file=self.server.login_key,
            actor="holder",
            clock=clock,
            agree=self.agreed.append,
            signer=signer,
            dry_run=dry_run,
        )

    def current(self, name: str) -> Path:
        """A file of the identity in force on the node."""
        return self.install_dir / "current" / name


def bench(folder: Path, server: Sshd, *, kdf: Kdf = CHEAP) -> Bench:
    """A new authority whose policy installs into a folder of the test's own, on this machine."""
    infra = keygen(folder / "infra", comment="infra@lab")
    made = Bench(folder, server, infra, folder / "node")
    kind, blob = infra.with_suffix(".pub").read_text().split()[:2]
    (folder / "signers").write_text(f'infra@lab namespaces="{TICKET_NAMESPACE}" {kind} {blob}\n')
    policy = folder / "policy.yaml"
    policy.write_text(policy_text(made))
    Authority.create(folder / "ca", policy_file=policy, passphrase=PASSPHRASE, now=datetime.now(UTC), kdf=kdf)
    made.set_policy()
    return made


def policy_text(made: Bench, **lines: str) -> str:
    """policy.yaml for the bench; bootstrap keys are kept, for the node's home is that of whoever tests."""
    user, group = getpass.getuser(), grp.getgrgid(os.getgid()).gr_name
    known = {
        "trust_domain": "lab.example",
        "names": '["{node}.nodes.lab.example"]',
        "addresses": "[127.0.0.0/8]",
        "ticket_signers": str(made.folder / "signers"),
        "machine_uuid": "optional",
        "bootstrap_keys": "keep",
        "install": f"{{dir: {made.install_dir}, owner: {user}, group: {group}}}",
    }
    return "".join(f"{key}: {value}\n" for key, value in {**known, **lines}.items())


def openssl(*arguments: str | Path) -> str:
    """What openssl says; it must agree."""
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, check=True, timeout=600
    )
    return done.stdout


def _own_uuid() -> str | None:
    try:
        return Path("/sys/class/dmi/id/product_uuid").read_text().strip().lower()
    except OSError:
        return None
