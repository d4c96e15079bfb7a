"""The processes of one replica, as their parent sees them: forked, watched, killed, and always reaped."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
from typing import Any, Callable, NoReturn

from .engine import HOST
from .loop import READ, Loop
from .member import Address
from .rank import BROKEN, Parts, Start, run_rank
from .seats import Plan
from .spawning import execute
from .tls import Loaded

_MAX_EVENT = 65536
_MAX_EVENTS = 1000
_OUTLIVE_S = 5.0
_HEAR_EVERY = 16
_LISTENS_WITHIN_S = 30.0


class Rank:
    """One rank's process: what it has told, and how it ended.

    status: as `os.waitstatus_to_exitcode` gives it: an exit status, or minus a signal's number; None while it lives.
    """

    def __init__(self, rank: int, pid: int, sock: socket.socket) -> None:
        self.rank, self.pid, self.sock = rank, pid, sock
        self.events: list[dict[str, Any]] = []
        self._firsts: dict[str, dict[str, Any]] = {}
        self.status: int | None = None
        self.began: float | None = None
        self.ended: float | None = None

    def first(self, name: str) -> dict[str, Any] | None:
        """The first event of that name, if there was one."""
        return self._firsts.get(name)

    def hear(self, event: dict[str, Any]) -> None:
        """One event more."""
        if len(self.events) < _MAX_EVENTS:
            self.events.append(event)
            self._firsts.setdefault(str(event.get("event")), event)

    @property
    def end(self) -> str:
        """How its process ended, in words."""
        if self.status is None:
            return "still runs"
        if self.status < 0:
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"exited with {self.status}"


class Replica:
    """Starts ranks by fork and keeps what they tell.

    Args:
        lifetime_s: a rank still there after this is killed by its own alarm, whatever became of its parent.
    """

    def __init__(self, loop: Loop, plan: Plan, loaded: Loaded, parts: Parts, *, lifetime_s: float) -> None:
        self._loop, self._plan, self._loaded, self._parts = loop, plan, loaded, parts
        self._lifetime_s = lifetime_s
        self._began = loop.now()
        self.ranks: dict[int, Rank] = {}
        self.intruders: list[Rank] = []
        self._reserved: socket.socket | None = None

    def __enter__(self) -> Replica:  # noqa: PYI034 - typing.Self is younger than Python 3.9
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def reserve(self) -> int:
        """Bind the rendezvous' port before rank 0 is there: until it listens, whoever dials it is refused."""
        self._reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._reserved.bind((HOST, 0))
        return int(self._reserved.getsockname()[1])

    def start_leader(self, port: int = 0, host: str | None = None) -> bool:
        """Start rank 0 and wait until it listens, on `port` where one is given; False when it does not."""
        leader = self._begin(0, Start(self._plan, self._loaded, None, port, host))
        if self._reserved:
            # rank 0 has it now; a copy left open here would keep on listening after its end
            self._reserved.close()
            self._reserved = None
        return self.wait(
            lambda: leader.first("listening") is not None or leader.status is not None, _LISTENS_WITHIN_S
        ) and bool(leader.first("listening"))

    def start(self, ranks: list[int]) -> None:
        """Start these ranks, which dial rank 0."""
        start = Start(self._plan, self._loaded, Address(HOST, self.port), 0)
        for rank in ranks:
            self._begin(rank, start)
            if rank % _HEAR_EVERY == 0:
                # what rank 0 tells of the first must not fill its socket while the last are started
                self._loop.run(lambda: False, 0.0005)

    def intrude(self, rank: int, *, plan: Plan | None = None, loaded: Loaded | None = None) -> Rank:
        """Start one process more, which says that it is `rank`, with another plan or another identity."""
        start = Start(plan or self._plan, loaded or self._loaded, Address(HOST, self.port), 0)
        view = self._fork(rank, start)
        self.intruders.append(view)
        return view

    def stop(self) -> None:
        """Ask the leader to end the replica in good order."""
        self.leader.sock.send(b"stop")

    def kill(self, rank: int) -> None:
        """SIGKILL one rank."""
        os.kill(self.ranks[rank].pid, signal.SIGKILL)

    def signal(self, rank: int, signum: int) -> None:
        """Send one rank a signal."""
        os.kill(self.ranks[rank].pid, signum)

    def end(self) -> None:
        """Whatever still runs is killed; nothing is left behind."""
        for view in [*self.ranks.values(), *self.intruders]:
            self._reap(view)
        if self._reserved:
            self._reserved.close()

    def wait(self, until: Callable[[], bool], timeout_s: float) -> bool:
        """Take in what the ranks tell until `until()` holds; False when the time is over first."""
        return self._loop.run(until, timeout_s)

    # -- what is known -------------------------------------------------------------------------------------------

    @property
    def world(self) -> int:
        """How many ranks it has when it is whole."""
        return self._plan.world

    @property
    def leader(self) -> Rank:
        """Rank 0."""
        return self.ranks[0]

    @property
    def port(self) -> int:
        """The rendezvous' port."""
        if self._reserved:
            return int(self._reserved.getsockname()[1])
        return int((self.leader.first("listening") or {})["port"])

    @property
    def api_port(self) -> int:
        """The API's port, which listens only between GO and the end."""
        return int((self.leader.first("listening") or {})["api_port"])

    @property
    def seated(self) -> dict[int, int]:
        """Who sits where, as the leader sees it: rank to pid, without the leader itself."""
        seats: dict[int, int] = {}
        for event in self.leader.events:
            if event.get("event") == "seated":
                seats[event["rank"]] = event["pid"]
            elif event.get("event") == "freed":
                seats.pop(event["rank"], None)
        return seats

    @property
    def gone(self) -> bool:
        """Has the leader given GO?"""
        return self.leader.first("go") is not None

    @property
    def everybody_gone(self) -> bool:
        """Has every rank of the world got GO?"""
        return len(self.ranks) == self._plan.world and all(view.first("go") for view in self.ranks.values())

    @property
    def all_ended(self) -> bool:
        """Has every rank's process ended?"""
        return all(view.status is not None for view in self.ranks.values())

    @property
    def trouble(self) -> str:
        """What went wrong, the cause before its consequences; empty when nothing did."""
        broken: list[str] = []
        died: list[str] = []
        over: list[str] = []
        lost: list[str] = []
        for view in self.ranks.values():
            told, last = view.first("broken"), view.first("over")
            if told:
                broken.append(f"rank {view.rank} broke: {told['text']}")
            elif last and last["cause"] != "stopped":
                (lost if last["cause"] == "leader_lost" else over).append(f"rank {view.rank}: {last['text']}")
            elif view.status is not None and not last:
                died.append(f"rank {view.rank} (pid {view.pid}) {view.end} without a word")
        return next(iter([*broken, *died, *over, *lost]), "")

    # -- processes -----------------------------------------------------------------------------------------------

    def _begin(self, rank: int, start: Start) -> Rank:
        self.ranks[rank] = self._fork(rank, start)
        return self.ranks[rank]

    def _fork(self, rank: int, start: Start) -> Rank:
        # one packet per event: no event is ever cut in two
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            known = [*self.ranks.values(), *self.intruders]
            self._child(rank, theirs, [ours, *(view.sock for view in known)], start)
        theirs.close()
        ours.settimeout(0)
        view = Rank(rank, pid, ours)
        view.began = self._loop.now()
        self._loop.add(ours, READ, lambda _events: self._hear(view))
        return view

    def _child(self, rank: int, orders: socket.socket, others: list[socket.socket], start: Start) -> NoReturn:
        status = BROKEN
        try:
            for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
                signal.signal(signum, signal.SIG_DFL)
            signal.alarm(math.ceil(self._lifetime_s + _OUTLIVE_S))
            self._loop.abandon()
            if rank and self._reserved:
                self._reserved.close()
            # our parent's ends must be the parent's alone: their end is what tells a rank that nobody watches it
            for sock in others:
                sock.close()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nowhere, descriptor)
            spent = self._loop.now() - self._began
            plan = start.plan
            if rank:
                plan = plan._replace(deadline_s=max(0.001, plan.deadline_s - spent))
            start = start._replace(plan=plan)
            listener = None if rank else self._reserved
            if self._parts.spawn == "exec":
                execute(rank, orders, start, listener)
            status = run_rank(rank, orders, start, self._parts, listener)
        finally:
            os._exit(status)

    def _hear(self, view: Rank) -> None:
        try:
            packet = view.sock.recv(_MAX_EVENT)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._reap(view)
        else:
            view.hear({**json.loads(packet), "at": self._loop.now()})

    def _reap(self, view: Rank) -> None:
        """Its end of the pair is closed, so it is dying or must die; SIGKILL changes nothing for the dying."""
        if view.status is not None:
            return
        self._loop.drop(view.sock)
        view.sock.close()
        os.kill(view.pid, signal.SIGKILL)
        _, status = os.waitpid(view.pid, 0)
        view.status = os.waitstatus_to_exitcode(status)
        view.ended = self._loop.now()
