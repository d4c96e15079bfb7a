"""Judges that are not ours: openssl, pkilint, cryptography's verifier, and a real handshake on loopback."""

import functools
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import verification
from pkilint import loader, report  # type: ignore[import-untyped]  # it has no types
from pkilint.bin import lint_pkix_signer_signee_cert_chain as chain_lint  # type: ignore[import-untyped]  # it has no types
from pkilint.pkix import certificate, extension  # type: ignore[import-untyped]  # it has no types
from pkilint.pkix import name as attributes
from pkilint.validation import ValidationFindingSeverity  # type: ignore[import-untyped]  # it has no types

from ca.names import check_spiffe_id

_TIMEOUT_S = 120


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
    program = str(Path(sys.executable).with_name(tool))
    command = [program, "lint", "-s", "WARNING", "-f", "JSON", *map(str, files)]
    done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False, text=True)
    return _findings(done.stdout)


def pkilint_here(leaf: x509.Certificate, issuer: x509.Certificate | None) -> list[str]:
    """As `pkilint_findings` of a certificate and of its chain, in this process: fast from the second call on."""
    text = leaf.public_bytes(Encoding.PEM).decode()
    load = loader.RFC5280CertificateDocumentLoader().load_pem_document
    results = _lint_of_certificates().validate(load(text, "leaf").root)
    if issuer is not None:
        pair: dict[str, Any] = {}
        above = issuer.public_bytes(Encoding.PEM).decode()
        pair["issuer"] = load(above, "issuer", "issuer", pair)
        pair["subject"] = load(text, "subject", "subject", pair)
        for part in pair.values():
            results += chain_lint.create_decoder_validation_container().validate(part.root)
        results += chain_lint.create_issuer_validation_container().validate(pair["issuer"].root)
        results += chain_lint.create_subject_validation_container().validate(pair["subject"].root)
    said = report.ReportGeneratorJson(results, ValidationFindingSeverity.WARNING).generate()
    return _findings(said)


@functools.cache
def _lint_of_certificates() -> Any:
    """All that lint_pkix_cert looks at."""
    return certificate.create_pkix_certificate_validator_container(
        certificate.create_decoding_validators(
            attributes.ATTRIBUTE_TYPE_MAPPINGS, extension.EXTENSION_MAPPINGS
        ),
        [
            certificate.create_issuer_validator_container([]),
            certificate.create_validity_validator_container(),
            certificate.create_subject_validator_container([]),
            certificate.create_extensions_validator_container([]),
            certificate.create_spki_validator_container([]),
        ],
    )


def _findings(document: str) -> list[str]:
    results = json.loads(document)["results"]
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
    try:
        check_spiffe_id(message.split('"')[1])
    except ValueError:
        return False
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
    """Mutual TLS 1.3, strictly verified on both sides: the protocol, and the URI that the server saw.

    Raises:
        ssl.SSLError: the server did not accept the client, or the client the server.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        ours.settimeout(_TIMEOUT_S)
        theirs.settimeout(_TIMEOUT_S)
        served = pool.submit(_serve, theirs, server, bundle)
        try:
            context = _context(ssl.PROTOCOL_TLS_CLIENT, client, bundle)
            context.hostname_checks_common_name = False
            with context.wrap_socket(ours, server_hostname=name) as tls:
                tls.recv(1)
                protocol = tls.version() or ""
        except OSError:
            ours.close()
            served.result(_TIMEOUT_S)  # the server's reason says more than the alert it sent
            raise
        return protocol, served.result(_TIMEOUT_S)


def _serve(connection: socket.socket, own: tuple[Path, Path], bundle: Path) -> str:
    context = _context(ssl.PROTOCOL_TLS_SERVER, own, bundle)
    context.verify_mode = ssl.CERT_REQUIRED
    with context.wrap_socket(connection, server_side=True) as tls:
        peer: Mapping[str, Any] = tls.getpeercert() or {}
        tls.sendall(b"!")
    return ",".join(value for kind, value in peer["subjectAltName"] if kind == "URI")


def _context(purpose: int, own: tuple[Path, Path], bundle: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    context.load_cert_chain(*own)
    context.load_verify_locations(bundle)
    return context
