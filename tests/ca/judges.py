"""Judges that are not ours: openssl, pkilint, cryptography's verifier, and a real handshake on loopback."""

import json
import socket
import ssl
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.x509 import verification

from ca.names import check_spiffe_id

_TIMEOUT_S = 30


def openssl_verify(folder: Path, leaf: Path, *options: str, at: datetime) -> str:
    """The complaints of openssl about a leaf under folder/root.pem and folder/issuing.pem; empty: none."""
    command = ["openssl", "verify", "-x509_strict", "-attime", str(int(at.timestamp())), *options]
    command += ["-CAfile", str(folder / "root.pem"), "-untrusted", str(folder / "issuing.pem"), str(leaf)]
    done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False, text=True)
    return "" if done.returncode == 0 else done.stderr + done.stdout


def pkilint_findings(tool: str, *files: Path) -> list[str]:
    """Findings of pkilint at WARNING or above, but for its one false positive.

    It knows no URI scheme beside those of the web, so it faults every spiffe:// entry; allowed is exactly
    that, where the value passes our own check of SPIFFE's rule.
    """
    command = [Path(sys.executable).with_name(tool), "lint", "-s", "WARNING", "-f", "JSON", *files]
    done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False, text=True)
    results = json.loads(done.stdout)["results"]
    return [
        f"{result['node_path']}: {finding['code']} {finding['message']}"
        for result in results
        for finding in result["finding_descriptions"]
        if not _is_the_false_positive(result["node_path"], finding["code"], finding["message"])
    ]


def _is_the_false_positive(node_path: str, code: str, message: str) -> bool:
    if code != "pkix.invalid_uri_syntax" or not node_path.endswith(".uniformResourceIdentifier"):
        return False
    if ".subjectAltName." not in node_path:
        return False
    check_spiffe_id(message.split('"')[1])
    return True


def cryptography_verify(chain_pem: bytes, bundle_pem: bytes, *, at: datetime) -> None:
    """Raise VerificationError where cryptography's verifier refuses a chain for one of its own names."""
    leaf, *rest = x509.load_pem_x509_certificates(chain_pem)
    store = verification.Store(x509.load_pem_x509_certificates(bundle_pem))
    builder = verification.PolicyBuilder().store(store).time(at)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    for name in names.get_values_for_type(x509.DNSName):
        builder.build_server_verifier(x509.DNSName(name)).verify(leaf, rest)
    for address in names.get_values_for_type(x509.IPAddress):
        builder.build_server_verifier(x509.IPAddress(address)).verify(leaf, rest)
    builder.build_client_verifier().verify(leaf, rest)


def handshake(
    server: tuple[Path, Path], client: tuple[Path, Path], bundle: Path, *, name: str
) -> tuple[str, str]:
    """Mutual TLS 1.3 on loopback, strictly verified on both sides: protocol, and the URI the server saw."""
    ours, theirs = socket.socketpair()
    seen: list[str] = []

    def serve() -> None:
        context = _context(ssl.PROTOCOL_TLS_SERVER, server, bundle)
        context.verify_mode = ssl.CERT_REQUIRED
        with context.wrap_socket(theirs, server_side=True) as tls:
            names = (tls.getpeercert() or {}).get("subjectAltName", ())
            seen.extend(str(value) for kind, value in names if kind == "URI")  # type: ignore[misc]  # typeshed: a tuple of any form
            tls.sendall(b"!")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        context = _context(ssl.PROTOCOL_TLS_CLIENT, client, bundle)
        context.hostname_checks_common_name = False
        with context.wrap_socket(ours, server_hostname=name) as tls:
            tls.recv(1)
            protocol = tls.version() or ""
    finally:
        ours.close()
        thread.join(_TIMEOUT_S)
        theirs.close()
    return protocol, ",".join(seen)


def _context(purpose: int, own: tuple[Path, Path], bundle: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    context.load_cert_chain(*own)
    context.load_verify_locations(bundle)
    return context
