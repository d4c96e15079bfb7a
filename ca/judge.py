"""The last look before a certificate leaves: each rule of the profile, then a verifier that is not ours.

Every rule is read from the bytes that would leave, not from what was meant to be built. Several of them are
missed by every common verifier and linter: no SAN at all, two URIs, a leaf that outlives its issuer, a
short serial, a year 9999. The verifier then walks the chain to the root, for each name, as a client and as a
server would: that of `cryptography`, or, where a key is Ed25519, which it does not take, `openssl verify`.
"""

import functools
import ipaddress
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509 import verification
from cryptography.x509.oid import NameOID

from ca.keys import is_ours, kind_of
from ca.kinds import KeyType
from ca.names import IPAddress, IPNetwork, check_host_name, check_spiffe_id
from ca.policy import NodeProfile, Policy
from ca.profile import (
    MAX_COMMON_NAME,
    MAX_SERIAL_BITS,
    MIN_SERIAL_BITS,
    NODE_PURPOSES,
    key_sha256,
    pem,
)
from inventory.errors import Refused

OPENSSL_TIMEOUT_S = 20.0
_LAST_YEAR = 2100
_LEAF_EXTENSIONS: tuple[type[x509.ExtensionType], ...] = (
    x509.BasicConstraints,
    x509.KeyUsage,
    x509.ExtendedKeyUsage,
    x509.SubjectAlternativeName,
    x509.SubjectKeyIdentifier,
    x509.AuthorityKeyIdentifier,
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the certificate must be.

    profile: names, addresses and identity that were granted. key_sha256: the key that was proven.
    """

    profile: NodeProfile
    key_sha256: str
    serial: int


def judge(
    chain_pem: bytes,
    *,
    issuing: x509.Certificate,
    root: x509.Certificate,
    wanted: Wanted,
    now: datetime,
    one_of_many: bool = False,
) -> None:
    """Let a chain (leaf, then issuing authority) go, or hold it back.

    `one_of_many`: another leaf of this authority has just passed everything. Then every rule is read again,
    but the verifier of `cryptography` starts at the issuing authority, whose way to the root it has walked.

    Raises:
        Refused: a rule is broken, or the verifier refuses it; every reason is told at once.
    """
    chain = x509.load_pem_x509_certificates(chain_pem)
    faults = [*_faults_of(chain, issuing, root, wanted, now)]
    if not faults:
        leaf = chain[0]
        if KeyType.ED25519 in {kind_of(leaf.public_key()), _kind_in(issuing), _kind_in(root)}:
            if shutil.which("openssl") is None:
                faults.append("there is no openssl on this host, the one verifier that can judge Ed25519")
            for purpose in ("sslserver", "sslclient"):
                faults += _openssl_says(["-purpose", purpose], leaf, issuing, root, now)
        elif one_of_many:
            faults += _cryptography_says(leaf, [], issuing, wanted.profile, now)
        else:
            faults += _cryptography_says(leaf, [issuing], root, wanted.profile, now)
    if faults:
        raise Refused(
            "the certificate does not leave the authority",
            why="\n".join(faults),
            next_step="run node-ca status; if that finds nothing, this is a bug: please report these lines",
        )


def judge_authority(issuing: x509.Certificate, *, root: x509.Certificate, now: datetime) -> None:
    """Look at a new authority before anything is kept of it.

    Raises:
        Refused: openssl, or one of its two signatures, does not hold.
    """
    faults = [*faults_of_authority(issuing, root=root, now=now)]
    if faults:
        raise Refused(
            "the authority was not made",
            why="\n".join(faults),
            next_step="this is a bug: please report these lines",
        )


def faults_of_authority(issuing: x509.Certificate, *, root: x509.Certificate, now: datetime) -> Iterator[str]:
    """What a verifier has against an authority and its root, as sentences."""
    yield from _faults_of_signatures(("the root", root, root), ("the authority", issuing, root))
    yield from _openssl_says([], issuing, issuing, root, now)


def wider(policy: Policy, issuing: x509.Certificate) -> Iterator[str]:
    """Where a policy grants what the authority's own constraints forbid."""
    limits = issuing.extensions.get_extension_for_class(x509.NameConstraints).value
    yield from outside(issuing, [pattern.replace("{node}", "n") for pattern in policy.names], [])
    permitted = [subtree.value for subtree in limits.permitted_subtrees or []]
    for network in policy.networks:
        if not any(_covers(whole, network) for whole in permitted):
            yield f"{network} lies outside the authority's own address ranges"


def faults_of_chain(
    chain_pem: bytes, *, issuing: x509.Certificate, root: x509.Certificate, wanted: Wanted, now: datetime
) -> Iterator[str]:
    """Each broken rule of the profile, as a sentence."""
    return _faults_of(x509.load_pem_x509_certificates(chain_pem), issuing, root, wanted, now)


def _faults_of(
    chain: list[x509.Certificate],
    issuing: x509.Certificate,
    root: x509.Certificate,
    wanted: Wanted,
    now: datetime,
) -> Iterator[str]:
    if len(chain) != 2 or chain[1] != issuing:
        yield "the chain is not the leaf followed by its issuing authority, and nothing else"
        return
    leaf = chain[0]
    yield from _faults_of_frame(leaf, issuing, wanted, now)
    yield from _faults_of_extensions(leaf, issuing)
    yield from _faults_of_names(leaf, wanted.profile)
    yield from outside(issuing, wanted.profile.names, wanted.profile.addresses)
    yield from _faults_of_signatures(("the leaf", leaf, issuing), ("the authority", issuing, root))


def outside(issuing: x509.Certificate, names: Iterable[str], addresses: Iterable[IPAddress]) -> Iterator[str]:
    """The names and addresses that the issuing authority's own constraints forbid (RFC 5280, 4.2.1.10)."""
    limits = _limits_of(issuing)
    if limits is None:
        yield "the issuing authority has no name constraints"
        return
    domains, networks, barred = limits
    for name in names:
        if not any(name == domain or name.endswith(f".{domain}") for domain in domains):
            yield f"{name} lies outside the authority's own domains ({', '.join(domains)})"
    for address in addresses:
        if not any(_holds(network, address) for network in networks) or any(
            _holds(network, address) for network in barred
        ):
            yield f"{address} lies outside the authority's own address ranges"


@functools.lru_cache(maxsize=16)
def _limits_of(
    issuing: x509.Certificate,
) -> tuple[tuple[str, ...], tuple[object, ...], tuple[object, ...]] | None:
    """Permitted domains, permitted and excluded address ranges; None: there are no constraints at all."""
    try:
        limits = issuing.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        return None
    permitted, excluded = limits.permitted_subtrees or [], limits.excluded_subtrees or []
    return (
        tuple(subtree.value for subtree in permitted if isinstance(subtree, x509.DNSName)),
        tuple(subtree.value for subtree in permitted if isinstance(subtree, x509.IPAddress)),
        tuple(subtree.value for subtree in excluded if isinstance(subtree, x509.IPAddress)),
    )


@functools.lru_cache(maxsize=16)
def _kind_in(authority: x509.Certificate) -> KeyType | None:
    return kind_of(authority.public_key())


def _faults_of_signatures(*links: tuple[str, x509.Certificate, x509.Certificate]) -> Iterator[str]:
    for name, certificate, issuer in links:
        if not _is_signed_by(certificate, issuer):
            yield f"{name} was not signed by its issuer"


@functools.lru_cache(maxsize=16)
def _is_signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Certificates do not change, so the link of an authority to its root is looked at once in a process."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _covers(whole: object, part: IPNetwork) -> bool:
    if isinstance(whole, ipaddress.IPv4Network) and isinstance(part, ipaddress.IPv4Network):
        return part.subnet_of(whole)
    if isinstance(whole, ipaddress.IPv6Network) and isinstance(part, ipaddress.IPv6Network):
        return part.subnet_of(whole)
    return False


def _holds(network: object, address: IPAddress) -> bool:
    return isinstance(network, ipaddress.IPv4Network | ipaddress.IPv6Network) and address in network


def _faults_of_frame(
    leaf: x509.Certificate, issuing: x509.Certificate, wanted: Wanted, now: datetime
) -> Iterator[str]:
    if leaf.version is not x509.Version.v3:
        yield "it is not an X.509 version 3 certificate"
    if leaf.serial_number != wanted.serial:
        yield "its serial number is not the one that the audit announced"
    if not MIN_SERIAL_BITS < leaf.serial_number.bit_length() <= MAX_SERIAL_BITS:
        yield f"its serial number has {leaf.serial_number.bit_length()} bits"
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if end.year > _LAST_YEAR:
        yield f"it has no real end ({end.year})"
    if begin < issuing.not_valid_before_utc:
        yield "it begins before its issuer does"
    if end > issuing.not_valid_after_utc - timedelta(seconds=1):
        yield "it outlives its issuer"
    if not begin <= now < end:
        yield "it is not valid now"
    key = leaf.public_key()
    if not is_ours(key) or key_sha256(key) != wanted.key_sha256:
        yield "its key is not the one whose possession was proven"
    if leaf.issuer != issuing.subject or not issuing.subject.rdns:
        yield "its issuer's name is not the subject of the issuing authority"


def _faults_of_extensions(leaf: x509.Certificate, issuing: x509.Certificate) -> Iterator[str]:
    there = {type(extension.value): extension for extension in leaf.extensions}
    for kind in _LEAF_EXTENSIONS:
        if kind not in there:
            yield f"it lacks {kind.__name__}"
    for kind in there:
        if kind not in _LEAF_EXTENSIONS:
            yield f"it has {kind.__name__}, which no node's certificate of ours has"
    basic = there.get(x509.BasicConstraints)
    if basic and not (basic.critical and basic.value == x509.BasicConstraints(ca=False, path_length=None)):
        yield "its BasicConstraints are not critical and CA:FALSE"
    usage = there.get(x509.KeyUsage)
    if usage and not (usage.critical and _usages(usage.value) == {"digital_signature"}):
        yield "its KeyUsage is not critical and digitalSignature alone"
    purposes = there.get(x509.ExtendedKeyUsage)
    if purposes and (purposes.critical or purposes.value != x509.ExtendedKeyUsage(NODE_PURPOSES)):
        yield "its ExtendedKeyUsage is not serverAuth and clientAuth, not critical"
    own = there.get(x509.SubjectKeyIdentifier)
    key = leaf.public_key() if own else None
    if own and (
        own.critical or not is_ours(key) or own.value != x509.SubjectKeyIdentifier.from_public_key(key)
    ):
        yield "its SubjectKeyIdentifier is not its key's"
    above = there.get(x509.AuthorityKeyIdentifier)
    try:
        issuer_key = issuing.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    except x509.ExtensionNotFound:
        issuer_key = b""
    if above and (above.critical or getattr(above.value, "key_identifier", None) != issuer_key):
        yield "its AuthorityKeyIdentifier is not its issuer's SubjectKeyIdentifier"


def _usages(usage: x509.ExtensionType) -> set[str]:
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment")
    return {name for name in (*names, "key_agreement", "key_cert_sign", "crl_sign") if getattr(usage, name)}


def _faults_of_names(leaf: x509.Certificate, profile: NodeProfile) -> Iterator[str]:
    try:
        extension = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return
    value = extension.value
    names = tuple(value.get_values_for_type(x509.DNSName))
    uris = value.get_values_for_type(x509.UniformResourceIdentifier)
    addresses = tuple(value.get_values_for_type(x509.IPAddress))
    if len(names) + len(uris) + len(addresses) != len(list(value)):
        yield "its SAN has entries that are neither a name, an address nor a URI"
    for name in names:
        try:
            check_host_name(name)
        except ValueError as error:
            yield str(error)
    for uri in uris:
        try:
            check_spiffe_id(uri)
        except ValueError as error:
            yield str(error)
    if uris != [profile.spiffe_id]:
        yield f"its SAN has not exactly one URI, {profile.spiffe_id}"
    if names != profile.names or addresses != profile.addresses:
        yield "its names or addresses are not those that the policy granted"
    common = [str(attribute.value) for attribute in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if len(common) != len(list(leaf.subject)) or len(common) > 1:
        yield "its subject has more than a common name"
    if any(name not in names or len(name.encode()) > MAX_COMMON_NAME for name in common):
        yield f"its common name is none of its names, or longer than {MAX_COMMON_NAME} octets"
    if extension.critical is not (not common):
        yield "its SAN must be critical exactly where the subject is empty"


def _cryptography_says(
    leaf: x509.Certificate,
    between: list[x509.Certificate],
    trusted: x509.Certificate,
    profile: NodeProfile,
    now: datetime,
) -> Iterator[str]:
    builder = verification.PolicyBuilder().store(verification.Store([trusted])).time(now)
    subjects: list[x509.DNSName | x509.IPAddress] = [
        *(x509.DNSName(name) for name in profile.names),
        *(x509.IPAddress(address) for address in profile.addresses),
    ]
    try:
        for subject in subjects:
            builder.build_server_verifier(subject).verify(leaf, between)
        builder.build_client_verifier().verify(leaf, between)
    except verification.VerificationError as error:
        yield f"the verifier of cryptography refuses it: {' '.join(str(error).split())}"


def _openssl_says(
    options: list[str],
    target: x509.Certificate,
    between: x509.Certificate,
    root: x509.Certificate,
    now: datetime,
) -> Iterator[str]:
    """What `openssl verify -x509_strict` finds; nothing where there is no openssl on this host."""
    openssl = shutil.which("openssl")
    if openssl is None:
        return
    with tempfile.TemporaryDirectory(prefix="muster-judge-") as name:
        folder = Path(name)
        for part, certificate in (("target", target), ("between", between), ("root", root)):
            (folder / f"{part}.pem").write_bytes(pem(certificate))
        command = [openssl, "verify", "-x509_strict", "-no-CApath", *options]
        command += ["-attime", str(int(now.timestamp())), "-CAfile", "root.pem"]
        command += ["-untrusted", "between.pem", "target.pem"]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=OPENSSL_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            yield f"openssl verify gave no answer within {OPENSSL_TIMEOUT_S:.0f} s"
            return
    if done.returncode != 0:
        said = " ".join((done.stderr + done.stdout).decode("utf-8", "replace").split())
        yield f"{' '.join(['openssl verify', *options])} refuses it: {said}"
