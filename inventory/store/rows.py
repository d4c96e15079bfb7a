"""Between rows of the record and values: pure."""

import functools
import hashlib
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from ipaddress import ip_interface
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json, to_jsonable_python

from inventory.errors import Damaged
from inventory.lifecycle import unadopted
from inventory.model import Event, HostKey, KeptReceipt, KeptReport, Node, State, Summary

COLUMNS = ("name", "state", "version", "uuid", "reason")
_ELSEWHERE = {*COLUMNS, "receipt", "not_after", "verified_at"}


def row_of(node: Node) -> dict[str, Any]:
    """A node as its own row has it; its receipts have a table of their own."""
    told: dict[str, Any] = storable(to_jsonable_python(node))
    return {
        **{key: told[key] for key in COLUMNS},
        "facts": {key: value for key, value in told.items() if key not in _ELSEWHERE},
    }


def node_of(row: Mapping[Any, Any]) -> Node:
    """The node of a row.

    Raises:
        Damaged: the row cannot be one.
    """
    whole = {
        **row["facts"],
        **{key: row[key] for key in COLUMNS},
        "receipt": row["receipt"],
        "not_after": row["until"],
        "verified_at": _last(row),
    }
    try:
        return _node_from().validate_json(to_json(whole))
    except ValidationError as error:
        raise Damaged(
            f"the record of {row['name']} cannot be read",
            why="; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()),
            next_step="restore the record from a backup",
        ) from None


def summary_of(row: sa.RowMapping) -> Summary:
    """The few facts of a node's row."""
    return Summary(
        name=row["name"],
        state=State(row["state"]),
        uuid=row["uuid"],
        vmid=row["vmid"],
        proxmox_node=row["proxmox_node"],
        address=row["address"],
        profile=row["profile"],
        reason=row["reason"],
        not_after=moment(row["until"]),
        verified_at=moment(_last(row)),
        unadopted=row["told_of"] and row["uuid"] is not None and row["state"] == State.AWAITING_IDENTITY,
    )


def event_of(row: sa.RowMapping) -> Event:
    """What a row of the history says."""
    return Event(
        at=datetime.fromisoformat(row["at"]),
        actor=row["actor"],
        host=row["host"],
        before=None if row["before"] is None else State(row["before"]),
        after=State(row["after"]),
        why=row["why"],
        role=row["role"],
        db_user=row["db_user"],
        recorded_at=None if row["recorded_at"] is None else row["recorded_at"].astimezone(UTC),
    )


def report_of(row: sa.RowMapping) -> KeptReport:
    """One verification."""
    return KeptReport(
        row["node"], datetime.fromisoformat(row["at"]), row["passed"], row["document"], row["db_user"]
    )


def receipt_of(row: sa.RowMapping) -> KeptReceipt:
    """One receipt."""
    return KeptReceipt(
        row["node"], datetime.fromisoformat(row["at"]), row["uuid"], row["text"], row["db_user"]
    )


def moment(text: str | None) -> datetime | None:
    """A time as rows have it."""
    return None if text is None else datetime.fromisoformat(text)


def static_addresses(node: Node) -> set[str]:
    """The addresses that infra chose for a node that is not retired, as text without their prefix."""
    if node.state is State.RETIRED:
        return set()
    own = {node.address.ip} if node.address is not None and node.address.source == "static" else set()
    return own | {
        str(ip_interface(fabric.address).ip) for fabric in node.fabrics if fabric.address is not None
    }


def places_of(node: Node) -> set[tuple[str, str]]:
    """The same with the site that they are of."""
    return {(node.site or "", ip) for ip in static_addresses(node)}


def marks_of(node: Node) -> set[str]:
    """By what the machine of a node that is not retired is known; but for its VM's id, nothing that was only told."""
    if node.state is State.RETIRED:
        return set()
    vm = set() if node.vmid is None else {vm_mark(node.vmid)}
    if unadopted(node):
        return vm
    own = {machine_mark(node.machine_id)} if node.machine_id else set()
    return vm | own | {key_mark(key) for key in node.host_keys}


def key_mark(key: HostKey) -> str:
    """A host key, short enough for an index."""
    return "key:" + hashlib.sha256(key.line.encode()).hexdigest()


def machine_mark(machine_id: str) -> str:
    """A machine-id."""
    return f"machine:{machine_id[:64]}"


def vm_mark(vmid: int) -> str:
    """The id of a VM, which each site may have one of."""
    return f"vm:{vmid}"


def storable(value: Any) -> Any:  # noqa: ANN401 - JSON
    """The same without what PostgreSQL cannot hold: NUL and halves of surrogate pairs in a text, NaN and infinity."""
    if isinstance(value, str):
        if value.isprintable():
            return value
        return value.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {storable(key): storable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [storable(each) for each in value]
    return value


def _last(row: Mapping[Any, Any]) -> str | None:
    """When a node was verified last, told by a report or by a receipt."""
    return max(filter(None, (row["reported"], row["told"])), default=None)


@functools.cache
def _node_from() -> "TypeAdapter[Node]":
    return TypeAdapter(Node)
