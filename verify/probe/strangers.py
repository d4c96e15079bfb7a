"""Connections without the node's identity, as a busy port gets them: they must neither be counted nor block."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import subprocess
from typing import NamedTuple

from . import wire
from .member import Address
from .seats import Plan
from .tls import words

_PATIENCE_S = 5.0
_RESETS = 50
_NOT_TRIED = "not tried"


class Visit(NamedTuple):
    """What became of one kind of stranger.

    seated: was it answered with a WELCOME? It never may.
    held: a socket that stays open, to be in the way; the caller closes it.
    """

    kind: str
    found: str
    seated: bool = False
    held: socket.socket | None = None

    @property
    def tried(self) -> bool:
        """Could this kind be made here at all?"""
        return not self.found.startswith(_NOT_TRIED)


def visit(there: Address, plan: Plan, rank: int) -> list[Visit]:
    """Every kind of stranger visits the rendezvous, each trying to sit on `rank`."""
    said = wire.Hello(plan.run_id, rank, plan.world, os.getpid(), 1000, plan.seats[rank].node)
    hello = wire.hello(said)
    seat = plan.seats[rank].spiffe_id
    return [
        silent(there),
        _leaves_open(there, "three bytes", wire.MAGIC[:3]),
        _leaves_open(there, "random bytes", os.urandom(64)),
        _leaves_open(there, "HTTP", b"GET / HTTP/1.1\r\nHost: rendezvous\r\n\r\n"),
        _leaves_open(there, "a hello without TLS", hello),
        _resets(there),
        _over_tls(there, "TLS without a certificate", hello, _anyone()),
        _foreign(there, hello, seat),
    ]


def silent(there: Address) -> Visit:
    """One that connects and says nothing."""
    return _leaves_open(there, "silence", b"")


def _leaves_open(there: Address, kind: str, data: bytes) -> Visit:
    sock = socket.create_connection(there, timeout=_PATIENCE_S)
    if data:
        sock.sendall(data)
    return Visit(kind, "left open", held=sock)


def _resets(there: Address) -> Visit:
    for _ in range(_RESETS):
        sock = socket.create_connection(there, timeout=_PATIENCE_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    return Visit("connect and reset", f"{_RESETS} times")


def _anyone() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _over_tls(there: Address, kind: str, hello: bytes, context: ssl.SSLContext) -> Visit:
    """Say a perfect hello over TLS that the leader must not accept."""
    answer = b""
    try:
        plain = socket.create_connection(there, timeout=_PATIENCE_S)
        with plain, context.wrap_socket(plain) as sock:
            sock.sendall(hello)
            answer = sock.recv(wire.MAX_BODY)
        found = "closed without an answer" if not answer else "answered"
    except OSError as error:
        found = words(error)
    return Visit(kind, found, seated=bool(answer) and _welcomes(answer))


def _welcomes(answer: bytes) -> bool:
    try:
        return any(frame.kind == wire.Kind.WELCOME for frame in wire.Decoder().feed(answer))
    except wire.WireError:
        return False


def _foreign(there: Address, hello: bytes, spiffe_id: str) -> Visit:
    """An identity of nobody's CA that says it is this very node; made in memory by the node's openssl."""
    kind = "a foreign identity with the node's own SPIFFE id"
    try:
        pem = _self_signed(spiffe_id)
    except (OSError, subprocess.SubprocessError) as error:
        return Visit(kind, f"{_NOT_TRIED}: {type(error).__name__}")
    memory = os.memfd_create("stranger")
    try:
        os.write(memory, pem)
        context = _anyone()
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    except (ssl.SSLError, OSError) as error:
        return Visit(kind, f"{_NOT_TRIED}: {words(error)}")
    finally:
        os.close(memory)
    return _over_tls(there, kind, hello, context)


def _self_signed(spiffe_id: str) -> bytes:
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-sha256",
    ]
    command += ["-days", "1", "-subj", "/CN=stranger", "-addext", f"subjectAltName=URI:{spiffe_id}"]
    command += ["-keyout", "/dev/stdout", "-out", "/dev/stdout"]
    made = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=10 * _PATIENCE_S, check=True
    )
    return made.stdout
