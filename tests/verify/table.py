"""A rendezvous in one process and one loop: a real leader, real members, real TLS on loopback."""

import contextlib
import os
import socket
import ssl
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from verify.probe import wire
from verify.probe.leader import Leader
from verify.probe.loop import Loop
from verify.probe.member import Address, Member
from verify.probe.seats import Outcome, Plan, Seat
from verify.probe.tls import Contexts

from .names import NODE, SPIFFE_ID

RUN = bytes(range(16))
PATIENCE_S = 60.0  # for what must happen, on a busy machine


def plan(world: int = 4, **other: Any) -> Plan:
    """A plan for `world` ranks of the one node, with one fact varied; nothing that is slow here misses its times."""
    facts: dict[str, Any] = {
        "run_id": RUN,
        "seats": (Seat(NODE, SPIFFE_ID),) * world,
        "deadline_s": PATIENCE_S,
        "hello_timeout_s": PATIENCE_S / 2,
    }
    return Plan(**{**facts, **other})


def set_ahead(loop: Loop, seconds: float) -> None:
    """Let that time have passed: what is due until then is due at once."""
    before = loop.now
    loop.now = lambda: before() + seconds


def hello(
    rank: int, *, world: int = 4, run: bytes = RUN, node: str = NODE, version: int = wire.VERSION
) -> bytes:
    return wire.hello(wire.Hello(run, rank, world, os.getpid(), 5000, node), version=version)


@dataclass
class Seen:
    """What one side was told."""

    events: list[dict[str, Any]] = field(default_factory=list)
    gone: bool = False
    outcome: Outcome | None = None

    def go(self) -> None:
        self.gone = True

    def over(self, outcome: Outcome) -> None:
        self.outcome = outcome

    def texts(self, event: str) -> list[str]:
        return [each["text"] for each in self.events if each["event"] == event]


class Table:
    """The leader, and whoever comes."""

    def __init__(self, contexts: Contexts, the_plan: Plan) -> None:
        self.contexts, self.plan = contexts, the_plan
        self.loop = Loop()
        self.led = Seen()
        self.members: list[Member] = []
        self.sockets: list[socket.socket] = []
        self.listener = listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = Address("127.0.0.1", listener.getsockname()[1])
        self.leader = Leader(
            self.loop,
            listener,
            contexts.server,
            the_plan,
            on_event=self.led.events.append,
            on_go=self.led.go,
            on_over=self.led.over,
        )

    def join(self, rank: int, *, contexts: Contexts | None = None, **other: Any) -> Seen:
        """One more member; what it is told. `other` varies its plan."""
        seen = Seen()
        self.members.append(
            Member(
                self.loop,
                self.address,
                (contexts or self.contexts).client,
                self.plan._replace(**other),
                rank,
                on_event=seen.events.append,
                on_go=seen.go,
                on_over=seen.over,
            )
        )
        return seen

    def knock(self, data: bytes = b"") -> socket.socket:
        """A plain connection that says `data`."""
        sock = socket.create_connection(self.address, timeout=PATIENCE_S)
        self.sockets.append(sock)
        if data:
            sock.sendall(data)
        return sock

    def reset(self) -> None:
        """Connect and reset."""
        sock = socket.create_connection(self.address, timeout=PATIENCE_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()

    def peer(self, said: bytes, *, context: ssl.SSLContext | None = None) -> "Peer":
        """A hand-made peer over TLS, which says `said` once it can."""
        made = Peer(self.knock(), context or self.contexts.client, said)
        self.sockets.append(made.sock)
        return made

    def until(self, holds: Any, timeout_s: float = PATIENCE_S) -> bool:
        return self.loop.run(holds, timeout_s)

    def listen_to(self, peer: "Peer", timeout_s: float = PATIENCE_S) -> bytes:
        """Serve the leader until the peer has an answer or its end."""
        self.until(lambda: peer.step() or peer.ended, timeout_s)
        return bytes(peer.heard)

    def rest(self, seconds: float) -> None:
        self.loop.run(lambda: False, seconds)

    def close(self) -> None:
        for member in self.members:
            member.close()
        self.leader.close()
        for sock in self.sockets:
            sock.close()
        self.loop.close_all()


class Peer:
    """TLS by hand: it can say what no member of ours would."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, said: bytes) -> None:
        plain.settimeout(0)
        self.sock = context.wrap_socket(plain, do_handshake_on_connect=False)
        self._unsent = said
        self._shaken = False
        self.heard = bytearray()
        self.ended = False

    def step(self) -> bool:
        """Go on as far as the socket lets; True once something was heard."""
        try:
            if not self._shaken:
                self.sock.do_handshake()
                self._shaken = True
            if self._unsent:
                self.sock.send(self._unsent)
                self._unsent = b""
            data = self.sock.recv(4096)
            self.heard += data
            self.ended = not data
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            self.ended = True
        return bool(self.heard)


@contextlib.contextmanager
def table(contexts: Contexts, the_plan: Plan | None = None) -> Iterator[Table]:
    made = Table(contexts, the_plan or plan())
    try:
        yield made
    finally:
        made.close()
