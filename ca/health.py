"""What the holder of an authority should see to: named checks, told at the end of every command.

These are the cheap ones, which read no record and verify no line; `ca.status` has those that take their time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from pathlib import Path

from cryptography import x509

from ca.census import Expiring
from ca.judge import wider
from ca.layout import ROOT_KEY, Layout
from ca.lists import SignedSet
from ca.policy import Policy
from ca.profile import timestamp
from ca.rotation import Stage, Standing
from inventory.errors import ExitCode

_WARN_BELOW = 0.2
"""Warn where less than this part of a life is left."""
LEAF_WARN_BELOW = 1 / 3
"""Of a node's certificate: it is renewed when two thirds of its life are over."""
_ROTATE = {
    "issuing": "node-ca rotate prepare --root-key FILE",
    "root": "node-ca rotate prepare --new-root --root-key FILE",
}
CLOCK_TOLERANCE = timedelta(minutes=15)


class Severity(IntEnum):
    """How bad it is; only CRITICAL keeps the authority, or the nodes, from working."""

    OK = 0
    INFO = 1
    WARNING = 2
    CRITICAL = 3

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    name: stable, for programs. text: a sentence. next_step: what mends it.
    code: the exit code of `node-ca status` where it is critical.
    """

    name: str
    severity: Severity
    text: str
    next_step: str | None = None
    code: ExitCode = ExitCode.REFUSED

    def to_json(self) -> dict[str, str | None]:
        """As --json shows it."""
        return {
            "name": self.name,
            "severity": str(self.severity),
            "text": self.text,
            "next": self.next_step,
        }


@dataclass(frozen=True, slots=True)
class Facts:
    """What the cheap checks look at.

    root_key: where the root's key was written. unfinished: announced certificates that were not issued.
    lists, announced: revocation lists as signed last, and those that were announced and not finished.
    unlisted: revocations that the lists do not name. rotation: where that stands.
    last_line: when the audit's last line was written.
    """

    layout: Layout
    policy: Policy
    root: x509.Certificate
    issuing: x509.Certificate
    root_key: Path
    unfinished: int
    lists: SignedSet | None
    announced: SignedSet | None
    unlisted: int
    expiring: Expiring | None
    rotation: Standing
    last_line: datetime | None


def checks(facts: Facts, now: datetime) -> Iterator[Check]:
    """Every cheap check, whatever it finds."""
    yield _root_key(facts)
    yield _life("root", "root", facts.root, now)
    yield _life("issuing", "issuing authority", facts.issuing, now)
    yield _room(facts, now)
    yield from _lists(facts, now)
    yield _leaves(facts)
    yield _unfinished(facts.unfinished)
    yield _constraints(facts)
    yield _signers(facts.policy)
    yield _rotation(facts.rotation)
    yield _clock(facts, now)


def _root_key(facts: Facts) -> Check:
    for place in dict.fromkeys([facts.root_key, (facts.layout.take_away / ROOT_KEY).absolute()]):
        if place.exists():
            text = f"the root's key is still on this host: take away {place.parent}"
            return Check("root-key", Severity.WARNING, text, f"move {place.parent} to a safe place")
    return Check("root-key", Severity.OK, "the root's key is not on this host")


def _life(name: str, title: str, certificate: x509.Certificate, now: datetime) -> Check:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now >= end:
        text = f"the {title} has expired ({timestamp(end)})"
        return Check(name, Severity.CRITICAL, text, "make a new authority, and onboard every node to it")
    if end - now < (end - begin) * _WARN_BELOW:
        text = f"the {title} expires in {(end - now).days} days ({timestamp(end)}); plan its successor: node-ca rotate"
        return Check(name, Severity.WARNING, text, f"make its successor in good time: {_ROTATE[name]}")
    return Check(name, Severity.OK, f"the {title} ends in {(end - now).days} days ({timestamp(end)})")


def _room(facts: Facts, now: datetime) -> Check:
    """A node's certificate is never shortened to fit below its issuer, so issuing ends before the issuer does."""
    left = facts.issuing.not_valid_after_utc - timedelta(seconds=1) - now
    days = facts.policy.lifetime_days
    if timedelta(0) < left < facts.policy.lifetime:
        text = (
            f"certificates of {days} days would outlive the issuing authority, which ends in {left.days} days: "
            "none can be issued"
        )
        mend = f"give it a successor: {_ROTATE['issuing']}" + (
            f", or set lifetime_days in policy.yaml to {left.days} or less" if left.days else ""
        )
        return Check("room", Severity.WARNING, text, mend)
    return Check("room", Severity.OK, f"certificates live for {days} days")


