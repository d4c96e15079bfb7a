"""What the verb `passport` needs of this host: keys, allowed signers, the authority's folder, files."""

import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from inventory import signature
from inventory.command import ca_folder
from inventory.errors import BadInput
from inventory.options import DISTRIBUTION
from inventory.passport.dsse import MAX_BYTES, NAMESPACE
from inventory.passport.identity import Absent, Identity, judge, offered
from inventory.passport.judging import Trust
from inventory.passport.leaf import Listed
from inventory.passport.making import Known, Maker, fingerprint_of, newest_serial
from inventory.passport.statement import Certificate, moment
from inventory.passport.withdrawn import Withdrawn
from inventory.signature import public_key_line
from inventory.store import whoami
from inventory.ticket import RECEIPT_NAMESPACE


def need_key(ssh_key: Path | None) -> Path:
    """The holder's key.

    Raises:
        BadInput: none was named.
    """
    if ssh_key is None:
        raise BadInput(
            "no passport was made",
            why="it is signed by the security holder's key, and none was named",
            next_step="pass --ssh-key FILE, or set MUSTER_SSH_KEY",
        )
    return ssh_key


def maker(ssh_key: Path, *, now: datetime) -> Maker:
    """Who is at work here.

    Raises:
        BadInput: the key's public half is unknown.
    """
    line = public_key_line(ssh_key)
    try:
        key = fingerprint_of(line)
    except ValueError as error:
        raise BadInput(
            "no passport was made",
            why=f"the public key of {ssh_key} cannot be read: {error}",
            next_step=f"make it anew: ssh-keygen -y -f {ssh_key} > {ssh_key}.pub",
        ) from None
    return Maker(
        who=f"{whoami()}@{platform.node()}",
        with_what=f"{DISTRIBUTION} {version(DISTRIBUTION)}",
        key=key,
        at=moment(now),
    )


def certificate(told: Known, ca_dir: Path | None, *, now: datetime) -> Certificate | str:
    """The node's certificate from the authority's ledger, or why there is none.

    Raises:
        BadInput, Refused, Damaged: the authority in the folder is not fit for use.
    """
    authority = offered()
    if isinstance(authority, Absent):
        return f"the authority's ledger was not read: {authority.why}"
    if ca_dir is None and not ca_folder(None).exists():
        return "there is no authority on the host where this passport was made"
    serial = newest_serial(told)
    found = authority.certificate(
        told.node.name, vm_uuid=told.node.uuid, serial=serial, ca_dir=ca_folder(ca_dir), now=now
    )
    if found is None:
        which = f" with serial number {serial}" if serial else ""
        return f"the authority's ledger has none of this VM{which}"
    return found


@dataclass(frozen=True, slots=True)
class Given:
    """What was typed of whom to believe; see the command's help."""

    signers: Path | None = None
    ssh_key: Path | None = None
    ticket_signers: Path | None = None
    ca: Path | None = None
    ca_dir: Path | None = None
    revoked: Path | None = None
    crl: Path | None = None


@contextmanager
def trust(given: Given, *, now: datetime) -> Iterator[Trust]:
    """By what a passport is judged here; without `signers` the holder of `ssh_key` alone counts.

    Raises:
        BadInput: nobody is named whose passports count, or a file is absent or is not what it should be.
    """
    bundle, judging, gone = _roots(given.ca, given.ca_dir, now), judge(), _withdrawn(given, now)
    if given.signers is not None:
        yield Trust(given.signers, given.ticket_signers, bundle, judging, gone)
        return
    if given.ssh_key is None:
        raise BadInput(
            "the passport was not checked",
            why="nobody is named whose passports count",
            next_step="name the file of allowed signers with --signers FILE",
        )
    with tempfile.TemporaryDirectory(prefix="muster-signers-") as folder:
        own = Path(folder) / "allowed_signers"
        line = f'holder namespaces="{NAMESPACE},{RECEIPT_NAMESPACE}" {public_key_line(given.ssh_key)}\n'
        own.write_text(line, encoding="utf-8")
        yield Trust(own, given.ticket_signers, bundle, judging, gone)


def read(file: Path) -> str:
    """The text of a passport's file; `-` is stdin. Longer ones are cut, and refused by whoever reads them.

    Raises:
        BadInput: it cannot be read.
    """
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with file.open("rb") as source:
                data = source.read(MAX_BYTES + 1)
        return data.decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{file} is no passport",
            why=(error.strerror if isinstance(error, OSError) else None) or "it is not ASCII text",
            next_step="pass the file that node-inventory passport wrote",
        ) from None


def read_earlier(file: Path, later: Path) -> str:
    """The text of the earlier of two passports.

    Raises:
        BadInput: it cannot be read, or both were to come from stdin.
    """
    if str(file) == str(later) == "-":
        raise _no_file(
            "stdin holds one passport, and two were to be read from it", "name a file for --earlier"
        )
    return read(file)


def _withdrawn(given: Given, now: datetime) -> Withdrawn:
    """Where revoked keys and certificates are looked up: in the files named, and with the authority of this host."""
    revoked = given.revoked
    if revoked is not None and not signature.is_revocation_file(revoked):
        raise _no_file(
            f"{revoked} is no list of revoked keys",
            "name what ssh-keygen -k wrote, or public keys one a line",
        )
    authority, folder = offered(), ca_folder(given.ca_dir)
    here = given.ca_dir is not None or (given.ca is None and folder.exists())
    if isinstance(authority, Absent) or not here:
        return Withdrawn(revoked, None, _lists(given.crl))
    return Withdrawn(
        revoked,
        authority.revoked_ticket_keys(folder, now=now),
        _lists(given.crl) or (lambda of: authority.standing(of.serial, ca_dir=folder, now=now)),
    )


def _lists(file: Path | None) -> Callable[[Certificate], Listed] | None:
    """What the revocation lists of a file say of a certificate."""
    if file is None:
        return None
    try:
        lists = file.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        why = f"{file}: {error.strerror or error}"
        raise _no_file(why, "name the authority's revocation list, PEM, with --crl FILE") from None
    judging = judge()
    return None if isinstance(judging, Absent) else lambda of: judging.listed(of.chain, lists)


def _no_file(why: str, next_step: str) -> BadInput:
    return BadInput("the passport was not checked", why=why, next_step=next_step)


def _roots(ca: Path | None, ca_dir: Path | None, now: datetime) -> str | None:
    """The roots in a file, else those of an authority that is on this host."""
    if ca is None:
        return _roots_here(ca_dir, now)
    try:
        return ca.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise _no_file(
            f"{ca}: {error.strerror or error}", "name the authority's root certificate, PEM, with --ca FILE"
        ) from None


def _roots_here(ca_dir: Path | None, now: datetime) -> str | None:
    if ca_dir is None and not ca_folder(None).exists():
        return None
    authority: Identity | Absent = offered()
    if not isinstance(authority, Absent):
        return authority.roots(ca_folder(ca_dir), now=now)
    try:
        return (ca_folder(ca_dir) / "root.pem").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
