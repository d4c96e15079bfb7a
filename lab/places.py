"""Where the parts of one lab's world lie, below its state directory."""

import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Places:
    """The files of one lab.

    root: its state directory, 0700; nothing in it outlives the lab, and every secret in it is thrown away.
    """

    root: Path

    @property
    def lock(self) -> Path:
        """Held by the lab's server as long as it lives; its pid is the content."""
        return self.root / "lock"

    @property
    def ready(self) -> Path:
        """lab.json: written when the lab is ready."""
        return self.root / "lab.json"

    @property
    def log(self) -> Path:
        """What the server said."""
        return self.root / "server.log"

    @property
    def nodes(self) -> Path:
        """The nodes' disks."""
        return self.root / "nodes"

    @property
    def site(self) -> Path:
        """The infra team's site file."""
        return self.root / "site.yaml"

    @property
    def token(self) -> Path:
        """The infra team's API token."""
        return self.root / "pve.token"

    @property
    def api_ca(self) -> Path:
        """The CA that signed the API's certificate."""
        return self.root / "pve-ca.pem"

    @property
    def infra_key(self) -> Path:
        """The infra operator's SSH key, which signs tickets."""
        return self.root / "id_infra"

    @property
    def holder_key(self) -> Path:
        """The security holder's SSH key, which reaches the nodes and signs receipts."""
        return self.root / "id_holder"

    @property
    def login_keys(self) -> Path:
        """Both public keys, one a line."""
        return self.root / "login_keys.pub"

    @property
    def ticket_signers(self) -> Path:
        """Whose tickets the security holder believes."""
        return self.root / "ticket_signers"

    @property
    def receipt_signers(self) -> Path:
        """Whose receipts the infra team believes."""
        return self.root / "receipt_signers"

    @property
    def policy(self) -> Path:
        """The policy that the authority was made with."""
        return self.root / "policy.yaml"

    @property
    def authority(self) -> Path:
        """The certificate authority."""
        return self.root / "ca"

    @property
    def passphrase(self) -> Path:
        """The authority's passphrase."""
        return self.root / "passphrase"

    @property
    def inventory_url(self) -> str:
        """The record of the lab's nodes."""
        return f"sqlite:///{self.root / 'inventory.db'}"

    def environment(self) -> dict[str, str]:
        """The variables with which the roles' commands run against this lab."""
        return {
            "MUSTER_SITE": str(self.site),
            "MUSTER_INVENTORY": self.inventory_url,
            "MUSTER_CA_DIR": str(self.authority),
            "MUSTER_PASSPHRASE_FILE": str(self.passphrase),
            "MUSTER_SSH_KEY": str(self.holder_key),
        }

    def shell(self) -> str:
        """The same as lines for a POSIX shell's `eval`."""
        return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in self.environment().items())
