"""Changing an authority for its successor: where that stands, what comes next, and what blocks it (pure).

Four phases, each a line of the audit, so that a phase is reached at one instant or not at all: PREPARE makes
the successor, which nothing uses yet; DISTRIBUTE has nodes trust both; ACTIVATE issues from the successor;
RETIRE ends the former one. What a phase needs is that every node already bears what it changes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from ca.phases import Phase
from ca.profile import timestamp
from inventory.errors import Refused

BEGUN, PREPARED, DISTRIBUTED = "rotation-begun", "rotation-prepared", "rotation-distributed"
ACTIVATED, RETIRED, UNDONE = "rotation-activated", "rotation-retired", "rotation-undone"
LINES = (BEGUN, PREPARED, DISTRIBUTED, ACTIVATED, RETIRED, UNDONE)
"""The kinds of lines that tell of a rotation."""


class Stage(StrEnum):
    """What was done last."""

    NONE = "none"
    WAITING = "waiting"
    PREPARED = "prepared"
    DISTRIBUTED = "distributed"
    ACTIVATED = "activated"


@dataclass(frozen=True, slots=True)
class Generation:
    """One issuing authority with its root.

    id: names its folder; empty for the first one. root_key: where the root's key was written, empty where it
    never was on this host. since: the audit's line from which on it issues.
    """

    id: str
    root_sha256: str
    issuing_sha256: str
    root_key: str
    since: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a rotation stands, as the audit tells it.

    current: what issues. next: what was prepared. former: what issued before, until it is retired.
    retired: the former ones of all rotations of the past. begun: what an unfinished PREPARE announced.
    undone: whether the last rotation was taken back.
    """

    current: Generation
    stage: Stage = Stage.NONE
    next: Generation | None = None
    former: Generation | None = None
    retired: tuple[Generation, ...] = ()
    begun: Mapping[str, Any] | None = None

    @property
    def all(self) -> tuple[Generation, ...]:
        """Every authority that issued or will, oldest first."""
        known = (*self.retired, self.former, self.current, self.next)
        return tuple(each for each in known if each is not None)

    @property
    def trusted(self) -> tuple[Generation, ...]:
        """Whose roots nodes are to trust, one for each root, oldest first."""
        there = [self.former, self.current]
        if self.stage is Stage.DISTRIBUTED:
            there.append(self.next)
        by_root = {each.root_sha256: each for each in reversed(there) if each is not None}
        return tuple(reversed(by_root.values()))

    @property
    def listing(self) -> tuple[Generation, ...]:
        """Who has a revocation list in each set: what issues first, then what did, or will."""
        return tuple(each for each in (self.current, self.former, self.next) if each is not None)

    @property
    def changes_root(self) -> bool:
        """Whether the rotation that is under way changes the root."""
        other = self.next or self.former
        return other is not None and other.root_sha256 != self.current.root_sha256

    def until(self, generation: Generation) -> int | None:
        """The audit's line at which a generation ceased to issue; None: it has not."""
        later = [each.since for each in self.all if each.since > generation.since and each is not self.next]
        return min(later) if later else None


def standing(beginning: Mapping[str, Any], lines: Iterable[tuple[int, str, Mapping[str, Any]]]) -> Standing:
    """What the audit's lines add up to: `beginning` is its first, `lines` are those of LINES with their numbers.

    Raises:
        KeyError, TypeError, ValueError: a line lacks what it must say, or cannot follow the one before.
    """
    first = Generation(
        "", beginning["root_sha256"], beginning["issuing_sha256"], str(beginning.get("root_key", ""))
    )
    now = Standing(first)
    for number, kind, body in lines:
        now = _after(now, number, kind, body)
    return now


