"""Who may sit where: the leader's judgement of a hello. Pure; the sockets are in rendezvous.py."""

from __future__ import annotations

from typing import NamedTuple

from .wire import Cause, Hello, Refusal


class Seat(NamedTuple):
    """Who may take a rank: the node that must be named in its hello, and the SPIFFE id that must be shown."""

    node: str
    spiffe_id: str


class Plan(NamedTuple):
    """What every rank of one run agrees on.

    run_id: 16 random bytes.
    seats: one per rank, rank 0 (the leader) first; its length is the world size.
    deadline_s: from the start to GO; the only deadline there is.
    hello_timeout_s: from a connection to its whole hello, and from a hello to its answer.
    beat_s: a PING goes out this often; a peer that was silent for `lost_after` of them is frozen.
    """

    run_id: bytes
    seats: tuple[Seat, ...]
    deadline_s: float
    hello_timeout_s: float = 2.0
    beat_s: float = 1.0
    lost_after: int = 3

    @property
    def world(self) -> int:
        """The world size: how many ranks, the leader among them."""
        return len(self.seats)


class Outcome(NamedTuple):
    """How a rendezvous, or the replica it made, ended.

    rank: whose fault it was, NO_RANK when nobody's.
    missing: the ranks that had no seat; empty after GO.
    """

    cause: Cause
    rank: int
    text: str
    missing: tuple[int, ...] = ()


class Sitter(NamedTuple):
    """Who holds a seat."""

    pid: int
    address: str


class Refuse(NamedTuple):
    """No seat: why, with both values."""

    code: Refusal
    text: str


class Seats:
    """The seats of one run, as the leader sees them."""

    def __init__(self, plan: Plan, *, leader_pid: int) -> None:
        self._plan = plan
        self._taken = {0: Sitter(leader_pid, "the leader")}
        self.gone = False

    @property
    def joined(self) -> int:
        """How many seats are taken, the leader's among them."""
        return len(self._taken)

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks whose seats are free, in order."""
        return tuple(rank for rank in range(self._plan.world) if rank not in self._taken)

    @property
    def whole(self) -> bool:
        """Is every seat taken?"""
        return len(self._taken) == self._plan.world

    def pid(self, rank: int) -> int:
        """The process that holds `rank`; 0 when nobody does."""
        sitter = self._taken.get(rank)
        return sitter.pid if sitter else 0

    def claim(self, said: Hello, spiffe_id: str, address: str) -> Refuse | None:
        """Seat who said this, or say why not (None is a seat). GO is not given here."""
        plan = self._plan
        if said.run_id != plan.run_id:
            return Refuse(
                Refusal.RUN, f"this is run {plan.run_id.hex()}, the hello is of run {said.run_id.hex()}"
            )
        if said.world != plan.world:
            return Refuse(Refusal.WORLD, f"the world size is {plan.world} here, {said.world} in the hello")
        if not 1 <= said.rank < plan.world:
            return Refuse(
                Refusal.RANK,
                f"ranks 1 to {plan.world - 1} may join a world of {plan.world}, not rank {said.rank}",
            )
        seat = plan.seats[said.rank]
        if said.node != seat.node or spiffe_id != seat.spiffe_id:
            return Refuse(
                Refusal.IDENTITY,
                f"rank {said.rank} is for {seat.node} ({seat.spiffe_id}), the hello names {said.node}"
                f" and the certificate {spiffe_id}",
            )
        sitter = self._taken.get(said.rank)
        if self.gone or self.whole:
            holder = f"pid {sitter.pid} at {sitter.address}" if sitter else "nobody"
            return Refuse(
                Refusal.SURPLUS,
                f"all {plan.world} ranks have joined: rank {said.rank} is held by {holder},"
                f" pid {said.pid} at {address} is one too many",
            )
        if sitter:
            return Refuse(
                Refusal.DUPLICATE,
                f"rank {said.rank} is held by pid {sitter.pid} at {sitter.address},"
                f" pid {said.pid} at {address} says it is the same",
            )
        self._taken[said.rank] = Sitter(said.pid, address)
        return None

    def free(self, rank: int) -> None:
        """Nobody holds `rank` any more; only before GO may another take it."""
        self._taken.pop(rank, None)
