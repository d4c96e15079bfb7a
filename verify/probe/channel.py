"""One connection between two ranks: handshake, frames in, frames out, and never a blocking call."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Any, Callable, Mapping

from . import wire
from .loop import READ, WRITE, Loop, Timer
from .tls import words

_READ_SIZE = 16384
_MAX_UNSENT = 65536
_LINGER_S = 1.0


class Channel:
    """A socket with TLS on it.

    TLS runs over memory and the socket is read and written here: `SSLContext.wrap_socket` loses its descriptor when
    the other side has reset the connection already, and a reset is what port scanners do.

    Args:
        sock: connected, non-blocking; the channel owns it from here on.
        on_open: called with the peer's certificate (`getpeercert()`) once the handshake is done.
        on_frame: called with each frame.
        on_end: called once when the connection is over by the other side's doing, with the reason; None is a plain
            end of the stream. Not called after `close` or `finish`.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        on_open: Callable[[Mapping[str, Any]], None],
        on_frame: Callable[[wire.Frame], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self._loop, self._sock = loop, sock
        self._on_open, self._on_frame, self._on_end = on_open, on_frame, on_end
        self._received, self._sealed = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._sealed, server_side=server_side)
        self._decoder = wire.Decoder()
        self._early = bytearray()
        self._unsent = bytearray()
        self._handshaken = False
        self._finishing = False
        self._lingering: Timer | None = None
        self.closed = False
        with contextlib.suppress(OSError):
            # else WELCOME's acknowledgement, 40 ms late, would hold back the GO that follows it
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # being writable is what makes a client begin
        loop.add(sock, READ | WRITE, self._ready)

    def send(self, frame: bytes) -> None:
        """Send a frame, now or as soon as the socket takes it."""
        if not self._open():
            return
        if not self._handshaken:
            self._early += frame
            return
        self._tls.write(frame)
        self._flush()
        if len(self._unsent) > _MAX_UNSENT:
            self._over(BlockingIOError("the other side does not read"))

    def finish(self) -> None:
        """Send what is still unsent, then close; a last word must not be lost to a reset."""
        if not self._open():
            return
        self._finishing = True
        self._lingering = self._loop.call_in(_LINGER_S, self.close)
        self._flush()

    def close(self) -> None:
        """Close now."""
        if self.closed:
            return
        self.closed = True
        self._loop.drop(self._sock)
        self._sock.close()
        if self._lingering:
            self._lingering.cancel()
        # TLS of the departed is 30 kB each; it must not wait for the collector to find their circles
        self._on_open, self._on_frame, self._on_end = _nobody, _nobody, _nobody
        del self._tls, self._received, self._sealed

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if self.closed:
            return
        try:
            data = self._sock.recv(_READ_SIZE) if events & READ else None
        except BlockingIOError:
            data = None
        except OSError as error:
            self._over(error)
            return
        if data == b"":
            self._over(None)
        elif not self._finishing:
            self._advance(data or b"")

    def _advance(self, data: bytes) -> None:
        """What the other side has sent, through TLS, into frames."""
        self._received.write(data)
        try:
            if not self._handshaken:
                self._tls.do_handshake()
                self._opened()
            while self._open():
                for frame in self._decoder.feed(self._tls.read(_READ_SIZE)):
                    if self._open():
                        self._on_frame(frame)
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLZeroReturnError:
            self._over(None)
        except (ssl.SSLError, wire.WireError) as error:
            self._turn_away(error)

    def _opened(self) -> None:
        self._handshaken = True
        self._on_open(self._tls.getpeercert() or {})
        if self._early and self._open():
            self._tls.write(self._early)
            self._early.clear()
        self._flush()

    def _open(self) -> bool:
        return not (self.closed or self._finishing)

    def _turn_away(self, reason: BaseException) -> None:
        """The other side is no peer: let OpenSSL's alert, or our own word, arrive before the end."""
        if not self._open():
            return
        if self._handshaken and isinstance(reason, wire.WireError):
            other = isinstance(reason, wire.OtherVersion)
            self._tls.write(
                wire.refused(wire.Refusal.VERSION if other else wire.Refusal.PROTOCOL, str(reason))
            )
        on_end = self._on_end
        self.finish()
        on_end(reason)

    def _flush(self) -> None:
        if self.closed:
            return
        self._unsent += self._sealed.read()
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            self._loop.change(self._sock, READ | WRITE)
            return
        except OSError as error:
            self._over(error)
            return
        self._loop.change(self._sock, READ)
        if self._finishing:
            self._half_close()

    def _half_close(self) -> None:
        """End our direction and wait for theirs: closing with bytes unread sends a reset, which eats the last word."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()

    def _over(self, reason: BaseException | None) -> None:
        if self.closed:
            return
        finishing, on_end = self._finishing, self._on_end
        self.close()
        if not finishing:
            on_end(reason)


def _nobody(_what: Any) -> None:  # noqa: ANN401 - whatever comes
    """Nobody listens any more."""


def told(reason: BaseException | None) -> str:
    """Why a connection ended, in words."""
    if reason is None:
        return "closed the connection"
    if isinstance(reason, wire.WireError):
        return str(reason)
    return words(reason)
