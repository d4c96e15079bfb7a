"""What node-inventory export --format json wrote, read as a list of nodes: facts, and no standing of theirs."""

import json
from typing import Any

from pydantic import ValidationError

from inventory.document import words_of
from inventory.errors import Fault
from inventory.importing import MAX_LIST_BYTES, Entry, NodeEntry
from inventory.model import State

_GONE = frozenset({State.RETIRED, State.PLANNED})
_AS_THEY_ARE = (
    "name", "uuid", "vmid", "proxmox_node", "profile", "address_source", "ssh_port", "user", "macs", "machine_id",
)  # fmt: skip


def read_export(text: str, *, name: str) -> tuple[tuple[Entry, ...], list[Fault]] | None:
    """The nodes of an export that have a machine and no fault, and every fault; None if it is no export."""
    text = text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    if not text.lstrip().startswith("{") or '"exported_at"' not in text:
        return None
    if len(text.encode()) > MAX_LIST_BYTES:
        return (), [Fault(name, f"larger than {MAX_LIST_BYTES} bytes")]
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if "exported_at" not in found or not isinstance(found.get("nodes"), list):
        return None
    entries: list[Entry] = []
    faults: list[Fault] = []
    for number, node in enumerate(found["nodes"]):
        place = f"nodes[{number}]"
        if not isinstance(node, dict):
            faults.append(Fault(f"{name}:{place}", "should be a mapping"))
        elif node.get("state") not in _GONE:
            try:
                told = NodeEntry.model_validate_json(json.dumps(_plain(node)))
            except ValidationError as error:
                faults += [
                    Fault(
                        f"{name}:{place}:{each['loc'][0]}",
                        f"{each['loc'][0]}: {'required' if each['type'] == 'missing' else words_of(each)}",
                    )
                    for each in error.errors()
                ]
            else:
                entries.append(Entry(name, number, told, None, place))
    if not entries and not faults:
        faults.append(Fault(name, "no node in it has a machine"))
    return tuple(entries), faults


def _plain(node: dict[str, Any]) -> dict[str, Any]:
    """The facts of a node that a list may tell; the rest is another record's word, and counts for nothing."""
    told = {key: node[key] for key in _AS_THEY_ARE if node.get(key) not in (None, [])}
    if node.get("address") is not None:
        told["address"] = _joined(node["address"], node.get("prefix"))
    if isinstance(node.get("host_keys"), list):
        told["host_keys"] = [
            f"{key.get('type')} {key.get('base64')}" if isinstance(key, dict) else key
            for key in node["host_keys"]
        ]
    if isinstance(node.get("fabrics"), list):
        told["fabrics"] = [
            {key: value for key, value in each.items() if value is not None}
            if isinstance(each, dict)
            else each
            for each in node["fabrics"]
        ]
    return told


def _joined(address: object, prefix: object) -> object:
    return address if prefix is None else f"{address}/{prefix}"
