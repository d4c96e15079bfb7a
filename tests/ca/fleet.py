"""Nodes of a fleet that is rotated: each with its own chain, key and bundle; and whether two of them can talk."""

import socket
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from ca.authority import Authority
from tests.ca.judges import cryptography_verify
from tests.ca.material import issue, key_pem, node_key, request

_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Node:
    """What lies on one node."""

    name: str
    folder: Path
    serial: str

    @property
    def chain(self) -> Path:
        return self.folder / "chain.pem"

    @property
    def bundle(self) -> Path:
        return self.folder / "bundle.pem"

    def refresh(self, authority: Authority, now: datetime) -> None:
        """Take the authority's bundle, and have that recorded."""
        self.bundle.write_bytes(authority.bundle_pem)
        authority.bundle_installed(self.name, authority.bundle_sha256, now=now, actor="tester")

    def renew(self, authority: Authority, now: datetime) -> "Node":
        """Take a new certificate for a new key; the bundle stays as it is."""
        bundle = self.bundle.read_bytes()
        authority.revoke(self.serial, reason="superseded", now=now, actor="tester")
        anew = onboarded(authority, self.folder.parent, self.name, now, install=False)
        anew.bundle.write_bytes(bundle)
        return anew


def onboarded(authority: Authority, folder: Path, name: str, now: datetime, *, install: bool = True) -> Node:
    """A node with a certificate of now, and the bundle of now."""
    key = node_key()
    issued = issue(authority, csr=request(key), node=name, vm_uuid=f"uuid-{name}", address=None, now=now)
    node = Node(name, folder / name, issued.serial)
    node.folder.mkdir(parents=True, exist_ok=True)
    node.chain.write_bytes(issued.chain_pem)
    node.bundle.write_bytes(authority.bundle_pem)
    (node.folder / "key.pem").write_bytes(key_pem(key))
    if install:
        authority.installed(issued.serial, now=now, actor="tester")
    return node


def deaf(nodes: list[Node]) -> list[tuple[str, str]]:
    """The pairs of nodes (client, server) that cannot shake hands, each verifying the other strictly."""
    return [(client.name, server.name) for client in nodes for server in nodes if not talk(client, server)]


def talk(client: Node, server: Node) -> bool:
    """Mutual TLS 1.3 over a real socket on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(_TIMEOUT_S)
        served = pool.submit(_serve, listener, server)
        context = _context(ssl.PROTOCOL_TLS_CLIENT, client)
        try:
            with (
                socket.create_connection(listener.getsockname(), timeout=_TIMEOUT_S) as plain,
                context.wrap_socket(plain, server_hostname=f"{server.name}.nodes.lab.example") as tls,
            ):
                heard = tls.recv(1)
        except (ssl.SSLError, ConnectionError):
            heard = b""
        return served.result(_TIMEOUT_S) and heard == b"!"


def refused_by(node: Node, chain: bytes, folder: Path, *options: str, at: datetime) -> list[str]:
    """Which verifiers refuse a chain under a node's bundle: openssl, and cryptography's."""
    folder.mkdir(exist_ok=True)
    parts = x509.load_pem_x509_certificates(chain)
    (folder / "leaf.pem").write_bytes(chain)  # openssl takes the first one
    (folder / "between.pem").write_bytes(chain)
    command = [
        "openssl",
        "verify",
        "-x509_strict",
        "-no-CApath",
        "-attime",
        str(int(at.timestamp())),
        *options,
    ]
    command += [
        "-CAfile",
        str(node.bundle),
        "-untrusted",
        str(folder / "between.pem"),
        str(folder / "leaf.pem"),
    ]
    done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False, text=True)
    refusing = [] if done.returncode == 0 else ["openssl"]
    try:
        cryptography_verify(chain, node.bundle.read_bytes(), at=at)
    except x509.verification.VerificationError:
        refusing.append("cryptography")
    assert len(parts) >= 2
    return refusing


def _serve(listener: socket.socket, node: Node) -> bool:
    connection, _ = listener.accept()
    connection.settimeout(_TIMEOUT_S)
    context = _context(ssl.PROTOCOL_TLS_SERVER, node)
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        with connection, context.wrap_socket(connection, server_side=True) as tls:
            tls.sendall(b"!")
    except (ssl.SSLError, ConnectionError):
        return False
    return True


def _context(purpose: int, node: Node) -> ssl.SSLContext:
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    context.load_cert_chain(node.chain, node.folder / "key.pem")
    context.load_verify_locations(node.bundle)
    return context
