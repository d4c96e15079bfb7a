"""One node's part of a run over several nodes: it starts its ranks, and does what the other side of stdin orders.

Orders are JSON objects, one a line; each is answered by one line, `{"event": "reply", ...}`, in a bounded time. Between
orders the loop goes on, so that ranks are watched and packets are echoed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from typing import Any, Callable, Mapping

from .checks import identity_facts
from .drills_identity import say_plainly
from .engine import ask
from .listening import at, bind, ports
from .loop import READ, Loop
from .member import Address
from .paths import Echo, try_path
from .rank import Parts, Start
from .replica import Rank, Replica
from .seats import Plan, Seat
from .strangers import silent, visit
from .throwaway import CannotMake, ThrowAway
from .timeline import own_time_line
from .tls import Identity, IdentityFault, Loaded, load

_ASK_S = 5.0
_WORD_S = 2.0
_MAX_LINE = 65536
_SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "wake": signal.SIGCONT}


class Placed(Replica):
    """The ranks of a replica that run on this node.

    Args:
        host: this node's address on the network: rank 0 listens on it, the others dial from it.
    """

    def __init__(
        self, loop: Loop, plan: Plan, loaded: Loaded, parts: Parts, *, lifetime_s: float, host: str
    ) -> None:
        super().__init__(loop, plan, loaded, parts, lifetime_s=lifetime_s)
        self.host = host

    def listen(self) -> int:
        """Bind the rendezvous' port before rank 0 is there."""
        self._reserved = bind(self.host, 0)
        return int(self._reserved.getsockname()[1])

    @property
    def reserved(self) -> bool:
        """Is the port bound, and rank 0 not there yet?"""
        return self._reserved is not None

    def join(self, ranks: list[int], leader: Address) -> None:
        """Start these ranks here, which dial rank 0 there."""
        for rank in ranks:
            self._begin(rank, Start(self._plan, self._loaded, leader, 0, self.host))

    def pretend(self, rank: int, leader: Address, plan: Plan, loaded: Loaded | None = None) -> Rank:
        """Start one process more, which says that it is `rank` of `plan`, with another identity where one is given."""
        view = self._fork(rank, Start(plan, loaded or self._loaded, leader, 0, self.host))
        self.intruders.append(view)
        return view


