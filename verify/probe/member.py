"""The other ranks' side of the rendezvous: dial, say hello, be seated, wait for GO, and notice the end."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
from typing import Any, Callable, Mapping, NamedTuple

from . import wire
from .channel import Channel, told
from .listening import at
from .loop import WRITE, Loop, Timer
from .seats import Outcome, Plan
from .tls import IdentityFault, spiffe_id

FIRST_BACKOFF_S = 0.005
LAST_BACKOFF_S = 0.25
# the leader tells everyone of a missed deadline; a worker gives that word this long to arrive
_ABORT_GRACE_S = 2.0
# what a listener that is no peer of ours makes of a handshake: another try would not change it
_FINAL_TLS = ("certificate", "unknown ca", "wrong version", "http request", "access denied", "decrypt error")
# linux/in.h; the socket module has no name for it before 3.14
_BIND_ADDRESS_NO_PORT = 24
_FINAL_DIAL = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class Address(NamedTuple):
    """Where rank 0 listens: an IP address, never a name, and its port."""

    host: str
    port: int


class Member:
    """One rank above 0.

    Args:
        plan: as the leader's; `plan.deadline_s` is what this rank's own deadline has left.
        on_event, on_go, on_over: as the leader's.
        source: the address to dial from; None leaves it to the kernel, which may take another network's.

    Raises:
        ValueError: there is no address to dial; a replica of several ranks without one is never a pass.
    """

    def __init__(
        self,
        loop: Loop,
        address: Address,
        context: ssl.SSLContext,
        plan: Plan,
        rank: int,
        *,
        on_event: Callable[[dict[str, Any]], None],
        on_go: Callable[[], None],
        on_over: Callable[[Outcome], None],
        source: str | None = None,
    ) -> None:
        self._source = source
        self._family = _family(address, plan.world)
        self._loop, self._address, self._context, self._plan, self._rank = loop, address, context, plan, rank
        self._on_event, self._on_go, self._on_over = on_event, on_go, on_over
        self._end = loop.now() + plan.deadline_s
        self._deadline = loop.call_in(plan.deadline_s, self._missed)
        self._backoff_s = FIRST_BACKOFF_S
        self._channel: Channel | None = None
        self._dialling: socket.socket | None = None
        self._tries = 0
        self._last = "never tried"
        self._welcomed = False
        self._patience: Timer | None = None
        self._heard = loop.now()
        self._beat_s = plan.beat_s
        self.gone = False
        self.outcome: Outcome | None = None
        self._dial()

    @property
    def silent(self) -> bool:
        """Is the connection closed?"""
        return self._channel is None or self._channel.closed

    def leave(self) -> None:
        """Go in good order."""
        self._say(wire.frame(wire.Kind.GOODBYE))
        self._over(Outcome(wire.Cause.STOPPED, wire.NO_RANK, "left in good order"))

    def cancel(self, why: str) -> None:
        """Give up before the deadline, because someone wants it."""
        self._over(Outcome(wire.Cause.CANCELLED, wire.NO_RANK, f"cancelled: {why}"))

    def close(self) -> None:
        """Close whatever is open."""
        self._hang_up()
        if self._channel:
            self._channel.close()

    # -- one try -------------------------------------------------------------------------------------------------

    def _dial(self) -> None:
        if self.outcome:
            return
        self._tries += 1
        sock = socket.socket(self._family, socket.SOCK_STREAM)
        sock.settimeout(0)
        self._dialling = sock
        self._patience = self._loop.call_in(self._plan.hello_timeout_s, self._unanswered)
        code = self._bind(sock) or sock.connect_ex(self._address)
        if code in (0, errno.EINPROGRESS):
            self._loop.add(sock, WRITE, lambda _events: self._dialled(sock))
        elif code in _FINAL_DIAL:
            self._over(
                Outcome(
                    wire.Cause.INTERNAL, self._rank, f"cannot dial {self._way}: {os.strerror(code).lower()}"
                )
            )
        else:
            self._again(os.strerror(code).lower())

    def _bind(self, sock: socket.socket) -> int:
        """Dial from our own address on the network where one is given; the error's number, 0 where there is none."""
        if self._source is None:
            return 0
        # the port is chosen by connect, so that many ranks do not use up what bind alone may give
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
        try:
            sock.bind((self._source, 0))
        except OSError as error:
            return error.errno or errno.EINVAL
        return 0

    @property
    def _way(self) -> str:
        return at(*self._address) + (f" from {self._source}" if self._source else "")

    def _dialled(self, sock: socket.socket) -> None:
        self._loop.drop(sock)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._again(os.strerror(code).lower())
            return
        self._dialling = None
        self._channel = Channel(
            self._loop,
            sock,
            self._context,
            server_side=False,
            on_open=self._opened,
            on_frame=self._frame,
            on_end=self._ended,
        )

    def _opened(self, certificate: Mapping[str, Any]) -> None:
        expected = self._plan.seats[0].spiffe_id
        try:
            found = spiffe_id(certificate)
            if found != expected:
                raise IdentityFault(f"the leader should be {expected}, its certificate says {found}")
        except IdentityFault as fault:
            self._over(Outcome(wire.Cause.TLS, 0, str(fault)))
            return
        self._say(
            wire.hello(
                wire.Hello(
                    run_id=self._plan.run_id,
                    rank=self._rank,
                    world=self._plan.world,
                    pid=os.getpid(),
                    remaining_ms=int(max(0.0, self._end - self._loop.now()) * 1000),
                    node=self._node(),
                )
            )
        )

    def _node(self) -> str:
        seats = self._plan.seats
        # a rank outside the world still says hello, and is told so by the leader with both values
        return seats[self._rank].node if 0 <= self._rank < len(seats) else seats[0].node

    def _unanswered(self) -> None:
        if self._dialling:
            self._again(f"did not answer within {self._plan.hello_timeout_s:.1f} s")
        else:
            self._again(f"accepted the connection and said nothing for {self._plan.hello_timeout_s:.1f} s")

    def _again(self, why: str) -> None:
        """This try has failed for a reason that may pass: another one, later."""
        self._last = f"{self._way} {why}"
        if self._tries == 1:
            self._on_event({"event": "retry", "text": self._last})
        self._hang_up()
        if self._channel:
            self._channel.close()
            self._channel = None
        self._loop.call_in(self._backoff_s * _jitter(), self._dial)
        self._backoff_s = min(LAST_BACKOFF_S, 2 * self._backoff_s)

    def _hang_up(self) -> None:
        if self._patience:
            self._patience.cancel()
        if self._dialling:
            self._loop.drop(self._dialling)
            self._dialling.close()
            self._dialling = None

    # -- frames --------------------------------------------------------------------------------------------------

    def _frame(self, frame: wire.Frame) -> None:
        self._heard = self._loop.now()
        try:
            self._take(frame)
        except wire.WireError as error:
            self._over(Outcome(wire.Cause.INTERNAL, 0, f"the leader broke the protocol: {error}"))

    def _take(self, frame: wire.Frame) -> None:
        if frame.kind == wire.Kind.REFUSED:
            refused = wire.read_refused(frame.body)
            self._over(Outcome(wire.Cause.REFUSED, self._rank, refused.text))
        elif frame.kind == wire.Kind.ABORT:
            abort = wire.read_abort(frame.body)
            self._over(Outcome(_cause(abort.cause), abort.rank, abort.text))
        elif frame.kind == wire.Kind.WELCOME and not self._welcomed:
            self._seated(wire.read_welcome(frame.body))
        elif not self._welcomed:
            raise wire.WireError(f"frame {frame.kind} where a welcome was due")
        elif frame.kind == wire.Kind.GO and not self.gone:
            self.gone = True
            self._deadline.cancel()
            self._on_event({"event": "go"})
            self._on_go()
        elif frame.kind == wire.Kind.PING:
            self._say(wire.frame(wire.Kind.PONG))
        elif frame.kind == wire.Kind.GOODBYE:
            self.leave()
        else:
            raise wire.WireError(f"frame {frame.kind} was not due")

    def _seated(self, welcome: wire.Welcome) -> None:
        self._welcomed = True
        if self._patience:
            self._patience.cancel()
        self._deadline.cancel()
        # the leader's remaining time is the run's; ours only bounded the way to it
        left_s = min(welcome.remaining_ms / 1000, max(0.0, self._end - self._loop.now()))
        self._deadline = self._loop.call_in(left_s + _ABORT_GRACE_S, self._missed)
        self._beat_s = max(0.01, welcome.beat_ms / 1000)
        self._watch()
        self._on_event({"event": "welcome", "joined": welcome.joined})

    def _watch(self) -> None:
        """The leader pings: when it has been silent for too long, it is frozen."""
        self._asked = self._loop.now()
        self._patience = self._loop.call_in(self._beat_s, self._look)

    def _look(self) -> None:
        now = self._loop.now()
        if now - self._asked > 2 * self._beat_s:
            # this process itself was stopped for a while
            self._heard = now
        silence = now - self._heard
        if silence > (self._plan.lost_after + 1) * self._beat_s:
            self._over(Outcome(wire.Cause.LEADER_LOST, 0, f"the leader has been silent for {silence:.1f} s"))
        else:
            self._watch()

    def _ended(self, reason: BaseException | None) -> None:
        why = told(reason)
        if self._welcomed:
            self._over(Outcome(wire.Cause.LEADER_LOST, 0, f"the leader {why} without a goodbye"))
        elif isinstance(reason, wire.WireError):
            self._over(Outcome(wire.Cause.INTERNAL, 0, f"what listens there is no leader: {why}"))
        elif isinstance(reason, ssl.SSLError) and any(sign in _reason(reason) for sign in _FINAL_TLS):
            self._over(Outcome(wire.Cause.TLS, 0, f"no mutual TLS with the leader: {why}"))
        else:
            self._again(why)

    def _say(self, frame: bytes) -> None:
        if self._channel:
            self._channel.send(frame)

    # -- the end -------------------------------------------------------------------------------------------------

    def _missed(self) -> None:
        spent = f"the deadline of {self._plan.deadline_s:.2f} s passed"
        if self._welcomed:
            text = f"{spent} while rank {self._rank} waited in its seat for GO"
        else:
            text = f"{spent} after {self._tries} tries of rank {self._rank}; the last: {self._last}"
        self._over(Outcome(wire.Cause.DEADLINE, wire.NO_RANK, text))

    def _over(self, outcome: Outcome) -> None:
        if self.outcome:
            return
        self.outcome = outcome
        self._deadline.cancel()
        self._hang_up()
        if self._channel:
            self._channel.finish()
        self._on_over(outcome)


def _jitter() -> float:
    """Between 0.5 and 1.5. Not from `random`, which seeds itself anew after every fork, in each of many ranks."""
    return 0.5 + int.from_bytes(os.urandom(2), "big") / 0xFFFF


def _family(address: Address, world: int) -> socket.AddressFamily:
    """IPv4 or IPv6; raises ValueError where there is nothing to dial."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, address.host)
        except OSError:
            continue
        if 0 < address.port < 65536:
            return family
    raise ValueError(f"a world of {world} ranks needs the leader's IP address and port, not {tuple(address)}")


def _reason(error: ssl.SSLError) -> str:
    return f"{error.reason or ''} {error}".lower().replace("_", " ")


def _cause(number: int) -> wire.Cause:
    try:
        return wire.Cause(number)
    except ValueError:
        return wire.Cause.INTERNAL
