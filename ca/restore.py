"""An authority out of its backup: every byte is checked before its folder appears, whole or not at all.

A backup has travelled, so nothing in it is trusted: only plain files with plain names are taken from it, into
a new folder that nobody else can reach.
"""

import hashlib
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from ca.backup import MANIFEST, MAX_FILE, Contents, belongs, is_plain
from ca.layout import Layout
from ca.ledger import Entry, Ledger
from ca.opened import OpenedAuthority
from ca.profile import timestamp
from inventory.errors import BadInput, Damaged, MusterError, Refused
from inventory.files import sync_folder

_HEAD = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Restored:
    """An authority that came out of a backup.

    made_at: when the backup was made. entries: lines of its audit. since_expected: how many of them were
    written after the head that was expected; None: none was. unknown_until: when the last certificate that
    may have been issued after the backup, and is not known here, ends.
    """

    ca_dir: Path
    made_at: datetime
    backup_head: str
    entries: int
    since_expected: int | None
    certificates: int
    unknown_until: datetime
    head: str

    def advice(self, now: datetime) -> Iterator[str]:
        """What the holder must know of a past that came back."""
        age = max(now - self.made_at, timedelta(0))
        ago = f"{age.days} days" if age.days else f"{age.seconds // 3600} hours"
        yield (
            f"this is the authority of {timestamp(self.made_at)}, {ago} ago: what was issued since then is not "
            f"known here, cannot be revoked by node-ca, and is valid until {timestamp(self.unknown_until)} at "
            "the latest; what was revoked since then is not revoked here"
        )
        if self.since_expected is None:
            yield (
                "whether anything came after it was not checked: compare the backup head above with the newest "
                "one that was kept elsewhere"
            )
        yield (
            "if anything did: revoke again what was revoked, onboard each node anew that was onboarded since, "
            "and replace the authority where a key that is unknown here may be in wrong hands"
        )

    def to_json(self) -> dict[str, Any]:
        """As --json shows it."""
        return {
            "ca_dir": str(self.ca_dir),
            "made_at": timestamp(self.made_at),
            "backup_head": self.backup_head,
            "entries": self.entries,
            "since_expected": self.since_expected,
            "certificates": self.certificates,
            "unknown_until": timestamp(self.unknown_until),
            "head": self.head,
        }


def restore(
    file: Path, ca_dir: Path, *, expect: str | None, now: datetime, actor: str, rehearse: bool = False
) -> Restored:
    """Make `ca_dir`, which must not exist, from a backup; with `rehearse`, only check that it would do.

    `expect` is a head that is known from elsewhere: the backup's audit must have come at least as far.

    Raises:
        Refused: `ca_dir` exists, the backup is older than `expect`, or the disk did not take it.
        BadInput: the file is no backup, or `expect` is no head.
        Damaged: something in the backup was changed or is missing.
    """
    expect = None if expect is None else expect.lower()
    if expect is not None and not _HEAD.fullmatch(expect):
        raise BadInput(
            "nothing was restored",
            why=f"{expect!r} is not the head of an audit: 64 hex digits",
            next_step="pass --expect as node-ca status or node-ca backup printed it",
        )
    if ca_dir.exists() or ca_dir.is_symlink():
        raise Refused(
            "nothing was restored",
            why=f"{ca_dir} exists, and nothing of an authority is ever overwritten",
            next_step="choose another --ca-dir, or move that one away yourself",
        )
    with _told(file, ca_dir), _beside(ca_dir) as beside:
        layout = Layout(beside)
        _unpack(file, beside)
        manifest_sha256 = _check_contents(layout)
        last, since = _check_audit(layout, manifest_sha256, expect=expect, made=file)
        body = {"file": str(file.absolute()), "backup_head": last.sha256}
        head = Ledger(layout.audit)
        head.refresh()
        head.append("restored", now=now, actor=actor, body=body)
        authority = OpenedAuthority.open(beside, now=now)
        told = Restored(
            ca_dir=ca_dir,
            made_at=last.at,
            backup_head=last.sha256,
            entries=last.seq,
            since_expected=since,
            certificates=sum(authority.count(now).values()),
            unknown_until=min(now + authority.policy.lifetime, authority.issuing.not_valid_after_utc),
            head=authority.head,
        )
        authority.close()
        if not rehearse:
            os.sync()  # one for all of its files, which may be a hundred thousand
            beside.rename(ca_dir)  # fails where another run has made one meanwhile (rename(2): not empty)
            sync_folder(ca_dir.parent)
    return told


@contextmanager
def _beside(ca_dir: Path) -> Iterator[Path]:
    """A private folder beside the place of the new one; it is gone afterwards, unless it was renamed."""
    ca_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{ca_dir.name}.", dir=ca_dir.parent))
    try:
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _told(file: Path, ca_dir: Path) -> Iterator[None]:
    """What goes wrong, told of the backup and not of the folder that is gone by then."""
    try:
        yield
    except OSError as error:
        raise Refused(
            "nothing was restored",
            why=f"{error.filename or file}: {error.strerror or error}",
            next_step="mend that, then run the command again; nothing of it was left behind",
        ) from error
    except MusterError as error:
        if error.what == _NOTHING:
            raise
        unseen = re.compile(rf"\S*/\.{re.escape(ca_dir.name)}\.[^/\s]+")
        raise _kind_of(error)(
            _NOTHING,
            why=f"{unseen.sub(str(ca_dir), error.what)}: {unseen.sub(str(ca_dir), error.why)}",
            next_step=_ANOTHER,
        ) from error


