"""The hand-off: the ticket for the security holder, and the receipt that came back."""

import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from inventory.errors import BadInput, MusterError
from inventory.files import write_whole
from inventory.model import Node
from inventory.ticket import Ticket, iso, read_receipt, sign_ticket
from provision.spec import Site


def new_ticket(
    site: Site,
    node: Node,
    *,
    made_by: str,
    now: datetime,
    token_hex: Callable[[int], str] = secrets.token_hex,
) -> tuple[str | None, list[str]]:
    """The signed ticket for a node whose facts are known, or None and the reason as a warning.

    Raises:
        BadInput: the signing key does not sign.
    """
    if site.ticket is None:
        return None, [f"no ticket was made for {node.name}: the site file names no key to sign it"]
    if node.vmid is None or node.uuid is None or node.address is None or node.user is None:
        raise ValueError("a ticket is made for a node whose facts are known")
    text = sign_ticket(
        Ticket(
            id=token_hex(8),
            node=node.name,
            site=str(node.site),
            vmid=node.vmid,
            proxmox_node=str(node.proxmox_node),
            vm_uuid=node.uuid,
            machine_id=node.machine_id,
            macs=node.macs,
            address=node.address,
            ssh_port=node.ssh_port,
            host_keys=node.host_keys,
            user=node.user,
            fabrics=node.fabrics,
            profile_hash=str(node.spec_hash),
            made_by=made_by,
            made_at=now,
            expires=now + timedelta(hours=site.ticket.valid_h),
            nonce=token_hex(16),
        ),
        key_file=site.ticket.signing_key,
    )
    return text, []


def check_signing_key(site: Site) -> None:
    """Refuse a signing key that is not there before anything is made.

    Raises:
        BadInput: neither the key nor its public half is a file.
    """
    if site.ticket is not None and not site.ticket.signing_key.is_file():
        raise BadInput(
            "no ticket could be signed",
            why=f"there is no signing key {site.ticket.signing_key}",
            next_step="make one (ssh-keygen -t ed25519 -f FILE), or mend ticket.signing_key in the site file",
        )


def write_ticket(text: str, node: str, out: Path) -> Path:
    """Write the ticket to the file `out`, or into the folder `out` as NODE.ticket; the file's path.

    Raises:
        BadInput: it cannot be written.
    """
    file = out / f"{node}.ticket" if out.is_dir() else out
    try:
        write_whole(file, text.encode(), mode=0o644)  # it is signed, not secret
    except OSError as error:
        raise BadInput(
            f"the ticket for {node} was not written to {file}",
            why=error.strerror or str(error),
            next_step=f"name another place with --ticket-out; the ticket is on record: node-inventory ticket {node}",
        ) from error
    return file


def receipt_words(site: Site, node: Node) -> tuple[str | None, list[str]]:
    """What the receipt on record says and who signed it; a warning if it is not believed."""
    if node.receipt is None or site.receipt_signers is None:
        return None, []
    try:
        receipt, signer = read_receipt(node.receipt, signers=site.receipt_signers)
    except MusterError as error:
        return None, [f"the receipt on record for {node.name} is not believed: {error.why}"]
    if receipt.vm_uuid != node.uuid:
        return None, [f"the receipt on record for {node.name} is for another VM, {receipt.vm_uuid}"]
    until = iso(receipt.not_after)
    return f"{node.name}: {receipt.kind} by {signer}, identity {receipt.serial} until {until}", []
