"""One rank's process: takes its orders from a socket, joins the rendezvous, and ends when that socket ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from typing import Any, Callable, NamedTuple

from .engine import HOST, Engine
from .leader import Leader
from .listening import bind
from .loop import READ, Loop
from .member import Address, Member
from .seats import Outcome, Plan
from .tls import Contexts, Loaded
from .wire import Cause

_LAST_WORDS_S = 1.2
_MAX_ORDERS = 256

FINE, FAILED, ORPHANED, BROKEN = 0, 10, 11, 12


class Parts(NamedTuple):
    """What a rank is made of; a test replaces one part by a broken one, to see a scenario fail.

    spawn: "fork" (the default), or "exec" for an interpreter of its own for each rank, whose parts are the whole ones.
    """

    engine: Callable[..., Engine] = Engine
    leader: Callable[..., Leader] = Leader
    member: Callable[..., Member] = Member
    bind: Callable[[str, int], socket.socket] = bind
    spawn: str = "fork"


class Start(NamedTuple):
    """What one rank is started with.

    address: where rank 0 listens; None for rank 0 itself.
    port: what rank 0 listens on; 0 leaves it to the kernel.
    host: this rank's own address: what rank 0 listens on, and the others dial from; None is loopback, and any.
    """

    plan: Plan
    loaded: Loaded
    address: Address | None
    port: int
    host: str | None = None


class _Orphaned(Exception):
    """The process that started this rank is gone."""


def run_rank(
    rank: int, orders: socket.socket, start: Start, parts: Parts, reserved: socket.socket | None = None
) -> int:
    """Be a rank until it is over; the process's exit status.

    `orders` is our end of the pair to the process that started us: `stop` comes in, events go out, one JSON packet
    each, and its end means that nobody watches over this rank any more. `reserved` is rank 0's listener where it is
    bound already.
    """
    loop = Loop()
    process = _Rank(loop, rank, orders)
    try:
        if start.address is None:
            process.lead(
                start.plan,
                start.loaded.contexts,
                parts,
                reserved or parts.bind(start.host or HOST, start.port),
            )
        else:
            process.join(start.plan, start.loaded.contexts, parts, start.address, start.host)
        loop.run(lambda: process.outcome is not None, 10 * 365 * 86400.0)
        process.last_words()
    except _Orphaned:
        return ORPHANED
    except Exception as error:  # noqa: BLE001 - whatever it is, the one who watches must read it
        process.tell({"event": "broken", "text": f"{type(error).__name__}: {error}"})
        return BROKEN
    return FINE if process.outcome and process.outcome.cause == Cause.STOPPED else FAILED


class _Rank:
    def __init__(self, loop: Loop, rank: int, orders: socket.socket) -> None:
        self._loop, self._rank, self._orders = loop, rank, orders
        self._session: Leader | Member | None = None
        self.outcome: Outcome | None = None
        orders.settimeout(0)
        loop.add(orders, READ, self._order)
        self._woken, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        loop.add(self._woken, READ, self._terminated)
        # a handler alone would not end the selector's wait (PEP 475)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda _signum, _frame: None)

    def lead(self, plan: Plan, contexts: Contexts, parts: Parts, listener: socket.socket) -> None:
        """Be rank 0: the rendezvous listens at once, the API after GO."""
        engine = parts.engine(self._loop, ranks=plan.world)
        listener.listen(max(128, 2 * plan.world))

        def over(outcome: Outcome) -> None:
            engine.stop()
            self._over(outcome)

        self._session = parts.leader(
            self._loop, listener, contexts.server, plan, on_event=self.tell, on_go=engine.serve, on_over=over
        )
        self.tell({"event": "listening", "port": listener.getsockname()[1], "api_port": engine.port})

    def join(
        self, plan: Plan, contexts: Contexts, parts: Parts, address: Address, source: str | None
    ) -> None:
        """Be any other rank: it never listens."""
        self._session = parts.member(
            self._loop,
            address,
            contexts.client,
            plan,
            self._rank,
            on_event=self.tell,
            on_go=lambda: None,
            on_over=self._over,
            source=source,
        )

    def tell(self, event: dict[str, Any]) -> None:
        """One event to whoever watches; a full or closed pipe is no reason to stop."""
        with contextlib.suppress(OSError):
            self._orders.send(json.dumps(event).encode())

    def last_words(self) -> None:
        """Let what was said last arrive, for a moment only."""
        session = self._session
        if session:
            self._loop.run(lambda: session.silent, _LAST_WORDS_S)
            session.close()

    def _order(self, _events: int) -> None:
        try:
            order = self._orders.recv(_MAX_ORDERS)
        except BlockingIOError:
            return
        except OSError:
            order = b""
        if not order:
            raise _Orphaned
        if isinstance(self._session, Leader):
            self._session.stop()
        elif self._session:
            self._session.leave()

    def _terminated(self, _events: int) -> None:
        os.read(self._woken, _MAX_ORDERS)
        if self._session:
            self._session.cancel(f"rank {self._rank} (pid {os.getpid()}) got SIGTERM")

    def _over(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.tell(
            {
                "event": "over",
                "cause": outcome.cause.name.lower(),
                "rank": outcome.rank,
                "text": outcome.text,
                "missing": list(outcome.missing),
            }
        )
