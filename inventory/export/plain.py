"""Nodes as JSON and CSV, written one by one however many there are."""

import csv
import json
from collections.abc import Iterable
from datetime import datetime
from typing import IO, Any

from inventory.console import SCHEMA
from inventory.export.facts import facts
from inventory.model import Node
from inventory.ticket import iso

# What a spreadsheet takes for the beginning of a formula, also in the wide forms of a Japanese one
# (https://owasp.org/www-community/attacks/CSV_Injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
COLUMNS = (
    "name",
    "state",
    "next",
    "command",
    "reason",
    "site",
    "profile",
    "proxmox_node",
    "vmid",
    "uuid",
    "machine_id",
    "address",
    "prefix",
    "address_source",
    "ssh_port",
    "user",
    "macs",
    "host_keys",
    "fabrics",
    "certificate_not_after",
    "verified_at",
    "adopted",
    "has_ticket",
    "has_receipt",
)


def write_json(nodes: Iterable[Node], out: IO[str], *, now: datetime) -> int:
    """One document, a line for each node; how many were written comes back."""
    count = 0
    out.write(f'{{"schema": {SCHEMA}, "exported_at": "{iso(now)}", "nodes": [')
    for count, node in enumerate(nodes, 1):
        out.write(",\n" if count > 1 else "\n")
        out.write(json.dumps(facts(node), ensure_ascii=False))
    out.write("\n]}\n" if count else "]}\n")
    return count


def write_csv(nodes: Iterable[Node], out: IO[str]) -> int:
    """RFC 4180: a line of titles, CR LF, every cell in quotes."""
    count = 0
    writer = csv.writer(out, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    writer.writerow(COLUMNS)
    for node in nodes:
        count += 1
        told = facts(node)
        told["host_keys"] = [key["fingerprint"] for key in told["host_keys"]]
        told["fabrics"] = [f"{each['name']}={each['address'] or ''}" for each in told["fabrics"]]
        writer.writerow([_cell(told[column]) for column in COLUMNS])
    return count


def _cell(value: Any) -> str:  # noqa: ANN401 - JSON
    """A cell that no spreadsheet takes for a formula: what begins like one gets an apostrophe."""
    match value:
        case None:
            text = ""
        case bool():
            text = str(value).lower()
        case list():
            text = " ".join(value)
        case _:
            text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
