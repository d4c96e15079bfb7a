"""The encrypted key file: private from its first byte, and refused where it is weak or others could reach it.

The envelope is JSON: Argon2id (RFC 9106) turns the passphrase into an AES-256-GCM key; the parameters and
the fingerprint of the key's certificate are authenticated with it, so none of them can be changed unseen.
"""

import base64
import binascii
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)

from ca.keys import PrivateKey, is_ours
from ca.profile import fingerprint, key_sha256
from ca.signer import KeySigner
from inventory.errors import BadInput, Damaged, Refused
from inventory.files import sync_folder, write_whole

_MAX_FILE = 16 * 1024
_FORMAT = "muster-key-1"

Owner = x509.Certificate | x509.CertificateSigningRequest
"""What says whose key it is: a certificate, or the request for one that a root elsewhere has yet to sign."""


@dataclass(frozen=True, slots=True)
class Kdf:
    """Parameters of Argon2id (RFC 9106, section 3.1): memory in KiB, passes, lanes."""

    memory_kib: int
    iterations: int
    lanes: int

    def __str__(self) -> str:
        passes = "1 pass" if self.iterations == 1 else f"{self.iterations} passes"
        return f"{self.memory_kib / 1024:g} MiB and {passes}"

    def meets(self, floor: "Kdf") -> bool:
        """Whether no parameter is below the floor's."""
        return self.memory_kib >= floor.memory_kib and self.iterations >= floor.iterations


DEFAULT_KDF = Kdf(memory_kib=256 * 1024, iterations=3, lanes=4)
KDF_FLOOR = Kdf(memory_kib=256 * 1024, iterations=1, lanes=1)
_KDF_CEILING = Kdf(memory_kib=8 * 1024 * 1024, iterations=64, lanes=64)
"""A key file must not be able to ask for all memory of the host."""


def write_key(
    path: Path,
    key: PrivateKey,
    *,
    certificate: Owner,
    passphrase: bytes,
    kdf: Kdf = DEFAULT_KDF,
) -> None:
    """Encrypt a key into a new file of mode 0600.

    Raises:
        Refused: the file is there already; no key is ever overwritten.
        BadInput: the passphrase is empty.
    """
    sealed = seal(key, certificate=certificate, passphrase=passphrase, kdf=kdf)
    try:
        # O_EXCL, for an existing file would keep its old mode, and a chmod afterwards comes too late.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise Refused(
            f"{path} was not written",
            why="it exists, and a key is never overwritten",
            next_step="choose another place, or move that file away yourself",
        ) from None
    with os.fdopen(descriptor, "wb") as out:
        out.write(sealed)
        out.flush()
        os.fsync(out.fileno())
    sync_folder(path.parent)


def read_key(path: Path, *, certificate: Owner, passphrase: bytes, floor: Kdf = KDF_FLOOR) -> KeySigner:
    """The key of a file, ready to sign.

    Raises:
        Refused: others can reach the file or its folder, or its parameters are below `floor`.
        Damaged: it is not a key file, or the key of another certificate.
        BadInput: the passphrase does not open it.
    """
    check_private(path)
    return unseal(_read(path), certificate=certificate, passphrase=passphrase, floor=floor, name=str(path))


def rewrite_key(
    path: Path,
    *,
    certificate: Owner,
    passphrase: bytes,
    new_passphrase: bytes,
    floor: Kdf = KDF_FLOOR,
    kdf: Kdf = DEFAULT_KDF,
    before: Callable[[str], None] = lambda _: None,
) -> None:
    """Give a key file another passphrase, and the parameters of today; a crash leaves the old file or the new.

    `before` is told the SHA-256 of the new file; it is called when all that can be refused was, and
    nothing is changed yet.

    Raises:
        as `read_key` does; BadInput: the new passphrase is empty, or the old one.
    """
    key = read_key(path, certificate=certificate, passphrase=passphrase, floor=floor).key
    if new_passphrase == passphrase:
        raise BadInput(
            "the passphrase was not changed",
            why="the new one is the old one",
            next_step="choose another passphrase",
        )
    sealed = seal(key, certificate=certificate, passphrase=new_passphrase, kdf=kdf)
    # What cannot be opened must never take the place of what can.
    unseal(sealed, certificate=certificate, passphrase=new_passphrase, floor=kdf, name=str(path))
    before(hashlib.sha256(sealed).hexdigest())
    write_whole(path, sealed)
    for left in path.parent.glob(f".{path.name}.*"):  # of a run that was killed
        left.unlink(missing_ok=True)


def check_private(path: Path) -> None:
    """Refuse a key file that others can read, or whose folder others can change.

    Raises:
        Refused: with the command that mends it.
        Damaged: there is no such file.
    """
    try:
        file, folder = path.lstat(), path.parent.stat()
    except FileNotFoundError:
        raise Damaged(
            f"{path} is missing",
            why="the key file is not where the authority keeps it",
            next_step="restore the authority's folder from its backup",
        ) from None
    owners = {0, os.geteuid()}
    mend = ""
    if not stat.S_ISREG(file.st_mode):
        why, mend = "it is not a plain file", f"replace {path} by the key file itself"
    elif file.st_mode & 0o077:
        why, mend = f"others may reach it (mode {file.st_mode & 0o777:04o})", f"chmod 600 {path}"
    elif folder.st_mode & 0o022:
        why = f"others may change its folder (mode {folder.st_mode & 0o777:04o})"
        mend = f"chmod go-w {path.parent}"
    elif file.st_uid not in owners or folder.st_uid not in owners:
        why, mend = "it belongs to another user", f"chown -R $(id -u) {path.parent}"
    if mend:
        raise Refused(f"{path} is not used", why=why, next_step=mend)