_NOTHING = "nothing was restored"
_ANOTHER = "take another backup, or another copy of this one"


def _kind_of(error: MusterError) -> type[MusterError]:
    """The kind of error that stands for `error`, where the backup is to blame."""
    return Refused if isinstance(error, Refused) else Damaged


def _unpack(file: Path, folder: Path) -> None:
    """Write each member of the backup into a folder; nothing but plain files with plain names is taken.

    Nothing is left to tarfile's own extraction: not to its filters either, which older Pythons lack.
    """
    seen: set[str] = set()
    try:
        with file.open("rb") as source, tarfile.open(fileobj=source, mode="r:") as tar:
            while (member := tar.next()) is not None:
                name = _checked(member, seen)
                seen.add(name)
                _copy(tar, member, folder / name)
    except _NotTaken as error:
        _bad(file, str(error))
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        _bad(file, f"it is not a tar file, or a part of one ({' '.join(str(error).split()) or 'torn'})")


class _NotTaken(Exception):
    """A member that has no place in a backup."""


def _checked(member: tarfile.TarInfo, seen: set[str]) -> str:
    """The name of a member that may be written."""
    name = member.name
    shown = ascii(name)
    if member.type not in {tarfile.REGTYPE, tarfile.AREGTYPE} or member.issparse():
        raise _NotTaken(f"{shown} is not a plain file")
    if not is_plain(name):
        raise _NotTaken(f"{shown} is not the name of a file in an authority's folder")
    if name != MANIFEST and not belongs(name.partition("/")[0]):
        raise _NotTaken(f"{shown} is never part of a backup")
    if name in seen:
        raise _NotTaken(f"{shown} is there twice")
    if member.size < 0 or (member.size > MAX_FILE and name != Layout(Path()).audit.name):
        raise _NotTaken(f"{shown} is larger than any file of an authority")
    return name


def _copy(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """The bytes of one member, as a new file."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = 0o644 if member.mode & 0o044 else 0o600
    content = cast(IO[bytes], tar.extractfile(member))  # None only where it is no plain file
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out, content:
        os.fchmod(out.fileno(), mode)
        shutil.copyfileobj(content, out, _CHUNK)  # tarfile raises where the end is missing


def _check_contents(layout: Layout) -> str:
    """The manifest's hash, once every file is the one that it names; its folders are made."""
    file = layout.folder / MANIFEST
    try:
        text = file.read_bytes()
        said = json.loads(text)
        named = Contents(
            {str(name): str(sha256) for name, sha256 in said["files"].items()},
            [str(name) for name in said["folders"]],
        )
        if said["schema"] != 1 or named.manifest() != text:
            raise ValueError("another form")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _changed(f"{MANIFEST} is missing, or not one of this version") from error
    file.unlink()
    for name in named.folders:
        if not is_plain(name) or not belongs(name.partition("/")[0]):
            raise _changed(f"{MANIFEST} names the folder {name!a}")
        (layout.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    there = {
        str(path.relative_to(layout.folder)): path
        for path in layout.folder.rglob("*")
        if path.is_file() and path != layout.audit
    }
    for name in sorted(named.files.keys() | there.keys()):
        if name not in there:
            raise _changed(f"{name!a} is missing")
        if name not in named.files:
            raise _changed(f"{name!a} is not in {MANIFEST}")
        if hashlib.sha256(there[name].read_bytes()).hexdigest() != named.files[name]:
            raise _changed(f"{name!a} is not the file that {MANIFEST} names")
    return hashlib.sha256(text).hexdigest()


def _check_audit(
    layout: Layout, manifest_sha256: str, *, expect: str | None, made: Path
) -> tuple[Entry, int | None]:
    """The line that tells of this backup, and how many lines stand after the expected head."""
    ledger = Ledger(layout.audit)
    if ledger.refresh() or not ledger.entries:
        raise _changed(f"{layout.audit.name} is not whole")
    last = ledger.entries[-1]
    if last.kind != "backup" or last.body.get("manifest_sha256") != manifest_sha256:
        raise _changed(f"{layout.audit.name} does not end with the line that tells of this backup")
    if expect is None:
        return last, None
    places = {entry.sha256: entry.seq for entry in ledger.entries}
    if expect not in places:
        raise Refused(
            _NOTHING,
            why=f"{made} of {timestamp(last.at)} does not know the head {expect}: it is older than that, "
            "or of another authority",
            next_step="look for a newer backup; without --expect this one is restored as it is, and what came "
            "after it is lost",
        )
    return last, last.seq - places[expect]


def _bad(file: Path, why: str) -> NoReturn:
    raise BadInput(_NOTHING, why=f"{file}: {why}", next_step="name a file that node-ca backup made")


def _changed(why: str) -> Damaged:
    return Damaged(_NOTHING, why=f"the backup was changed, or is not whole: {why}", next_step=_ANOTHER)
