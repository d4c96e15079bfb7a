"""Mutual TLS 1.3 over the node's own identity: contexts loaded once, and whose SPIFFE id a peer shows."""

from __future__ import annotations

import os
import ssl
from typing import Any, Mapping, NamedTuple

_SCHEME = "spiffe://"


class Identity(NamedTuple):
    """Where the node's identity lies; `crl_file` may be named without being there."""

    cert_file: str
    key_file: str
    ca_file: str
    crl_file: str | None = None


class Contexts(NamedTuple):
    """One context for the side that listens and one for the side that dials."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class Loaded(NamedTuple):
    """An identity that was loaded once, and where it lies, for ranks that are started anew."""

    contexts: Contexts
    identity: Identity


class IdentityFault(Exception):
    """An identity, ours or a peer's, that cannot be what it should be."""


def contexts(identity: Identity) -> Contexts:
    """Load the identity once, before any fork: each rank that loaded it anew would pay 3 ms for it.

    Raises:
        IdentityFault: a file cannot be read, or key and certificate do not belong together.
    """
    both = []
    for purpose in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(purpose)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # ranks are dialled by address; who they are is told by the SPIFFE id, compared after the handshake
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        if purpose == ssl.PROTOCOL_TLS_SERVER:
            # a ticket would be written after the handshake, to peers that may be gone; nobody resumes here
            context.num_tickets = 0
        _load(context, identity)
        both.append(context)
    return Contexts(*both)


def load(identity: Identity) -> Loaded:
    """The identity with its contexts; raises IdentityFault."""
    return Loaded(contexts(identity), identity)


def _load(context: ssl.SSLContext, identity: Identity) -> None:
    for name in (identity.cert_file, identity.key_file, identity.ca_file):
        try:
            with open(name, "rb"):
                pass
        except OSError as error:
            raise IdentityFault(f"{name} cannot be read: {error.strerror}") from error
    try:
        context.load_cert_chain(identity.cert_file, identity.key_file, password=_no_password)
    except ssl.SSLError as error:
        if "KEY_VALUES_MISMATCH" in str(error):
            raise IdentityFault(
                f"{identity.key_file} is not the key of {identity.cert_file}, or the chain's order is wrong"
            ) from error
        raise IdentityFault(f"{identity.cert_file} with {identity.key_file}: {words(error)}") from error
    try:
        context.load_verify_locations(identity.ca_file)
        if identity.crl_file is not None and os.path.exists(identity.crl_file):
            context.load_verify_locations(identity.crl_file)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    except (ssl.SSLError, OSError) as error:
        raise IdentityFault(f"{identity.ca_file} or its revocation list: {words(error)}") from error


def _no_password() -> str:
    """Without this OpenSSL would ask on the terminal for the passphrase of an encrypted key."""
    return ""


def spiffe_id(certificate: Mapping[str, Any] | None) -> str:
    """The one SPIFFE id of a verified peer, from `getpeercert()`.

    X509-SVID, section 2: exactly one URI SAN, and a verifier must reject more.

    Raises:
        IdentityFault: none, several, or no SPIFFE id.
    """
    names = (certificate or {}).get("subjectAltName", ())
    uris = [value for kind, value in names if kind == "URI"]
    if len(uris) != 1:
        raise IdentityFault(f"the certificate has {len(uris)} URI names, exactly 1 is expected")
    uri = str(uris[0])
    trust_domain, _, path = uri[len(_SCHEME) :].partition("/")
    if not uri.startswith(_SCHEME) or not trust_domain or not path:
        raise IdentityFault(f"the certificate's URI {uri!r} is no SPIFFE id")
    return uri


def words(error: BaseException) -> str:
    """An error of ssl or of the system in words, without numbers of source lines."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error.args[-1]).lower().replace("_", " ")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return f"{type(error).__name__}: {error}"
