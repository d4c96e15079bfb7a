"""Keys in PKCS#11 tokens: the only importer of python-pkcs11, whose errors become ours here."""

import hashlib
import hmac
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pkcs11
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import load_der_public_key
from pkcs11 import Attribute, KeyType, Mechanism, ObjectClass
from pkcs11.util.ec import encode_ec_public_key, encode_named_curve_parameters

from ca import kinds
from ca.keys import is_ours, kind_of
from ca.token_uri import TokenUri
from inventory.errors import BadInput, MusterError, OtherSide, Refused

_CURVES = {kinds.KeyType.P256: "secp256r1", kinds.KeyType.P384: "secp384r1"}


@dataclass(frozen=True, slots=True)
class TokenSigner:
    """A key in a token; what it signs is hashed here, for not every token hashes."""

    public_key: ec.EllipticCurvePublicKey
    uri: TokenUri
    key: Any = field(repr=False)

    def sign(self, data: bytes) -> bytes:
        """ECDSA in its DER form; a token gives r and s side by side (PKCS#11 3.1, section 6.3.12)."""
        digest = hashlib.sha256 if self.public_key.curve.name == "secp256r1" else hashlib.sha384
        with _told(self.uri):
            raw: bytes = self.key.sign(digest(data).digest(), mechanism=Mechanism.ECDSA)
        half = len(raw) // 2
        return encode_dss_signature(int.from_bytes(raw[:half]), int.from_bytes(raw[half:]))


@dataclass(frozen=True, slots=True)
class OpenToken:
    """A token that was logged in to; the session ends with the process."""

    uri: TokenUri
    session: Any = field(repr=False)

    def signer(self) -> TokenSigner:
        """The key that the URI names.

        Raises:
            BadInput: there is none, or more than one.
            Refused: it can be taken out of the token, or it is not on P-256 or P-384.
        """
        with _told(self.uri):
            private = self._one(ObjectClass.PRIVATE_KEY)
            if private is None:
                raise BadInput(
                    f"there is no key {self.uri.object!r} in the token",
                    why="no private key there has this label" + (" and id" if self.uri.id else ""),
                    next_step="name another object in the URI; pkcs11-tool --login --list-objects shows them",
                )
            if private[Attribute.EXTRACTABLE] or not private[Attribute.SENSITIVE]:
                raise Refused(
                    f"the key {self.uri.object!r} is not used",
                    why="it can be taken out of the token, which then protects nothing",
                    next_step="name another object in the URI; node-ca makes a key that stays in the token",
                )
            return TokenSigner(self._public(private), self.uri, private)

    def has_key(self) -> bool:
        """Whether a private key lies under the URI's name."""
        with _told(self.uri):
            return self._one(ObjectClass.PRIVATE_KEY) is not None

    def make_key(self, kind: kinds.KeyType) -> TokenSigner:
        """A key that is made in the token and cannot leave it.

        Raises:
            Refused: the token cannot make one.
        """
        with _told(self.uri):
            parameters = self.session.create_domain_parameters(
                KeyType.EC,
                {Attribute.EC_PARAMS: encode_named_curve_parameters(_CURVES[kind])},
                local=True,
            )
            name = self.uri.id or hashlib.sha256(self.uri.object.encode()).digest()[:8]
            parameters.generate_keypair(
                store=True,
                label=self.uri.object,
                id=name,
                private_template={
                    Attribute.SENSITIVE: True,
                    Attribute.EXTRACTABLE: False,
                    Attribute.SIGN: True,
                    Attribute.DERIVE: False,
                },
            )
        return self.signer()

    def _one(self, kind: ObjectClass) -> Any:  # noqa: ANN401 - an object of the token
        wanted: dict[Attribute, Any] = {Attribute.CLASS: kind, Attribute.LABEL: self.uri.object}
        if self.uri.id is not None:
            wanted[Attribute.ID] = self.uri.id
        found = list(self.session.get_objects(wanted))
        if len(found) > 1:
            raise BadInput(
                f"the token has {len(found)} keys {self.uri.object!r}",
                why="the URI must lead to one",
                next_step="add the id to the URI, as in id=%01",
            )
        return found[0] if found else None

    def _public(self, private: Any) -> ec.EllipticCurvePublicKey:  # noqa: ANN401 - an object of the token
        public = self._one(ObjectClass.PUBLIC_KEY)
        kind = private[Attribute.KEY_TYPE]
        if kind == KeyType.EC and public is not None:
            key = load_der_public_key(encode_ec_public_key(public))
            if is_ours(key) and isinstance(key, ec.EllipticCurvePublicKey) and kind_of(key) in _CURVES:
                return key
        raise Refused(
            f"the key {self.uri.object!r} is not used",
            why="its public half is not in the token" if public is None else "it is not on P-256 or P-384",
            next_step="name another object in the URI; node-ca makes a key where there is none",
        )


