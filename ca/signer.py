"""The signer's port: whoever holds a private key signs bytes, and the key itself is never passed around."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

_HASH_FOR_CURVE: Mapping[str, type[hashes.SHA256] | type[hashes.SHA384]] = {
    "secp256r1": hashes.SHA256,
    "secp384r1": hashes.SHA384,
}


class Signer(Protocol):
    """A private key somewhere: in memory, or in a token."""

    @property
    def public_key(self) -> ec.EllipticCurvePublicKey:
        """The public half, on P-256 or P-384."""

    def sign(self, data: bytes) -> bytes:
        """The DER form of the ECDSA signature of `data`, hashed by `hash_of` the public key."""


def hash_of(key: ec.EllipticCurvePublicKey) -> hashes.SHA256 | hashes.SHA384:
    """SHA-256 for P-256, SHA-384 for P-384 (RFC 5480, section 4)."""
    return _HASH_FOR_CURVE[key.curve.name]()


@dataclass(frozen=True, slots=True)
class KeySigner:
    """A key in this process' memory; its repr shows nothing of it."""

    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def public_key(self) -> ec.EllipticCurvePublicKey:
        """The public half."""
        return self.key.public_key()

    def sign(self, data: bytes) -> bytes:
        """Sign with the hash that belongs to the curve."""
        return self.key.sign(data, ec.ECDSA(hash_of(self.public_key)))


def sign_certificate(builder: x509.CertificateBuilder, signer: Signer) -> x509.Certificate:
    """The certificate that `builder` describes, signed by `signer`."""
    return builder.sign(_Borrowed(signer), hash_of(signer.public_key))


class _Borrowed(ec.EllipticCurvePrivateKey):
    """What cryptography's builder asks of a private key, and no more: it signs by asking the signer.

    The library supports keys of other makers through its abstract classes (its documentation, "Key
    interfaces"), which is how a token's key comes to sign certificates.
    """

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def sign(
        self, data: bytes | bytearray | memoryview, signature_algorithm: ec.EllipticCurveSignatureAlgorithm
    ) -> bytes:
        if isinstance(signature_algorithm.algorithm, Prehashed):
            raise TypeError("the signer hashes by itself")
        return self._signer.sign(bytes(data))

    def public_key(self) -> ec.EllipticCurvePublicKey:
        return self._signer.public_key

    @property
    def curve(self) -> ec.EllipticCurve:
        return self._signer.public_key.curve

    @property
    def key_size(self) -> int:
        return self.curve.key_size

    def exchange(self, *_: object) -> NoReturn:
        raise TypeError("a signer only signs")

    def private_numbers(self) -> NoReturn:
        raise TypeError("a signer only signs")

    def private_bytes(self, *_: object) -> NoReturn:
        raise TypeError("a signer only signs")

    def __copy__(self) -> "_Borrowed":
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> "_Borrowed":
        return self
