"""What a connection to Proxmox shows and why it fails, for people; nothing is decided by it."""

import hashlib
import socket
import ssl

import requests

from provision.trust import colons


def presented_fingerprint(host: str, port: int, *, timeout_s: float) -> str | None:
    """SHA-256 of the certificate that is presented, for showing only: nothing else goes over this connection."""
    try:
        pem = ssl.get_server_certificate((host, port), timeout=timeout_s)
    except (OSError, ValueError):
        return None
    return colons(hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest())


def network_reason(error: Exception) -> str:
    """Why a connection failed, in the words of the system, from under the layers above it."""
    inner: BaseException | None = error
    seen: set[int] = set()
    while inner is not None and id(inner) not in seen:
        seen.add(id(inner))
        if isinstance(inner, OSError) and inner.strerror and not isinstance(inner, requests.RequestException):
            return str(inner.strerror)
        if isinstance(inner, socket.gaierror):
            return str(inner)
        inner = inner.__cause__ or inner.__context__
    return "it did not answer"
