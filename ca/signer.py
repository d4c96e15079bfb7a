"""The signer's port: whoever holds a private key signs bytes, and the key itself is never passed around."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from ca.keys import PrivateKey, PublicKey, hash_of

__all__ = [
    "KeySigner",
    "Keyring",
    "Signer",
    "borrowed",
    "hash_of",
    "sign_certificate",
    "sign_crl",
    "sign_request",
]


class Signer(Protocol):
    """A private key somewhere: in memory, or in a token."""

    @property
    def public_key(self) -> PublicKey:
        """The public half."""

    def sign(self, data: bytes) -> bytes:
        """The signature of `data`: ECDSA in its DER form, over the hash that belongs to the curve, or Ed25519."""


@dataclass(frozen=True, slots=True)
class KeySigner:
    """A key in this process' memory; its repr shows nothing of it."""

    key: PrivateKey = field(repr=False)

    @property
    def public_key(self) -> PublicKey:
        """The public half."""
        return self.key.public_key()

    def sign(self, data: bytes) -> bytes:
        """Sign with the hash that belongs to the key."""
        if isinstance(self.key, ed25519.Ed25519PrivateKey):
            return self.key.sign(data)
        algorithm = hash_of(self.key.public_key())
        if algorithm is None:  # only a curve of none of ours
            raise TypeError(self.key.curve.name)
        return self.key.sign(data, ec.ECDSA(algorithm))


@dataclass(frozen=True, slots=True)
class Keyring:
    """The key that issues, and, during a rotation, those of its successor or predecessor, opened once needed."""

    own: Signer
    other: Callable[[x509.Certificate], Signer] = field(repr=False)

    @property
    def public_key(self) -> PublicKey:
        """The public half of the key that issues."""
        return self.own.public_key

    def sign(self, data: bytes) -> bytes:
        """Sign with the key that issues."""
        return self.own.sign(data)


def sign_certificate(builder: x509.CertificateBuilder, signer: Signer) -> x509.Certificate:
    """The certificate that `builder` describes, signed by `signer`."""
    return builder.sign(borrowed(signer), hash_of(signer.public_key))


def sign_request(
    builder: x509.CertificateSigningRequestBuilder, signer: Signer
) -> x509.CertificateSigningRequest:
    """The certificate request that `builder` describes, its possession of the key proven by `signer`."""
    return builder.sign(borrowed(signer), hash_of(signer.public_key))


def sign_crl(
    builder: x509.CertificateRevocationListBuilder, signer: Signer
) -> x509.CertificateRevocationList:
    """The revocation list that `builder` describes, signed by `signer`."""
    return builder.sign(borrowed(signer), hash_of(signer.public_key))


def borrowed(signer: Signer) -> PrivateKey:
    """What cryptography's builders ask of a private key, and no more: it signs by asking the signer.

    The library supports keys of other makers through its abstract classes (its documentation, "Key
    interfaces"), which is how a token's key comes to sign certificates.
    """
    key = signer.public_key
    return (
        _BorrowedEd25519(signer, key) if isinstance(key, ed25519.Ed25519PublicKey) else _Borrowed(signer, key)
    )


class _Borrowed(ec.EllipticCurvePrivateKey):
    def __init__(self, signer: Signer, public: ec.EllipticCurvePublicKey) -> None:
        self._signer = signer
        self._public = public

    def sign(
        self, data: bytes | bytearray | memoryview, signature_algorithm: ec.EllipticCurveSignatureAlgorithm
    ) -> bytes:
        if isinstance(signature_algorithm.algorithm, Prehashed):
            raise TypeError("the signer hashes by itself")
        return self._signer.sign(bytes(data))

    def public_key(self) -> ec.EllipticCurvePublicKey:
        return self._public

    @property
    def curve(self) -> ec.EllipticCurve:
        return self._public.curve

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


class _BorrowedEd25519(ed25519.Ed25519PrivateKey):
    def __init__(self, signer: Signer, public: ed25519.Ed25519PublicKey) -> None:
        self._signer = signer
        self._public = public

    def sign(self, data: bytes | bytearray | memoryview) -> bytes:
        return self._signer.sign(bytes(data))

    def public_key(self) -> ed25519.Ed25519PublicKey:
        return self._public

    def private_bytes_raw(self) -> NoReturn:
        raise TypeError("a signer only signs")

    def private_bytes(self, *_: object) -> NoReturn:
        raise TypeError("a signer only signs")

    def __copy__(self) -> "_BorrowedEd25519":
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> "_BorrowedEd25519":
        return self
