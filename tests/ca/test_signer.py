"""The signer's port: whatever holds a key may sign a certificate, and gives away nothing else."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ca.keys import PublicKey
from ca.making import Secrets
from ca.profile import root
from ca.signer import KeySigner, borrowed, sign_certificate
from tests.ca.material import CHEAP, NOW


class Token:
    """A signer that is not a key: it only counts, and has another sign."""

    def __init__(self, curve: ec.EllipticCurve) -> None:
        self._behind = KeySigner(ec.generate_private_key(curve))
        self.signatures = 0

    @property
    def public_key(self) -> PublicKey:
        return self._behind.public_key

    def sign(self, data: bytes) -> bytes:
        self.signatures += 1
        return self._behind.sign(data)


@pytest.mark.parametrize(
    ("curve", "algorithm"),
    [(ec.SECP256R1(), hashes.SHA256), (ec.SECP384R1(), hashes.SHA384)],
    ids=["P-256", "P-384"],
)
def test_a_token_signs_certificates_with_the_hash_of_its_curve(
    curve: ec.EllipticCurve, algorithm: type[hashes.HashAlgorithm]
) -> None:
    token = Token(curve)
    builder = root(token.public_key, organisation="Lab", now=NOW, serial=1 << 99, backdate=timedelta(0))

    certificate = sign_certificate(builder, token)

    certificate.verify_directly_issued_by(certificate)
    assert isinstance(certificate.signature_hash_algorithm, algorithm)
    assert isinstance(certificate, x509.Certificate)
    assert token.signatures == 1


def test_a_borrowed_key_only_signs() -> None:
    key = borrowed(Token(ec.SECP256R1()))
    other = borrowed(KeySigner(ed25519.Ed25519PrivateKey.generate()))
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(other, ed25519.Ed25519PrivateKey)
    forbidden: tuple[Callable[[], object], ...] = (
        key.private_numbers,
        lambda: key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        lambda: key.exchange(ec.ECDH(), key.public_key()),
        lambda: key.sign(b"x" * 32, ec.ECDSA(Prehashed(hashes.SHA256()))),
        lambda: other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        other.private_bytes_raw,
    )

    for use in forbidden:
        with pytest.raises(TypeError, match="sign"):
            use()
    assert (key.key_size, key.curve.name) == (256, "secp256r1")


def test_secrets_are_not_shown() -> None:
    assert repr(Secrets(b"one", b"two", CHEAP)) == "Secrets('***')"
    assert "object at" not in repr(KeySigner(ec.generate_private_key(ec.SECP256R1())))
