"""A node as people and programs see it: pure, from values to words."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from inventory.console import printable
from inventory.errors import BadInput, Refused
from inventory.lifecycle import next_command, unadopted, whose_turn
from inventory.model import Event, Lease, Node, Summary
from inventory.store import Store
from inventory.ticket import iso

if TYPE_CHECKING:
    from inventory.receipts import Taken

TITLES = ("NAME", "STATE", "NEXT", "ADDRESS", "VMID", "PROXMOX-NODE", "EXPIRES", "VERIFIED")
SPARE = ("PROXMOX-NODE", "VMID", "VERIFIED", "ADDRESS", "EXPIRES")
"""What a narrow terminal goes without, the first of them first."""
_COLUMNS = ("name", "state", "next", "address", "vmid", "proxmox_node", "not_after", "verified_at")
EVENT_TITLES = ("WHEN", "WHO", "HOST", "FROM", "TO", "WHY")


def need_node(store: Store, name: str) -> Node:
    """The node called `name`.

    Raises:
        BadInput: it is not on record.
    """
    node = store.get(name)
    if node is None:
        raise BadInput(
            f"{name} is not on record",
            why="no such node in this inventory",
            next_step="node-inventory list, or provision-node to make it",
        )
    return node


def need_ticket(node: Node) -> str:
    """The signed ticket of a node, as it travels.

    Raises:
        Refused: it has none.
    """
    if node.ticket is None:
        raise Refused(
            f"{node.name} has no ticket",
            why=f"it is {node.state}, and no ticket was signed for it",
            next_step=f"provision-node {node.name} --{'adopt' if unadopted(node) else 'reissue-ticket'}"
            " (ticket.signing_key must be set)",
        )
    return node.ticket


def summary(node: Summary) -> dict[str, Any]:
    """The few facts of a list, for programs."""
    return {
        "name": node.name,
        "state": str(node.state),
        "next": whose_turn(node),
        "command": next_command(node),
        "address": node.address,
        "vmid": node.vmid,
        "proxmox_node": node.proxmox_node,
        "uuid": node.uuid,
        "profile": node.profile,
        "reason": node.reason,
        "not_after": moment(node.not_after),
        "verified_at": moment(node.verified_at),
    }


def moment(time: datetime | None) -> str | None:
    """A time as programs read it, in UTC."""
    return None if time is None else iso(time.astimezone(UTC))


def whole(node: Node) -> dict[str, Any]:
    """All that is known, for programs."""
    known = asdict(node)
    known["journal"] = dict(node.journal)
    times = {key: moment(known[key]) for key in ("not_after", "verified_at")}
    turn = {"state": str(node.state), "next": whose_turn(node), "command": next_command(node)}
    return {**known, **times, **turn}


def row(node: Summary) -> list[str]:
    """One line of a list; '-' where nothing is known."""
    known = summary(node)
    return [one_line(str(known[key] or "-")) for key in _COLUMNS]


def lines(node: Node) -> list[tuple[str, str]]:
    """Title and text of each known fact, for people."""
    hearsay = " (from a list; nobody pins it)" if unadopted(node) else ""
    found: list[tuple[str, str | None]] = [
        ("name", node.name),
        ("state", f"{node.state} ({whose_turn(node)}'s move)"),
        ("reason", node.reason),
        ("next", next_command(node)),
        ("vm", None if node.vmid is None else f"{node.vmid} on {node.proxmox_node or '?'}, uuid {node.uuid}"),
        ("profile", node.profile),
        ("address", None if node.address is None else f"{node.address.ip} ({node.address.source})"),
        ("login", None if node.user is None else f"{node.user}, port {node.ssh_port}"),
        *(("host key", f"{key.type} {key.fingerprint}{hearsay}") for key in node.host_keys),
        ("machine-id", node.machine_id),
        *(("fabric", f"{fabric.name} {fabric.address or ''}".strip()) for fabric in node.fabrics),
        ("ticket", "signed" if node.ticket else None),
        ("receipt", "signed" if node.receipt else None),
        ("expires", moment(node.not_after)),
        ("verified", moment(node.verified_at)),
    ]
    return [(title, one_line(text)) for title, text in found if text]


def lease(held: Lease) -> dict[str, Any]:
    """Who acts on a node now, for programs."""
    return {
        "what": held.what,
        "actor": held.actor,
        "host": held.host,
        "since": moment(held.since),
        "until": moment(held.until),
    }


def lease_lines(held: Lease | None) -> list[tuple[str, str]]:
    """The same for people."""
    if held is None:
        return []
    return [
        ("in use", one_line(f"by {held.what} of {held.actor} on {held.host}, since {moment(held.since)}"))
    ]


def taken(done: "Taken", *, dry_run: bool) -> list[str]:
    """What a receipt did to the record, for people."""
    name = done.receipt.node
    if not done.changed:
        return [f"{name}: nothing to change: {done.why}"]
    until = iso(done.receipt.not_after)
    would = "would be" if dry_run else "is"
    return [f"{name}: {would} {done.state}; certificate {done.receipt.serial} until {until}"]


def one_line(text: str) -> str:
    """A text of the record as one field of one line: what would break the line becomes a visible escape."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def event(happened: Event) -> dict[str, Any]:
    """One event, for programs."""
    return {
        "at": iso(happened.at),
        "actor": happened.actor,
        "host": happened.host,
        "before": None if happened.before is None else str(happened.before),
        "after": str(happened.after),
        "why": happened.why,
        "role": happened.role,
        "db_user": happened.db_user,
        "recorded_at": moment(happened.recorded_at),
    }


def event_row(happened: Event) -> list[str]:
    """One event as a line; the login that the database knew stands beside the name that was given."""
    who = happened.actor
    if happened.db_user is not None:
        who += f" ({happened.role or 'owner'}: {happened.db_user})"
    fields = (iso(happened.at), who, happened.host, happened.before, happened.after, happened.why)
    return [one_line(str(field or "-")) for field in fields]