def check_belongs(path: Path, certificate: Owner) -> None:
    """Without a passphrase: the file says that it holds the key of `certificate`.

    Raises:
        Damaged: it is not a key file, or another certificate's.
    """
    _open_envelope(_read(path), certificate, str(path))


def seal(key: PrivateKey, *, certificate: Owner, passphrase: bytes, kdf: Kdf) -> bytes:
    """The envelope of a key, under a fresh salt and nonce.

    Raises:
        BadInput: the passphrase is empty.
    """
    if not passphrase:
        raise BadInput("the key was not encrypted", why="the passphrase is empty", next_step="choose one")
    head: dict[str, Any] = {
        "format": _FORMAT,
        "kdf": {
            "name": "argon2id",
            "memory_kib": kdf.memory_kib,
            "iterations": kdf.iterations,
            "lanes": kdf.lanes,
            "salt": _text(secrets.token_bytes(16)),
        },
        "cipher": {"name": "aes-256-gcm", "nonce": _text(secrets.token_bytes(12))},
        "certificate_sha256": fingerprint(certificate),
    }
    plain = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    sealed = _cipher(head, kdf, passphrase).encrypt(_bytes(head["cipher"]["nonce"]), plain, _aad(head))
    return (json.dumps({**head, "ciphertext": _text(sealed)}, indent=1) + "\n").encode()


def unseal(data: bytes, *, certificate: Owner, passphrase: bytes, floor: Kdf, name: str) -> KeySigner:
    """The key in an envelope; `name` stands for where it came from. Raises as `read_key` does."""
    head, kdf, sealed = _open_envelope(data, certificate, name)
    if not kdf.meets(floor):
        raise Refused(
            f"{name} is not used",
            why=f"its passphrase is protected too weakly: by Argon2id with {kdf}, where {floor} is the least",
            next_step="restore the key file that node-ca wrote",
        )
    try:
        plain = _cipher(head, kdf, passphrase).decrypt(_bytes(head["cipher"]["nonce"]), sealed, _aad(head))
        key = load_der_private_key(plain, password=None)
    except InvalidTag:
        raise BadInput(
            f"{name} stays locked",
            why="the passphrase is wrong (or the file was changed)",
            next_step="try again with the right passphrase",
        ) from None
    except ValueError as error:
        raise _damaged(name, "it does not hold a private key") from error
    if not isinstance(key, PrivateKey) or key_sha256(key.public_key()) != _key_in(certificate):
        raise _damaged(name, "the key in it does not match the certificate")
    return KeySigner(key)


def _open_envelope(data: bytes, certificate: Owner, name: str) -> tuple[dict[str, Any], Kdf, bytes]:
    try:
        head = json.loads(data)
        sealed = _bytes(head.pop("ciphertext"))
        given = head["kdf"]
        kdf = Kdf(int(given["memory_kib"]), int(given["iterations"]), int(given["lanes"]))
        kinds = (head["format"], given["name"], head["cipher"]["name"])
        sizes = (len(_bytes(given["salt"])) >= 16, len(_bytes(head["cipher"]["nonce"])) == 12)
        owner = head["certificate_sha256"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise _damaged(name, "it is not a key file of node-ca") from error
    if kinds != (_FORMAT, "argon2id", "aes-256-gcm") or sizes != (True, True):
        raise _damaged(name, "it is not a key file of this version")
    if not (1 <= kdf.lanes <= _KDF_CEILING.lanes and kdf.memory_kib >= 8 * kdf.lanes and kdf.iterations >= 1):
        raise _damaged(name, "its Argon2id parameters are impossible")
    if not _KDF_CEILING.meets(kdf):
        raise _damaged(name, "its Argon2id parameters ask for more than any key of ours")
    if owner != fingerprint(certificate):
        raise _damaged(name, f"it holds the key of another certificate (SHA-256 {owner})")
    return head, kdf, sealed


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE)
    except OSError as error:
        raise _damaged(str(path), error.strerror or str(error)) from error


def _cipher(head: dict[str, Any], kdf: Kdf, passphrase: bytes) -> AESGCM:
    derived = Argon2id(
        salt=_bytes(head["kdf"]["salt"]),
        length=32,
        iterations=kdf.iterations,
        lanes=kdf.lanes,
        memory_cost=kdf.memory_kib,
    ).derive(passphrase)
    return AESGCM(derived)


def _aad(head: dict[str, Any]) -> bytes:
    """All of the envelope but its ciphertext, in one fixed form."""
    return json.dumps(head, sort_keys=True, separators=(",", ":")).encode()


def _key_in(certificate: Owner) -> str | None:
    key = certificate.public_key()
    return key_sha256(key) if is_ours(key) else None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _damaged(name: str, why: str) -> Damaged:
    return Damaged(
        f"{name} cannot be used", why=why, next_step="restore the authority's folder from its backup"
    )
