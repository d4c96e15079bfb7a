"""One running command on a node: both streams drained and capped, and an end by its deadline.

`Channel` is what is needed of an SSH library's channel; this module knows no library.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from inventory.console import printable
from inventory.errors import OtherSide

MAX_OUTPUT = 1024 * 1024
_MAX_LINE = 256 * 1024
_CHUNK = 32768
_POLL_S = 0.005
_DRAIN_S = 0.05
"""An SSH window of 2 MiB takes 40 MiB/s at this pace."""
_GRACE_S = 2.0
_LONGEST_WORD = 400


class Channel(Protocol):
    """A command's three streams and its end (paramiko.Channel)."""

    closed: bool
    status_event: threading.Event
    """Set once the exit status has come, or the channel is closed."""

    @property
    def eof_received(self) -> int:
        """Has stdout ended?"""

    def settimeout(self, timeout: float) -> None:
        """How long send and recv may block, in seconds."""

    def send(self, data: bytes, /) -> int:
        """Send a part of the data; how much it was."""

    def recv(self, size: int, /) -> bytes:
        """What stdout said."""

    def recv_stderr(self, size: int, /) -> bytes:
        """What stderr said."""

    def recv_ready(self) -> bool:
        """Would `recv` not block?"""

    def recv_stderr_ready(self) -> bool:
        """Would `recv_stderr` not block?"""

    def exit_status_ready(self) -> bool:
        """Would `recv_exit_status` not block?"""

    def recv_exit_status(self) -> int:
        """The exit status; -1 where there is none."""

    def shutdown_write(self) -> None:
        """End the command's stdin."""

    def close(self) -> None:
        """End the channel."""


@contextmanager
def alarm(timeout_s: float, end: Callable[[], object]) -> Iterator[None]:
    """Call `end` from another thread if the block takes longer: for calls of a library that know no deadline."""
    timer = threading.Timer(max(0.0, timeout_s), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended; each stream is cut at 1 MiB."""

    exit_status: int
    stdout: bytes
    stderr: bytes

    @property
    def last_words(self) -> str:
        """The last line of stderr, else the exit status; nothing in it steers a terminal."""
        lines = self.stderr.decode("utf-8", "replace").strip().splitlines()
        if not lines:
            return f"exit status {self.exit_status}, no word"
        return printable(lines[-1].strip()[:_LONGEST_WORD])


class Remote:
    """One running command on the node, its stdin open."""

    def __init__(self, channel: Channel, *, command: str, cut: Callable[[], object]) -> None:
        """Made by `Session.start`; `cut` ends the whole session, for a server that takes nothing any more."""
        self._channel = channel
        self._cut = cut
        self._command = command
        self._pending = bytearray()
        self._stderr = bytearray()

    def send(self, data: bytes, *, timeout_s: float = 60.0) -> None:
        """Write to the command's stdin.

        Raises:
            OtherSide: it takes no more, or not within `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        view = memoryview(data)
        while view:
            # Draining first keeps a command that talks while we send from blocking on a full window.
            self._drain()
            self._channel.settimeout(max(0.01, min(1.0, deadline - time.monotonic())))
            try:
                with alarm(deadline - time.monotonic() + _GRACE_S, self._cut):
                    view = view[self._channel.send(bytes(view[:_CHUNK])) :]
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise self._late(timeout_s) from None
            except (OSError, EOFError) as error:
                raise self._lost(str(error) or "the session was closed") from error

    def close_stdin(self) -> None:
        """Tell the command that its input has ended."""
        with alarm(_GRACE_S, self._cut), contextlib.suppress(OSError, EOFError):
            self._channel.shutdown_write()  # a session that is gone tells so when its output is read

    def lines(self, *, timeout_s: float) -> Iterator[bytes]:
        """The lines of stdout, without their newline, until it ends.

        Raises:
            OtherSide: it has not ended after `timeout_s` seconds, or a line is longer than 256 KiB.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self._drain()
            while (cut := self._pending.find(b"\n")) >= 0:
                line = bytes(self._pending[:cut])
                del self._pending[: cut + 1]
                yield line
            if len(self._pending) > _MAX_LINE:
                raise self._lost(f"it sent a line longer than {_MAX_LINE} bytes")
            if ended:
                if self._pending:
                    yield bytes(self._pending)
                    self._pending.clear()
                return
            if time.monotonic() >= deadline:
                raise self._late(timeout_s)
            self._wait(deadline)

    def finish(self, *, timeout_s: float) -> Result:
        """Wait for the end: the exit status, and what was not read yet.

        `recv_exit_status` of paramiko knows no deadline, so this watches for it instead.

        Raises:
            OtherSide: it has not ended after `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while not (self._drain(cap=True) and self._channel.exit_status_ready()):
            if self._channel.closed and not self._channel.exit_status_ready():
                raise self._lost("the session was cut")
            if time.monotonic() >= deadline:
                raise self._late(timeout_s)
            self._wait_for_end(deadline)
        status = self._channel.recv_exit_status()
        self._drain(cap=True)
        self.kill()
        if status < 0:
            raise self._lost("the command was ended by a signal, or the session was cut")
        return Result(status, bytes(self._pending[:MAX_OUTPUT]), bytes(self._stderr[:MAX_OUTPUT]))

    def kill(self) -> None:
        """Close the channel: the command sees the end of its stdin, and OpenSSH leaves it to act on that."""
        with alarm(_GRACE_S, self._cut), contextlib.suppress(OSError, EOFError):
            self._channel.close()

    def _drain(self, *, cap: bool = False) -> bool:
        """Take what has arrived on both streams; True when both have ended."""
        while self._channel.recv_stderr_ready():
            self._stderr += self._channel.recv_stderr(_CHUNK)
            del self._stderr[MAX_OUTPUT:]
        while self._channel.recv_ready():
            self._pending += self._channel.recv(_CHUNK)
            if cap:
                del self._pending[MAX_OUTPUT:]
            elif len(self._pending) > _MAX_LINE:
                break
        ended = bool(self._channel.eof_received or self._channel.closed)
        return ended and not (self._channel.recv_ready() or self._channel.recv_stderr_ready())

    def _wait(self, deadline: float) -> None:
        time.sleep(max(0.0, min(_POLL_S, deadline - time.monotonic())))

    def _wait_for_end(self, deadline: float) -> None:
        """Woken by the end itself, and now and then to drain: many commands at once cost little while they run."""
        if self._channel.status_event.is_set():
            self._wait(deadline)
        else:
            self._channel.status_event.wait(max(0.0, min(_DRAIN_S, deadline - time.monotonic())))

    def _late(self, timeout_s: float) -> OtherSide:
        self.kill()
        return OtherSide(
            "a command on the node did not end",
            why=f"no end within {timeout_s:.0f} s: {self._command[:120]}",
            next_step="look at the node's load, then run the command again",
        )

    def _lost(self, why: str) -> OtherSide:
        self.kill()
        return OtherSide(
            "a command on the node was lost",
            why=f"{why}: {self._command[:120]}",
            next_step="run the command again",
        )
