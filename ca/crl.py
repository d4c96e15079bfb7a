"""What a revocation list looks like, when which one is due, and the last look before it leaves (pure; RFC 5280, 5).

An authority that is kept away from the network cannot sign each week, so it signs a set ahead: lists that
become due one after the other, each before the former one ends.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from ca.keys import hash_of, is_ours
from ca.profile import whole_second
from ca.reasons import Reason
from ca.signer import Signer, sign_crl
from inventory.errors import BadInput, Refused

DEFAULT_DAYS = 30
MAX_DAYS = 366
MAX_AHEAD_MONTHS = 12
MONTH = timedelta(days=30)
MAX_LISTS = 100
_OVERLAP = 5
"""The last fifth of a list's life is the time in which its successor is carried to the nodes."""


_FLAGS = {
    Reason.KEY_COMPROMISE: x509.ReasonFlags.key_compromise,
    Reason.AFFILIATION_CHANGED: x509.ReasonFlags.affiliation_changed,
    Reason.SUPERSEDED: x509.ReasonFlags.superseded,
    Reason.CESSATION_OF_OPERATION: x509.ReasonFlags.cessation_of_operation,
    Reason.PRIVILEGE_WITHDRAWN: x509.ReasonFlags.privilege_withdrawn,
}
"""`unspecified` should be absent rather than said (RFC 5280, section 5.3.1)."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One list's number and times: it is handed out from `due` on.

    this_update lies before `due`, for a node whose clock is late refuses a list from its future.
    """

    number: int
    due: datetime
    this_update: datetime
    next_update: datetime


@dataclass(frozen=True, slots=True)
class Revoked:
    """A revoked certificate: its number, when it was revoked and why, and when it ends by itself."""

    serial: int
    revoked_at: datetime
    reason: Reason
    not_after: datetime


@dataclass(frozen=True, slots=True)
class Former:
    """The list before another one; what was revoked at `signed_at` or later is not on it."""

    this_update: datetime
    signed_at: datetime


def reason_in(text: str | None) -> Reason:
    """The reason that a record's `why` begins with ("superseded by ..."); else unspecified."""
    word = re.match(r"[a-z-]*", text or "")
    return Reason(word[0]) if word and word[0] in set(Reason) else Reason.UNSPECIFIED


def schedule(
    issuing: x509.Certificate,
    *,
    first_number: int,
    now: datetime,
    backdate: timedelta,
    days: int,
    until: datetime | None = None,
    not_before: datetime | None = None,
) -> tuple[Slot, ...]:
    """The lists that cover the time from `now` to `until` (None: one list), each `days` long.

    A list becomes due when a fifth of the former one's life is left. None outlives its issuer, for
    then nobody believes its issuer any more. `not_before`: thisUpdate never goes back behind it.

    Raises:
        BadInput: `days` is out of range, or these would be more than MAX_LISTS.
        Refused: the issuing authority has expired.
    """
    if not 1 <= days <= MAX_DAYS:
        raise BadInput(
            "no revocation list was signed",
            why=f"a list is valid for 1 to {MAX_DAYS} days, not {days}",
            next_step="pass another --days",
        )
    now, end = whole_second(now), issuing.not_valid_after_utc
    if now >= end:
        raise Refused(
            "no revocation list was signed",
            why="the issuing authority has expired, and with it every certificate below it",
            next_step="make a new authority, and take the old root out of every node's bundle",
        )
    length = timedelta(days=days)
    step = length - length / _OVERLAP
    floor = max(issuing.not_valid_before_utc, not_before or issuing.not_valid_before_utc)
    slots: list[Slot] = []
    due = now
    while not slots or (until is not None and slots[-1].next_update < min(until, end)):
        slots.append(
            Slot(
                number=first_number + len(slots),
                due=due,
                this_update=min(max(due - backdate, floor), due),
                next_update=min(due + length, end),
            )
        )
        due += step
        if len(slots) > MAX_LISTS:
            raise BadInput(
                "no revocation list was signed",
                why=f"that would be more than {MAX_LISTS} lists",
                next_step="pass a larger --days, or a smaller --ahead",
            )
    return tuple(slots)


