"""The rendezvous that this one descends from, with its faults: a port in Python, and ours behind the same interface.

The original: the leader listens, a worker dials every 250 ms, and any connection is a worker. `Faults` switches its
habit of closing everything when it returns, so that the other faults can be looked at alone.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from verify.probe.leader import Leader
from verify.probe.loop import Loop
from verify.probe.member import Address, Member
from verify.probe.seats import Outcome, Plan
from verify.probe.tls import Contexts

from .table import PATIENCE_S, RUN, plan, set_ahead

_REDIAL_S = 0.25


class Party(Protocol):
    """A leader or a worker at work in its own thread."""

    def went(self, within_s: float) -> bool:
        """Did it say that the replica is assembled?"""

    def why(self, within_s: float) -> str | None:
        """Why it is over; None when it is not, or when nobody can learn of it."""

    def heard(self, event: str, within_s: float) -> bool:
        """Did it tell of such an event?"""

    def grow_older(self, seconds: float) -> None:
        """For it, that time has passed."""

    def die(self) -> None:
        """End as a killed process does."""

    def freeze(self) -> None:
        """Go on existing and do nothing more."""

    def cancel(self) -> None:
        """Somebody wants it to stop."""


class Play(Protocol):
    """One of the two rendezvous."""

    def lead(
        self,
        world: int,
        *,
        deadline_s: float = PATIENCE_S,
        listener: socket.socket | None = None,
        port: int = 0,
        beat_s: float = 1.0,
    ) -> tuple[Party, int]:
        """A leader and its port."""

    def join(
        self,
        port: int,
        rank: int,
        world: int,
        *,
        deadline_s: float = PATIENCE_S,
        run: bytes = RUN,
        host: str = "127.0.0.1",
        contexts: Contexts | None = None,
    ) -> Party:
        """A worker that dials it."""


class GoParty:
    """A thread that returns an error text, or None for success, as `Join` does."""

    def __init__(self, work: Callable[["GoParty"], str | None]) -> None:
        self.sockets: list[socket.socket] = []
        self.cancelled = threading.Event()
        self.ahead_s = 0.0
        self._returned = threading.Event()
        self._error: str | None = None

        def run() -> None:
            try:
                self._error = work(self)
            except OSError as error:
                self._error = os.strerror(error.errno or 0)
            self._returned.set()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def went(self, within_s: float) -> bool:
        return self._returned.wait(within_s) and self._error is None

    def why(self, within_s: float) -> str | None:
        if self._returned.wait(within_s) and self._error is None:
            time.sleep(within_s)  # nothing will ever tell
        return self._error

    def heard(self, event: str, within_s: float) -> bool:  # noqa: ARG002 - it tells nothing
        return self._returned.wait(within_s) and False

    def grow_older(self, seconds: float) -> None:
        self.ahead_s += seconds

    def die(self) -> None:
        self.cancelled.set()
        for sock in self.sockets:
            sock.close()

    def close(self) -> None:
        """Nothing is left of it, whatever it was doing."""
        self.cancelled.set()
        self._thread.join(PATIENCE_S)
        self.die()

    def freeze(self) -> None:
        """It does nothing anyway."""

    def cancel(self) -> None:
        self.cancelled.set()


class GoPlay:
    """The original's ways; `closes`: both sides close what they hold when they return."""

    def __init__(self, *, closes: bool = True) -> None:
        self._closes = closes
        self.parties: list[GoParty] = []

    def lead(
        self,
        world: int,
        *,
        deadline_s: float = PATIENCE_S,
        listener: socket.socket | None = None,
        port: int = 0,
        beat_s: float = 1.0,  # noqa: ARG002 - it has no heartbeat
    ) -> tuple[GoParty, int]:
        listening = listener or socket.create_server(("127.0.0.1", port))
        listening.settimeout(0.02)

        def host(party: GoParty) -> str | None:
            party.sockets.append(listening)
            joined, end = 0, time.monotonic() + deadline_s
            while joined < world - 1:
                if time.monotonic() + party.ahead_s > end or party.cancelled.is_set():
                    return f"only {joined} of {world - 1} workers joined before the deadline"
                try:
                    sock, _ = listening.accept()
                except TimeoutError:
                    continue
                party.sockets.append(sock)
                joined += 1
            if self._closes:
                party.die()
            return None

        return self._party(host), int(listening.getsockname()[1])

    def join(
        self,
        port: int,
        rank: int,  # noqa: ARG002 - it never says it
        world: int,  # noqa: ARG002 - it never says it
        *,
        deadline_s: float = PATIENCE_S,
        run: bytes = RUN,  # noqa: ARG002 - it has none
        host: str = "127.0.0.1",
        contexts: Contexts | None = None,  # noqa: ARG002 - it has none
    ) -> GoParty:
        def dial(party: GoParty) -> str | None:
            if not host:
                return None  # Multi() is false: there is nothing to meet
            end, last = time.monotonic() + deadline_s, ""
            while time.monotonic() < end and not party.cancelled.is_set():
                try:
                    sock = socket.create_connection((host, port), timeout=5)
                except OSError as error:
                    last = str(error)
                    time.sleep(min(_REDIAL_S, max(0.0, end - time.monotonic())))
                    continue
                party.sockets.append(sock)
                if self._closes:
                    sock.close()
                return None
            return f"the leader was not there before the deadline: {last}"

        return self._party(dial)

    def _party(self, work: Callable[[GoParty], str | None]) -> GoParty:
        party = GoParty(work)
        self.parties.append(party)
        return party

    def close(self) -> None:
        for party in self.parties:
            party.close()


