"""Identities for tests: root, issuing CA and leaf as the node CA's profile has them, one fact varied per test."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from verify.probe.tls import Identity

from .names import NODE, SPIFFE_ID

_NOW = dt.datetime.now(dt.UTC)
_DAY = dt.timedelta(days=1)
_FILES = "{cert_file: chain.pem, key_file: key.pem, ca_file: bundle.pem, crl_file: crl.pem}"
Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Authority:
    """A root and the issuing CA below it."""

    root: x509.Certificate
    issuing: x509.Certificate
    key: Key


def authority(name: str = "lab") -> Authority:
    root_key, issuing_key = _key(), _key()
    root = _ca(f"{name} root G1", root_key.public_key(), f"{name} root G1", root_key, path_length=1)
    issuing = _ca(
        f"{name} nodes G1", issuing_key.public_key(), f"{name} root G1", root_key, path_length=0, issuer=root
    )
    return Authority(root, issuing, issuing_key)


def identity(
    folder: Path,
    *,
    by: Authority,
    trusts: Authority | None = None,
    uris: tuple[str, ...] = (SPIFFE_ID,),
    begins: dt.datetime = _NOW - dt.timedelta(minutes=10),
    ends: dt.datetime = _NOW + 30 * _DAY,
    mode: int = 0o600,
    other_key: bool = False,
) -> Identity:
    """Write an identity as it lies on a node.

    trusts: whose root is in the bundle; the issuer's own by default.
    other_key: the key file holds a key that the certificate is not for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = _key()
    names: list[x509.GeneralName] = [x509.DNSName(f"{NODE}.nodes.lab.example")]
    names += [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    names += [x509.UniformResourceIdentifier(uri) for uri in uris]
    leaf = (
        _builder(NODE, key.public_key(), by.issuing.subject, begins, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_issued_by(by.issuing), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(by.key, hashes.SHA256())
    )
    made = Identity(str(folder / "chain.pem"), str(folder / "key.pem"), str(folder / "bundle.pem"))
    Path(made.cert_file).write_bytes(_pem(leaf) + _pem(by.issuing))
    Path(made.ca_file).write_bytes(_pem((trusts or by).root))
    kept = _key() if other_key else key
    Path(made.key_file).touch(mode=0o600)
    Path(made.key_file).write_bytes(
        kept.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    Path(made.key_file).chmod(mode)
    (folder / "agent.yaml").write_text(f"node: {NODE}\nidentity: {_FILES}\n")
    return made


def revocation_list(by: Authority, *, revoked: x509.Certificate) -> bytes:
    """The issuing CA's list with one certificate on it."""
    entry = (
        x509.RevokedCertificateBuilder()
        .serial_number(revoked.serial_number)
        .revocation_date(_NOW - _DAY)
        .build()
    )
    made = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(by.issuing.subject)
        .last_update(_NOW - _DAY)
        .next_update(_NOW + 7 * _DAY)
        .add_extension(x509.CRLNumber(1), critical=False)
        .add_extension(_issued_by(by.issuing), critical=False)
        .add_revoked_certificate(entry)
        .sign(by.key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def leaf_of(made: Identity) -> x509.Certificate:
    return x509.load_pem_x509_certificates(Path(made.cert_file).read_bytes())[0]


def _key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    name: str, key: ec.EllipticCurvePublicKey, issuer: x509.Name, begins: dt.datetime, ends: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _ca(
    name: str,
    key: ec.EllipticCurvePublicKey,
    issuer_name: str,
    issuer_key: Key,
    *,
    path_length: int,
    issuer: x509.Certificate | None = None,
) -> x509.Certificate:
    builder = (
        _builder(name, key, _name(issuer_name), _NOW - _DAY, _NOW + 365 * _DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
    if issuer is not None:
        builder = builder.add_extension(_issued_by(issuer), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _issued_by(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def root_fingerprint(of: Authority) -> str:
    return of.root.fingerprint(hashes.SHA256()).hex()
