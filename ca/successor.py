"""Making the successor of an authority: keys and certificates, judged, in a folder that appears whole."""

import contextlib
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from ca.external import try_out
from ca.judge import faults_of_authority
from ca.keys import generate, is_ours, kind_of
from ca.keystore import Kdf, write_key
from ca.kinds import KeyType
from ca.layout import ROOT_CERTIFICATE, ROOT_KEY, Layout
from ca.making import DEFAULT_ORGANISATION
from ca.policy import Policy
from ca.profile import BACKDATE, crossed, fingerprint, issuing, issuing_request, key_sha256, pem, root
from ca.signer import KeySigner, sign_certificate, sign_request
from inventory.errors import Damaged, Refused
from inventory.files import sync_folder, write_whole

WAITING = "waiting"
"""The folder of a successor that waits for what a root elsewhere has to sign."""


@dataclass(frozen=True, slots=True)
class Successor:
    """An issuing authority and its root, which nothing uses yet.

    new_root: the key of the root where that is new, too. cross: what leads from the former root to it.
    """

    issuing: x509.Certificate
    root: x509.Certificate
    signer: KeySigner
    cross: tuple[x509.Certificate, ...] = ()
    new_root: KeySigner | None = None

    @property
    def id(self) -> str:
        """The name of its folder."""
        return fingerprint(self.issuing)[:16]


@dataclass(frozen=True, slots=True)
class Keys:
    """The fresh keys of a successor; what is signed with them is announced first."""

    issuing: KeySigner
    root: KeySigner | None

    @classmethod
    def fresh(cls, former: x509.Certificate, root: x509.Certificate, *, new_root: bool) -> "Keys":
        """Of the kinds that the former ones are of."""
        return cls(
            KeySigner(generate(kind_of(former.public_key()) or KeyType.P256)),
            KeySigner(generate(kind_of(root.public_key()) or KeyType.P384)) if new_root else None,
        )

    def to_body(self) -> dict[str, str | None]:
        """As the line that announces them tells it."""
        return {
            "key_sha256": key_sha256(self.issuing.public_key),
            "root_key_sha256": key_sha256(self.root.public_key) if self.root else None,
        }


def certify(
    keys: Keys,
    *,
    root_signer: KeySigner,
    old_root: x509.Certificate,
    former: x509.Certificate,
    policy: Policy,
    now: datetime,
    serials: Callable[[], int] = x509.random_serial_number,
) -> Successor:
    """Sign and judge a successor; its name constraints are those of the policy of today.

    A new root has the old one's name (RFC 4210, section 4.4): its certificate by the old root is then self-issued,
    and does not count against the old root's path length (RFC 5280, section 6.1.4). Some verifiers count it
    all the same (Go's does), so the old root signs the issuing authority's key, too.

    Raises:
        Refused: it would not count, or the root ends too soon for it.
    """
    backdate = max(BACKDATE, timedelta(seconds=policy.max_clock_skew_s))
    organisation = organisation_of(former)
    top, signer = old_root, root_signer
    if keys.root is not None:
        signer = keys.root
        builder = root(
            signer.public_key,
            organisation=organisation,
            now=now,
            serial=serials(),
            backdate=backdate,
            name=old_root.subject,
        )
        top = sign_certificate(builder, signer)
    if now + policy.lifetime + timedelta(days=1) > top.not_valid_after_utc:
        raise Refused(
            "no successor was made",
            why=f"its root ends before a node's certificate of {policy.lifetime_days} days would",
            next_step="change the root, too: --new-root",
        )
    below = issuing(
        keys.issuing.public_key,
        issuer=top,
        policy=policy,
        organisation=organisation,
        now=now,
        serial=serials(),
        backdate=backdate,
    )
    made = sign_certificate(below, signer)
    cross: list[x509.Certificate] = []
    if keys.root is not None:
        for certificate, key in ((top, keys.root), (made, keys.issuing)):
            builder = crossed(certificate, issuer=old_root, key=key.public_key, serial=serials())
            cross.append(sign_certificate(builder, root_signer))
    successor = Successor(made, top, keys.issuing, tuple(cross), keys.root)
    judge(successor, old_root=old_root, policy=policy, now=now)
    return successor


