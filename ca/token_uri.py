"""PKCS#11 URIs (RFC 7512): which token, which key in it, and through which module (pure)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inventory.errors import BadInput

_PAIR = re.compile(r"([a-z][a-z-]*)=((?:[A-Za-z0-9\-._~:\[\]@!$'()*+,=/]|%[0-9A-Fa-f]{2}|[ ])*)")
_PATH_KEYS = frozenset({"token", "serial", "object", "id", "type"})
_EXAMPLE = "pkcs11:token=ca;object=issuing?module-path=/usr/lib/softhsm/libsofthsm2.so"


@dataclass(frozen=True, slots=True)
class TokenUri:
    """A way to a key, without the PIN.

    text: as it was written. token, serial: the token's label or serial number; one of them is there.
    object: the key's label. id: its CKA_ID, if that was named too. module: the library, absolute.
    """

    text: str
    token: str | None
    serial: str | None
    object: str
    id: bytes | None
    module: Path

    @classmethod
    def parse(cls, text: str) -> "TokenUri":
        """Read a URI; what it may contain beside these is refused, above all a PIN.

        Raises:
            ValueError: it is no such URI, with the reason.
        """
        scheme, colon, rest = text.partition(":")
        if scheme != "pkcs11" or not colon or len(text) > 2048:
            raise ValueError(f"it does not begin with pkcs11:, as in {_EXAMPLE}")
        path, _, query = rest.partition("?")
        where, how = _pairs(path, ";"), _pairs(query, "&")
        if "pin-value" in how or "pin-value" in where:
            raise ValueError("it holds a PIN, which would be seen by everybody; use --pin-file")
        if "pin-source" in how:
            raise ValueError("pin-source is not used; use --pin-file")
        unknown = [*({*where} - _PATH_KEYS), *({*how} - {"module-path"})]
        if unknown:
            raise ValueError(f"{', '.join(sorted(unknown))}: unknown, or of no use here")
        if where.get("type", b"private") != b"private":
            raise ValueError("its type is not private")
        module = Path(_text(how.get("module-path", b"")))
        if not module.is_absolute():
            raise ValueError(f"it names no absolute module-path, as in {_EXAMPLE}")
        token, serial = where.get("token"), where.get("serial")
        if not token and not serial:
            raise ValueError(f"it names no token, as in {_EXAMPLE}")
        if not where.get("object"):
            raise ValueError(f"it names no object, the key's label, as in {_EXAMPLE}")
        return cls(
            text=text,
            token=_text(token) if token else None,
            serial=_text(serial) if serial else None,
            object=_text(where["object"]),
            id=where.get("id"),
            module=module,
        )

    @classmethod
    def given(cls, text: str) -> "TokenUri":
        """Read a URI that a person typed.

        Raises:
            BadInput: it is no such URI.
        """
        try:
            return cls.parse(text)
        except ValueError as error:
            raise BadInput(
                "the token's URI was not taken", why=str(error), next_step=f"pass --token '{_EXAMPLE}'"
            ) from None


def _pairs(text: str, separator: str) -> Mapping[str, bytes]:
    found: dict[str, bytes] = {}
    for part in filter(None, text.split(separator)):
        pair = _PAIR.fullmatch(part)
        if pair is None:
            raise ValueError(f"{part.partition('=')[0]!r} is not written as key=value")
        if pair[1] in found:
            raise ValueError(f"{pair[1]} is there twice")
        found[pair[1]] = _unquoted(pair[2])
    return found


def _unquoted(text: str) -> bytes:
    return re.sub(rb"%([0-9A-Fa-f]{2})", lambda found: bytes.fromhex(found[1].decode()), text.encode())


def _text(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise ValueError("a part of it is not UTF-8") from None
    if not text.isprintable():
        raise ValueError("a part of it cannot be printed")
    return text
