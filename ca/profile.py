"""What the root, the issuing authority and a node's certificate look like (pure; RFC 5280, SPIFFE X509-SVID).

Time and serial numbers are passed in; what comes out is a builder that a signer completes.
"""

import functools
import hashlib
import ipaddress
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ca.keys import PublicKey
from ca.names import IPNetwork
from ca.policy import NodeProfile, Policy
from inventory.errors import Refused

ROOT_LIFETIME = timedelta(days=3650)
ISSUING_LIFETIME = timedelta(days=1095)
BACKDATE = timedelta(minutes=10)
"""Five minutes were too few for the clocks people have (juju/juju#601); more where the policy bears more."""

MAX_COMMON_NAME = 64
"""Octets (RFC 5280, appendix A: ub-common-name); the library counts them in UTF-8."""

MIN_SERIAL_BITS, MAX_SERIAL_BITS = 64, 159
"""At least 64 bits from a CSPRNG; at most 20 octets and positive (RFC 5280, section 4.1.2.2)."""

NODE_PURPOSES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


def root(
    key: PublicKey,
    *,
    organisation: str,
    now: datetime,
    serial: int,
    backdate: timedelta,
    lifetime: timedelta = ROOT_LIFETIME,
    name: x509.Name | None = None,
) -> x509.CertificateBuilder:
    """The self-signed root; it may have one level of authorities below it. None: a name of its own."""
    begin = whole_second(now) - backdate
    name = name or _authority_name("Root", key, organisation)
    return (
        _begin(key, subject=name, issuer=name, not_before=begin, not_after=begin + lifetime, serial=serial)
        .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
        .add_extension(_usage(certificates=True), critical=True)
    )


def issuing(
    key: PublicKey,
    *,
    issuer: x509.Certificate,
    policy: Policy,
    now: datetime,
    serial: int,
    organisation: str,
    backdate: timedelta,
    lifetime: timedelta = ISSUING_LIFETIME,
) -> x509.CertificateBuilder:
    """The authority that signs nodes, constrained to the policy's domains and addresses."""
    begin = max(whole_second(now) - backdate, issuer.not_valid_before_utc)
    end = min(begin + lifetime, issuer.not_valid_after_utc - timedelta(seconds=1))
    name = issuing_name(key, organisation)
    return (
        _begin(key, subject=name, issuer=issuer.subject, not_before=begin, not_after=end, serial=serial)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(certificates=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(NODE_PURPOSES), critical=False)
        .add_extension(constraints(policy), critical=True)
        .add_extension(_key_of(issuer), critical=False)
    )


def crossed(
    certificate: x509.Certificate, *, issuer: x509.Certificate, key: PublicKey, serial: int
) -> x509.CertificateBuilder:
    """What `certificate` says of its `key`, said by another issuer, for those who trust only that one."""
    end = min(certificate.not_valid_after_utc, issuer.not_valid_after_utc - timedelta(seconds=1))
    begin = max(certificate.not_valid_before_utc, issuer.not_valid_before_utc)
    builder = _begin(
        key,
        subject=certificate.subject,
        issuer=issuer.subject,
        not_before=begin,
        not_after=end,
        serial=serial,
    )
    for extension in certificate.extensions:
        if not isinstance(extension.value, x509.SubjectKeyIdentifier | x509.AuthorityKeyIdentifier):
            builder = builder.add_extension(extension.value, critical=extension.critical)
    return builder.add_extension(_key_of(issuer), critical=False)


def node(
    key: PublicKey,
    *,
    issuer: x509.Certificate,
    wanted: NodeProfile,
    validity: tuple[datetime, datetime],
    serial: int,
) -> x509.CertificateBuilder:
    """A node's certificate; `validity` comes from `node_validity`."""
    # The common name is for people only (RFC 9525, section 2); a certificate without one must say so by
    # a critical SAN (RFC 5280, section 4.1.2.6).
    named = len(wanted.names[0].encode()) <= MAX_COMMON_NAME
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, wanted.names[0])] if named else [])
    alternatives = x509.SubjectAlternativeName(
        [
            *(x509.DNSName(name) for name in wanted.names),
            *(x509.IPAddress(address) for address in wanted.addresses),
            x509.UniformResourceIdentifier(wanted.spiffe_id),
        ]
    )
    begin, end = validity
    return (
        _begin(key, subject=subject, issuer=issuer.subject, not_before=begin, not_after=end, serial=serial)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(NODE_PURPOSES), critical=False)
        .add_extension(alternatives, critical=not named)
        .add_extension(_key_of(issuer), critical=False)
    )


