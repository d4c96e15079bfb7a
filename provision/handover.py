"""The hand-off: the ticket for the security holder, and the receipt that came back."""

import contextlib
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from re import fullmatch

from inventory.claims import MAX_ITEMS, weakness
from inventory.errors import BadInput, MusterError
from inventory.files import write_whole
from inventory.model import HostKey, Node
from inventory.signature import public_key_line
from inventory.ticket import Receipt, Ticket, iso, peek_ticket, read_receipt, sign_ticket
from provision.spec import Site


def new_ticket(
    site: Site,
    node: Node,
    *,
    now: datetime,
    token_hex: Callable[[int], str] = secrets.token_hex,
) -> tuple[str | None, list[str]]:
    """The signed ticket for a node whose facts are known, or None and the reason as a warning.

    The ticket on record is made void by name.

    Raises:
        BadInput: the signing key does not sign, or none of the node's host keys is worth a pin.
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
            host_keys=_pins(node),
            user=node.user,
            fabrics=node.fabrics,
            profile_hash=str(node.spec_hash),
            made_by=_principal(site.ticket.signing_key),
            made_at=now,
            expires=now + timedelta(hours=site.ticket.valid_h),
            nonce=token_hex(16),
            supersedes=void_tickets(node),
        ),
        key_file=site.ticket.signing_key,
    )
    return text, []


def _principal(signing_key: Path) -> str | None:
    """Who the signer is: the comment of the key, as the holder's list of signers should have it too."""
    try:
        comment = " ".join(public_key_line(signing_key).split()[2:])
    except BadInput:
        return None
    return comment if fullmatch(r"[!-~]{1,255}", comment) else None


def _pins(node: Node) -> tuple[HostKey, ...]:
    """The host keys that are worth a pin; a weak one beside them is left out.

    Raises:
        BadInput: there is none.
    """
    pins = tuple(key for key in node.host_keys if weakness(key) is None)
    if not pins:
        raise BadInput(
            f"no ticket was made for {node.name}",
            why="\n".join(weakness(key) or "" for key in node.host_keys) or "it has no SSH host key",
            next_step="make an ed25519 host key there: ssh-keygen -A, then provision-node --reissue-ticket",
        )
    return pins


def void_tickets(node: Node) -> tuple[str, ...]:
    """The tickets that a new one makes void: the one on record, and those that it made void, the newest first."""
    if node.ticket is None:
        return ()
    try:
        former = peek_ticket(node.ticket)
    except MusterError:
        return ()  # it is in no form that onboard-node would read
    if former.vm_uuid != node.uuid:
        return ()
    return (former.id, *former.supersedes)[:MAX_ITEMS]


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


def read_receipt_file(place: Path, node: str) -> str:
    """The text of a receipt: of the file `place`, or of NODE.receipt in the folder `place`.

    Raises:
        BadInput: it cannot be read.
    """
    file = place / f"{node}.receipt" if place.is_dir() else place
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"the receipt for {node} was not read from {file}",
            why=(error.strerror if isinstance(error, OSError) else None) or str(error),
            next_step="pass the file that the holder handed over, or the folder that has it",
        ) from error


def outdated(receipt: Receipt, node: Node, *, signers: Path | None) -> str | None:
    """Why a receipt that says that an identity ended is not the last word on the node; None if it is."""
    with contextlib.suppress(MusterError):
        made = peek_ticket(node.ticket).made_at if node.ticket else receipt.made_at
        if made > receipt.made_at:
            return f"it was made at {iso(receipt.made_at)}, before the ticket of {iso(made)}"
    with contextlib.suppress(MusterError):
        if node.receipt is not None and signers is not None:
            known, _ = read_receipt(node.receipt, signers=signers)
            if known.made_at > receipt.made_at and known.kind != receipt.kind:
                return f"a later one on record says {known.kind} at {iso(known.made_at)}"
    return None


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
