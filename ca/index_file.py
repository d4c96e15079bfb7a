# ruff: noqa: S608 - every text here is our own
"""The SQLite file of the index: its tables, and how it is opened, filled and thrown away."""

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

_VERSION = 4
_BUSY_S = 5.0
_CACHE_KIB = 64 * 1024
_TABLES = f"""
CREATE TABLE place (one INTEGER PRIMARY KEY CHECK (one = 1), seq, start, end, head, at);
CREATE TABLE latest (kind TEXT PRIMARY KEY, at TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE tickets (id TEXT PRIMARY KEY, node TEXT NOT NULL, vm_uuid TEXT, key_sha256 TEXT NOT NULL)
    WITHOUT ROWID;
CREATE TABLE void_tickets (id TEXT NOT NULL, by TEXT NOT NULL, PRIMARY KEY (id, by)) WITHOUT ROWID;
CREATE TABLE certificates (
    n INTEGER PRIMARY KEY, serial TEXT NOT NULL UNIQUE, node TEXT NOT NULL, vm_uuid TEXT, standing TEXT NOT NULL,
    not_after TEXT NOT NULL, key_sha256 TEXT NOT NULL, machine_id TEXT, ticket_id TEXT, fingerprint_sha256 TEXT,
    installed_at TEXT, ended_at TEXT, why TEXT, at TEXT NOT NULL, actor TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE lists_held (node TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE bundles_held (node TEXT PRIMARY KEY, sha256 TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE rotations (n INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE host_keys (line TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (line, n)) WITHOUT ROWID;
PRAGMA user_version = {_VERSION};
"""
_EMPTIED = (
    "place",
    "latest",
    "tickets",
    "void_tickets",
    "certificates",
    "host_keys",
    "lists_held",
    "bundles_held",
    "rotations",
)
_INDEXES = {
    "of_node": "certificates (node, not_after)",
    "of_standing": "certificates (standing, not_after)",
    "of_end": "certificates (not_after) WHERE standing IN ('issued', 'installed')",
    "of_key": "certificates (key_sha256)",
    "of_uuid": "certificates (vm_uuid) WHERE vm_uuid IS NOT NULL",
    "of_machine": "certificates (machine_id) WHERE machine_id IS NOT NULL",
    "of_ticket": "certificates (ticket_id) WHERE ticket_id IS NOT NULL",
    "of_fingerprint": "certificates (fingerprint_sha256) WHERE fingerprint_sha256 IS NOT NULL",
}


def open_index(file: Path | None) -> sqlite3.Connection:
    """The index in a file, which is made where it is absent; None: in memory.

    Raises:
        OSError, sqlite3.Error: it cannot be opened or written, or is none of ours.
    """
    if file is not None:
        _make_private(file)
    db = sqlite3.connect(file or ":memory:", timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        # With a write-ahead log a crash may lose the last changes, and never tears the file: no sync for each.
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            with writing(db):
                if db.execute("PRAGMA user_version").fetchone()[0] == 0:
                    for statement in _TABLES.split(";\n"):
                        db.execute(statement)
        elif version != _VERSION:
            raise sqlite3.DatabaseError(f"it is of version {version}")
    except BaseException:
        db.close()
        raise
    return db


def remove(file: Path) -> None:
    """Throw the index away; what cannot be thrown away is found broken once more."""
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(OSError):
            file.with_name(file.name + suffix).unlink()


@contextlib.contextmanager
def writing(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All that is changed within is there at its end, or none of it."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


@contextlib.contextmanager
def built_at_once(db: sqlite3.Connection) -> Iterator[None]:
    """Many rows go in several times as fast where the indexes are made after them."""
    db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    for name in _INDEXES:
        db.execute(f"DROP INDEX IF EXISTS {name}")
    yield
    for name, columns in _INDEXES.items():
        db.execute(f"CREATE INDEX {name} ON {columns}")


def empty(db: sqlite3.Connection) -> None:
    """Take out every row."""
    for table in _EMPTIED:
        db.execute(f"DELETE FROM {table}")


def marks(values: Iterable[object]) -> str:
    """As many question marks as there are values."""
    return ", ".join("?" for _ in values)


def _make_private(file: Path) -> None:
    """The file exists, for its owner alone, and belongs to whom the folder belongs."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        if os.geteuid() == 0:
            owner = file.parent.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    finally:
        os.close(descriptor)