def _lists(facts: Facts, now: datetime) -> Iterator[Check]:
    lists, sign = facts.lists, "node-ca crl --out FILE"
    if lists is None:
        if facts.unlisted:
            count = _count(facts.unlisted, "certificate is", "certificates are")
            text = f"{count} revoked, and no revocation list was signed: {sign}"
            yield Check("crl", Severity.WARNING, text, sign)
        else:
            yield Check("crl", Severity.INFO, "no revocation list was signed, and nothing is revoked")
    else:
        yield _due(lists, now)
        if facts.unlisted:
            text = (
                f"the revocation lists lack {_count(facts.unlisted, 'revocation', 'revocations')}: "
                f"sign them anew: {sign}"
            )
            yield Check("crl-content", Severity.WARNING, text, sign)
        else:
            yield Check("crl-content", Severity.OK, "the revocation lists name everything that is revoked")
    if facts.announced is not None:
        first, last = facts.announced.slots[0].number, facts.announced.last.number
        text = f"signing revocation lists {first} to {last} was not finished; {sign} does"
        yield Check("crl-unfinished", Severity.WARNING, text, sign)


def _due(lists: SignedSet, now: datetime) -> Check:
    slot, sign = lists.due(now), "sign new ones: node-ca crl --ahead 6 --out FILE"
    name, end, ahead = f"revocation list {slot.number}", timestamp(slot.next_update), lists.ahead(now)
    if now >= slot.next_update:
        text = f"{name} ended at {end}: nodes that check it refuse every other node"
        return Check("crl", Severity.CRITICAL, text, sign)
    if ahead:
        last = timestamp(lists.last.next_update)
        text = f"{name} is due, until {timestamp(ahead[0].due)}; {len(ahead)} more reach until {last}"
        return Check("crl", Severity.OK, text)
    if slot.next_update - now < (slot.next_update - slot.due) / 2:
        text = f"{name} is the last one, and ends in {(slot.next_update - now).days} days ({end})"
        return Check("crl", Severity.WARNING, text, sign)
    return Check("crl", Severity.OK, f"{name} is valid until {end}")


def _leaves(facts: Facts) -> Check:
    if facts.expiring is None:
        return Check("leaves", Severity.OK, "no node's certificate ends soon")
    return Check(
        "leaves",
        Severity.WARNING,
        str(facts.expiring),
        f"renew them: onboard-node --renew {facts.expiring.node}",
    )


def _unfinished(count: int) -> Check:
    if not count:
        return Check("open", Severity.OK, "whatever was announced has its end in the audit")
    text = (
        f"{_count(count, 'certificate was', 'certificates were')} announced and not issued; "
        "the next issue closes that"
    )
    return Check("open", Severity.WARNING, text)


def _constraints(facts: Facts) -> Check:
    reasons = [*wider(facts.policy, facts.issuing)]
    if reasons:
        text = f"policy.yaml is wider than this authority: {'; '.join(reasons)}"
        return Check("constraints", Severity.WARNING, text, "narrow policy.yaml, or rotate: node-ca rotate")
    return Check("constraints", Severity.OK, "the policy stays within the authority's name constraints")


def _signers(policy: Policy) -> Check:
    file = policy.ticket_signers
    if file is not None and not file.exists():
        text = f"policy.yaml names ticket signers in {file}, which does not exist"
        return Check(
            "ticket-signers", Severity.WARNING, text, f"make {file} (ssh-keygen(1), ALLOWED SIGNERS)"
        )
    found = f"whose tickets count stands in {file}" if file else "no tickets count here: no onboarding"
    return Check("ticket-signers", Severity.OK if file else Severity.INFO, found)


def _rotation(standing: Standing) -> Check:
    if standing.stage is Stage.NONE and standing.begun is not None:
        text = "a successor was announced and not made; run node-ca rotate prepare again, or take it back"
        return Check("rotation", Severity.WARNING, text, "node-ca rotate --undo --do")
    if standing.stage is Stage.NONE:
        return Check("rotation", Severity.INFO, "no rotation is under way")
    what = "root and issuing authority" if standing.changes_root else "issuing authority"
    text = f"a rotation of the {what} is under way: {standing.stage}"
    return Check("rotation", Severity.INFO, text, "node-ca rotate")


def _clock(facts: Facts, now: datetime) -> Check:
    last = facts.last_line
    if last is not None and now < last - CLOCK_TOLERANCE:
        text = f"this host's clock says {timestamp(now)}, before the audit's last line ({timestamp(last)})"
        return Check("clock", Severity.CRITICAL, text, "set the clock of this host")
    return Check("clock", Severity.OK, "this host's clock is not behind the audit")


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