def issuing_request(
    key: PublicKey, *, policy: Policy, organisation: str
) -> x509.CertificateSigningRequestBuilder:
    """What a root kept elsewhere is asked for: the same authority as `issuing` makes, but for its times."""
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(issuing_name(key, organisation))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(certificates=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(NODE_PURPOSES), critical=False)
        .add_extension(constraints(policy), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def issuing_name(key: PublicKey, organisation: str) -> x509.Name:
    """The subject of an issuing authority."""
    return _authority_name("Node CA", key, organisation)


def node_validity(
    issuer: x509.Certificate, lifetime: timedelta, *, now: datetime, backdate: timedelta
) -> tuple[datetime, datetime]:
    """First and last second of a node's certificate.

    Raises:
        Refused: it would outlive its issuer, or the issuer is not valid now. It is never shortened
            silently, which has led to certificates that had expired before they began (openbao#1322).
    """
    now = whole_second(now)
    first, last = issuer.not_valid_before_utc, issuer.not_valid_after_utc - timedelta(seconds=1)
    if now < first:
        raise Refused(
            "no certificate was made",
            why=f"this host's clock says {timestamp(now)}, before the authority began ({timestamp(first)})",
            next_step="set the clock of this host",
        )
    if now + lifetime > last:
        left = max(last - now, timedelta(0))
        raise Refused(
            "no certificate was made",
            why=f"{lifetime.days} days would outlive the issuing authority, which ends in {left.days} days"
            if now < last
            else f"the issuing authority has expired ({timestamp(last)})",
            next_step="give the authority a successor: node-ca rotate"
            + (f", or set lifetime_days in its policy.yaml to {left.days} or less" if left.days else ""),
        )
    return max(now - backdate, first), now + lifetime


def constraints(policy: Policy) -> x509.NameConstraints:
    """The critical name constraints of an issuing authority.

    Constraints limit only the types they list (RFC 5280, section 4.2.1.10): a family without a permitted
    range is excluded whole, or every address of it would pass.
    """
    networks = policy.networks
    absent: list[IPNetwork] = [
        everything
        for everything in (ipaddress.IPv4Network("0.0.0.0/0"), ipaddress.IPv6Network("::/0"))
        if not any(network.version == everything.version for network in networks)
    ]
    return x509.NameConstraints(
        permitted_subtrees=[
            *(x509.DNSName(domain) for domain in policy.domains),
            *(x509.IPAddress(network) for network in networks),
        ],
        excluded_subtrees=[x509.IPAddress(network) for network in absent] or None,
    )


def whole_second(moment: datetime) -> datetime:
    """The moment as a certificate can hold it.

    Raises:
        ValueError: it has no time zone; the library would take local time for UTC.
    """
    if moment.tzinfo is None:
        raise ValueError("a time without a time zone")
    return moment.replace(microsecond=0)


def timestamp(moment: datetime) -> str:
    """As every time is written here: 2026-11-30T12:00:00Z."""
    return f"{whole_second(moment).astimezone(UTC).isoformat()[:19]}Z"  # strftime takes four times as long


def fingerprint(certificate: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """SHA-256 of the DER form of a certificate, or of a request for one, hex."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def key_sha256(key: PublicKey) -> str:
    """SHA-256 of the key's SubjectPublicKeyInfo, hex: the name of a key, whatever certificate it is in."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


@functools.lru_cache(maxsize=16)
def pem(certificate: x509.Certificate) -> bytes:
    """The certificate in PEM form, with its last newline."""
    return certificate.public_bytes(Encoding.PEM)


def _begin(
    key: PublicKey,
    *,
    subject: x509.Name,
    issuer: x509.Name,
    not_before: datetime,
    not_after: datetime,
    serial: int,
) -> x509.CertificateBuilder:
    """What all certificates share."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _authority_name(role: str, key: PublicKey, organisation: str) -> x509.Name:
    """A subject that no other generation has: it ends with the beginning of the key's own hash."""
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation),
            x509.NameAttribute(NameOID.COMMON_NAME, f"Muster {role} {key_sha256(key)[:16]}"),
        ]
    )


def _usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        key_cert_sign=certificates,
        crl_sign=certificates,
        content_commitment=False,
        key_encipherment=False,  # never on an EC key (RFC 5480, section 3)
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


@functools.lru_cache(maxsize=16)
def _key_of(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