class Across:
    """This node's ranks, and what is done with them.

    Args:
        say: takes each event.
    """

    def __init__(
        self, settings: Mapping[str, Any], parts: Parts, say: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._say, self._parts = say, parts
        self._node = str(settings["node"])
        self._run_id = bytes.fromhex(settings["run_id"])
        self._seats = tuple(Seat(*seat) for seat in settings["across"]["seats"])
        self._host = str(settings["across"]["address"])
        self._identity = Identity(**settings["identity"])
        self._expected_id = settings.get("spiffe_id")
        self._loop = Loop()
        self._ends = self._loop.now() + float(settings["deadline_s"])
        self._loaded: Loaded | None = None
        self._placed: Placed | None = None
        self._plan: Plan | None = None
        self._opened = 0.0
        self._echoes: list[Echo] = []
        self._held: list[socket.socket] = []
        self._orders: list[dict[str, Any]] = []
        self._unread = bytearray()

    def run(self, descriptor: int) -> None:
        """Tell who this is, then take orders until the last one, or until nobody gives any."""
        self._loop.add(descriptor, READ, lambda _events: self._read(descriptor))
        facts = identity_facts(
            self._identity, node=self._node, expected_id=self._expected_id, now=time.time()
        )
        if not facts["fault"]:
            try:
                self._loaded = load(self._identity)
            except IdentityFault as fault:
                facts["fault"] = str(fault)
        self._say({"event": "identity", **facts})
        try:
            while True:
                self._loop.run(lambda: bool(self._orders), max(0.0, self._ends - self._loop.now()))
                if not self._orders:
                    raise TimeoutError("the deadline of the whole verification has passed")
                order = self._orders.pop(0)
                self._say({"event": "reply", "do": order["do"], **self._obey(order)})
                if order["do"] == "bye":
                    return
        finally:
            self._close()

    def _read(self, descriptor: int) -> None:
        data = os.read(descriptor, 4096)
        if not data:
            from .main import SessionCut

            raise SessionCut
        self._unread += data
        if len(self._unread) > _MAX_LINE:
            raise ValueError(f"an order of more than {_MAX_LINE} bytes")
        *lines, rest = bytes(self._unread).split(b"\n")
        self._unread = bytearray(rest)
        self._orders += [json.loads(line) for line in lines]

    def _obey(self, order: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"fault": None, **getattr(self, f"_do_{order['do']}")(order)}
        except (OSError, LookupError, ValueError) as error:
            return {"fault": f"{type(error).__name__}: {error}"[:500]}

    # -- orders about ranks --------------------------------------------------------------------------------------

    def _do_open(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """A new replica, none of whose ranks runs here yet."""
        self._end()
        if self._loaded is None:
            raise ValueError("the identity does not hold")
        deadline_s, hello_s, beat_s = (
            float(order[name]) for name in ("deadline_s", "hello_timeout_s", "beat_s")
        )
        plan = Plan(self._run_id, self._seats, deadline_s, hello_s, beat_s)
        self._opened = self._loop.now()
        left_s = max(1.0, self._ends - self._opened)
        self._plan = plan
        self._placed = Placed(self._loop, plan, self._loaded, self._parts, lifetime_s=left_s, host=self._host)
        return {}

    def _do_reserve(self, _order: Mapping[str, Any]) -> dict[str, Any]:
        """Bind rank 0's port, on which nobody listens before the order to lead."""
        placed, _ = self._open()
        return {"port": placed.listen()}

    def _do_lead(self, order: Mapping[str, Any]) -> dict[str, Any]:
        placed, _ = self._open()
        wanted = int(order.get("port") or 0)
        port = wanted or (placed.port if placed.reserved else placed.listen())
        if not placed.start_leader(wanted, self._host):
            # a busy machine may be slow to let it end with its word
            placed.wait(lambda: bool(placed.trouble), _WORD_S)
            raise OSError(f"rank 0 does not listen on {self._host}: {placed.trouble or 'it said nothing'}")
        return {"port": port, "pid": placed.leader.pid}

    def _do_join(self, order: Mapping[str, Any]) -> dict[str, Any]:
        placed, _ = self._open()
        placed.join(list(order["ranks"]), Address(*order["leader"]))
        return {"pids": {str(rank): placed.ranks[rank].pid for rank in order["ranks"]}}

    def _do_pretend(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Be somebody that one is not: another rank, of another run or of another world."""
        placed, plan = self._open()
        if order.get("run_id"):
            plan = plan._replace(run_id=bytes.fromhex(order["run_id"]))
        if order.get("surplus"):
            plan = plan._replace(seats=(*plan.seats, *plan.seats[:1] * int(order["surplus"])))
        rank, leader = int(order["rank"]), Address(*order["leader"])
        if order.get("ca"):
            view = self._foreign(placed, plan, rank, leader, str(order["ca"]))
        else:
            view = placed.pretend(rank, leader, plan)
        self._loop.run(lambda: _decided(view), float(order["within_s"]))
        return {
            "pid": view.pid,
            "welcome": view.first("welcome") is not None,
            "over": view.first("over"),
            "end": view.end,
        }

    def _foreign(self, placed: Placed, plan: Plan, rank: int, leader: Address, kind: str) -> Rank:
        """A rank with an identity of a CA that is made here and that nobody trusts."""
        try:
            with ThrowAway(plan.seats[rank].spiffe_id) as ca:
                bad = ca.identity(kind, trusts=self._identity.ca_file)
                return placed.pretend(rank, leader, plan, bad.loaded)
        except CannotMake as error:
            raise ValueError(f"no wrong identity could be made: {error}") from error

    def _do_plain(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Say a hello without TLS."""
        _, plan = self._open()
        return {"wrong": say_plainly(Address(*order["leader"]), plan, int(order["rank"]))}

    def _do_visit(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Every kind of stranger, or only one that says nothing, from here; some stay until the replica ends."""
        _, plan = self._open()
        there = Address(*order["leader"])
        visits = [silent(there)] if order.get("silent") else visit(there, plan, int(order["rank"]))
        self._held += [seen.held for seen in visits if seen.held]
        return {
            "visits": [{"kind": seen.kind, "seated": seen.seated, "tried": seen.tried} for seen in visits]
        }

    def _do_squat(self, _order: Mapping[str, Any]) -> dict[str, Any]:
        """Hold a port of this node's address until the next replica is opened."""
        self._open()
        taken = bind(self._host, 0)
        self._held.append(taken)
        taken.listen(1)
        port = int(taken.getsockname()[1])
        return {"port": port, "at": at(self._host, port), "pid": os.getpid()}

    def _do_listeners(self, _order: Mapping[str, Any]) -> dict[str, Any]:
        """The ports that each of this node's ranks listens on."""
        placed, _ = self._open()
        found = ports([view.pid for view in placed.ranks.values()])
        return {"ports": {str(view.rank): sorted(found[view.pid]) for view in placed.ranks.values()}}

    def _do_signal(self, order: Mapping[str, Any]) -> dict[str, Any]:
        placed, _ = self._open()
        placed.signal(int(order["rank"]), _SIGNALS[order["signal"]])
        return {}

    def _do_stop(self, _order: Mapping[str, Any]) -> dict[str, Any]:
        placed, _ = self._open()
        placed.stop()
        return {}

    def _do_watch(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Wait until each of this node's ranks has told `event`, or is `ended`, then tell what they said."""
        placed, _ = self._open()
        until, but = str(order["until"]), set(order.get("but", ()))
        began = self._loop.now()

        def there() -> bool:
            views = [view for view in placed.ranks.values() if view.rank not in but]
            if until == "seated":
                return len(placed.seated) >= int(order["count"])
            if until == "ended":
                return all(view.status is not None for view in views)
            return all(view.first(until) is not None or view.status is not None for view in views)

        held = self._loop.run(there, float(order["within_s"]))
        return {
            "held": held,
            "took_ms": round((self._loop.now() - began) * 1000, 3),
            "seated": {str(rank): pid for rank, pid in placed.seated.items()} if 0 in placed.ranks else {},
            "ranks": [_seen(view) for view in placed.ranks.values()],
        }

    def _do_ask(self, _order: Mapping[str, Any]) -> dict[str, Any]:
        """Does rank 0's API answer?"""
        placed, _ = self._open()
        answer = ask(placed.api_port, "/health", timeout_s=_ASK_S)
        return {"status": answer.status, "refused": answer.refused}

    def _do_times(self, _order: Mapping[str, Any]) -> dict[str, Any]:
        """When each of this node's ranks started, joined, got GO and ended, since the order to open."""
        placed, _ = self._open()
        return {"ranks": own_time_line(placed, self._opened)}

    def _do_end(self, _order: Mapping[str, Any]) -> dict[str, Any]:
        self._end()
        return {}

    def _do_bye(self, _order: Mapping[str, Any]) -> dict[str, Any]:
        self._close()
        return {}

    # -- orders about networks -----------------------------------------------------------------------------------

    def _do_echo(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Echo packets on each of these addresses; the ports."""
        ports = {}
        for host in order["addresses"]:
            try:
                echo = Echo(self._loop, host)
            except OSError as error:
                ports[host] = f"{host} is no address of this node: {os.strerror(error.errno or 0).lower()}"
                continue
            self._echoes.append(echo)
            ports[host] = str(echo.port)
        return {"ports": ports}

    def _do_path(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Send a small packet and a full one, with DF, to an echo of another node."""
        there = Address(*order["to"])
        return dict(try_path(self._loop, str(order["from"]), there, int(order["mtu"]))._asdict())

    # -- the end -------------------------------------------------------------------------------------------------

    def _open(self) -> tuple[Placed, Plan]:
        if self._placed is None or self._plan is None:
            raise ValueError("no replica is open")
        return self._placed, self._plan

    def _end(self) -> None:
        if self._placed:
            self._placed.end()
        self._placed = None
        for sock in self._held:
            sock.close()
        self._held.clear()

    def _close(self) -> None:
        self._end()
        for echo in self._echoes:
            echo.close()
        self._echoes.clear()


def _decided(view: Rank) -> bool:
    return view.first("over") is not None or view.first("welcome") is not None or view.status is not None


def _seen(view: Rank) -> dict[str, Any]:
    """One rank as its node sees it: the little that verdicts are made of."""
    told = view.first("broken")
    return {
        "rank": view.rank,
        "pid": view.pid,
        "status": view.status,
        "end": view.end,
        "go": view.first("go") is not None,
        "retry": view.first("retry") is not None,
        "over": view.first("over"),
        "refused": [event["text"] for event in view.events if event["event"] == "refused"][-3:],
        "broken": told["text"] if told else None,
    }
