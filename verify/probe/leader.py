"""Rank 0's side of the rendezvous: seats by rank, one GO for all, and one failure for all."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from typing import Any, Callable, Mapping

from . import wire
from .channel import Channel, told
from .listening import at
from .loop import READ, Loop, Timer
from .seats import Outcome, Plan, Seats
from .tls import IdentityFault, spiffe_id

_ACCEPT_PAUSE_S = 0.05
_ACCEPTS_AT_ONCE = 64
_TOLD_AT_MOST = 50


class _Guest:
    """A connection, from its accept to its end; `rank` is its seat, once it has one."""

    __slots__ = ("address", "certificate", "channel", "heard", "rank", "timer")

    def __init__(self, address: str, heard: float) -> None:
        self.address = address
        self.certificate: Mapping[str, Any] = {}
        self.channel: Channel | None = None
        self.heard = heard
        self.rank = wire.NO_RANK
        self.timer: Timer | None = None


class Leader:
    """The rendezvous as rank 0 runs it; it owns every connection until `close`.

    Args:
        listener: bound and listening on the address that the others dial.
        on_event: told what happens, as a small mapping, for the report.
        on_go: called once, when every rank has its seat.
        on_over: called once, when the run has failed or was stopped; nothing is served after it.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        context: ssl.SSLContext,
        plan: Plan,
        *,
        on_event: Callable[[dict[str, Any]], None],
        on_go: Callable[[], None],
        on_over: Callable[[Outcome], None],
    ) -> None:
        self._loop, self._listener, self._context, self._plan = loop, listener, context, plan
        self._on_event, self._on_go, self._on_over = on_event, on_go, on_over
        self._seats = Seats(plan, leader_pid=os.getpid())
        self._seated: dict[int, _Guest] = {}
        self._waiting: dict[_Guest, None] = {}
        self._most_waiting = max(256, 4 * plan.world)
        self._end = loop.now() + plan.deadline_s
        self._last_refusal = ""
        self._strangers = 0
        self.outcome: Outcome | None = None
        listener.settimeout(0)
        loop.add(listener, READ, self._accept)
        self._deadline = loop.call_in(plan.deadline_s, self._missed)
        self._beat = loop.call_in(plan.beat_s, self._heartbeat)
        self._looked = loop.now()
        self._watch = loop.call_in(plan.beat_s / 4, self._look)
        if plan.world == 1:
            loop.call_in(0.0, self._go)

    @property
    def gone(self) -> bool:
        """Has GO been given?"""
        return self._seats.gone

    @property
    def silent(self) -> bool:
        """Is every connection closed?"""
        return all(guest.channel is None or guest.channel.closed for guest in self._seated.values())

    def stop(self) -> None:
        """End an assembled replica in good order: GOODBYE to everyone."""
        stopped = Outcome(wire.Cause.STOPPED, wire.NO_RANK, "stopped in good order")
        self._over(stopped, last_word=wire.frame(wire.Kind.GOODBYE))

    def cancel(self, why: str) -> None:
        """Give up before the deadline, because someone wants it."""
        self._over(Outcome(wire.Cause.CANCELLED, wire.NO_RANK, f"cancelled: {why}", self._unless_gone()))

    def close(self) -> None:
        """Close whatever is open."""
        self._end_listening()
        for guest in [*self._waiting, *self._seated.values()]:
            if guest.channel:
                guest.channel.close()

    # -- connections ---------------------------------------------------------------------------------------------

    def _accept(self, _events: int) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            self._receive(sock, at(address[0], address[1]))

    def _pause(self, error: OSError) -> None:
        """No descriptor is left (EMFILE, ENFILE): wait for strangers to be dropped; the deadline still holds."""
        self._on_event({"event": "accept-failed", "text": errno.errorcode.get(error.errno or 0, str(error))})
        self._loop.drop(self._listener)
        self._loop.call_in(_ACCEPT_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self.outcome is None:
            self._loop.add(self._listener, READ, self._accept)

    def _receive(self, sock: socket.socket, address: str) -> None:
        guest = _Guest(address, self._loop.now())
        sock.settimeout(0)
        guest.channel = Channel(
            self._loop,
            sock,
            self._context,
            server_side=True,
            on_open=lambda certificate: setattr(guest, "certificate", certificate),
            on_frame=lambda frame: self._heard(guest, frame),
            on_end=lambda reason: self._ended(guest, reason),
        )
        self._waiting[guest] = None
        guest.timer = self._loop.call_in(self._plan.hello_timeout_s, lambda: self._silent(guest))
        if len(self._waiting) > self._most_waiting:
            self._drop(next(iter(self._waiting)), "made way: too many connections wait for their hello")

    def _silent(self, guest: _Guest) -> None:
        self._drop(guest, f"said no hello within {self._plan.hello_timeout_s:.1f} s")

    def _drop(self, guest: _Guest, why: str) -> None:
        if guest.channel:
            guest.channel.close()
        self._forget(guest)
        self._stranger(guest, why)

    def _forget(self, guest: _Guest) -> None:
        self._waiting.pop(guest, None)
        if guest.timer:
            guest.timer.cancel()

    def _stranger(self, guest: _Guest, why: str) -> None:
        """Somebody without a seat has gone, or was sent away; told, never counted as a rank."""
        self._strangers += 1
        if self._strangers <= _TOLD_AT_MOST:
            self._on_event({"event": "stranger", "address": guest.address, "text": why})

    def _ended(self, guest: _Guest, reason: BaseException | None) -> None:
        self._forget(guest)
        if isinstance(reason, wire.OtherVersion):
            self._refused(guest, wire.Refusal.VERSION, str(reason))
        if guest.rank == wire.NO_RANK:
            self._stranger(guest, told(reason))
            return
        pid = self._seats.pid(guest.rank)
        self._lost(guest, wire.Cause.LOST, f"rank {guest.rank} (pid {pid}) {told(reason)} without a goodbye")

    # -- frames --------------------------------------------------------------------------------------------------

    def _heard(self, guest: _Guest, frame: wire.Frame) -> None:
        guest.heard = self._loop.now()
        try:
            if guest.rank == wire.NO_RANK:
                self._greet(guest, frame)
            elif frame.kind == wire.Kind.GOODBYE:
                self._lost(guest, wire.Cause.LEFT, f"rank {guest.rank} said goodbye")
            elif frame.kind not in (wire.Kind.PING, wire.Kind.PONG):
                raise wire.WireError(f"frame {frame.kind} from a seated rank")
            elif frame.kind == wire.Kind.PING:
                self._say(guest, wire.frame(wire.Kind.PONG))
        except wire.WireError as error:
            if guest.rank == wire.NO_RANK:
                self._refuse(guest, wire.Refusal.PROTOCOL, str(error))
            else:
                self._lost(guest, wire.Cause.INTERNAL, f"rank {guest.rank} broke the protocol: {error}")

    def _greet(self, guest: _Guest, frame: wire.Frame) -> None:
        if frame.kind != wire.Kind.HELLO:
            raise wire.WireError(f"frame {frame.kind} where a hello was due")
        said = wire.read_hello(frame.body)
        try:
            identity = spiffe_id(guest.certificate)
        except IdentityFault as fault:
            self._refuse(guest, wire.Refusal.IDENTITY, str(fault))
            return
        refuse = self._seats.claim(said, identity, guest.address)
        if refuse:
            self._refuse(guest, refuse.code, refuse.text)
            return
        self._forget(guest)
        guest.rank = said.rank
        self._seated[said.rank] = guest
        self._on_event({"event": "seated", "rank": said.rank, "pid": said.pid})
        left_ms = int(max(0.0, self._end - self._loop.now()) * 1000)
        self._say(
            guest, wire.welcome(wire.Welcome(left_ms, int(self._plan.beat_s * 1000), self._seats.joined))
        )
        if self._seats.whole:
            self._go()

    def _refuse(self, guest: _Guest, code: wire.Refusal, text: str) -> None:
        self._forget(guest)
        self._refused(guest, code, text)
        if guest.channel:
            guest.channel.send(wire.refused(code, text))
            guest.channel.finish()

    def _refused(self, guest: _Guest, code: wire.Refusal, text: str) -> None:
        self._last_refusal = text
        self._on_event(
            {"event": "refused", "reason": code.name.lower(), "address": guest.address, "text": text}
        )

    def _say(self, guest: _Guest, frame: bytes) -> None:
        if guest.channel:
            guest.channel.send(frame)

    # -- the run -------------------------------------------------------------------------------------------------

    def _go(self) -> None:
        if self.outcome or not self._seats.whole:
            return
        self._seats.gone = True
        self._deadline.cancel()
        for guest in list(self._seated.values()):
            self._say(guest, wire.frame(wire.Kind.GO))
        # a rank may have died of its GO: the send has noticed, and on_over has been called
        if self.outcome is None:
            self._on_go()
            self._on_event({"event": "go", "ranks": self._plan.world})

    def _lost(self, guest: _Guest, cause: wire.Cause, text: str) -> None:
        """A seated rank is gone: before GO its seat is free again, after GO the replica has failed."""
        rank = guest.rank
        if self._seated.get(rank) is not guest:
            return
        del self._seated[rank]
        if guest.channel and cause == wire.Cause.FROZEN:
            # it may only have been slow: it shall read why, and not find a reset
            guest.channel.send(wire.abort(wire.Abort(rank, cause, text)))
            guest.channel.finish()
        elif guest.channel:
            guest.channel.close()
        if self.gone:
            self._over(Outcome(cause, rank, text))
        else:
            self._seats.free(rank)
            self._last_refusal = text
            self._on_event({"event": "freed", "rank": rank, "text": text})

    def _missed(self) -> None:
        missing = self._seats.missing
        named = ", ".join(str(rank) for rank in missing)
        text = (
            f"{self._seats.joined} of {self._plan.world} ranks joined before the deadline of"
            f" {self._plan.deadline_s:.2f} s; missing rank{'' if len(missing) == 1 else 's'} {named}"
        )
        if self._last_refusal:
            text += f"; last refusal: {self._last_refusal}"
        self._over(Outcome(wire.Cause.DEADLINE, missing[0] if missing else wire.NO_RANK, text, missing))

    def _heartbeat(self) -> None:
        for guest in list(self._seated.values()):
            self._say(guest, wire.frame(wire.Kind.PING))
        if self.outcome is None:
            self._beat = self._loop.call_in(self._plan.beat_s, self._heartbeat)

    def _look(self) -> None:
        """Who has been silent for too long is frozen, although its connection stands."""
        now, beat_s = self._loop.now(), self._plan.beat_s
        stopped = now - self._looked > beat_s
        self._looked = now
        for guest in list(self._seated.values()):
            if stopped:
                # this very process was stopped for a while: the silence is ours, not theirs
                guest.heard = now
            silence = now - guest.heard
            # looked at every quarter of a heartbeat, so that the last allowed heartbeat is never over
            if silence > (self._plan.lost_after - 0.5) * beat_s:
                pid = self._seats.pid(guest.rank)
                text = f"rank {guest.rank} (pid {pid}) has been silent for {silence:.1f} s"
                self._lost(guest, wire.Cause.FROZEN, text)
        if self.outcome is None:
            self._watch = self._loop.call_in(beat_s / 4, self._look)

    def _unless_gone(self) -> tuple[int, ...]:
        return () if self.gone else self._seats.missing

    def _over(self, outcome: Outcome, *, last_word: bytes | None = None) -> None:
        if self.outcome:
            return
        if last_word is None:
            last_word = wire.abort(wire.Abort(outcome.rank, outcome.cause, outcome.text))
        self.outcome = outcome
        self._deadline.cancel()
        self._beat.cancel()
        self._watch.cancel()
        self._end_listening()
        # what is served ends before the others are told: nobody may see a broken replica answer
        self._on_over(outcome)
        for guest in list(self._seated.values()):
            self._say(guest, last_word)
            if guest.channel:
                guest.channel.finish()
        for guest in list(self._waiting):
            self._forget(guest)
            if guest.channel:
                guest.channel.close()

    def _end_listening(self) -> None:
        self._loop.drop(self._listener)
        self._listener.close()
