"""Certificates as other programs want them: JSON, CSV or PEM, written row by row however many there are."""

import contextlib
import csv
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from ca.layout import Layout, damaged, read_certificate
from ca.profile import fingerprint, pem
from ca.record import Record
from inventory.console import SCHEMA
from inventory.errors import BadInput
from inventory.files import sync_folder

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


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[IO[str]]:
    """A file to write to, for its owner alone; it takes its name once all of it is on the disk.

    Raises:
        BadInput: it cannot be written; what had the name is as it was.
    """
    beside = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as out:
            yield out
            out.flush()
            os.fsync(descriptor)
        beside.replace(file)
        sync_folder(file.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise BadInput(
            "nothing was exported",
            why=f"{file} could not be written: {error.strerror or error}",
            next_step="choose another --out",
        ) from error
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
