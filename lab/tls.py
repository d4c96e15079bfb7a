"""The certificate of the lab's API, signed by a CA that lives for one call and leaves only its certificate."""

import ipaddress
import ssl
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = timedelta(days=30)
_BACKDATE = timedelta(hours=1)


def api_context(address: ipaddress.IPv4Address, *, now: datetime) -> tuple[ssl.SSLContext, bytes]:
    """A server context for `https://address`, and the PEM of the CA that a client must trust.

    The server's key is on disk only for the moment in which OpenSSL reads it, 0600 in a private folder.
    """
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = _name("PVE Cluster Manager CA", "Proxmox Virtual Environment")
    ca = _sign(_builder(ca_name, ca_name, ca_key, ca_key, now=now), ca_key, ca=True)
    own = _builder(_name("PVE Cluster Node", str(address)), ca_name, key, ca_key, now=now)
    own = own.add_extension(x509.SubjectAlternativeName([x509.IPAddress(address)]), critical=False)
    own = own.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    certificate = _sign(own, key=ca_key, ca=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.TemporaryDirectory() as folder:
        both = Path(folder) / "server.pem"
        both.touch(mode=0o600)
        both.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context.load_cert_chain(both)
    return context, ca.public_bytes(serialization.Encoding.PEM)


def _name(unit: str, common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Muster lab"),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    now: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
    )


def _sign(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.Certificate:
    usage = x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        builder.add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
