"""The whole audit, read from the disk and believed in nothing: the chain, the certificates' files, the index."""

import hashlib
import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ca.index_file import open_index
from ca.layout import Layout, damaged, read_certificate
from ca.ledger import NO_HASH, Entry, Ledger
from ca.profile import fingerprint
from ca.taking import NO_SENSE, take
from inventory.errors import BadInput, Damaged

_HEAD = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Break:
    """Something that does not fit. line: of the audit; None: it is about the audit as a whole."""

    line: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Audited:
    """What the reading found.

    head, entries: of the lines up to the first that does not fit. since: how many lines follow the expected
    head; None: none was expected, or it is not there. unfinished: bytes after the last newline.
    """

    head: str
    entries: int
    breaks: tuple[Break, ...]
    since: int | None
    unfinished: int

    @property
    def ok(self) -> bool:
        """Whether all of it fits."""
        return not self.breaks

    def to_json(self) -> dict[str, Any]:
        """As --json shows it; `line` and `why` are those of the first break."""
        found: dict[str, Any] = {"ok": self.ok, "head": self.head, "entries": self.entries}
        if self.since is not None:
            found["since_expected"] = self.since
        if self.breaks:
            first = self.breaks[0]
            found |= {"line": first.line, "why": first.why}
            found["breaks"] = [{"line": each.line, "why": each.why} for each in self.breaks]
        return found

    def refuse(self, folder: Path) -> None:
        """Nothing where all of it fits.

        Raises:
            Damaged: something does not; every break is told.
        """
        if self.breaks:
            raise Damaged(
                f"the audit in {folder} cannot be relied on",
                why="\n".join(
                    each.why
                    if each.line is None or each.why.startswith("line ")
                    else f"line {each.line}: {each.why}"
                    for each in self.breaks
                ),
                next_step="issue nothing; find the newest copy of the folder, and compare: node-ca audit --expect HEAD",
            )


def audit(layout: Layout, *, expect: str | None = None) -> Audited:
    """Verify every line, and each certificate's file against its line.

    `expect` is a head that was kept elsewhere: an audit that does not have it is an older copy, or another one.

    Raises:
        BadInput: `expect` is no head.
    """
    if expect is not None:
        expect = check_head(expect)
    reading = _Reading(layout, expect)
    ledger = Ledger(layout.audit)
    unfinished = 0
    try:
        for item in ledger.read_on():
            if isinstance(item, bytes):
                unfinished = len(item)
            else:
                reading.take(item)
    except Damaged as error:
        reading.breaks.append(Break(ledger.place.seq + 1, error.why))
    finally:
        reading.index.close()
    if ledger.place.seq == 0 and not reading.breaks:
        reading.breaks.append(Break(None, "it is empty"))
    if expect is not None and reading.expected_at is None:
        reading.breaks.append(
            Break(
                None,
                f"it does not know the head {expect}: an older copy was put in its place, or it is another audit"
                if not reading.breaks
                else f"the head {expect} is not among the lines before the break",
            )
        )
    since = None if reading.expected_at is None else ledger.place.seq - reading.expected_at
    return Audited(ledger.head, ledger.place.seq, tuple(reading.breaks), since, unfinished)


class _Reading:
    """One pass over the lines."""

    def __init__(self, layout: Layout, expect: str | None) -> None:
        self.breaks: list[Break] = []
        self.expected_at = 0 if expect == NO_HASH else None
        self.index = open_index(None)
        self._layout, self._expect = Layout(layout.folder), expect

    def take(self, entry: Entry) -> None:
        if entry.sha256 == self._expect:
            self.expected_at = entry.seq
        try:
            take(self.index, entry)
            if entry.kind == "init":
                self._begin(entry)
            elif entry.seq == 1:
                raise ValueError("the first line is not that of an authority's making")
            if entry.kind == "rotation-prepared":
                self._succeed(entry)
            if entry.kind == "issued":
                self._compare(entry)
        except (*NO_SENSE, sqlite3.Error) as error:
            self.breaks.append(Break(entry.seq, f"it makes no sense ({error})"))

    def _begin(self, entry: Entry) -> None:
        for name, file in (("root", self._layout.root), ("issuing", self._layout.issuing)):
            if entry.body[f"{name}_sha256"] != _fingerprint(file):
                self.breaks.append(
                    Break(entry.seq, f"{file} is not the certificate that the audit began with")
                )

    def _succeed(self, entry: Entry) -> None:
        of = Layout(self._layout.folder, str(entry.body["id"]))
        for name, file in (("root", of.root), ("issuing", of.issuing)):
            # What was taken back is gone.
            if of.home.exists() and entry.body[f"{name}_sha256"] != _fingerprint(file):
                self.breaks.append(Break(entry.seq, f"{file} is not the certificate that was recorded"))

    def _compare(self, entry: Entry) -> None:
        file = self._layout.issued / f"{entry.body['serial']}.pem"
        found = _fingerprint(file)
        if found is None:
            self.breaks.append(Break(entry.seq, f"{file} is missing, or no certificate"))
        elif found != entry.body["fingerprint_sha256"]:
            self.breaks.append(Break(entry.seq, f"{file} is not the certificate that was recorded"))


def check_head(text: str) -> str:
    """The head of an audit as people hand it on, in either case.

    Raises:
        BadInput: it is none.
    """
    head = text.strip().lower()
    if not _HEAD.fullmatch(head):
        raise BadInput(
            "nothing was compared",
            why=f"{text!r} is not the head of an audit: 64 hex digits",
            next_step="pass it as node-ca audit or node-ca status printed it",
        )
    return head


def unknown_heads(file: Path, heads: Iterable[str]) -> tuple[str, ...]:
    """Those of the heads that no line of the audit has, in the order given.

    Whoever kept one of them saw a line that this file does not have: an older copy was put in its place.

    Raises:
        BadInput: one is no head.
        Damaged: the file cannot be read.
    """
    wanted = [*dict.fromkeys(check_head(head) for head in heads)]
    missing = set(wanted) - {NO_HASH}
    try:
        with file.open("rb") as lines:
            for line in lines:
                if not missing:
                    break
                missing.discard(hashlib.sha256(line.removesuffix(b"\n")).hexdigest())
    except OSError as error:
        raise damaged(f"{file} cannot be read: {error.strerror or error}") from error
    return tuple(head for head in wanted if head in missing)


def _fingerprint(file: Path) -> str | None:
    try:
        return fingerprint(read_certificate(file))
    except Damaged:
        return None
