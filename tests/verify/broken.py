"""The probe with one part broken on purpose: each break must make a scenario fail."""

import os
import socket
import ssl
import sys
import time
from typing import Any

from verify.probe import wire
from verify.probe.engine import Engine
from verify.probe.leader import Leader
from verify.probe.listening import bind
from verify.probe.loop import Loop
from verify.probe.main import main
from verify.probe.member import Member
from verify.probe.rank import Parts
from verify.probe.seats import Outcome
from verify.probe.wire import Cause, Frame

from .names import SPIFFE_ID

STARTED = "import sys; sys.path.insert(0, {root!r}); from tests.verify.broken import run; run({name!r})"


class ServesEarly(Engine):
    """Listens from the start."""

    def __init__(self, loop: Loop, *, ranks: int) -> None:
        super().__init__(loop, ranks=ranks)
        super().serve()

    def serve(self) -> None:
        """It does already."""


class NeverServes(Engine):
    """Does not listen at all."""

    def serve(self) -> None:
        """Not even after GO."""


class Deaf(Leader):
    """Does not notice that a rank is gone."""

    def _lost(self, *_: Any) -> None:
        """Who cares."""


class GoesWithout(Leader):
    """Gives GO at the deadline, whoever is missing."""

    def _missed(self) -> None:
        self._on_go()
        self._on_event({"event": "go"})


class GivesUpEarly(Leader):
    """Has no patience at all."""

    def _greet(self, guest: Any, frame: Frame) -> None:
        super()._greet(guest, frame)
        if len(self._seats.missing) == 1:
            self._loop.call_in(0.0, self._missed)


class BlamesAnother(Leader):
    """Names the wrong rank."""

    def _missed(self) -> None:
        self._seats.free(1)
        super()._missed()


class SeatsAnyone(Leader):
    """Asks nobody for a certificate."""

    def __init__(
        self, loop: Loop, listener: socket.socket, context: ssl.SSLContext, *others: Any, **named: Any
    ) -> None:
        context.verify_mode = ssl.CERT_NONE
        super().__init__(loop, listener, context, *others, **named)

    def _greet(self, guest: Any, frame: Frame) -> None:
        guest.certificate = {"subjectAltName": (("URI", SPIFFE_ID),)}
        super()._greet(guest, frame)


class BelievesTheHello(Leader):
    """Takes whoever comes for the node that its hello names."""

    def __init__(
        self, loop: Loop, listener: socket.socket, context: ssl.SSLContext, *others: Any, **named: Any
    ) -> None:
        context.verify_mode = ssl.CERT_NONE
        super().__init__(loop, listener, context, *others, **named)

    def _greet(self, guest: Any, frame: Frame) -> None:
        seat = self._plan.seats[wire.read_hello(frame.body).rank]
        guest.certificate = {"subjectAltName": (("URI", seat.spiffe_id),)}
        super()._greet(guest, frame)


class OneAtATime(Leader):
    """Waits for one connection's first byte before it takes the next."""

    def _accept(self, _events: int) -> None:
        self._listener.settimeout(0)
        try:
            sock, address = self._listener.accept()
        except BlockingIOError:
            return
        sock.settimeout(1.75 * self._plan.hello_timeout_s)
        try:
            sock.recv(1, socket.MSG_PEEK)
        except OSError:
            return
        self._receive(sock, str(address))


class AlsoListens(Member):
    """Listens, which only rank 0 may."""

    def __init__(self, *others: Any, **named: Any) -> None:
        self.own = socket.create_server(("127.0.0.1", 0))
        super().__init__(*others, **named)


class Deafened(Member):
    """Does not notice that its leader is gone."""

    def _ended(self, reason: BaseException | None) -> None:
        """Who cares."""

    def _look(self) -> None:
        """Who cares."""


class GivesUpAtOnce(Member):
    """Takes the first refusal for the last."""

    def _again(self, why: str) -> None:
        self._over(Outcome(Cause.INTERNAL, self._rank, f"gave up: {why}"))


class NeverPings(Leader):
    """Sends no heartbeat and misses none."""

    def _heartbeat(self) -> None:
        """Who cares."""

    def _look(self) -> None:
        """Who cares."""


class SeatsTwice(Leader):
    """Gives a rank's seat to whoever claims it last."""

    def _greet(self, guest: Any, frame: Frame) -> None:
        self._seats.free(wire.read_hello(frame.body).rank)
        super()._greet(guest, frame)


class AsksNothing(Leader):
    """Takes any run and any world for its own."""

    def _greet(self, guest: Any, frame: Frame) -> None:
        said = wire.read_hello(frame.body)._replace(run_id=self._plan.run_id, world=self._plan.world)
        (made,) = wire.Decoder().feed(wire.hello(said))
        super()._greet(guest, made)


