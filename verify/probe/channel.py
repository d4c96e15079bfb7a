"""One connection between two ranks: handshake, frames in, frames out, and never a blocking call."""

from __future__ import annotations

import socket
import ssl
from typing import Any, Callable, Mapping

from . import wire
from .loop import READ, WRITE, Loop
from .tls import words

# one TLS record is at most 16 KiB: a read of that size leaves nothing hidden inside OpenSSL, where no selector looks
_READ_SIZE = 16384
_MAX_UNSENT = 65536
_LINGER_S = 1.0


class Channel:
    """A socket with TLS on it.

    Args:
        sock: connected, non-blocking; the channel owns it from here on.
        on_open: called with the peer's certificate (`getpeercert()`) once the handshake is done.
        on_frame: called with each frame.
        on_end: called once when the connection is over by the other side's doing, with the reason; None is a plain
            end of the stream. Not called after `close`.
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
        self._loop = loop
        self._on_open, self._on_frame, self._on_end = on_open, on_frame, on_end
        self._decoder = wire.Decoder()
        self._unsent = bytearray()
        self._finishing = False
        self.handshaken = False
        self.closed = False
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._sock = context.wrap_socket(sock, server_side=server_side, do_handshake_on_connect=False)
        except OSError:
            sock.close()
            raise
        loop.add(self._sock, READ | WRITE, self._ready)

    def send(self, frame: bytes) -> None:
        """Send a frame, now or as soon as the socket takes it."""
        if self.closed or self._finishing:
            return
        self._unsent += frame
        if len(self._unsent) > _MAX_UNSENT:
            self._over(BlockingIOError("the other side does not read"))
        elif self.handshaken:
            self._flush()

    def finish(self) -> None:
        """Send what is still unsent, then close; a last word must not be lost to a reset."""
        if self.closed or self._finishing:
            return
        self._linger()
        self._flush()

    def close(self) -> None:
        """Close now."""
        if not self.closed:
            self.closed = True
            self._loop.drop(self._sock)
            self._sock.close()

    def _ready(self, _events: int) -> None:
        try:
            if self._finishing and not self._unsent:
                self._discard()
            elif not self.handshaken:
                self._handshake()
            else:
                self._flush()
                if not self.closed:
                    self._read()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            pass
        except (ssl.SSLError, wire.WireError) as error:
            self._turn_away(error)
        except OSError as error:
            self._over(error)

    def _handshake(self) -> None:
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            self._loop.change(self._sock, READ)
            return
        except ssl.SSLWantWriteError:
            self._loop.change(self._sock, WRITE)
            return
        self.handshaken = True
        self._loop.change(self._sock, READ)
        self._on_open(self._sock.getpeercert() or {})
        if not self.closed:
            self._flush()

    def _read(self) -> None:
        data = self._sock.recv(_READ_SIZE)
        if not data:
            self._over(None)
            return
        for frame in self._decoder.feed(data):
            self._on_frame(frame)
            if self.closed or self._finishing:
                return

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            self._loop.change(self._sock, READ | WRITE)
            return
        except OSError as error:
            self._over(error)
            return
        self._loop.change(self._sock, READ)
        if self._finishing:
            self._half_close()

    def _linger(self) -> None:
        self._finishing = True
        self._loop.call_in(_LINGER_S, self.close)

    def _turn_away(self, reason: BaseException) -> None:
        """The other side is no peer. OpenSSL has sent its alert, or we say what is wrong: let it arrive."""
        if self._finishing:
            self.close()
            return
        self._unsent.clear()
        if self.handshaken and isinstance(reason, wire.WireError):
            other = isinstance(reason, wire.OtherVersion)
            self._unsent += wire.refused(
                wire.Refusal.VERSION if other else wire.Refusal.PROTOCOL, str(reason)
            )
        self._linger()
        self._flush()
        self._on_end(reason)

    def _half_close(self) -> None:
        """End our direction and wait for theirs: closing with bytes unread sends a reset, which eats the last word."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()

    def _discard(self) -> None:
        try:
            if not self._sock.recv(_READ_SIZE):
                self.close()
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError:
            self.close()

    def _over(self, reason: BaseException | None) -> None:
        if self.closed:
            return
        finishing = self._finishing
        self.close()
        if not finishing:
            self._on_end(reason)


def told(reason: BaseException | None) -> str:
    """Why a connection ended, in words."""
    if reason is None:
        return "closed the connection"
    if isinstance(reason, wire.WireError):
        return str(reason)
    return words(reason)