def _after(now: Standing, number: int, kind: str, body: Mapping[str, Any]) -> Standing:
    made = now.next
    match kind, now.stage:
        case "rotation-begun", Stage.NONE | Stage.WAITING:
            waits = bool(body["waits"])
            return replace(now, begun=dict(body), stage=Stage.WAITING if waits else Stage.NONE)
        case "rotation-prepared", Stage.NONE | Stage.WAITING:
            new = Generation(
                str(body["id"]), body["root_sha256"], body["issuing_sha256"], str(body["root_key"])
            )
            return replace(now, begun=None, stage=Stage.PREPARED, next=new)
        case "rotation-distributed", Stage.PREPARED:
            return replace(now, stage=Stage.DISTRIBUTED)
        case "rotation-activated", Stage.PREPARED | Stage.DISTRIBUTED if made is not None:
            new = replace(made, since=number)
            return replace(now, stage=Stage.ACTIVATED, current=new, former=now.current, next=None)
        case "rotation-retired", Stage.ACTIVATED if now.former is not None:
            return replace(now, stage=Stage.NONE, former=None, retired=(*now.retired, now.former))
        case "rotation-undone", Stage.NONE | Stage.WAITING | Stage.PREPARED | Stage.DISTRIBUTED:
            return replace(now, stage=Stage.NONE, next=None, begun=None)
        case _:
            raise ValueError(f"{kind} cannot follow {now.stage}")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a phase depends on, beside where the rotation stands.

    lacking: nodes with a live certificate whose bundle, as far as is on record, is not that of now.
    lists_lack: revocation lists are in use, and do not speak for the successor yet.
    holding_older: nodes that got a revocation list, but none that speaks for the successor.
    live_below: nodes with live certificates of the former authority; ends: when the last one of its
    certificates ends, revoked ones too; revoked_below: how many of those are revoked and have not ended.
    left_over: files of a phase that a crash kept from being taken away.
    """

    lacking: tuple[str, ...] = ()
    lists_lack: bool = False
    holding_older: tuple[str, ...] = ()
    live_below: tuple[str, ...] = ()
    ends: datetime | None = None
    revoked_below: int = 0
    left_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Why a phase is not entered. nodes: whom it is about. forcible: whether naming them all lifts it."""

    why: str
    mend: str
    nodes: tuple[str, ...] = ()
    forcible: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The next phase, what it would do, and what blocks it."""

    phase: Phase
    steps: tuple[str, ...]
    blocks: tuple[Block, ...] = ()


def plan(now: Standing, facts: Facts) -> Plan:
    """What comes next, wherever the rotation stands."""
    match now.stage:
        case Stage.NONE | Stage.WAITING:
            return Plan(Phase.PREPARE, _prepare_steps(now))
        case Stage.PREPARED if now.changes_root:
            return Plan(Phase.DISTRIBUTE, _DISTRIBUTE)
        case Stage.PREPARED | Stage.DISTRIBUTED:
            return Plan(Phase.ACTIVATE, _ACTIVATE, tuple(_before_activate(now, facts)))
        case Stage.ACTIVATED:
            return Plan(Phase.RETIRE, _retire_steps(now), tuple(_before_retire(now, facts)))


def remaining(blocks: Sequence[Block], forced: Iterable[str]) -> tuple[Block, ...]:
    """What still blocks where some nodes are given up by name."""
    given_up = frozenset(forced)
    left = []
    for block in blocks:
        nodes = tuple(node for node in block.nodes if node not in given_up)
        if not block.forcible or nodes:
            left.append(replace(block, nodes=nodes) if block.forcible else block)
    return tuple(left)


def refuse_blocked(phase: Phase, blocks: Sequence[Block]) -> None:
    """Refuse a phase that something blocks.

    Raises:
        Refused: with each reason, the nodes, and what mends it.
    """
    if blocks:
        lines = [block.why + (f": {named(block.nodes)}" if block.nodes else "") for block in blocks]
        raise Refused(
            f"{phase} would leave nodes that cannot talk",
            why="\n".join(lines),
            next_step="; ".join(block.mend for block in blocks),
        )


def named(nodes: Sequence[str], shown: int = 10) -> str:
    """Some nodes, the first few by name."""
    rest = f" and {len(nodes) - shown} more" if len(nodes) > shown else ""
    return ", ".join(nodes[:shown]) + rest


_DISTRIBUTE = (
    "the bundle holds the old root and the new one from now on",
    "onboard-node --refresh brings it to the nodes; who has it is on record",
    "certificates are issued as before",
)
_ACTIVATE = (
    "certificates are issued by the new authority from now on",
    "the former one only signs its revocation lists, until its last certificate has ended",
)


def _prepare_steps(now: Standing) -> tuple[str, ...]:
    if now.stage is Stage.WAITING:
        return ("take the certificate that the root, kept elsewhere, signed", "nothing uses it yet")
    return (
        "make a key and a certificate below the root for a new issuing authority, limited as policy.yaml says now",
        "with --new-root: make a new root, too; the old one signs it, for nodes that do not know it yet",
        "nothing uses any of it before it is activated",
    )


def _retire_steps(now: Standing) -> tuple[str, ...]:
    return (
        "the former issuing key is deleted, and its revocation lists end",
        *(("the bundle holds the new root alone; onboard-node --refresh",) if now.changes_root else ()),
    )


def _before_activate(now: Standing, facts: Facts) -> Iterable[Block]:
    if now.changes_root and facts.lacking:
        yield Block(
            f"{_count(facts.lacking)} without the new root in the bundle, as far as is on record",
            f"onboard-node --refresh {facts.lacking[0]}; of a bundle that was carried by hand: "
            f"node-ca rotate distribute --carried {facts.lacking[0]} --do; to leave it behind: --force-with NODE",
            facts.lacking,
            forcible=True,
        )
    if facts.lists_lack:
        yield Block(
            "the revocation lists do not speak for the new authority, and nodes would refuse what it issues",
            "sign them anew: node-ca crl --out FILE",
        )
    elif facts.holding_older:
        yield Block(
            f"{_count(facts.holding_older)} with a revocation list that does not speak for the new authority",
            f"onboard-node --refresh {facts.holding_older[0]}; to leave it behind: --force-with NODE",
            facts.holding_older,
            forcible=True,
        )


def _before_retire(now: Standing, facts: Facts) -> Iterable[Block]:
    if facts.live_below:
        yield Block(
            f"{_count(facts.live_below)} with a live certificate of the former authority",
            f"onboard-node --renew {facts.live_below[0]}, or wait: the last one ends by itself at "
            f"{timestamp(facts.ends) if facts.ends else 'no known time'}",
            facts.live_below,
        )
    elif facts.revoked_below and not now.changes_root:
        yield Block(
            f"{facts.revoked_below} revoked certificates of the former authority have not ended: without its "
            "revocation list they would count again, for the root stays the same",
            f"wait until {timestamp(facts.ends) if facts.ends else 'they have'}",
        )
    if now.changes_root and facts.lacking:
        yield Block(
            f"{_count(facts.lacking)} without the new root in the bundle, as far as is on record",
            f"onboard-node --refresh {facts.lacking[0]}",
            facts.lacking,
        )


def _count(nodes: Sequence[str]) -> str:
    return f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}"
