"""What issuing costs over bare signing: a thousand in one process, and one process for each."""

import functools
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from bench.row import Contest
from ca.authority import Authority
from ca.batch import Asked
from ca.keystore import DEFAULT_KDF
from ca.signer import KeySigner
from tests.ca.material import CHEAP, PASSPHRASE, policy_text, request

COUNT = 1_000
_PURPOSES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
_BARE = """
import sys
from pathlib import Path
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from datetime import datetime, timedelta, timezone
request, key, issuer, out = map(Path, sys.argv[1:])
csr = x509.load_pem_x509_csr(request.read_bytes())
assert csr.is_signature_valid
now = datetime.now(timezone.utc)
leaf = (
    x509.CertificateBuilder().subject_name(csr.subject).public_key(csr.public_key())
    .issuer_name(x509.load_pem_x509_certificate(issuer.read_bytes()).subject)
    .serial_number(x509.random_serial_number()).not_valid_before(now).not_valid_after(now + timedelta(days=30))
    .add_extension(x509.SubjectAlternativeName([x509.DNSName("gpu-01.nodes.lab.example")]), critical=True)
    .sign(serialization.load_pem_private_key(key.read_bytes(), None), hashes.SHA256())
)
out.write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
"""
_numbers = count()


def contests() -> list[Contest]:
    """With record, audit, judges and durability, against reading the request, signing and writing a file."""
    return [
        Contest(f"{COUNT} in one process", ours_of_many, bare_of_many, "bare signing of as many", "s"),
        Contest("one process, unlocking apart", ours_of_one, bare_of_one, "python that only signs", "CPU s"),
        Contest("unlocking the key", unlocking, bare_of_one, "python that only signs", "CPU s"),
    ]


@functools.cache
def requests() -> list[bytes]:
    """A request for each; keys are made once, for making them is the nodes' work."""
    return [request() for _ in range(COUNT)]


@functools.cache
def place() -> Path:
    """A folder for this run, taken away at its end."""
    folder = tempfile.TemporaryDirectory(prefix="bench-issuing-")
    _kept.append(folder)
    return Path(folder.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def authority(name: str, *, cheap: bool) -> Authority:
    """A new authority; a cheap one derives its key in no time, which is not what is measured."""
    policy = place() / "policy.yaml"
    policy.write_text(policy_text())
    return Authority.create(
        place() / name,
        policy_file=policy,
        passphrase=PASSPHRASE,
        now=datetime.now(UTC),
        kdf=CHEAP if cheap else DEFAULT_KDF,
    )


def ours_of_many() -> float:
    """Seconds for one batch, durable and recorded."""
    made = authority(f"ca-{next(_numbers)}", cheap=True)
    signer = made.unlock(PASSPHRASE)
    asked = [Asked(csr, f"n-{number:04d}") for number, csr in enumerate(requests())]
    began = time.perf_counter()
    made.issue_many(asked, signer=signer, now=datetime.now(UTC), actor="bench")
    took = time.perf_counter() - began
    made.close()
    return took


def bare_of_many() -> float:
    """Seconds for as many by `cryptography` alone: same extensions, a file each, no sync, no record."""
    made = first()
    signer = made.unlock(PASSPHRASE)
    if not isinstance(signer, KeySigner) or not isinstance(signer.key, ec.EllipticCurvePrivateKey):
        raise TypeError(signer)
    out = place() / f"bare-{next(_numbers)}"
    out.mkdir()
    began = time.perf_counter()
    for number, csr in enumerate(requests()):
        (out / f"{number}.pem").write_bytes(signed_bare(csr, f"n-{number:04d}", signer.key, made.issuing))
    return time.perf_counter() - began


@functools.cache
def first() -> Authority:
    """The authority that bare signing borrows its key from."""
    return authority("ca-bare", cheap=True)


def signed_bare(
    csr: bytes, node: str, key_of_issuer: ec.EllipticCurvePrivateKey, issuing: x509.Certificate
) -> bytes:
    """One certificate of the same form."""
    asked = x509.load_pem_x509_csr(csr)
    key, now = asked.public_key(), datetime.now(UTC)
    if not (asked.is_signature_valid and isinstance(key, ec.EllipticCurvePublicKey)):
        raise TypeError(node)
    names = [
        x509.DNSName(f"{node}.nodes.lab.example"),
        x509.UniformResourceIdentifier(f"spiffe://lab.example/node/{node}"),
    ]
    usage = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "key_cert_sign",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    issuer_key = issuing.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(issuing.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, **usage), critical=True)
        .add_extension(x509.ExtendedKeyUsage(_PURPOSES), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key), critical=False
        )
    )
    return builder.sign(key_of_issuer, hashes.SHA256()).public_bytes(Encoding.PEM)


@functools.cache
def real() -> Authority:
    """An authority whose key is protected as a real one's is, with what the commands need beside it."""
    made = authority("ca-real", cheap=False)
    (place() / "passphrase").write_bytes(PASSPHRASE)
    (place() / "passphrase").chmod(0o600)
    (place() / "node.csr").write_bytes(requests()[0])
    key = ec.generate_private_key(ec.SECP256R1())
    (place() / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    made.close()
    return made


def ours_of_one() -> float:
    """CPU seconds of `node-ca issue`, without those that unlocking takes."""
    folder = real().layout.folder
    out = place() / f"out-{next(_numbers)}"
    command = [str(Path(sys.executable).parent / "node-ca"), "issue", "--yes", "--name", "gpu-01"]
    command += ["--csr", str(place() / "node.csr"), "--out", str(out), "--ca-dir", str(folder)]
    whole = cpu_of([*command, "--passphrase-file", str(place() / "passphrase")])
    return whole - unlocking()


def unlocking() -> float:
    """CPU seconds of stretching the passphrase and opening the key."""
    made = real()
    began = time.process_time()
    made.unlock(PASSPHRASE)
    return time.process_time() - began


def bare_of_one() -> float:
    """CPU seconds of a Python that imports cryptography, reads a request, signs and writes a file."""
    made = real()
    paths = [place() / "node.csr", place() / "key.pem", made.layout.issuing, place() / "bare.pem"]
    return cpu_of([sys.executable, "-c", _BARE, *map(str, paths)])


def cpu_of(command: list[str]) -> float:
    """CPU seconds of a command and its children; it must exit 0."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=60
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
