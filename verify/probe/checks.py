"""The node's identity as the node itself sees it: what it says, whether it holds, who may read its key."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import ssl
import stat
import time
from typing import Any, Mapping

from .tls import Contexts, Identity, IdentityFault, contexts, spiffe_id, words

# X509_V_FLAG_NO_CHECK_TIME, which the ssl module has no name for: dates are compared here, where the clock can be told
_NO_CHECK_TIME = 0x200000
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def identity_facts(identity: Identity, *, node: str, expected_id: str | None, now: float) -> dict[str, Any]:
    """What is known of the identity; `fault` tells why nothing can be run over it, None when it holds.

    `now` is the node's clock, in seconds since the epoch. `expected_id` is the SPIFFE id that must be shown; None
    leaves the trust domain to the certificate.
    """
    facts: dict[str, Any] = {"fault": None, "notes": [], "node_clock": _utc(now)}
    try:
        _files(identity, facts)
        certificate, der = _self_handshake(contexts(identity))
        facts["fingerprint_sha256"] = hashlib.sha256(der).hexdigest()
        facts["serial"] = str(certificate["serialNumber"]).lower()
        _dates(certificate, facts, now)
        shown = spiffe_id(certificate)
        facts["spiffe_id"] = shown
        if expected_id is not None and shown != expected_id:
            raise IdentityFault(f"the certificate is for {shown}, {expected_id} is expected")
        if not shown.endswith(f"/node/{node}"):
            raise IdentityFault(f"the certificate is for {shown}, this is node {node}")
        _in_date(facts, now)
    except IdentityFault as fault:
        facts["fault"] = str(fault)
    return facts


def _files(identity: Identity, facts: dict[str, Any]) -> None:
    try:
        about = os.stat(identity.key_file)
        with open(identity.ca_file, encoding="ascii", errors="replace") as file:
            bundle = file.read(1 << 20)
    except OSError as error:
        raise IdentityFault(f"{error.filename} cannot be read: {error.strerror}") from error
    mode = stat.S_IMODE(about.st_mode)
    facts["key_mode"] = f"{mode:04o}"
    facts["key_owner"] = user_name(about.st_uid)
    try:
        roots = [ssl.PEM_cert_to_DER_cert(block) for block in _PEM.findall(bundle)]
    except ValueError as error:
        raise IdentityFault(f"{identity.ca_file} holds what is no certificate: {error}") from error
    facts["ca_fingerprints"] = [hashlib.sha256(root).hexdigest() for root in roots]
    if mode & 0o077:
        facts["notes"].append(f"the key's mode is {mode:04o}, 0600 is expected: others can read it")
    if about.st_uid != os.geteuid():
        facts["notes"].append(
            f"the key belongs to {user_name(about.st_uid)}, the probe runs as {user_name(os.geteuid())}"
        )


def _self_handshake(both: Contexts) -> tuple[Mapping[str, Any], bytes]:
    """Shake hands with ourselves in memory: it proves chain and key, and reads the certificate, in one step."""
    for context in both:
        context.verify_flags |= _NO_CHECK_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = both.client.wrap_bio(to_client, to_server)
    server = both.server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                raise IdentityFault(f"the chain does not hold: {words(error)}") from error
        if not waiting:
            break
    certificate, der = server.getpeercert(), server.getpeercert(binary_form=True)
    if waiting or not certificate or not der:
        raise IdentityFault("the identity does not finish a handshake with itself")
    return certificate, der


def _dates(certificate: Mapping[str, Any], facts: dict[str, Any], now: float) -> None:
    begin, end = (ssl.cert_time_to_seconds(certificate[name]) for name in ("notBefore", "notAfter"))
    facts["not_before"], facts["not_after"] = _utc(begin), _utc(end)
    facts["seconds_left"] = int(end - now)


def _in_date(facts: Mapping[str, Any], now: float) -> None:
    clock = f"the node's clock says {_utc(now)}"
    if _utc(now) < facts["not_before"]:
        raise IdentityFault(f"the certificate is not valid before {facts['not_before']}, and {clock}")
    if facts["seconds_left"] <= 0:
        raise IdentityFault(
            f"the certificate has expired: it was valid until {facts['not_after']}, and {clock}"
        )


def user_name(uid: int) -> str:
    """A user's name, or the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
