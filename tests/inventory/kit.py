"""A ticket, a receipt and the keys that sign them, for tests; and forgeries that only their form gives away."""

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

from inventory.canonical import dumps
from inventory.model import Address, HostKey
from inventory.signature import sign
from inventory.ticket import TICKET_NAMESPACE, Receipt, Ticket, sign_ticket

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
KEY = HostKey("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIN0vJAn+qf44X7TfV4Xj8QW/1U1bQqBFTBFdo/rCnrY5")


def ticket() -> Ticket:
    return Ticket(
        id="ab12",
        node="gpu-01",
        site="pve.example",
        vmid=5000,
        proxmox_node="pve1",
        vm_uuid="0e1a2b3c-0000-4000-8000-000000000001",
        machine_id="ab" * 16,
        macs=("bc:24:11:00:00:01",),
        address=Address("127.20.0.5", 24, "static"),
        ssh_port=22,
        host_keys=(KEY,),
        user="muster",
        fabrics=(),
        profile_hash="00ff",
        made_by="operator@lab",
        made_at=NOW,
        expires=NOW + timedelta(hours=72),
        nonce="cc",
    )


def receipt() -> Receipt:
    return Receipt(
        kind="onboarded",
        node="gpu-01",
        vm_uuid="0e1a2b3c-0000-4000-8000-000000000001",
        ticket_id="ab12",
        serial="0a",
        spiffe_id="spiffe://lab.example/node/gpu-01",
        not_after=NOW + timedelta(days=30),
        host_keys=(KEY,),
        address=Address("127.20.0.5", 24, "static"),
        ssh_port=22,
        user="muster",
        ca_fingerprint="ff",
        install_dir="/etc/muster",
        owner="muster",
        made_by="holder@lab",
        made_at=NOW,
    )


def keygen(folder: Path, name: str) -> Path:
    key = folder / name
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{name}@lab", "-f", str(key)]
    subprocess.run(command, check=True, timeout=600)
    return key


def signers_line(
    key: Path, *, name: str = "operator@lab", options: str = f'namespaces="{TICKET_NAMESPACE}"'
) -> str:
    """One line of an allowed signers file."""
    kind, blob = key.with_suffix(".pub").read_text().split()[:2]
    return f"{name} {options} {kind} {blob}\n"


def claims_of(text: str) -> dict[str, object]:
    """What a signed text says, as plain values."""
    found: dict[str, object] = json.loads(text.partition("\n")[0])
    return found


def forged(key: Path, **claims: object) -> str:
    """A well-signed ticket with these claims in place of its own."""
    told = {**claims_of(sign_ticket(ticket(), key_file=key)), **claims}
    try:
        line = dumps(told)
    except ValueError:
        line = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return signed_line(key, line)


def signed_line(key: Path, line: str) -> str:
    """Any line at all, well signed as a ticket."""
    return sign(line, key_file=key, namespace=TICKET_NAMESPACE)