def due_slot(slots: Sequence[Slot], now: datetime) -> Slot | None:
    """The newest list that is due; None: not even the first is."""
    return next((slot for slot in reversed(slots) if slot.due <= now), None)


def entries(revoked: Iterable[Revoked], former: Former | None) -> Iterator[Revoked]:
    """Those of `revoked` that the list after `former` names.

    An entry stays until it was on one list from beyond the certificate's end (RFC 5280, section 3.3).
    """
    for one in revoked:
        if former is None or former.this_update <= one.not_after or former.signed_at <= one.revoked_at:
            yield one


def build(
    issuing: x509.Certificate, slot: Slot, revoked: Sequence[Revoked]
) -> x509.CertificateRevocationListBuilder:
    """The list of a slot, complete but for its signature."""
    key = issuing.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    named = sorted(revoked, key=lambda certificate: (certificate.revoked_at, certificate.serial))
    # Given whole: add_revoked_certificate copies all former ones each time.
    return (
        x509.CertificateRevocationListBuilder(revoked_certificates=[entry(one) for one in named])
        .issuer_name(issuing.subject)
        .last_update(slot.this_update)
        .next_update(slot.next_update)
        .add_extension(x509.CRLNumber(slot.number), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key),
            critical=False,
        )
    )


def entry(one: Revoked) -> x509.RevokedCertificate:
    """What a list says of one certificate."""
    builder = (
        x509.RevokedCertificateBuilder()
        .serial_number(one.serial)
        .revocation_date(whole_second(one.revoked_at))
    )
    flag = _FLAGS.get(one.reason)
    return (builder.add_extension(x509.CRLReason(flag), critical=False) if flag else builder).build()


def sign(
    issuing: x509.Certificate,
    slot: Slot,
    revoked: Sequence[Revoked],
    *,
    root: x509.Certificate,
    signer: Signer,
) -> bytes:
    """A list in PEM form, signed and judged.

    Raises:
        Refused: a rule is broken; every reason is told at once.
    """
    data = sign_crl(build(issuing, slot, revoked), signer).public_bytes(Encoding.PEM)
    faults = [*faults_of_list(data, slot, revoked, issuing=issuing, root=root)]
    if faults:
        raise Refused(
            f"revocation list {slot.number} does not leave the authority",
            why="\n".join(faults),
            next_step="run node-ca status; if that finds nothing, this is a bug: please report these lines",
        )
    return data


@dataclass(frozen=True, slots=True)
class Lister:
    """An authority that has a list in each file of a set, and its own certificates that were revoked."""

    issuing: x509.Certificate
    root: x509.Certificate
    signer: Signer
    revoked: tuple[Revoked, ...]

    def sign(self, slot: Slot, before: Former | None) -> bytes:
        """Its list of a slot; empty where it will have ended by then.

        Raises:
            Refused: a rule is broken.
        """
        begin, end = self.issuing.not_valid_before_utc, self.issuing.not_valid_after_utc
        if slot.due >= end:
            return b""
        own = replace(
            slot,
            this_update=min(max(slot.this_update, begin), slot.due),
            next_update=min(slot.next_update, end),
        )
        named = [*entries(self.revoked, before)]
        return sign(self.issuing, own, named, root=self.root, signer=self.signer)


def lists_in(data: bytes) -> tuple[x509.CertificateRevocationList, ...]:
    """The lists of a file: one for each authority whose certificates count."""
    end = b"-----END X509 CRL-----\n"
    return tuple(x509.load_pem_x509_crl(part + end) for part in data.split(end) if part.strip())


