"""One thread, many sockets: a selector with callbacks and timers, for asyncio is not in python3-minimal."""

from __future__ import annotations

import contextlib
import heapq
import os
import selectors
import socket
import time
from typing import Any, Callable

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE


class Timer:
    """One thing to do at a time of the monotonic clock."""

    __slots__ = ("call", "when")

    def __init__(self, when: float, call: Callable[[], None] | None) -> None:
        self.when = when
        self.call = call

    def cancel(self) -> None:
        """Never run it."""
        self.call = None

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when


class Loop:
    """Calls back when a socket is ready or a time has come."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []
        self.now = time.monotonic

    def add(self, file: Any, events: int, call: Callable[[int], None]) -> None:  # noqa: ANN401 - any file object
        """Call `call(events)` whenever `file` is ready for one of `events`."""
        self._selector.register(file, events, call)

    def change(self, file: Any, events: int) -> None:  # noqa: ANN401 - any file object
        """Wait for other events of `file` from now on."""
        key = self._selector.get_key(file)
        if key.events != events:
            self._selector.modify(file, events, key.data)

    def drop(self, file: Any) -> None:  # noqa: ANN401 - any file object
        """Forget `file`, which must still be open; unknown ones are no error."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(file)

    def call_in(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call `call()` once, `seconds` from now."""
        timer = Timer(self.now() + seconds, call)
        heapq.heappush(self._timers, timer)
        return timer

    def run(self, until: Callable[[], bool], timeout_s: float) -> bool:
        """Serve sockets and timers until `until()` holds (True) or the time is over (what `until()` says then).

        What lies ready when the time is over is served still.
        """
        end = self.now() + timeout_s
        while not until():
            left = end - self.now()
            self._once(max(0.0, left))
            if left <= 0:
                # a machine that stood still has had one look at what came meanwhile
                return until()
        return True

    def close(self) -> None:
        """Forget everything; the files stay as they are."""
        self._selector.close()
        self._timers.clear()

    def abandon(self) -> None:
        """In a forked child, for good: close the copy of our parent's selector.

        Taking what it holds to pieces would write to it, and so copy its pages, for every child anew.
        """
        os.close(self._selector.fileno())

    def close_all(self) -> None:
        """Forget everything, and close every socket that is still watched."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self.close()

    def _once(self, at_most_s: float) -> None:
        while self._timers and self._timers[0].call is None:
            heapq.heappop(self._timers)
        if self._timers:
            at_most_s = min(at_most_s, self._timers[0].when - self.now())
        for key, events in self._selector.select(max(0.0, at_most_s)):
            # a callback of this very round may have dropped this file, and its number may be in use anew
            if self._current(key):
                key.data(events)
        while self._timers and self._timers[0].when <= self.now():
            call = heapq.heappop(self._timers).call
            if call is not None:
                call()

    def _current(self, key: selectors.SelectorKey) -> bool:
        try:
            return self._selector.get_key(key.fileobj).data is key.data
        except (KeyError, ValueError):
            return False
