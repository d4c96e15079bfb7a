"""What a rendezvous costs: forked ranks against the handshakes' own CPU, the protocol against bare sockets, a death.

PyTorch's rendezvous is not among the floors: it is not installed where this runs. At 64 ranks in processes of their own
it took 46 s on two cores where ours took 0.65 s.
"""

import functools
import json
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from bench.row import Contest
from tests.verify.identities import authority, identity
from tests.verify.names import NODE, SPIFFE_ID
from tests.verify.table import Seen, plan
from verify.probe.leader import Leader
from verify.probe.loop import Loop
from verify.probe.member import Address, Member
from verify.probe.tls import Loaded, load

MANY, MOST = 64, 256
ALLOWED_MS = 100.0
_PATIENCE_S = 60.0
_kept: list[tempfile.TemporaryDirectory[str]] = []


def contests() -> list[Contest]:
    """Wall clock where processes meet, CPU and counts where it can be had."""
    return [
        Contest(
            f"{MANY} forked ranks, mTLS",
            lambda: assembled(MANY),
            lambda: handshakes(MANY),
            "CPU of their handshakes",
            "s",
        ),
        Contest(
            f"{MANY} forked ranks, mTLS, CPU",
            lambda: spent(MANY),
            lambda: handshakes(MANY),
            "CPU of their handshakes",
            "CPU s",
        ),
        Contest(
            f"{MOST} forked ranks, mTLS",
            lambda: assembled(MOST),
            lambda: handshakes(MOST),
            "CPU of their handshakes",
            "s",
        ),
        Contest(
            f"{MANY} ranks, no TLS, one process",
            lambda: plainly(MANY)[0],
            lambda: bare(MANY),
            "connect, 64 bytes, 64 bytes back",
            "s",
        ),
        Contest(
            f"frames of {MOST} ranks",
            lambda: float(plainly(MOST)[1]),
            lambda: MOST / MANY * plainly(MANY)[1],
            f"{MOST // MANY} times those of {MANY}",
            "frames",
        ),
        Contest(f"death at {MANY} ranks", lambda: noticed(MANY), lambda: ALLOWED_MS, "what is allowed", "ms"),
    ]


@functools.cache
def loaded() -> Loaded:
    """One identity for all."""
    folder = tempfile.TemporaryDirectory(prefix="bench-rendezvous-")
    _kept.append(folder)
    return load(identity(Path(folder.name), by=authority()))


def ranks_in_a_lean_interpreter(ranks: int, *, kill: bool = False) -> Mapping[str, float]:
    """What bench/rendezvous_ranks.py measured: `wall` to the last rank's GO, `cpu` of all, ends too, and `noticed`."""
    order = {"identity": loaded().identity, "seat": (NODE, SPIFFE_ID), "ranks": ranks, "kill": kill}
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("rendezvous_ranks.py"))],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        timeout=2 * _PATIENCE_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    measured: Mapping[str, float] = json.loads(done.stdout)
    return measured


def assembled(ranks: int) -> float:
    """Seconds from the first fork to the last rank's GO."""
    return ranks_in_a_lean_interpreter(ranks)["wall"]


def spent(ranks: int) -> float:
    """CPU seconds of an assembly, forks and ends included."""
    return ranks_in_a_lean_interpreter(ranks)["cpu"]


def noticed(ranks: int) -> float:
    """Milliseconds from a kill to the leader's word of it."""
    return ranks_in_a_lean_interpreter(ranks, kill=True)["noticed"] * 1000


def handshakes(ranks: int) -> float:
    """CPU seconds of one handshake for each rank but the leader, both sides, in memory."""
    both = loaded().contexts
    began = time.process_time()
    for _ in range(ranks - 1):
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        waiting = [
            both.client.wrap_bio(to_client, to_server),
            both.server.wrap_bio(to_server, to_client, server_side=True),
        ]
        while waiting:
            for side in list(waiting):
                try:
                    side.do_handshake()
                    waiting.remove(side)
                except ssl.SSLWantReadError:
                    continue
    return time.process_time() - began


class Plain:
    """No TLS, where a TLS object is expected; each write is one frame."""

    def __init__(self, received: ssl.MemoryBIO, sealed: ssl.MemoryBIO, count: list[int]) -> None:
        self._received, self._sealed, self._count = received, sealed, count

    def do_handshake(self) -> None:
        """There is none."""

    def getpeercert(self) -> Mapping[str, Any]:
        """Whoever it is, it is this node."""
        return {"subjectAltName": (("URI", SPIFFE_ID),)}

    def read(self, size: int) -> bytes:
        """What has come."""
        if not self._received.pending:
            raise ssl.SSLWantReadError
        return self._received.read(size)

    def write(self, data: bytes) -> None:
        """Send one frame."""
        self._count[0] += 1
        self._sealed.write(data)


class PlainContext:
    """Makes them."""

    def __init__(self) -> None:
        self.count = [0]

    def wrap_bio(self, received: ssl.MemoryBIO, sealed: ssl.MemoryBIO, **_: object) -> Plain:
        """One side of one connection."""
        return Plain(received, sealed, self.count)


def plainly(ranks: int) -> tuple[float, int]:
    """Seconds until all have GO, leader and members in one loop without TLS, and how many frames that took."""
    loop, made = Loop(), PlainContext()
    context = cast("ssl.SSLContext", made)
    seen = [Seen() for _ in range(ranks)]
    hooks: list[dict[str, Any]] = [
        {"on_event": each.events.append, "on_go": each.go, "on_over": each.over} for each in seen
    ]
    the_plan = plan(ranks, deadline_s=_PATIENCE_S, beat_s=30.0)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2 * ranks)
    began = time.perf_counter()
    leader = Leader(loop, listener, context, the_plan, **hooks[0])
    address = Address(*listener.getsockname())
    members = [Member(loop, address, context, the_plan, rank, **hooks[rank]) for rank in range(1, ranks)]
    if not loop.run(lambda: all(each.gone for each in seen), _PATIENCE_S):
        raise RuntimeError("not everybody got GO")
    took = time.perf_counter() - began
    for member in members:
        member.close()
    leader.close()
    loop.close_all()
    return took, made.count[0]


def bare(ranks: int) -> float:
    """Seconds of as many connections that say 64 bytes and are answered 64, one thread, nothing parsed."""
    began = time.perf_counter()
    with socket.create_server(("127.0.0.1", 0), backlog=2 * ranks) as listener:
        ours = [socket.create_connection(listener.getsockname()) for _ in range(ranks - 1)]
        theirs = [listener.accept()[0] for _ in ours]
        for sock in ours:
            sock.sendall(bytes(64))
        for sock in theirs:
            sock.sendall(sock.recv(64))
        for sock in ours:
            sock.recv(64)
        took = time.perf_counter() - began
        for sock in (*ours, *theirs):
            sock.close()
    return took
