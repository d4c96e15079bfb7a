"""What belongs to each kind of key: how it is made, hashed for and told apart."""

from typing import TypeGuard

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from ca.kinds import KeyType

PublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
PrivateKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def generate(kind: KeyType) -> PrivateKey:
    """A fresh private key."""
    if kind is KeyType.ED25519:
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key(ec.SECP256R1() if kind is KeyType.P256 else ec.SECP384R1())


def kind_of(key: object) -> KeyType | None:
    """Which kind a public key is of; None: of none that is used here."""
    if isinstance(key, ed25519.Ed25519PublicKey):
        return KeyType.ED25519
    if isinstance(key, ec.EllipticCurvePublicKey):
        return {"secp256r1": KeyType.P256, "secp384r1": KeyType.P384}.get(key.curve.name)
    return None


def is_ours(key: object) -> TypeGuard[PublicKey]:
    """Whether a public key is of a kind that is used here."""
    return kind_of(key) is not None


def hash_of(key: PublicKey) -> hashes.SHA256 | hashes.SHA384 | None:
    """SHA-256 for P-256, SHA-384 for P-384 (RFC 5480, section 4); Ed25519 hashes by itself (RFC 8032)."""
    match kind_of(key):
        case KeyType.P256:
            return hashes.SHA256()
        case KeyType.P384:
            return hashes.SHA384()
        case _:
            return None