def faults_of_list(
    data: bytes,
    slot: Slot,
    revoked: Sequence[Revoked],
    *,
    issuing: x509.Certificate,
    root: x509.Certificate,
) -> Iterator[str]:
    """Each broken rule of the profile, read from the bytes that would leave."""
    try:
        found = x509.load_pem_x509_crl(data)  # which refuses any version but 2
    except ValueError as error:
        yield f"it is no revocation list ({error})"
        return
    yield from _faults_of_signature(found, issuing, root)
    yield from _faults_of_frame(found, slot, issuing)
    yield from _faults_of_entries(found, revoked)


def _faults_of_signature(
    found: x509.CertificateRevocationList, issuing: x509.Certificate, root: x509.Certificate
) -> Iterator[str]:
    key = issuing.public_key()
    if not is_ours(key) or not found.is_signature_valid(key):
        yield "it was not signed by the issuing authority"
    elif type(found.signature_hash_algorithm) is not type(hash_of(key)):
        yield "its signature's hash is not the one that belongs to the issuing authority's key"
    if not issuing.extensions.get_extension_for_class(x509.KeyUsage).value.crl_sign:
        yield "the issuing authority may not sign revocation lists"
    try:
        issuing.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        yield "the issuing authority was not signed by the root"


def _faults_of_frame(
    found: x509.CertificateRevocationList, slot: Slot, issuing: x509.Certificate
) -> Iterator[str]:
    if found.issuer != issuing.subject or not issuing.subject.rdns:
        yield "its issuer's name is not the subject of the issuing authority"
    if found.last_update_utc != slot.this_update or found.next_update_utc != slot.next_update:
        yield "its times are not those that the audit announced"
    if found.last_update_utc > slot.due or found.last_update_utc < issuing.not_valid_before_utc:
        yield "its thisUpdate lies after the time at which it is due, or before its issuer began"
    if found.next_update_utc is None or found.next_update_utc <= max(found.last_update_utc, slot.due):
        yield "its nextUpdate is missing, or does not lie after it is due"
    elif found.next_update_utc > issuing.not_valid_after_utc:
        yield "it outlives its issuer"
    there = {type(extension.value): extension for extension in found.extensions}
    for kind in there:
        if kind not in {x509.CRLNumber, x509.AuthorityKeyIdentifier}:
            yield f"it has {kind.__name__}, which no list of ours has"
    number = there.get(x509.CRLNumber)
    if number is None or number.critical or number.value != x509.CRLNumber(slot.number):
        yield f"it lacks its CRLNumber {slot.number}, not critical"
    if not 0 < slot.number < 1 << 159:
        yield "its CRLNumber is not positive, or longer than 20 octets"
    above = there.get(x509.AuthorityKeyIdentifier)
    own = issuing.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    if above is None or above.critical or getattr(above.value, "key_identifier", None) != own:
        yield "it lacks an AuthorityKeyIdentifier, not critical, with its issuer's SubjectKeyIdentifier"


def _faults_of_entries(found: x509.CertificateRevocationList, revoked: Sequence[Revoked]) -> Iterator[str]:
    wanted = {one.serial: one for one in revoked}
    seen: set[int] = set()
    for said in found:
        one = wanted.get(said.serial_number)
        if one is None or said.serial_number in seen:
            yield f"it names {said.serial_number:x}, which is not revoked, or names it twice"
            continue
        seen.add(said.serial_number)
        if said.revocation_date_utc != whole_second(one.revoked_at):
            yield f"{said.serial_number:x} was not revoked at {said.revocation_date_utc}"
        flag = _FLAGS.get(one.reason)
        if [(extension.critical, extension.value) for extension in said.extensions] != (
            [(False, x509.CRLReason(flag))] if flag else []
        ):
            yield f"{said.serial_number:x} was revoked for another reason: {one.reason}"
    for serial in wanted.keys() - seen:
        yield f"it does not name {serial:x}, which is revoked"
