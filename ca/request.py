"""A certificate request: only its key, and the proof that its sender holds it, are taken."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from ca.keys import PublicKey, is_ours, kind_of
from ca.kinds import KeyType
from ca.profile import key_sha256
from inventory.errors import BadInput, Refused

MAX_BYTES = 16 * 1024
_BEGIN = b"-----BEGIN "


@dataclass(frozen=True, slots=True)
class NodeKey:
    """The public key of a node, and its name: the SHA-256 of its SubjectPublicKeyInfo, hex."""

    public: PublicKey
    sha256: str


def read_request(pem: bytes, *, allowed: Sequence[KeyType] = (KeyType.P256, KeyType.P384)) -> NodeKey:
    """The key of a PKCS#10 request in PEM form (RFC 2986); names and extensions in it are not looked at.

    What a request asks for beside its key has overruled profiles elsewhere (cloudflare/cfssl#1436).

    Raises:
        BadInput: it is not one request of at most 16 KiB.
        Refused: its signature does not prove possession, or its key is of no `allowed` kind.
    """
    if len(pem) > MAX_BYTES or pem.count(_BEGIN) != 1:
        raise _bad(f"it must be one PEM block, of at most {MAX_BYTES} bytes in all")
    try:
        request = x509.load_pem_x509_csr(pem)
        key = request.public_key()
        proven = request.is_signature_valid
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _bad(
            f"it cannot be read: {str(error).splitlines()[0] if str(error) else 'unknown form'}"
        ) from error
    if not is_ours(key) or kind_of(key) not in allowed:
        *others, last = (kind.spelling for kind in allowed)
        raise Refused(
            "the certificate request is refused",
            why=f"its key is not one on {', '.join(others)}{' or ' if others else ''}{last}",
            next_step="make the key with: openssl genpkey -algorithm "
            + ("EC -pkeyopt ec_paramgen_curve:P-256" if KeyType.P256 in allowed else allowed[0].spelling),
        )
    if not proven:
        raise Refused(
            "the certificate request is refused",
            why="its signature does not prove that the sender holds the private key",
            next_step="make the request again on the node",
        )
    return NodeKey(key, key_sha256(key))


def read_file(file: Path) -> bytes:
    """A request's bytes, from a file or, for `-`, from standard input; no more than one can have.

    Raises:
        BadInput: the file cannot be read.
    """
    try:
        if str(file) == "-":
            return sys.stdin.buffer.read(MAX_BYTES + 1)
        with file.open("rb") as source:
            return source.read(MAX_BYTES + 1)
    except OSError as error:
        raise _bad(f"{file}: {error.strerror or error}") from error


def _bad(why: str) -> BadInput:
    return BadInput(
        "the certificate request was not taken",
        why=why,
        next_step="make it on the node with: openssl req -new -key key.pem -subj /CN=node",
    )
