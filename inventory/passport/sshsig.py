"""The SSH signature of a passport as bytes: taken apart as strictly as OpenSSH writes it (pure).

The form is OpenSSH's PROTOCOL.sshsig. What the signature does not cover itself, its reserved field and its
armour, could be changed without breaking it: so it is refused where it is not what `ssh-keygen -Y sign` writes.
"""

import base64
import binascii
import hashlib
from dataclasses import dataclass

_BEGIN = "-----BEGIN SSH SIGNATURE-----"
_END = "-----END SSH SIGNATURE-----"
_MAGIC = b"SSHSIG"
_WIDTH = 70
_HASHES = ("sha256", "sha512")


@dataclass(frozen=True, slots=True)
class SshSig:
    """A signature, not judged yet.

    blob: all of it. key: the public key that it says it was made with (RFC 4253, section 6.6).
    """

    blob: bytes
    key: bytes
    namespace: str

    @classmethod
    def parse(cls, blob: bytes) -> "SshSig":
        """The signature in a blob.

        Raises:
            ValueError: it is none, or not as OpenSSH writes it.
        """
        if blob[:6] != _MAGIC or blob[6:10] != (1).to_bytes(4, "big"):
            raise ValueError("it does not begin as an SSH signature of version 1 does")
        key, rest = _string(blob[10:])
        namespace, rest = _string(rest)
        reserved, rest = _string(rest)
        algorithm, rest = _string(rest)
        signature, rest = _string(rest)
        if rest or reserved:
            raise ValueError("it holds more than an SSH signature does")
        if algorithm.decode("ascii", "replace") not in _HASHES or not signature or not key:
            raise ValueError("its key, hash or signature is none that OpenSSH makes")
        return cls(blob, key, namespace.decode("ascii", "replace"))

    @classmethod
    def from_armour(cls, text: str) -> "SshSig":
        """The signature that `ssh-keygen -Y sign` wrote.

        Raises:
            ValueError: the text is none.
        """
        lines = text.split()
        body = "".join(text.replace(_BEGIN, "").replace(_END, "").split())
        if not lines or _BEGIN not in text or _END not in text:
            raise ValueError("it is not an armoured SSH signature")
        return cls.parse(unbase64(body))

    @property
    def untouched(self) -> bool:
        """Whether a FIDO token made it and says that nobody touched it then (OpenSSH's PROTOCOL.u2f, the flags).

        ssh-keygen makes and takes such a signature, where the key was made with `no-touch-required`.
        """
        kind, _ = _string(self.key)
        *_, signature = _strings(self.blob[10:])
        _, flags = _string(_string(signature)[1])
        return kind.startswith(b"sk-") and not (flags and flags[0] & 1)

    @property
    def armour(self) -> str:
        """As `ssh-keygen -Y verify` reads it."""
        body = base64.b64encode(self.blob).decode()
        lines = [body[at : at + _WIDTH] for at in range(0, len(body), _WIDTH)]
        return "\n".join([_BEGIN, *lines, _END]) + "\n"

    @property
    def fingerprint(self) -> str:
        """Of the key, as `ssh-keygen -l` prints it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.key).digest()).decode().rstrip("=")


def unbase64(text: str) -> bytes:
    """The bytes of a base64 text in the one form that they have in it (RFC 4648, section 3.5).

    Raises:
        ValueError: it is not that text.
    """
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not found or base64.b64encode(found).decode() != text:
        raise ValueError("it is not base64 in its one form")
    return found


def _strings(data: bytes) -> list[bytes]:
    found = []
    while data:
        part, data = _string(data)
        found.append(part)
    return found


def _string(data: bytes) -> tuple[bytes, bytes]:
    """The first string (RFC 4251, section 5), and what follows it."""
    size = int.from_bytes(data[:4], "big")
    if len(data) < 4 + size:
        raise ValueError("a part of it is cut short")
    return data[4 : 4 + size], data[4 + size :]
