"""The kinds of keys there are here (no library is needed to name them)."""

from enum import StrEnum


class KeyType(StrEnum):
    """A kind of key.

    Ed25519 is opted into: TLS 1.3 and openssl take it, the verifier of the cryptography library does not.
    """

    P256 = "p256"
    P384 = "p384"
    ED25519 = "ed25519"

    @property
    def spelling(self) -> str:
        """As people write it."""
        return {KeyType.P256: "P-256", KeyType.P384: "P-384", KeyType.ED25519: "Ed25519"}[self]
