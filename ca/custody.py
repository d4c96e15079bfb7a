"""Where the issuing key lies: sealed in a file of the authority's folder, or in a token that a file there names."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ca.keys import generate, is_ours
from ca.keystore import Kdf, Owner, check_belongs, check_private, read_key, write_key
from ca.kinds import KeyType
from ca.layout import Layout, damaged
from ca.profile import key_sha256
from ca.signer import KeySigner, Signer
from inventory.errors import BadInput
from inventory.files import write_whole

_TOKEN_FORMAT = "muster-token-1"  # noqa: S105 - the name of a format
_MAX_FILE = 16 * 1024


class NewKey(Protocol):
    """The key of an authority that is being made."""

    @property
    def signer(self) -> Signer:
        """The key, ready to sign."""

    def keep(self, layout: Layout, owner: Owner) -> None:
        """Write what leads to the key into the folder; `owner` says whose it is."""


@dataclass(frozen=True, slots=True)
class InFile:
    """A key that will be kept in a file, under a passphrase."""

    signer: KeySigner
    passphrase: bytes
    kdf: Kdf

    def __repr__(self) -> str:
        return "InFile('***')"

    @classmethod
    def fresh(cls, kind: KeyType, *, passphrase: bytes, kdf: Kdf) -> "InFile":
        """A key made now."""
        return cls(KeySigner(generate(kind)), passphrase, kdf)

    def keep(self, layout: Layout, owner: Owner) -> None:
        """Seal the key into the folder."""
        place = layout.issuing_key
        write_key(place, self.signer.key, certificate=owner, passphrase=self.passphrase, kdf=self.kdf)


@dataclass(frozen=True, slots=True)
class OnToken:
    """A key in a token; `uri` leads to it (RFC 7512), and holds no PIN."""

    signer: Signer
    uri: str

    def keep(self, layout: Layout, owner: Owner) -> None:  # noqa: ARG002 - the key's own hash says whose it is
        """Write the way to the key into the folder."""
        body = {
            "format": _TOKEN_FORMAT,
            "uri": self.uri,
            "key_sha256": key_sha256(self.signer.public_key),
        }
        write_whole(layout.issuing_token, (json.dumps(body, indent=1) + "\n").encode())


def check_issuing_key(layout: Layout, owner: Owner) -> None:
    """Without a passphrase: the folder leads to the key of `owner`, and others cannot reach it.

    Raises:
        Refused: others could read the key file, or change the folder; the mend is named.
        Damaged: there is no key, or another's.
    """
    if is_on_token(layout):
        token_uri(layout, owner)
        return
    check_private(layout.issuing_key)
    check_belongs(layout.issuing_key, owner)


def unlock_issuing_key(layout: Layout, owner: Owner, *, secret: bytes, floor: Kdf) -> Signer:
    """The issuing key, ready to sign; `secret` is its passphrase, or its token's PIN.

    Raises:
        BadInput: the secret is wrong, or the token cannot be found.
        Refused: the key file is weakly protected or others can reach it; the token refuses.
        Damaged: it is not the key of `owner`.
    """
    if not is_on_token(layout):
        return read_key(layout.issuing_key, certificate=owner, passphrase=secret, floor=floor)
    from ca.token import open_token

    uri = token_uri(layout, owner)
    signer = open_token(uri, pin=secret).signer()
    key = owner.public_key()
    if not is_ours(key) or key_sha256(signer.public_key) != key_sha256(key):
        raise damaged(f"the key that {uri} leads to is not that of the issuing authority")
    return signer


def is_on_token(layout: Layout) -> bool:
    """Whether the issuing key is in a token."""
    return layout.issuing_token.exists() and not layout.issuing_key.exists()


def secret_of(layout: Layout) -> str:
    """What opens the issuing key, for a question: "passphrase of SECRET_OF"."""
    return "the authority (the PIN of its token)" if is_on_token(layout) else "the authority"


def token_uri(layout: Layout, owner: Owner) -> str:
    """The way to the token's key.

    Raises:
        Refused: others could have changed it.
        Damaged: the file is no such file, or another key's.
    """
    check_private(layout.issuing_token)
    key = owner.public_key()
    try:
        found = json.loads(_read(layout.issuing_token))
        kind, uri, named = found["format"], str(found["uri"]), found["key_sha256"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(f"{layout.issuing_token} is not a file that names a token") from error
    if kind != _TOKEN_FORMAT:
        raise damaged(f"{layout.issuing_token} is of another version")
    if not is_ours(key) or named != key_sha256(key):
        raise damaged(f"{layout.issuing_token} names the key of another certificate")
    return uri


def refuse_on_token(layout: Layout) -> None:
    """A token keeps its own PIN.

    Raises:
        BadInput: the issuing key is in a token.
    """
    if is_on_token(layout):
        raise BadInput(
            "the passphrase was not changed",
            why="the issuing key is in a token, which has a PIN",
            next_step="change the PIN with the token's own tool, such as: pkcs11-tool --login --change-pin",
        )


def _read(file: Path) -> bytes:
    with file.open("rb") as source:
        return source.read(_MAX_FILE)
