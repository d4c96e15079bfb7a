"""Certificates for a node's passport: found in the ledger, read and judged.

This module is what the entry-point group `muster.passport` offers to the ground floor, as
`inventory.passport.identity` asks for it; nothing here needs a passphrase, and nothing is changed.
"""

import hashlib
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509 import verification

from ca.crl import lists_in
from ca.keys import is_ours, kind_of
from ca.kinds import KeyType
from ca.opened import OpenedAuthority
from ca.profile import fingerprint, pem
from ca.record import Record, Standing
from inventory.errors import BadInput
from inventory.passport import openssl
from inventory.passport.leaf import Leaf, Listed
from inventory.passport.statement import Certificate


def certificate(
    node: str, *, vm_uuid: str | None, serial: str | None, ca_dir: Path, now: datetime
) -> Certificate | None:
    """The certificate of a node's VM with that serial number, else its newest; None where it never had one.

    Raises:
        BadInput: there is no authority.
        Refused, Damaged: it is not fit for use.
    """
    authority = OpenedAuthority.open(ca_dir, now=now)
    try:
        return certificate_of(authority, node, vm_uuid=vm_uuid, serial=serial, now=now)
    finally:
        authority.close()


def roots(ca_dir: Path, *, now: datetime) -> str:
    """What nodes trust, PEM; errors as `certificate`."""
    authority = OpenedAuthority.open(ca_dir, now=now)
    try:
        return authority.bundle_pem.decode()
    finally:
        authority.close()


def standing(serial: str, *, ca_dir: Path, now: datetime) -> Listed:
    """Whether the ledger has a certificate as revoked.

    Raises:
        ValueError: the ledger does not know it.
        BadInput, Refused, Damaged: as `certificate`.
    """
    authority = OpenedAuthority.open(ca_dir, now=now)
    try:
        record = authority.find(serial)
    except BadInput as error:
        raise ValueError(f"the ledger in {ca_dir} does not know it") from error
    finally:
        authority.close()
    return Listed(now, None, record.ended_at if record.standing is Standing.REVOKED else None)


def revoked_ticket_keys(ca_dir: Path, *, now: datetime) -> Path | None:
    """The file of keys whose tickets count no more, by the policy; errors as `certificate`."""
    authority = OpenedAuthority.open(ca_dir, now=now)
    try:
        return authority.policy.ticket_revoked_keys
    finally:
        authority.close()


def certificate_of(
    authority: OpenedAuthority, node: str, *, vm_uuid: str | None, serial: str | None, now: datetime
) -> Certificate | None:
    """As `certificate`, of an authority that is open."""
    record = _chosen(authority.records(node), vm_uuid, serial, now)
    if record is None:
        return None
    issued = authority.load_issued(record.serial)
    leaf = x509.load_pem_x509_certificate(issued.certificate_pem)
    issuing, root = authority.issuer_of(leaf)
    return Certificate(
        serial=record.serial,
        sha256=fingerprint(leaf),
        spiffe_id=record.spiffe_id,
        names=record.names,
        addresses=record.addresses,
        not_before=record.not_before,
        not_after=record.not_after,
        standing=record.state(now),
        chain=(pem(leaf).decode(), pem(issuing).decode(), pem(root).decode()),
        policy_sha256=hashlib.sha256(authority.layout.policy.read_bytes()).hexdigest(),
        audit_head=authority.head,
        audit_entries=authority.entries,
    )


def leaf(text: str) -> Leaf:
    """What a node's certificate says.

    Raises:
        ValueError: it is none.
    """
    found = x509.load_pem_x509_certificate(text.encode())
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    return Leaf(
        serial=f"{found.serial_number:x}",
        uris=tuple(names.get_values_for_type(x509.UniformResourceIdentifier)),
        names=tuple(names.get_values_for_type(x509.DNSName)),
        addresses=tuple(map(str, names.get_values_for_type(x509.IPAddress))),
        not_before=found.not_valid_before_utc,
        not_after=found.not_valid_after_utc,
    )


def faults(chain: tuple[str, str, str], *, roots: str, at: datetime) -> tuple[str, ...]:
    """What speaks against leaf, issuing authority and root at a time, when only `roots` (PEM) are trusted."""
    try:
        target, issuing, root = (x509.load_pem_x509_certificate(text.encode()) for text in chain)
        trusted = x509.load_pem_x509_certificates(roots.encode())
    except ValueError as error:
        return (f"a certificate cannot be read: {error}",)
    if root not in trusted:
        return ("its root is not among those that are trusted",)
    links = (
        ("the leaf", target, issuing),
        ("the issuing authority", issuing, root),
        ("the root", root, root),
    )
    found = [f"{name} was not signed by its issuer" for name, *link in links if not _signed_by(*link)]
    if found:
        return tuple(found)
    if KeyType.ED25519 in {kind_of(each.public_key()) for each in (target, issuing, root)}:
        if not openssl.is_here():  # the one verifier that takes such keys
            return ("there is no openssl on this host, the one verifier that can judge Ed25519",)
        return openssl.faults(chain, roots=roots, at=at)
    return tuple(_cryptography_says(target, issuing, root, at))


def listed(chain: tuple[str, str, str], lists: str) -> Listed:
    """What the newest list of the leaf's issuer says of it.

    Raises:
        ValueError: no list in the text was signed by that issuer.
    """
    target, issuing = (x509.load_pem_x509_certificate(text.encode()) for text in chain[:2])
    key, found = issuing.public_key(), []
    for each in lists_in(lists.encode("ascii", "replace")):
        signed = each.issuer == issuing.subject and is_ours(key) and each.is_signature_valid(key)
        if signed and each.next_update_utc and not any(extension.critical for extension in each.extensions):
            entry = each.get_revoked_certificate_by_serial_number(target.serial_number)
            revoked_at = None if entry is None else entry.revocation_date_utc
            found.append(Listed(each.last_update_utc, each.next_update_utc, revoked_at))
    return openssl.newest(found)


def _cryptography_says(
    target: x509.Certificate, issuing: x509.Certificate, root: x509.Certificate, at: datetime
) -> list[str]:
    builder = verification.PolicyBuilder().store(verification.Store([root])).time(at)
    try:
        builder.build_client_verifier().verify(target, [issuing])
        names = target.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        for name in names.get_values_for_type(x509.DNSName):
            builder.build_server_verifier(x509.DNSName(name)).verify(target, [issuing])
    except (verification.VerificationError, x509.ExtensionNotFound, ValueError) as error:
        return [f"the verifier of cryptography refuses it: {' '.join(str(error).split())}"]
    return []


def _signed_by(target: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        target.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _chosen(
    records: tuple[Record, ...], vm_uuid: str | None, serial: str | None, now: datetime
) -> Record | None:
    """The one that is asked for; else the newest that counts, else the newest that was ever issued.

    A former VM of the same name may have had some, too; one that was issued by hand may be of no VM.
    """
    issued = [
        record
        for record in records
        if record.fingerprint_sha256 is not None and record.vm_uuid in {None, vm_uuid}
    ]
    if serial is not None:
        wanted = serial.lower().lstrip("0")
        return next((record for record in issued if record.serial.lstrip("0") == wanted), None)
    live = [record for record in issued if record.live(now)]
    newest = live or issued
    return newest[-1] if newest else None
