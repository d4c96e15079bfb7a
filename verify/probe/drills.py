"""The named scenarios, in the order they are run in, each with what it is measured against."""

from __future__ import annotations

from typing import Callable, NamedTuple

from . import drills_good as good
from . import drills_identity as identity
from . import drills_lost as lost
from . import drills_refused as refused
from .stage import CannotJudge, Finding, Stage

__all__ = ["DRILLS", "CannotJudge", "Drill", "Finding", "Stage"]


class Drill(NamedTuple):
    """One named scenario.

    kind: positive must succeed; negative must be refused or must fail, and passes when it did.
    twin: the scenario of the other kind that shows that this one could have ended otherwise.
    """

    name: str
    kind: str
    twin: str
    expected: str
    run: Callable[[Stage], Finding]


def _good(name: str, twin: str, expected: str, run: Callable[[Stage], Finding]) -> Drill:
    return Drill(name, "positive", twin, expected, run)


def _bad(name: str, twin: str, expected: str, run: Callable[[Stage], Finding]) -> Drill:
    return Drill(name, "negative", twin, expected, run)


_NO_SEAT = "no seat for it, a seat for the right identity; CA:"
_INSTALLED = f"{_NO_SEAT} the installed bundle"
_THROW_AWAY = f"{_NO_SEAT} a throw-away CA that this drill alone trusts"
_NAMED = "is refused at once, both values are told to both sides, and the real rank still joins"

DRILLS = (
    _good("assemble", "missing-rank", "every rank joins over mutual TLS before the deadline", good.assemble),
    _good(
        "late-leader", "killed-leader", "ranks that dial before rank 0 listens wait for it", good.late_leader
    ),
    _good(
        "gate",
        "missing-rank",
        "the API refuses before GO and answers after it; only rank 0 listens",
        good.gate,
    ),
    _good(
        "clean-shutdown",
        "killed-rank",
        "all say goodbye, end with 0, and nothing answers",
        good.clean_shutdown,
    ),
    _bad("missing-rank", "assemble", "fails by its deadline and names the rank", lost.missing_rank),
    _bad(
        "killed-rank",
        "clean-shutdown",
        "the whole replica fails within 100 ms, rank, pid and signal are named, the API is down",
        lost.killed_rank,
    ),
    _bad(
        "frozen-rank", "clean-shutdown", "the whole replica fails within three heartbeats", lost.frozen_rank
    ),
    _bad(
        "killed-leader",
        "late-leader",
        "every other rank notices and ends, the API is down",
        lost.killed_leader,
    ),
    _bad("duplicate-rank", "assemble", f"a second claimant of a seat {_NAMED}", refused.duplicate_rank),
    _bad("wrong-world", "assemble", f"a rank of another world size {_NAMED}", refused.wrong_world),
    _bad("old-run", "assemble", f"a rank of another run {_NAMED}", refused.old_run),
    _bad(
        "stranger",
        "assemble",
        "connections without the identity are neither counted nor in the way",
        refused.stranger,
    ),
    _bad("wrong-identity-foreign-ca", "assemble", _INSTALLED, identity.foreign_ca),
    _bad("wrong-identity-cn-only", "assemble", _INSTALLED, identity.cn_only),
    _bad("wrong-identity-plain-tcp", "assemble", _INSTALLED, identity.plain_tcp),
    _bad("wrong-identity-expired", "assemble", _THROW_AWAY, identity.expired),
    _bad("wrong-identity-revoked", "assemble", _THROW_AWAY, identity.revoked),
    _bad("wrong-identity-wrong-node", "assemble", _THROW_AWAY, identity.wrong_node),
    _bad(
        "port-taken",
        "assemble",
        "rank 0 says at once who holds the port; freed, it serves",
        refused.port_taken,
    ),
)
