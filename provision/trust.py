"""Whom we believe to be Proxmox: whoever a CA file vouches for, or one pinned certificate; nobody else, ever."""

import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from inventory.errors import BadInput

_TWO_FINGERPRINTS = re.compile(r"Fingerprints did not match.*got \"?b?'?([0-9A-Fa-f:]{64,95})")


@dataclass(frozen=True, slots=True)
class Trust:
    """Exactly one of the two. ca_file: PEM. fingerprint: SHA-256 of the server's certificate, AB:CD:..."""

    ca_file: Path | None = None
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        """Refuse what would trust nobody, or everybody.

        Raises:
            BadInput: neither or both are given, or the CA file is not there or holds no certificate.
        """
        if (self.ca_file is None) == (self.fingerprint is None):
            raise BadInput(
                "Proxmox cannot be trusted",
                why="it needs either a CA file or a fingerprint, and not both",
                next_step="give ca_file or fingerprint in the site file; there is no way to leave it unverified",
            )
        if self.ca_file is not None:
            _check_ca_file(self.ca_file)

    def mount(self, session: requests.Session) -> None:
        """Let `session` speak TLS in this way only, whatever it, a request or the environment says."""
        session.mount("https://", _Adapter(self))
        # Proxmox is never http; an address that a redirect or a bug may bring finds no way out.
        session.adapters.pop("http://", None)

    def why_not(self, error: Exception) -> str:
        """Why a certificate was not believed."""
        if self.fingerprint is None:
            found = re.search(r"certificate verify failed: ([^(\"']+)", str(error))
            reason = found[1].strip() if found else "the TLS handshake failed"
            return f"its certificate is not from {self.ca_file}: {reason}"
        found = _TWO_FINGERPRINTS.search(str(error))
        if found is None:
            return "the TLS handshake failed"
        return f"its certificate has SHA-256 {colons(found[1])}\nthe site file pins it to {self.fingerprint}"

    def next_step(self) -> str:
        """What to do about a certificate that was not believed."""
        if self.fingerprint is None:
            return f"put the CA that signed it (/etc/pve/pve-root-ca.pem) into {self.ca_file}"
        return (
            "find out on the Proxmox node itself whether its certificate was renewed (openssl x509 -noout"
            " -fingerprint -sha256 -in /etc/pve/local/pve-ssl.pem, or pveproxy-ssl.pem where there is one),"
            " and only then mend fingerprint in the site file"
        )


def colons(digest: str) -> str:
    """A digest in hex as people compare it: AB:CD:..."""
    return bytes.fromhex(digest.replace(":", "")).hex(":").upper()


class _Adapter(HTTPAdapter):
    """Each connection is verified by our trust.

    Requests lets REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE win over a session's own setting (psf/requests#3829), and
    `verify=False` over all. Both end here: what a request asks for is not looked at.
    """

    def __init__(self, trust: Trust) -> None:
        """`trust` says whom to believe."""
        self._trust = trust
        super().__init__()

    def build_connection_pool_key_attributes(
        self,
        request: requests.PreparedRequest,
        verify: Any,  # noqa: ANN401, ARG002 - requests' signature; not looked at
        cert: Any = None,  # noqa: ANN401 - requests' signature
    ) -> Any:  # noqa: ANN401 - two dicts, of types that requests keeps to itself
        """Where to connect to, and how TLS is verified there."""
        believed = True if self._trust.ca_file is None else str(self._trust.ca_file)
        host, pool = super().build_connection_pool_key_attributes(request, believed, cert)
        if self._trust.fingerprint is None:
            return host, pool
        # The pin stands for the chain and for the name: urllib3 compares it on every new connection.
        kept = {key: value for key, value in pool.items() if not key.startswith("ca_cert")}
        pinned = {"assert_hostname": False, "assert_fingerprint": self._trust.fingerprint}
        return host, kept | {"cert_reqs": "CERT_NONE"} | pinned

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:  # noqa: ANN401 - requests' signature
        """The second place where requests sets up a connection's TLS."""
        if self._trust.fingerprint is None:
            verify = str(self._trust.ca_file)
            super().cert_verify(conn, url, verify, cert)  # type: ignore[no-untyped-call]  # as requests has it
            return
        conn.cert_reqs, conn.ca_certs, conn.ca_cert_dir = "CERT_NONE", None, None
        conn.assert_fingerprint, conn.assert_hostname = self._trust.fingerprint, False


def _check_ca_file(file: Path) -> None:
    if not file.is_file():
        raise BadInput(
            "Proxmox cannot be trusted",
            why=f"there is no CA file {file}",
            next_step="copy /etc/pve/pve-root-ca.pem of a Proxmox node there, or mend ca_file",
        )
    try:
        ssl.create_default_context(cafile=str(file))
    except (ssl.SSLError, OSError) as error:
        raise BadInput(
            "Proxmox cannot be trusted",
            why=f"{file} holds no certificate in PEM form ({getattr(error, 'reason', None) or error})",
            next_step="copy /etc/pve/pve-root-ca.pem of a Proxmox node there, or mend ca_file",
        ) from None