class OurParty:
    """Our leader or member, with a loop and a thread of its own."""

    def __init__(self, make: Callable[[Loop, dict[str, Any]], Leader | Member]) -> None:
        self._went, self._over = threading.Event(), threading.Event()
        self._outcome: Outcome | None = None
        self._stopped, self._frozen = threading.Event(), False
        self._do: list[Callable[[], None]] = []
        self.events: list[dict[str, Any]] = []
        hooks = {"on_event": self.events.append, "on_go": self._went.set, "on_over": self._ended}
        self._loop = Loop()
        self._session = make(self._loop, hooks)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _ended(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._over.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            while self._do:
                self._do.pop()()
            if self._frozen:
                time.sleep(0.01)
            else:
                self._loop.run(lambda: bool(self._do) or self._stopped.is_set(), 0.005)
        self._session.close()
        self._loop.close_all()

    def went(self, within_s: float) -> bool:
        return self._went.wait(within_s)

    def why(self, within_s: float) -> str | None:
        self._over.wait(within_s)
        return self._outcome.text if self._outcome else None

    def heard(self, event: str, within_s: float) -> bool:
        end = time.monotonic() + within_s
        while not any(each["event"] == event for each in list(self.events)):
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def grow_older(self, seconds: float) -> None:
        self._do.append(lambda: set_ahead(self._loop, seconds))

    def die(self) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE_S)

    def freeze(self) -> None:
        self._frozen = True

    def cancel(self) -> None:
        self._do.append(lambda: self._session.cancel("the operator said so"))


class OurPlay:
    """Ours."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts
        self.parties: list[OurParty] = []

    def lead(
        self,
        world: int,
        *,
        deadline_s: float = PATIENCE_S,
        listener: socket.socket | None = None,
        port: int = 0,
        beat_s: float = 1.0,
    ) -> tuple[OurParty, int]:
        listening = listener or socket.create_server(("127.0.0.1", port), backlog=128)
        the_plan = plan(world, deadline_s=deadline_s, beat_s=beat_s)

        def make(loop: Loop, hooks: dict[str, Any]) -> Leader:
            return Leader(loop, listening, self._contexts.server, the_plan, **hooks)

        return self._party(make), int(listening.getsockname()[1])

    def join(
        self,
        port: int,
        rank: int,
        world: int,
        *,
        deadline_s: float = PATIENCE_S,
        run: bytes = RUN,
        host: str = "127.0.0.1",
        contexts: Contexts | None = None,
    ) -> OurParty:
        the_plan: Plan = plan(world, deadline_s=deadline_s, run_id=run)
        context = (contexts or self._contexts).client

        def make(loop: Loop, hooks: dict[str, Any]) -> Member:
            return Member(loop, Address(host, port), context, the_plan, rank, **hooks)

        return self._party(make)

    def _party(self, make: Callable[[Loop, dict[str, Any]], Leader | Member]) -> OurParty:
        party = OurParty(make)
        self.parties.append(party)
        return party

    def close(self) -> None:
        for party in self.parties:
            party.die()


@contextlib.contextmanager
def go(*, closes: bool = True) -> Iterator[GoPlay]:
    play = GoPlay(closes=closes)
    try:
        yield play
    finally:
        play.close()


@contextlib.contextmanager
def ours(contexts: Contexts) -> Iterator[OurPlay]:
    play = OurPlay(contexts)
    try:
        yield play
    finally:
        play.close()
