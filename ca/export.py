"""Certificates as other programs want them: JSON, CSV or PEM, written row by row however many there are."""

import csv
import json
from collections.abc import Callable, Iterable
from datetime import datetime
from enum import StrEnum
from typing import IO, Any

from ca.layout import Layout, damaged, read_certificate
from ca.profile import fingerprint, pem
from ca.record import Record
from inventory.console import SCHEMA

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
COLUMNS = (
    "serial",
    "node",
    "vm_uuid",
    "state",
    "names",
    "addresses",
    "spiffe_id",
    "not_before",
    "not_after",
    "key_sha256",
    "fingerprint_sha256",
    "ticket_id",
    "host_keys",
    "machine_id",
    "actor",
    "intended_at",
    "installed_at",
    "ended_at",
    "why",
)


class Format(StrEnum):
    """How certificates are exported."""

    JSON = "json"
    CSV = "csv"
    PEM = "pem"


def write(kind: Format, records: Iterable[Record], out: IO[str], *, layout: Layout, now: datetime) -> int:
    """Write the records; how many certificates were written comes back.

    Raises:
        Damaged: the file of a certificate is gone, or is another one (PEM).
    """
    return _WRITERS[kind](records, out, layout, now)


def _json(records: Iterable[Record], out: IO[str], _layout: Layout, now: datetime) -> int:
    count = 0
    out.write(f'{{"schema": {SCHEMA}, "certificates": [')
    for count, record in enumerate(records, 1):
        out.write(", " if count > 1 else "")
        out.write(json.dumps(record.to_json(now), ensure_ascii=False))
    out.write("]}\n")
    return count


def _csv(records: Iterable[Record], out: IO[str], _layout: Layout, now: datetime) -> int:
    count = 0
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)  # else a lone \\r is left bare
    writer.writerow(COLUMNS)
    for record in records:
        values = record.to_json(now)
        writer.writerow([_cell(values[column]) for column in COLUMNS])
        count += 1
    return count


def _pem(records: Iterable[Record], out: IO[str], layout: Layout, _now: datetime) -> int:
    """Those that were issued, the leaf of each alone."""
    count = 0
    for record in records:
        if record.fingerprint_sha256 is None:
            continue
        file = layout.issued / f"{record.serial}.pem"
        leaf = read_certificate(file)
        if fingerprint(leaf) != record.fingerprint_sha256:
            raise damaged(f"{file} is not the certificate that was recorded")
        out.write(pem(leaf).decode())
        count += 1
    return count


def _cell(value: Any) -> str:  # noqa: ANN401 - JSON
    """A cell that no spreadsheet takes for a formula: what begins like one gets an apostrophe."""
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value) if value is not None else ""
    return f"'{text}" if text.startswith(_FORMULA) else text


_WRITERS: dict[Format, Callable[[Iterable[Record], IO[str], Layout, datetime], int]] = {
    Format.JSON: _json,
    Format.CSV: _csv,
    Format.PEM: _pem,
}
