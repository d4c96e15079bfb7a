"""A backup: one file that holds an authority as it stood at one instant; the root's key is never in it.

It is a plain tar file: each file of the authority, then a manifest of their hashes, then the audit. The audit's
last line tells of the backup itself and holds the manifest's hash, so whoever keeps that line's hash (the head)
can tell whether a single byte of the backup was changed.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ca.authority import LOCK_TIMEOUT_S
from ca.layout import Layout
from ca.ledger import Ledger
from ca.profile import timestamp
from inventory.errors import BadInput, Refused
from inventory.files import lock, sync_folder

MANIFEST = "manifest.json"
MAX_FILE = 64 * 1024 * 1024
"""Bytes of any file but the audit: a revocation list of a million certificates has half of that."""

_PART = re.compile(r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]{0,254}")
_AUDIT = Layout(Path()).audit.name
_MARGIN = 64 * 1024
"""What the audit's line of the backup and the end of a tar file may need."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that lies on the disk; `head` is what `restore --expect` takes."""

    file: Path
    at: datetime
    head: str
    entries: int
    files: int
    size: int

    def to_json(self) -> dict[str, Any]:
        """As --json shows it."""
        return {
            "file": str(self.file),
            "at": timestamp(self.at),
            "head": self.head,
            "entries": self.entries,
            "files": self.files,
            "size": self.size,
        }


@dataclass(slots=True)
class Contents:
    """What is in a backup beside manifest and audit: name to SHA-256, and the names of the folders."""

    files: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)

    def manifest(self) -> bytes:
        """The one form in which these contents are written."""
        said = {"schema": 1, "files": self.files, "folders": self.folders}
        return json.dumps(said, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def back_up(
    layout: Layout, out: Path, *, now: datetime, actor: str, link: Callable[[Path, Path], None] = os.link
) -> Backup:
    """Write a backup of a folder to `out`: a new file, or an existing folder that gets one.

    The authority's lock is held, so that nothing changes meanwhile; who only reads is not stopped. The audit
    tells of the backup once all but the audit itself is on the disk, with room kept for that.

    Raises:
        Refused: the file exists, or it could not be written; nothing of it is then left behind.
        BadInput: `out` lies in the authority's folder, or in no folder.
        Damaged: the audit cannot be relied on, or could not be written.
    """
    target = place(layout, out, now=now)
    beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    with _told(target), lock(layout.lock, timeout_s=LOCK_TIMEOUT_S):
        ledger = Ledger(layout.audit)
        ledger.recover(now=now)
        try:
            made = _write(beside, target, layout, ledger, now=now, actor=actor)
            _publish(beside, target, link)
        finally:
            beside.unlink(missing_ok=True)
        sync_folder(target.parent)
    return made


def place(layout: Layout, out: Path, *, now: datetime) -> Path:
    """The file that a backup into `out` would be.

    Raises:
        Refused: it exists.
        BadInput: it would lie in the authority's own folder, or its folder does not exist.
    """
    target = out
    if out.is_dir():
        target = out / f"node-ca-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}.tar"
    if target.exists() or target.is_symlink():
        raise _refused(f"{target} exists, and a backup is never overwritten", "choose another --out")
    if not target.parent.is_dir():
        raise _bad(f"{target.parent} is not a folder", f"make it first: mkdir -p {target.parent}")
    if target.resolve().is_relative_to(layout.folder.resolve()):
        raise _bad(f"{target} lies in the authority's own folder", "choose a place on another disk")
    return target


def belongs(name: str) -> bool:
    """Whether a file or folder at the top of an authority's folder is part of a backup.

    Not part of it are the root's key, the lock, what a crash left half-written, and the index, which is
    made anew from the audit.
    """
    own = Layout(Path())
    return (
        not name.startswith(".")
        and not name.startswith(own.index.name)  # SQLite keeps its -wal and -shm beside it
        and name not in {own.lock.name, own.take_away.name, MANIFEST}
    )


def is_plain(name: str) -> bool:
    """Whether a name in a backup is relative and plainly written, without hidden parts."""
    return all(_PART.fullmatch(part) for part in name.split("/"))


def _write(
    beside: Path, target: Path, layout: Layout, ledger: Ledger, *, now: datetime, actor: str
) -> Backup:
    descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            contents = Contents()
            for name, file in _found(layout.folder, contents):
                data, mode = _read(file)
                contents.files[name] = hashlib.sha256(data).hexdigest()
                _add(tar, name, len(data), io.BytesIO(data), now=now, mode=mode)
            manifest = contents.manifest()
            _add(tar, MANIFEST, len(manifest), io.BytesIO(manifest), now=now)
            out.flush()
            # The audit tells of this backup before it is whole; a full disk must show itself before that.
            os.posix_fallocate(out.fileno(), 0, out.tell() + layout.audit.stat().st_size + _MARGIN)
            body = {"file": str(target.absolute()), "manifest_sha256": hashlib.sha256(manifest).hexdigest()}
            last = ledger.append("backup", now=now, actor=actor, body=body)
            with layout.audit.open("rb") as audit:
                _add(tar, layout.audit.name, os.fstat(audit.fileno()).st_size, audit, now=now)
        size = out.tell()
        out.truncate()
        out.flush()
        os.fsync(out.fileno())
    return Backup(target, last.at, last.sha256, last.seq, len(contents.files), size)


def _found(folder: Path, contents: Contents, inside: str = "") -> Iterator[tuple[str, Path]]:
    """Every file that belongs to a backup, by its name in there; the audit comes by itself."""
    for path in sorted(folder.iterdir()):
        name = inside + path.name
        if path.name.startswith(".") or (not inside and (not belongs(name) or name == _AUDIT)):
            continue
        if not is_plain(name):
            raise _refused(f"{str(path)!a} has no plain name", "give it another name")
        if not path.is_dir():
            yield name, path
        elif path.is_symlink():
            raise _refused(f"{path} is a link to a folder", "put the folder itself there")
        else:
            contents.folders.append(name)
            yield from _found(path, contents, f"{name}/")


def _read(file: Path) -> tuple[bytes, int]:
    """The content and mode of a plain file, or of the one that a link points to."""
    # O_NONBLOCK: opening a named pipe would wait for its other end.
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as source:
        found = os.fstat(source.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FILE:
            raise _refused(
                f"{file} is not a plain file of at most {MAX_FILE // 1024**2} MiB",
                "take it out of the authority's folder",
            )
        return source.read(), 0o644 if found.st_mode & 0o044 else 0o600


def _add(
    tar: tarfile.TarFile, name: str, size: int, source: io.BufferedIOBase, *, now: datetime, mode: int = 0o600
) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, mode, int(now.timestamp())
    tar.addfile(member, source)


def _publish(beside: Path, target: Path, link: Callable[[Path, Path], None]) -> None:
    """Give a whole file its name, unless another one has taken it meanwhile."""
    try:
        link(beside, target)
    except FileExistsError:
        raise
    except OSError:  # the file systems of USB sticks have no links
        if target.exists():
            raise
        beside.replace(target)


@contextlib.contextmanager
def _told(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _refused(
            f"{error.filename or target}: {error.strerror or error}",
            "mend that, then run the command again; nothing of it was left behind",
        ) from error


def _refused(why: str, next_step: str) -> Refused:
    return Refused("no backup was made", why=why, next_step=next_step)


def _bad(why: str, next_step: str) -> BadInput:
    return BadInput("no backup was made", why=why, next_step=next_step)
