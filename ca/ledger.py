"""The audit: an append-only file of JSON lines, each carrying the hash of the one before it.

What it says is the truth about this authority. Nothing is signed before a line says so and is on the disk;
a line that cannot be written stops the signing.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ca.profile import timestamp
from inventory.errors import Damaged, Refused
from inventory.files import sync_folder

NO_HASH = "0" * 64
"""What the first line carries in place of a former line's hash."""

KINDS = frozenset({"init", "intent", "issued", "failed", "installed", "revoked", "ticket-used", "recovered"})
_BEGINNING = b'{"seq":'
_CLOCK_TOLERANCE = timedelta(minutes=15)
"""Between reading the clock and writing the line lie a lock that is waited for and a person who thinks."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the audit.

    sha256: of the line without its newline, hex; the next line carries it as `prev`.
    """

    seq: int
    at: datetime
    kind: str
    actor: str
    body: Mapping[str, Any]
    sha256: str


class Ledger:
    """The lines of one audit file, verified; a caller that appends holds the authority's lock."""

    def __init__(self, path: Path) -> None:
        """Read nothing yet; `refresh` does."""
        self.path = path
        self.entries: list[Entry] = []
        self._size = 0

    @property
    def head(self) -> str:
        """The hash of the last line: whoever keeps it notices an older audit put in its place."""
        return self.entries[-1].sha256 if self.entries else NO_HASH

    @staticmethod
    def create(path: Path) -> "Ledger":
        """A new, empty audit file of mode 0600.

        Raises:
            FileExistsError: the file is there already.
        """
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        sync_folder(path.parent)
        return Ledger(path)

    def refresh(self) -> bytes:
        """Read and verify what was written since; return what stands after the last newline.

        Without the lock that is another process' line on its way; with it, what a crash left.

        Raises:
            Damaged: a line was changed, taken out or put in, or the file is gone or shorter than before.
        """
        try:
            with self.path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._size:
                    raise _damaged(self.path, "it is shorter than it was")
                file.seek(self._size)
                fresh = file.read()
        except OSError as error:
            raise _damaged(self.path, error.strerror or str(error)) from error
        *lines, rest = fresh.split(b"\n")
        for line in lines:
            self.entries.append(self._verified(line))
            self._size += len(line) + 1
        return rest

    def recover(self, *, now: datetime) -> None:
        """With the lock held: refresh, and mend a last line that a crash left without its end.

        A whole line that only lacks its newline is kept and ended, so that nothing that was known is
        forgotten. A part of a line is cut off: its append never returned, so nothing followed from it.

        Raises:
            Damaged: as `refresh`, or what stands there is no part of a line of ours.
        """
        rest = self.refresh()
        if not rest:
            return
        if rest[: len(_BEGINNING)] != _BEGINNING[: len(rest)]:
            raise _damaged(
                self.path, f"after line {len(self.entries)} stands something that is no line of ours"
            )
        if _is_json(rest):
            self._verified(rest)
            self._write(b"\n")
            self.refresh()
            return
        self._cut()
        self.append("recovered", now=now, actor="node-ca", body={"cut_bytes": len(rest)})

    def append(self, kind: str, *, now: datetime, actor: str, body: Mapping[str, Any]) -> Entry:
        """Write one line and wait until it is on the disk.

        Raises:
            Refused: the clock stands well before the last line.
            Damaged: it could not be written; the file is then as it was before.
        """
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is not a kind of line")
        if self.refresh():
            raise ValueError("append without recover")
        if self.entries and now < self.entries[-1].at - _CLOCK_TOLERANCE:
            raise Refused(
                "nothing was recorded, so nothing was done",
                why=f"this host's clock says {timestamp(now)}, before the audit's last line "
                f"({timestamp(self.entries[-1].at)})",
                next_step="set the clock of this host",
            )
        line = _line(len(self.entries) + 1, self.head, kind, now=now, actor=actor, body=body)
        self._write(line + b"\n")
        self.refresh()
        return self.entries[-1]

    def _write(self, data: bytes) -> None:
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                written = os.write(descriptor, data)
                if written != len(data):
                    # A short write means a full disk or a limit; the next write says which.
                    written += os.write(descriptor, data[written:])
                if written != len(data):
                    raise OSError(0, "the line could only be written in part")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            if len(data) > 1:
                self._cut()
            raise Damaged(
                "nothing was recorded, so nothing was done",
                why=f"{self.path} could not be written: {error.strerror or error}",
                next_step="make room on that disk, then run the command again",
            ) from error

    def _cut(self) -> None:
        """Take away what stands after the last verified line."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, self._size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _verified(self, line: bytes) -> Entry:
        seq = len(self.entries) + 1
        try:
            read = json.loads(line)
            at = datetime.strptime(read["at"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
            entry = Entry(
                seq=read["seq"],
                at=at,
                kind=read["kind"],
                actor=read["actor"],
                body=read["body"],
                sha256=hashlib.sha256(line).hexdigest(),
            )
            previous = read["prev"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise _damaged(self.path, f"line {seq} is not a line of the audit") from error
        if entry.seq != seq or previous != self.head:
            raise _damaged(
                self.path,
                f"line {seq} does not follow from line {seq - 1}: one of them was changed or taken out",
            )
        if entry.kind not in KINDS or not isinstance(entry.body, dict):
            raise _damaged(self.path, f"line {seq} is of a kind that this version does not know")
        return entry


def _line(seq: int, previous: str, kind: str, *, now: datetime, actor: str, body: Mapping[str, Any]) -> bytes:
    line = {"seq": seq, "prev": previous, "at": timestamp(now), "kind": kind, "actor": actor, "body": body}
    return json.dumps(line, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode()


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _damaged(path: Path, why: str) -> Damaged:
    return Damaged(
        f"the audit {path} cannot be relied on",
        why=why,
        next_step="issue nothing; compare it with a backup, and restore the authority's folder from one",
    )
