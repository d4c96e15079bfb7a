"""Nodes as metrics, in the text format that node_exporter's textfile collector reads."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import IO

from inventory.console import printable
from inventory.lifecycle import whose_turn
from inventory.model import Node, State

_HELP = {
    "muster_nodes": "Nodes on record by state; a state without nodes is 0.",
    "muster_node_info": "What a node is; always 1.",
    "muster_node_state_info": "The state of a node and who acts next: infra, security or nobody; always 1.",
    "muster_node_certificate_not_after_timestamp_seconds": "End of a node's newest certificate, in Unix time.",
    "muster_node_last_verified_timestamp_seconds": "When a node passed its verification last, in Unix time.",
    "muster_record_export_timestamp_seconds": "When this file was written, in Unix time.",
}
_OF_A_NODE = tuple(name for name in _HELP if name.startswith("muster_node_"))


def write(nodes: Iterable[Node], out: IO[str], *, now: datetime) -> int:
    """Write the metrics of the nodes; how many nodes there were comes back.

    A metric's lines must stand together, so each metric of a node waits in a temporary file of its own: one
    pass sees one state of the record, and memory does not grow with it.
    """
    counts: Counter[State] = Counter()
    with ExitStack() as stack:
        waiting = {
            name: stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", newline=""))
            for name in _OF_A_NODE
        }
        for node in nodes:
            counts[node.state] += 1
            _write_node(node, waiting)
        _head(out, "muster_nodes")
        out.writelines(_line("muster_nodes", {"state": str(state)}, counts[state]) for state in State)
        for name, file in waiting.items():
            _head(out, name)
            file.seek(0)
            shutil.copyfileobj(file, out)
    _head(out, "muster_record_export_timestamp_seconds")
    out.write(_line("muster_record_export_timestamp_seconds", {}, _unix(now)))
    return counts.total()


def _write_node(node: Node, waiting: Mapping[str, IO[str]]) -> None:
    own = {"node": node.name}
    what = {
        "site": node.site,
        "profile": node.profile,
        "proxmox_node": node.proxmox_node,
        "address": None if node.address is None else node.address.ip,
    }
    state = {"state": str(node.state), "next": whose_turn(node)}
    told = [
        ("muster_node_info", {**own, **{key: text or "" for key, text in what.items()}}, 1),
        ("muster_node_state_info", {**own, **state}, 1),
    ]
    if node.not_after is not None:
        told.append(("muster_node_certificate_not_after_timestamp_seconds", own, _unix(node.not_after)))
    if node.verified_at is not None:
        told.append(("muster_node_last_verified_timestamp_seconds", own, _unix(node.verified_at)))
    for name, labels, value in told:
        waiting[name].write(_line(name, labels, value))


def _head(out: IO[str], name: str) -> None:
    out.write(f"# HELP {name} {_HELP[name]}\n# TYPE {name} gauge\n")


def _line(name: str, labels: Mapping[str, str], value: int) -> str:
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {value}\n" if inner else f"{name} {value}\n"


def _escaped(text: str) -> str:
    r"""A label's value (exposition formats, version 0.0.4): \, " and line feed are escaped, the rest is UTF-8."""
    return printable(text).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _unix(moment: datetime) -> int:
    return int(moment.timestamp())
