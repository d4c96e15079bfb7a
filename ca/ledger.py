"""The audit: an append-only file of JSON lines, each carrying the hash of the one before it.

What it says is the truth about this authority. Nothing is signed before a line says so and is on the disk;
a line that cannot be written stops the signing.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ca.profile import timestamp
from inventory.errors import Damaged, Refused
from inventory.files import sync_folder

NO_HASH = "0" * 64
"""What the first line carries in place of a former line's hash."""

KINDS = frozenset(
    {
        "init",
        "intent",
        "issued",
        "failed",
        "installed",
        "crl",
        "crl-signed",
        "crl-installed",
        "revoked",
        "ticket-used",
        "recovered",
        "backup",
        "restored",
        "passphrase-changed",
        "rotation-begun",
        "rotation-prepared",
        "rotation-distributed",
        "rotation-activated",
        "rotation-retired",
        "rotation-undone",
        "bundle-installed",
    }
)
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


@dataclass(frozen=True, slots=True)
class Place:
    """How far an audit was read: its `seq`-th line lies between two offsets, and hashes to `head`."""

    seq: int = 0
    start: int = 0
    end: int = 0
    head: str = NO_HASH
    at: datetime | None = None


class Ledger:
    """The lines of one audit file, verified; a caller that appends holds the authority's lock.

    place: how far it was read; setting it goes on from a place that was reached before.
    entries: the lines that `refresh` read, for whoever wants them all in memory.
    """

    def __init__(self, path: Path, place: Place = Place()) -> None:
        """Read nothing yet; `refresh` does, or `read_on`."""
        self.path = path
        self.place = place
        self.entries: list[Entry] = []

    @property
    def head(self) -> str:
        """The hash of the last line: whoever keeps it notices an older audit put in its place."""
        return self.place.head

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
        rest = b""
        for item in self.read_on():
            if isinstance(item, bytes):
                rest = item
            else:
                self.entries.append(item)
        return rest

    def read_on(self) -> Iterator[Entry | bytes]:
        """Each line that was written since, verified, and at the end what stands after the last newline.

        Raises:
            Damaged: as `refresh`.
        """
        try:
            with self.path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self.place.end:
                    raise _damaged(self.path, "it is shorter than it was")
                file.seek(self.place.end)
                for line in file:
                    if not line.endswith(b"\n"):
                        yield line
                        return
                    yield self._taken(line[:-1])
        except OSError as error:
            raise _damaged(self.path, error.strerror or str(error)) from error

    def size(self) -> int:
        """Of the file, in bytes.

        Raises:
            Damaged: it is gone.
        """
        try:
            return self.path.stat().st_size
        except OSError as error:
            raise _damaged(self.path, error.strerror or str(error)) from error

    def holds(self, place: Place) -> bool:
        """Whether the file has that very line there; False where another file was put in its place."""
        if place.seq == 0:
            return place == Place()
        try:
            with self.path.open("rb") as file:
                file.seek(place.start)
                line = file.read(place.end - place.start)
        except OSError as error:
            raise _damaged(self.path, error.strerror or str(error)) from error
        return line.endswith(b"\n") and hashlib.sha256(line[:-1]).hexdigest() == place.head

    def recover(self, *, now: datetime) -> None:
        """With the lock held: refresh, and mend a last line that a crash left without its end.

        A whole line that only lacks its newline is kept and ended, so that nothing that was known is
        forgotten. A part of a line is cut off: its append never returned, so nothing followed from it.

        Raises:
            Damaged: as `refresh`, or what stands there is no part of a line of ours.
        """
        if rest := self.refresh():
            self.mend(rest, now=now)
            self.refresh()

    def mend(self, rest: bytes, *, now: datetime) -> None:
        """With the lock held: end or cut the `rest` that the last reading found; the file is then to be read on.

        Raises:
            Damaged: it is no part of a line of ours.
        """
        if rest[: len(_BEGINNING)] != _BEGINNING[: len(rest)]:
            raise _damaged(self.path, f"after line {self.place.seq} stands something that is no line of ours")
        if _is_json(rest):
            self._verified(rest)
            self._write(b"\n")
            return
        self._cut()
        self.write([("recovered", {"cut_bytes": len(rest)})], now=now, actor="node-ca")

    def append(self, kind: str, *, now: datetime, actor: str, body: Mapping[str, Any]) -> Entry:
        """Write one line, wait until it is on the disk, and read it back.

        Raises:
            Refused, Damaged: as `write`.
        """
        self.refresh()
        self.write([(kind, body)], now=now, actor=actor)
        self.refresh()
        return self.entries[-1]

    def write(self, lines: Sequence[tuple[str, Mapping[str, Any]]], *, now: datetime, actor: str) -> None:
        """Write lines (kind and body) at once, and wait until they are on the disk; they are read on next.

        Raises:
            Refused: the clock stands well before the last line.
            Damaged: they could not be written; the file is then as it was before.
        """
        if unknown := {kind for kind, _ in lines} - KINDS:
            raise ValueError(f"{sorted(unknown)} is not a kind of line")
        if self.size() != self.place.end:
            raise ValueError("append without recover")
        last = self.place.at
        if last is not None and now < last - _CLOCK_TOLERANCE:
            raise Refused(
                "nothing was recorded, so nothing was done",
                why=f"this host's clock says {timestamp(now)}, before the audit's last line "
                f"({timestamp(last)})",
                next_step="set the clock of this host",
            )
        head, data = self.head, bytearray()
        for seq, (kind, body) in enumerate(lines, self.place.seq + 1):
            line = line_of(seq, head, kind, now=now, actor=actor, body=body)
            head = hashlib.sha256(line).hexdigest()
            data += line + b"\n"
        self._write(bytes(data))

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
                with contextlib.suppress(OSError):  # what cannot be cut now is mended by the next run
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
            os.ftruncate(descriptor, self.place.end)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _taken(self, line: bytes) -> Entry:
        entry = self._verified(line)
        start = self.place.end
        self.place = Place(entry.seq, start, start + len(line) + 1, entry.sha256, entry.at)
        return entry

    def _verified(self, line: bytes) -> Entry:
        seq = self.place.seq + 1
        try:
            read = json.loads(line)
            entry = Entry(
                seq=read["seq"],
                at=moment(read["at"]),
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


def line_of(
    seq: int, previous: str, kind: str, *, now: datetime, actor: str, body: Mapping[str, Any]
) -> bytes:
    """One line as the file has it, without its newline."""
    line = {"seq": seq, "prev": previous, "at": timestamp(now), "kind": kind, "actor": actor, "body": body}
    return json.dumps(line, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode()


def moment(text: str) -> datetime:
    """The one form that `timestamp` writes; strptime takes four times as long."""
    moment = datetime.fromisoformat(text)
    if len(text) != len("2026-11-30T12:00:00Z") or moment.tzinfo is not UTC:
        raise ValueError(text)
    return moment


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