def judge(successor: Successor, *, old_root: x509.Certificate, policy: Policy, now: datetime) -> None:
    """The last look before a successor is kept.

    Raises:
        Refused: it, or a certificate below it, would not count.
    """
    faults = [*faults_of_authority(successor.issuing, root=successor.root, now=now)]
    if successor.cross:
        faults += [
            fault for each in successor.cross for fault in faults_of_authority(each, root=old_root, now=now)
        ]
    if faults:
        raise Refused(
            "no successor was made",
            why="\n".join(faults),
            next_step="this is a bug: please report these lines",
        )
    try_out(successor.signer, issuing=successor.issuing, root=successor.root, policy=policy, now=now)


def organisation_of(certificate: x509.Certificate) -> str:
    """The organisation in an authority's name."""
    found = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(found[0].value) if found else DEFAULT_ORGANISATION


def keep(layout: Layout, successor: Successor, *, secret: bytes, kdf: Kdf) -> None:
    """Put a successor into its folder, whole.

    Raises:
        Damaged: the disk did not take it.
    """
    with built(layout, successor.id) as home:
        write_whole(home.root, pem(successor.root), mode=0o644)
        write_whole(home.issuing, pem(successor.issuing), mode=0o644)
        if successor.cross:
            write_whole(home.cross, b"".join(pem(each) for each in successor.cross), mode=0o644)
        key = successor.signer.key
        write_key(home.issuing_key, key, certificate=successor.issuing, passphrase=secret, kdf=kdf)


def keep_waiting(
    layout: Layout, keys: Keys, *, policy: Policy, organisation: str, secret: bytes, kdf: Kdf
) -> bytes:
    """Keep the key of a successor that waits for its certificate; the request for it comes back, in PEM form.

    Raises:
        Damaged: the disk did not take it.
    """
    builder = issuing_request(keys.issuing.public_key, policy=policy, organisation=organisation)
    asked = sign_request(builder, keys.issuing)
    text = asked.public_bytes(Encoding.PEM)
    with built(layout, WAITING) as home:
        write_whole(home.request, text, mode=0o644)
        write_key(home.waiting_key, keys.issuing.key, certificate=asked, passphrase=secret, kdf=kdf)
    return text


@contextlib.contextmanager
def built(layout: Layout, name: str) -> Iterator[Layout]:
    """A hidden folder to build in, which gets its name by one rename.

    Raises:
        Damaged: the disk did not take it.
    """
    hidden = Layout(layout.folder, f".{name}.{secrets.token_hex(8)}")
    try:
        layout.successors.mkdir(mode=0o700, exist_ok=True)
        sync_folder(layout.folder)
        hidden.home.mkdir(mode=0o700)
        yield hidden
        hidden.home.rename(layout.successors / name)
        sync_folder(layout.successors)
    except OSError as error:
        raise Damaged(
            "no successor was made",
            why=f"{error.filename or hidden.home}: {error.strerror or error}",
            next_step="make room on that disk, then run the command again",
        ) from error
    finally:
        shutil.rmtree(hidden.home, ignore_errors=True)


def write_root_key(away: Path, successor: Successor, *, secret: bytes, kdf: Kdf) -> Path:
    """Write the key of a new root, and its certificate before it, which tells a later run whose key it is.

    Raises:
        Refused: there is a key already.
        Damaged: the disk did not take it.
    """
    key = successor.new_root
    if key is None:
        raise ValueError("the root is not new")
    try:
        away.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(away / ROOT_CERTIFICATE, pem(successor.root), mode=0o644)
        write_key(away / ROOT_KEY, key.key, certificate=successor.root, passphrase=secret, kdf=kdf)
    except OSError as error:
        raise Damaged(
            "no successor was made",
            why=f"{error.filename or away}: {error.strerror or error}",
            next_step="make room there, or pass another --root-out, then run the command again",
        ) from error
    return away / ROOT_KEY


def clear_away(away: Path, root_key_sha256: str | None) -> None:
    """Make room for a new root's key: what an unfinished run wrote there goes, anything else stays.

    Raises:
        Refused: another key, or another root's certificate, lies there.
    """
    there = [place for place in (away / ROOT_KEY, away / ROOT_CERTIFICATE) if place.exists()]
    if not there:
        return
    try:
        key = x509.load_pem_x509_certificate((away / ROOT_CERTIFICATE).read_bytes()).public_key()
        ours = is_ours(key) and key_sha256(key) == root_key_sha256
    except (OSError, ValueError):
        ours = False
    if not ours:
        raise Refused(
            "no successor was made",
            why=f"{there[0]} exists, and no key is ever overwritten",
            next_step="pass another place for the new root's key: --root-out DIR",
        )
    for place in there:
        place.unlink()
