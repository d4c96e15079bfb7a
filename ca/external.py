"""A root kept elsewhere: the authority asks for its certificate, waits, and judges what comes back."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from ca.custody import NewKey, is_on_token, unlock_issuing_key
from ca.judge import Wanted, faults_of_authority, judge, wider
from ca.keys import generate, is_ours
from ca.keystore import KDF_FLOOR, Kdf, read_key, write_key
from ca.kinds import KeyType
from ca.layout import Layout
from ca.making import Plan, begin_audit, built_whole, look_before, write_policy
from ca.policy import NodeProfile, Policy
from ca.profile import (
    BACKDATE,
    NODE_PURPOSES,
    constraints,
    issuing_request,
    key_sha256,
    node,
    pem,
    timestamp,
)
from ca.signer import Signer, sign_certificate, sign_request
from inventory.document import load
from inventory.errors import BadInput, Damaged, Refused
from inventory.files import lock, sync_folder, write_whole

LOCK_TIMEOUT_S = 60.0
_MAX_FILE = 64 * 1024
_MIN_RSA_BITS = 2048
_GOOD_HASHES = (hashes.SHA256, hashes.SHA384, hashes.SHA512)


def begin(ca_dir: Path, plan: Plan, *, new_key: NewKey, request_out: Path) -> None:
    """Make the folder of an authority that waits for its certificate, and write the request for it.

    Raises:
        Refused: `ca_dir` or the request exists, or the disk did not take it.
        BadInput: the policy has faults, or the organisation is no name.
    """
    policy = look_before(ca_dir, plan)
    refuse_existing(request_out)
    asked = sign_request(
        issuing_request(new_key.signer.public_key, policy=policy, organisation=plan.organisation),
        new_key.signer,
    )
    text = asked.public_bytes(Encoding.PEM)
    with built_whole(ca_dir) as (layout, strewn):
        write_policy(layout, plan, policy)
        write_whole(layout.request, text, mode=0o644)
        new_key.keep(layout, asked)
        if not is_on_token(layout):
            layout.issuing_key.rename(layout.waiting_key)
        write_whole(request_out, text, mode=0o644)
        strewn.append(request_out)


def refuse_existing(request_out: Path) -> None:
    """A request replaces no file.

    Raises:
        Refused: the file exists.
    """
    if request_out.is_symlink() or request_out.exists():
        raise Refused(
            "no authority was made",
            why=f"{request_out} exists, and a request replaces no file",
            next_step="choose another place for the request, or move that file away yourself",
        )


def complete(
    ca_dir: Path,
    *,
    certificate_file: Path,
    root_file: Path | None,
    secret: bytes,
    kdf: Kdf,
    actor: str,
    now: datetime,
    floor: Kdf = KDF_FLOOR,
) -> None:
    """Take the signed certificate and its root, judge them, and complete the authority.

    The audit's first line is the last thing that appears: before it the authority waits, and the command
    can be run again; after it, it is complete.

    Raises:
        BadInput: a file cannot be read, or the secret is wrong. Damaged: the waiting folder is not whole.
        Refused: nothing waits here, or the certificate is not what was asked for; every fault is told.
    """
    layout = Layout(ca_dir)
    look_before_completion(layout)
    with lock(layout.lock, timeout_s=LOCK_TIMEOUT_S):
        look_before_completion(layout)
        asked, policy = waiting_request(layout), load(layout.policy, Policy)
        issuing, root = read_signed(certificate_file, root_file)
        refuse_unfit(issuing, root=root, asked=asked, policy=policy, now=now)
        if is_on_token(layout):
            signer = unlock_issuing_key(layout, asked, secret=secret, floor=floor)
        else:
            waiting = read_key(layout.waiting_key, certificate=asked, passphrase=secret, floor=floor)
            signer = waiting
        try_out(signer, issuing=issuing, root=root, policy=policy, now=now)
        write_whole(layout.root, pem(root), mode=0o644)
        write_whole(layout.issuing, pem(issuing), mode=0o644)
        if not is_on_token(layout):
            # Sealed anew, for a key file names the certificate that it belongs to.
            layout.issuing_key.unlink(missing_ok=True)  # of a run that stopped here
            write_key(layout.issuing_key, waiting.key, certificate=issuing, passphrase=secret, kdf=kdf)
        begun = layout.audit.with_name(f".{layout.audit.name}.begun")
        begun.unlink(missing_ok=True)
        begin_audit(begun, policy, root=root, issuing=issuing, root_key="", actor=actor, now=now)
        begun.rename(layout.audit)
        sync_folder(ca_dir)
        layout.waiting_key.unlink(missing_ok=True)
        layout.request.unlink(missing_ok=True)
        for left in (*ca_dir.glob(".root.pem.*"), *ca_dir.glob(".issuing.pem.*")):  # of a run that was killed
            left.unlink(missing_ok=True)


def look(layout: Layout, *, certificate_file: Path, root_file: Path | None, now: datetime) -> None:
    """Everything of `complete` that can be refused before a secret is asked for.

    Raises:
        BadInput, Refused, Damaged: as `complete`.
    """
    look_before_completion(layout)
    issuing, root = read_signed(certificate_file, root_file)
    asked, policy = waiting_request(layout), load(layout.policy, Policy)
    refuse_unfit(issuing, root=root, asked=asked, policy=policy, now=now)


def look_before_completion(layout: Layout) -> None:
    """Whether an authority waits here.

    Raises:
        Refused: it is complete already; what a stopped run left of the waiting is then cleared away.
        BadInput: none waits here.
    """
    if layout.audit.exists():
        layout.waiting_key.unlink(missing_ok=True)
        layout.request.unlink(missing_ok=True)
        raise Refused(
            "nothing was changed",
            why=f"the authority in {layout.folder} is complete",
            next_step=f"node-ca status --ca-dir {layout.folder}",
        )
    if not layout.request.exists():
        raise BadInput(
            "nothing was changed",
            why=f"no authority in {layout.folder} waits for its certificate",
            next_step="pass the --ca-dir that node-ca init --external-root made",
        )


def read_signed(certificate_file: Path, root_file: Path | None) -> tuple[x509.Certificate, x509.Certificate]:
    """The issuing certificate and its root: from two files, or from one that holds both.

    Raises:
        BadInput: they cannot be read, or there is no root among them, or more than the two.
    """
    found = list(
        dict.fromkeys([*_certificates(certificate_file), *(_certificates(root_file) if root_file else ())])
    )
    roots = [certificate for certificate in found if certificate.issuer == certificate.subject]
    others = [certificate for certificate in found if certificate not in roots]
    if len(roots) != 1 or len(others) != 1:
        raise BadInput(
            "the certificate was not taken",
            why=f"there must be one root and one certificate that it signed, not {len(roots)} and {len(others)}",
            next_step="pass the signed certificate as --external-root-cert, and the root's own as --root",
        )
    return others[0], roots[0]


def refuse_unfit(
    issuing: x509.Certificate,
    *,
    root: x509.Certificate,
    asked: x509.CertificateSigningRequest,
    policy: Policy,
    now: datetime,
) -> None:
    """Judge what the outside root signed.

    Raises:
        Refused: it is not fit for this authority; every reason is told at once.
    """
    faults = [
        *_faults_of_identity(issuing, asked),
        *_faults_of_kind(issuing, root),
        *_faults_of_limits(issuing, policy),
        *_faults_of_times(issuing, root, policy, now),
        *_faults_of_strength(issuing, root),
    ]
    faults += [] if faults else [*faults_of_authority(issuing, root=root, now=now)]
    if faults:
        raise _unfit(faults)


def _faults_of_identity(issuing: x509.Certificate, asked: x509.CertificateSigningRequest) -> Iterator[str]:
    key, wanted = issuing.public_key(), asked.public_key()
    if not is_ours(key) or not is_ours(wanted) or key_sha256(key) != key_sha256(wanted):
        yield "its key is not the one that was asked for"
    if issuing.subject != asked.subject:
        yield f"its subject is {issuing.subject.rfc4514_string()}, not {asked.subject.rfc4514_string()}"


def _faults_of_kind(issuing: x509.Certificate, root: x509.Certificate) -> Iterator[str]:
    basic = _extension(issuing, x509.BasicConstraints)
    if basic is None or not basic.critical or not basic.value.ca:
        yield "its BasicConstraints are not critical and CA:TRUE"
    elif basic.value.path_length != 0:
        yield f"its path length is {basic.value.path_length}, not 0: it could make further authorities"
    usage = _extension(issuing, x509.KeyUsage)
    if usage is None or not usage.critical or not (usage.value.key_cert_sign and usage.value.crl_sign):
        yield "its KeyUsage is not critical with keyCertSign and cRLSign"
    purposes = _extension(issuing, x509.ExtendedKeyUsage)
    lacking = {*NODE_PURPOSES} - {*(purposes.value if purposes else NODE_PURPOSES)}
    if lacking and purposes and ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE not in purposes.value:
        yield "its ExtendedKeyUsage lacks serverAuth or clientAuth, so that no node's certificate would count"
    own, above = _extension(issuing, x509.SubjectKeyIdentifier), _extension(root, x509.SubjectKeyIdentifier)
    named = _extension(issuing, x509.AuthorityKeyIdentifier)
    if own is None:
        yield "it has no SubjectKeyIdentifier"
    if above is None or named is None or named.value.key_identifier != above.value.digest:
        yield "its AuthorityKeyIdentifier is not the root's SubjectKeyIdentifier"
    top = _extension(root, x509.BasicConstraints)
    if top is None or not top.critical or not top.value.ca or top.value.path_length == 0:
        yield "the root is no authority that may have one below it"


def _faults_of_limits(issuing: x509.Certificate, policy: Policy) -> Iterator[str]:
    limits = _extension(issuing, x509.NameConstraints)
    if limits is None or not limits.critical:
        yield "it has no critical name constraints; the request asks for them (openssl: -copy_extensions copyall)"
        return
    there = [*(limits.value.permitted_subtrees or ()), *(limits.value.excluded_subtrees or ())]
    ranges = [subtree.value for subtree in there if isinstance(subtree, x509.IPAddress)]
    for version in (4, 6):
        if not any(network.version == version for network in ranges):
            yield f"its name constraints do not speak of IPv{version}, so that every such address would pass"
    if not any(isinstance(subtree, x509.DNSName) for subtree in limits.value.permitted_subtrees or ()):
        yield "its name constraints permit no domain, so that every name would pass"
        return
    wanted = constraints(policy)
    for reason in wider(policy, issuing):
        yield f"policy.yaml grants more than it permits: {reason}"
    for network in (subtree.value for subtree in limits.value.excluded_subtrees or ()):
        if network not in [subtree.value for subtree in wanted.excluded_subtrees or ()]:
            yield f"it excludes {network}, which was not asked for"


def _faults_of_times(
    issuing: x509.Certificate, root: x509.Certificate, policy: Policy, now: datetime
) -> Iterator[str]:
    for name, certificate in (("it", issuing), ("the root", root)):
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if not begin <= now < end:
            yield f"{name} is not valid now, but from {timestamp(begin)} to {timestamp(end)}"
    if issuing.not_valid_after_utc > root.not_valid_after_utc:
        yield "it outlives its root"
    if now < issuing.not_valid_after_utc < now + policy.lifetime + timedelta(days=1):
        yield f"it ends before a node's certificate of {policy.lifetime_days} days would"


def _faults_of_strength(issuing: x509.Certificate, root: x509.Certificate) -> Iterator[str]:
    for name, certificate in (("it", issuing), ("the root", root)):
        algorithm = certificate.signature_hash_algorithm
        # Ed25519 and Ed448 hash by themselves. A root is trusted as it lies here, whatever its own signature.
        if certificate is issuing and algorithm is not None and not isinstance(algorithm, _GOOD_HASHES):
            yield f"{name} is signed over {algorithm.name}; SHA-256, SHA-384 or SHA-512 it must be"
        key = certificate.public_key()
        if isinstance(key, rsa.RSAPublicKey) and key.key_size < _MIN_RSA_BITS:
            yield f"{name} has an RSA key of {key.key_size} bits; {_MIN_RSA_BITS} are the least"
        elif not isinstance(
            key,
            rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | ed448.Ed448PublicKey,
        ):
            yield f"{name} has a key of a kind that nodes may not know"


def try_out(
    signer: Signer, *, issuing: x509.Certificate, root: x509.Certificate, policy: Policy, now: datetime
) -> None:
    """Sign a certificate that never leaves, for a key that nobody has, so that no node is the first to try.

    Raises:
        Refused: it would not count.
    """
    name = "trial"
    names = tuple(pattern.replace("{node}", name) for pattern in policy.names)
    profile = NodeProfile(
        name, names, (), f"spiffe://{policy.trust_domain}/node/{name}", timedelta(minutes=1)
    )
    key, serial = generate(KeyType.P256).public_key(), x509.random_serial_number()
    begin = max(now - BACKDATE, issuing.not_valid_before_utc).replace(microsecond=0)
    builder = node(
        key,
        issuer=issuing,
        wanted=profile,
        validity=(begin, (now + profile.lifetime).replace(microsecond=0)),
        serial=serial,
    )
    leaf = sign_certificate(builder, signer)
    wanted = Wanted(profile, key_sha256(key), serial)
    try:
        judge(pem(leaf) + pem(issuing), issuing=issuing, root=root, wanted=wanted, now=now)
    except Refused as error:
        lines = [f"a certificate below it would not count: {line}" for line in error.why.splitlines()]
        raise _unfit(lines) from error


def waiting_request(layout: Layout) -> x509.CertificateSigningRequest:
    """The request that waits for a certificate.

    Raises:
        Damaged: its file is not the one that was written.
    """
    try:
        return x509.load_pem_x509_csr(layout.request.read_bytes())
    except (OSError, ValueError) as error:
        raise Damaged(
            "the authority cannot be completed",
            why=f"{layout.request} is not the request that was written there",
            next_step=f"make the authority anew; move {layout.folder} away first",
        ) from error


def _certificates(file: Path) -> list[x509.Certificate]:
    try:
        with file.open("rb") as source:
            data = source.read(_MAX_FILE)
        if b"-----BEGIN" in data:
            return x509.load_pem_x509_certificates(data)
        return [x509.load_der_x509_certificate(data)]
    except OSError as error:
        why = f"{file}: {error.strerror or error}"
    except ValueError:
        why = f"{file} holds no certificate"
    raise BadInput(
        "the certificate was not taken", why=why, next_step="pass the certificate as the root gave it out"
    )


def _extension(certificate: x509.Certificate, kind: type[x509.ExtensionType]) -> x509.Extension | None:  # type: ignore[type-arg]
    try:
        return certificate.extensions.get_extension_for_class(kind)
    except x509.ExtensionNotFound:
        return None


def _unfit(faults: list[str]) -> Refused:
    return Refused(
        "the certificate was not taken",
        why="\n".join(faults),
        next_step="have the request signed again as it asks, or narrow policy.yaml in the authority's folder",
    )
