"""Several nodes at once: a thread and a session for each, and one node's failure is its own."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol, TypeVar

from inventory.console import Console, Waiting
from provision.hypervisor import Hypervisor
from provision.tasks import Tools

T = TypeVar("T")
R = TypeVar("R")
AT_ONCE = 32
"""Most of them wait: for a storage that takes a few clones at a time, or for a guest to boot."""
_TELL_EVERY_S = 30.0


class Session(Hypervisor, Protocol):
    """A connection to Proxmox, for one thread."""

    def close(self) -> None:
        """End it."""


class Many:
    """Work on several nodes in threads.

    Args:
        tools: the main thread's; the others get the same with a session of their own.
        open_session: makes such a session.
        at_once: how many nodes are worked on at the same time.
    """

    def __init__(self, tools: Tools, open_session: Callable[[], Session], *, at_once: int = AT_ONCE) -> None:
        """No thread is started yet."""
        self._tools = tools
        self._open_session = open_session
        self._at_once = at_once
        self._own = threading.local()
        self._sessions: list[Session] = []
        self._stopping = threading.Event()

    def each(
        self, items: Sequence[T], work: Callable[[T, Tools], R], *, name_of: Callable[[T], str]
    ) -> tuple[R, ...]:
        """What `work` makes of each item, in their order; `work` keeps the foreseen failures of its node.

        An interruption reaches the main thread. It ends the waits of the others, each of which says what goes on
        without it, and waits for the requests that are under way.
        """
        if len(items) < 2 or self._at_once < 2:
            return tuple(work(item, self._tools) for item in items)
        with (
            ThreadPoolExecutor(min(self._at_once, len(items)), "node") as pool,
            contextlib.ExitStack() as stack,
        ):
            stack.callback(self._close)
            futures = [pool.submit(self._one, item, work, name_of(item)) for item in items]
            try:
                return tuple(future.result() for future in futures)
            except BaseException:
                self._stopping.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _one(self, item: T, work: Callable[[T, Tools], R], name: str) -> R:
        if not hasattr(self._own, "session"):
            self._own.session = self._open_session()
            self._sessions.append(self._own.session)
        console = OneOfMany(self._tools.console, name)
        return work(
            item, replace(self._tools, hypervisor=self._own.session, console=console, sleep=self._sleep)
        )

    def _sleep(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise KeyboardInterrupt

    def _close(self) -> None:
        for session in self._sessions:
            session.close()


class OneOfMany(Console):
    """The console of one node among others: its lines begin with its name, and nothing is drawn in place."""

    def __init__(self, console: Console, name: str) -> None:
        """The same streams and the same loudness."""
        vars(self).update(vars(console))
        self._prefix = f"{name}: "

    def say(self, text: str) -> None:
        """Talk."""
        super().say(text if text.startswith(self._prefix) else self._prefix + text)

    def detail(self, text: str) -> None:
        """Talk that -v asks for."""
        super().detail(self._prefix + text)

    def trouble(self, text: str) -> None:
        """One plain line."""
        super().trouble(self._prefix + text)

    @contextmanager
    def waiting(
        self, what: str, *, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> Iterator[Waiting]:
        """A wait that is told with -v when it begins, and to all every half minute."""
        self.detail(f"waiting for {what} (at most {timeout_s:.0f} s)")
        began = last = clock()

        def show(state: str) -> None:
            nonlocal last
            if clock() - last >= _TELL_EVERY_S:
                last = clock()
                self.say(f"still waiting for {what}: {state}, {clock() - began:.0f} s so far")

        yield Waiting(show)
