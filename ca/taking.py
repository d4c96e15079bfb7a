# ruff: noqa: S608 - every text here is our own, and every value is bound
"""What each line of the audit changes in its index."""

import json
import sqlite3

from ca.index_file import marks
from ca.ledger import Entry
from ca.profile import timestamp
from ca.record import Standing, recorded
from ca.rotation import LINES

_compact = json.JSONEncoder(separators=(",", ":")).encode

NO_SENSE = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
"""What a line that makes no sense leads to."""


def take(db: sqlite3.Connection, entry: Entry) -> None:
    """Add one line.

    Raises:
        one of NO_SENSE: the line lacks what its kind must say, or speaks of a certificate that no line announced.
    """
    body = entry.body
    at = timestamp(entry.at)
    match entry.kind:
        case "intent":
            _announce(db, entry)
        case "issued":
            _change(
                db, body["serial"], standing=Standing.ISSUED, fingerprint_sha256=body["fingerprint_sha256"]
            )
            for serial in body["replaces"]:
                why = f"superseded: replaced by {body['serial']}"
                _change(db, serial, standing=Standing.REVOKED, ended_at=at, why=why)
        case "installed":
            _change(db, body["serial"], installed_at=at)
            db.execute(
                "UPDATE certificates SET standing = 'installed' WHERE serial = ? AND standing = 'issued'",
                (body["serial"],),
            )
            if "bundle_sha256" in body:
                db.execute(
                    "INSERT OR REPLACE INTO bundles_held SELECT node, ? FROM certificates WHERE serial = ?",
                    (body["bundle_sha256"], body["serial"]),
                )
        case "failed" | "revoked":
            _change(db, body["serial"], standing=entry.kind, ended_at=at, why=body["why"])
        case "ticket-used":
            use = (body["ticket_id"], body["node"], body["vm_uuid"], body["key_sha256"])
            db.execute("INSERT OR IGNORE INTO tickets VALUES (?, ?, ?, ?)", use)
            for former in body.get("supersedes", ()):
                db.execute("INSERT OR IGNORE INTO void_tickets VALUES (?, ?)", (former, body["ticket_id"]))
        case "crl-installed":
            held = (body["node"], body["number"])
            db.execute("INSERT OR REPLACE INTO lists_held VALUES (?, ?)", held)
        case "bundle-installed":
            held = (body["node"], body["sha256"])
            db.execute("INSERT OR REPLACE INTO bundles_held VALUES (?, ?)", held)
        case kind if kind in LINES:
            db.execute("INSERT INTO rotations VALUES (?, ?, ?)", (entry.seq, kind, _compact(body)))
        case kind:
            row = (kind, at, _compact(body))
            db.execute("INSERT OR REPLACE INTO latest VALUES (?, ?, ?)", row)


def _announce(db: sqlite3.Connection, entry: Entry) -> None:
    body = entry.body
    record = recorded(body, actor=entry.actor, at=entry.at, standing=Standing.OPEN)
    row = {
        "n": entry.seq,
        "serial": record.serial,
        "node": record.node,
        "vm_uuid": record.vm_uuid,
        "standing": record.standing,
        "not_after": body["not_after"],
        "key_sha256": record.key_sha256,
        "machine_id": record.machine_id,
        "ticket_id": record.ticket_id,
        "at": timestamp(entry.at),
        "actor": entry.actor,
        "body": _compact(body),
    }
    columns = ", ".join(row)
    db.execute(f"INSERT INTO certificates ({columns}) VALUES ({marks(row)})", tuple(row.values()))
    for key in record.host_keys:
        db.execute("INSERT OR IGNORE INTO host_keys VALUES (?, ?)", (key.line, entry.seq))


def _change(db: sqlite3.Connection, serial: str, **columns: str) -> None:
    changes = ", ".join(f"{name} = ?" for name in columns)
    done = db.execute(f"UPDATE certificates SET {changes} WHERE serial = ?", (*columns.values(), serial))
    if done.rowcount != 1:
        raise KeyError(serial)
