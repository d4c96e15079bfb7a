"""A node as people and programs see it: pure, from values to words."""

from dataclasses import asdict
from typing import Any

from inventory.errors import BadInput, Refused
from inventory.lifecycle import next_command, whose_move
from inventory.model import Event, Node
from inventory.store import Store
from inventory.ticket import iso

TITLES = ("NAME", "STATE", "NEXT", "ADDRESS", "VMID", "PROXMOX-NODE")
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
            next_step=f"provision-node {node.name} --reissue-ticket (ticket.signing_key must be set)",
        )
    return node.ticket


def summary(node: Node) -> dict[str, Any]:
    """The few facts of a list, for programs."""
    return {
        "name": node.name,
        "state": str(node.state),
        "next": whose_move(node.state),
        "command": next_command(node),
        "address": None if node.address is None else node.address.ip,
        "vmid": node.vmid,
        "proxmox_node": node.proxmox_node,
        "uuid": node.uuid,
        "reason": node.reason,
    }


def whole(node: Node) -> dict[str, Any]:
    """All that is known, for programs."""
    known = asdict(node)
    known["journal"] = dict(node.journal)
    return {**known, "state": str(node.state), "next": whose_move(node.state), "command": next_command(node)}


def row(node: Node) -> list[str]:
    """One line of a list; '-' where nothing is known."""
    known = summary(node)
    return [str(known[key] or "-") for key in ("name", "state", "next", "address", "vmid", "proxmox_node")]


def lines(node: Node) -> list[tuple[str, str]]:
    """Title and text of each known fact, for people."""
    found: list[tuple[str, str | None]] = [
        ("name", node.name),
        ("state", f"{node.state} ({whose_move(node.state)}'s move)"),
        ("reason", node.reason),
        ("next", next_command(node)),
        ("vm", None if node.vmid is None else f"{node.vmid} on {node.proxmox_node or '?'}, uuid {node.uuid}"),
        ("profile", node.profile),
        ("address", None if node.address is None else f"{node.address.ip} ({node.address.source})"),
        ("login", None if node.user is None else f"{node.user}, port {node.ssh_port}"),
        *(("host key", f"{key.type} {key.fingerprint}") for key in node.host_keys),
        ("machine-id", node.machine_id),
        *(("fabric", f"{fabric.name} {fabric.address or ''}".strip()) for fabric in node.fabrics),
        ("ticket", "signed" if node.ticket else None),
        ("receipt", "signed" if node.receipt else None),
    ]
    return [(title, text) for title, text in found if text]


def event(happened: Event) -> dict[str, Any]:
    """One event, for programs."""
    return {
        "at": iso(happened.at),
        "actor": happened.actor,
        "host": happened.host,
        "before": None if happened.before is None else str(happened.before),
        "after": str(happened.after),
        "why": happened.why,
    }