class RefusesEveryone(Leader):
    """Refuses everybody after it has refused one, or sent one away."""

    def _greet(self, guest: Any, frame: Frame) -> None:
        if self._strangers or self._last_refusal:
            self._refuse(guest, wire.Refusal.RUN, "nobody comes in any more")
        else:
            super()._greet(guest, frame)


class SaysNoValues(Leader):
    """Refuses without a reason."""

    def _refuse(self, guest: Any, code: wire.Refusal, text: str) -> None:
        super()._refuse(guest, code, "no" if text else text)


class SpeaksPlainly(Leader):
    """Welcomes whoever connects, before any TLS."""

    def _receive(self, sock: socket.socket, address: str) -> None:
        sock.sendall(wire.welcome(wire.Welcome(1, 1, 1)))
        super()._receive(sock, address)


class BelievesAnyDate(Leader):
    """Checks no date."""

    def __init__(
        self, loop: Loop, listener: socket.socket, context: ssl.SSLContext, *others: Any, **named: Any
    ) -> None:
        context.verify_flags |= 0x200000  # X509_V_FLAG_NO_CHECK_TIME
        super().__init__(loop, listener, context, *others, **named)


class ReadsNoList(Leader):
    """Checks no revocation."""

    def __init__(
        self, loop: Loop, listener: socket.socket, context: ssl.SSLContext, *others: Any, **named: Any
    ) -> None:
        context.verify_flags &= ~ssl.VERIFY_CRL_CHECK_LEAF
        super().__init__(loop, listener, context, *others, **named)


class LeavesWithoutAWord(Leader):
    """Stops without saying goodbye."""

    def stop(self) -> None:
        os._exit(0)


def any_port(host: str, _port: int) -> socket.socket:
    """Takes another port where the one that was asked for is in use."""
    return bind(host, 0)


def third_never_starts(*others: Any, **named: Any) -> Member:
    """Rank 3 ends before it has said a word."""
    if others[4] == 3:
        os._exit(0)
    return Member(*others, **named)


def slow_to_come(*others: Any, **named: Any) -> Member:
    """Every rank takes longer to begin than anybody had guessed, as on a busy machine; nothing is broken."""
    time.sleep(1.5)
    return Member(*others, **named)


def second_hangs_at_the_end(*others: Any, **named: Any) -> Member:
    """Rank 2 does not end with the others."""
    if others[4] == 2:
        named["on_over"] = lambda _outcome: time.sleep(60)
    return Member(*others, **named)


BROKEN = {
    "nothing": Parts(),
    "serves-early": Parts(engine=ServesEarly),
    "never-serves": Parts(engine=NeverServes),
    "deaf": Parts(leader=Deaf),
    "goes-without": Parts(leader=GoesWithout),
    "gives-up-early": Parts(leader=GivesUpEarly),
    "blames-another": Parts(leader=BlamesAnother),
    "seats-anyone": Parts(leader=SeatsAnyone),
    "believes-the-hello": Parts(leader=BelievesTheHello),
    "one-at-a-time": Parts(leader=OneAtATime),
    "also-listens": Parts(member=AlsoListens),
    "third-never-starts": Parts(member=third_never_starts),
    "deafened": Parts(member=Deafened),
    "gives-up-at-once": Parts(member=GivesUpAtOnce),
    "never-pings": Parts(leader=NeverPings),
    "seats-twice": Parts(leader=SeatsTwice),
    "asks-nothing": Parts(leader=AsksNothing),
    "refuses-everyone": Parts(leader=RefusesEveryone),
    "says-no-values": Parts(leader=SaysNoValues),
    "speaks-plainly": Parts(leader=SpeaksPlainly),
    "believes-any-date": Parts(leader=BelievesAnyDate),
    "reads-no-list": Parts(leader=ReadsNoList),
    "leaves-without-a-word": Parts(leader=LeavesWithoutAWord),
    "any-port": Parts(bind=any_port),
    "slow": Parts(member=slow_to_come),
    "second-hangs": Parts(member=second_hangs_at_the_end),
}


def run(name: str) -> None:
    """Be the probe, with `name` broken; a file opened for writing ends it at once."""
    sys.addaudithook(_nothing_is_written)
    main(BROKEN[name])


def _nothing_is_written(event: str, arguments: tuple[Any, ...]) -> None:
    if (
        event == "open"
        and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        and arguments[0] != os.devnull
    ):
        os.write(2, f"opened {arguments[0]} for writing\n".encode())
        os._exit(99)