def open_token(uri: str, *, pin: bytes) -> OpenToken:
    """Log in to the token that a URI names.

    Raises:
        BadInput: the module or the token cannot be found, or the PIN is wrong.
        Refused: the PIN is locked. OtherSide: the token fails otherwise.
    """
    where = TokenUri.given(uri)
    try:
        secret = pin.decode()
    except UnicodeDecodeError:
        raise BadInput("the PIN was not taken", why="it is not UTF-8", next_step="give the PIN") from None
    with _told(where):
        library = _library(where)
        named = {
            **({"token_label": where.token} if where.token else {}),
            **({"token_serial": where.serial.encode()} if where.serial else {}),
        }
        found = list(library.get_tokens(**named))
        if len(found) != 1:
            others = ", ".join(sorted({token.label for token in library.get_tokens()} - {""})) or "none"
            raise BadInput(
                f"the token {where.token or where.serial!r} was not opened",
                why=f"{len(found)} tokens there have this name"
                if found
                else f"it is not there; there: {others}",
                next_step="add serial=NUMBER to the URI"
                if found
                else "plug it in, or name another in the URI",
            )
        return OpenToken(where, _session(found[0], where, secret))


# PKCS#11 logs in a process, not a session (PKCS#11 3.1, section 5.6): a second login is an error, and would
# take any PIN. So a process keeps what it logged in to, with what tells the PIN again.
_SALT = secrets.token_bytes(16)
_SESSIONS: dict[tuple[str, bytes], tuple[Any, bytes]] = {}


def _session(token: Any, uri: TokenUri, pin: str) -> Any:  # noqa: ANN401 - objects of the token
    place = (str(uri.module), bytes(token.serial))
    digest = hashlib.scrypt(pin.encode(), salt=_SALT, n=2**14, r=8, p=1)
    if place not in _SESSIONS:
        _SESSIONS[place] = (token.open(rw=True, user_pin=pin), digest)
    session, right = _SESSIONS[place]
    if not hmac.compare_digest(digest, right):
        raise pkcs11.PinIncorrect
    return session


def explain(error: Exception, uri: TokenUri) -> MusterError:
    """An error of the token, as ours."""
    name = uri.token or uri.serial
    match error:
        case pkcs11.PinLocked():
            return Refused(
                f"the token {name!r} is locked",
                why="its PIN was wrong too often",
                next_step="unlock it with the security officer's PIN: pkcs11-tool --login --login-type so --init-pin",
            )
        case pkcs11.PinIncorrect() | pkcs11.PinInvalid() | pkcs11.PinLenRange():
            return BadInput(
                f"the token {name!r} stays locked",
                why="the PIN is wrong, and a token locks itself after a few wrong ones",
                next_step="try again with the right PIN",
            )
        case pkcs11.PinExpired() | pkcs11.UserPinNotInitialized():
            return Refused(
                f"the token {name!r} is not used",
                why="its PIN has expired" if isinstance(error, pkcs11.PinExpired) else "no PIN was set on it",
                next_step="set a PIN with the token's own tool, such as: pkcs11-tool --login --init-pin",
            )
        case pkcs11.TokenNotPresent() | pkcs11.DeviceRemoved() | pkcs11.NoSuchToken():
            return BadInput(
                f"the token {name!r} is not there",
                why="it was taken out, or never put in",
                next_step="put it in, then run the command again",
            )
        case _:
            return OtherSide(
                f"the token {name!r} refused",
                why=f"{type(error).__name__}{f': {error}' if str(error) else ''}",
                next_step="look at the token with its own tool, such as: pkcs11-tool --list-slots",
            )


def _library(uri: TokenUri) -> Any:  # noqa: ANN401 - a module of another's making
    if not uri.module.is_file():
        raise BadInput(
            f"{uri.module} is not there",
            why="the URI names it as the module of the token",
            next_step="install the token's PKCS#11 module, or correct module-path in the URI",
        )
    try:
        return pkcs11.lib(str(uri.module))
    except (pkcs11.PKCS11Error, RuntimeError) as error:
        raise BadInput(
            f"{uri.module} cannot be loaded",
            why=str(error) or type(error).__name__,
            next_step="name the token's PKCS#11 module as module-path in the URI",
        ) from error


@contextmanager
def _told(uri: TokenUri) -> Iterator[None]:
    """Errors of the token leave as ours."""
    try:
        yield
    except pkcs11.PKCS11Error as error:
        raise explain(error, uri) from error
