"""Six wrong identities, none of which may sit: each row names the CA that its leader trusts."""

from __future__ import annotations

import socket
from typing import Callable

from . import wire
from .drills_refused import answered, complete
from .engine import HOST
from .member import Address
from .replica import Replica
from .seats import Plan
from .stage import CannotJudge, Finding, Stage, fail, lead
from .throwaway import CannotMake, ThrowAway
from .tls import Loaded

_SOON_S = 10.0
_INSTALLED = "the installed bundle"


def foreign_ca(stage: Stage) -> Finding:
    """The node's own SPIFFE id, in a certificate of a CA that the bundle does not hold."""
    return _against_installed(stage, "good", "the node's own SPIFFE id from a foreign CA")


def cn_only(stage: Stage) -> Finding:
    """A certificate that names the node in its CN alone."""
    return _against_installed(stage, "bare", "a certificate with a CN and no SPIFFE id")


def plain_tcp(stage: Stage) -> Finding:
    """A perfect hello without any TLS."""
    replica, plan = stage.replica(stage.patience_s)
    with replica:
        lead(replica)
        began = stage.loop.now()
        fault = say_plainly(Address(HOST, replica.port), plan, 1)
        if fault:
            return fail(fault)
        return _then_complete(replica, stage, began, "a hello without TLS", _INSTALLED, "sent away")


def say_plainly(leader: Address, plan: Plan, rank: int) -> str:
    """Say a hello without TLS; empty when it was sent away. OSError where nobody can be dialled."""
    said = wire.hello(wire.Hello(plan.run_id, rank, plan.world, 1, 1000, plan.seats[rank].node))
    answer = b""
    with socket.create_connection(leader, timeout=_SOON_S) as sock:
        sock.sendall(said)
        try:
            answer = sock.recv(wire.MAX_BODY)
        except socket.timeout:
            return f"a hello without TLS was neither answered nor sent away in {_SOON_S:.1f} s"
        except OSError:
            pass
    return "a hello without TLS was answered in plain text" if answer.startswith(wire.MAGIC) else ""


def expired(stage: Stage) -> Finding:
    """A certificate whose time is over."""
    return _against_throwaway(stage, "expired", "expired")


def revoked(stage: Stage) -> Finding:
    """A certificate that is on its CA's revocation list."""
    return _against_throwaway(stage, "revoked", "revoked")


def wrong_node(stage: Stage) -> Finding:
    """A good certificate, for another node."""
    return _against_throwaway(stage, "wrong", "-other")


def _against_installed(stage: Stage, kind: str, what: str) -> Finding:
    replica, _ = stage.replica(stage.patience_s)

    def turned_away(ca: ThrowAway) -> Finding:
        with replica:
            lead(replica)
            bad = ca.identity(kind, trusts=stage.loaded.identity.ca_file)
            return _turned_away(replica, stage, bad.loaded, f"{what} ({bad.name})", _INSTALLED, "unknown ca")

    return _with_throwaway(stage, turned_away)


def _against_throwaway(stage: Stage, kind: str, word: str) -> Finding:
    def turned_away(ca: ThrowAway) -> Finding:
        good, bad = ca.identity("good"), ca.identity(kind)
        replica, _ = stage.pair(good.loaded, ca.spiffe_id)
        with replica:
            lead(replica)
            names = {"expired": "an expired certificate", "revoked": "a revoked certificate"}
            what = names.get(kind, f"a certificate for {ca.other_id}")
            return _turned_away(replica, stage, bad.loaded, what, good.name, word)

    return _with_throwaway(stage, turned_away)


def _with_throwaway(stage: Stage, run: Callable[[ThrowAway], Finding]) -> Finding:
    try:
        with ThrowAway(stage.seat.spiffe_id) as ca:
            return run(ca)
    except CannotMake as error:
        raise CannotJudge(f"no wrong identity could be made: {error}") from error


def _turned_away(replica: Replica, stage: Stage, bad: Loaded, what: str, trusted: str, word: str) -> Finding:
    """`word` is what the intruder must have been told of the reason."""
    began = stage.loop.now()
    second = replica.intrude(1, loaded=bad)
    answered(replica, second, stage)
    over = second.first("over")
    if second.first("welcome") or 1 in replica.seated:
        return fail(f"{what} was given a seat; the leader trusts {trusted}")
    if over is None or over["cause"] not in ("tls", "refused") or word not in over["text"]:
        text = (over or {}).get("text", second.end)
        return fail(f"{what} was not turned away for what it is; the leader trusts {trusted}: {text}")
    return _then_complete(replica, stage, began, what, trusted, over["text"])


def _then_complete(
    replica: Replica, stage: Stage, began: float, what: str, trusted: str, why: str
) -> Finding:
    took_ms = (stage.loop.now() - began) * 1000
    fault = complete(replica, stage)
    return Finding(
        not fault,
        fault
        or f"CA: {trusted}: {what} got no seat after {took_ms:.0f} ms ({why}); the right identity joined",
    )
