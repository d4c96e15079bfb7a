"""Is a passport to be believed? Offline, against allowed signers and the roots of the authority; all faults at once."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from inventory import signature
from inventory.errors import Refused
from inventory.model import State
from inventory.passport import dsse
from inventory.passport.agreement import Contents, agreement
from inventory.passport.earlier import continues
from inventory.passport.identity import Absent, Judge, all_sha256
from inventory.passport.leaf import Finding, Leaf
from inventory.passport.statement import Certificate, Passport, from_payload
from inventory.passport.withdrawn import NOWHERE, Withdrawn, revocation
from inventory.ticket import (
    RECEIPT_NAMESPACE,
    TICKET_NAMESPACE,
    Receipt,
    Ticket,
    iso,
    peek_receipt,
    peek_ticket,
    read_receipt,
    signed_ticket,
)

_AHEAD = timedelta(minutes=5)
_NEEDS_IT = {State.AWAITING_VERIFICATION, State.VERIFYING, State.IN_SERVICE}
"""Where a node stands on its certificate; elsewhere one may have ended, or not be there yet."""


@dataclass(frozen=True, slots=True)
class Trust:
    """What a passport is judged by.

    signers: whose passports and receipts count. ticket_signers: whose tickets. roots: the authority's, PEM.
    judge: who reads certificates. withdrawn: which keys and certificates count no more.
    None, and Absent: that part is not checked, and the verdict says so.
    """

    signers: Path
    ticket_signers: Path | None
    roots: str | None
    judge: Judge | Absent
    withdrawn: Withdrawn = NOWHERE


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a passport. signers: the principals that its key belongs to."""

    passport: Passport
    signers: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def broken(self) -> tuple[str, ...]:
        """Why it is not believed."""
        return tuple(found.text for found in self.findings if found.kind == "broken")

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.broken

    def to_json(self) -> dict[str, Any]:
        """As --json shows it."""
        told: dict[str, Any] = {
            "ok": self.ok,
            "node": self.passport.node,
            "state": str(self.passport.state),
            "made_at": iso(self.passport.made_at),
            "made_by": self.passport.made_by,
            "signers": list(self.signers),
            "key": self.passport.key,
        }
        for title, kind in (
            ("holds", "holds"),
            ("broken", "broken"),
            ("not_checked", "unchecked"),
            ("notes", "note"),
        ):
            told[title] = [found.text for found in self.findings if found.kind == kind]
        return {**told, "missing": [{"what": each.what, "why": each.why} for each in self.passport.missing]}

    def refuse(self, file: str) -> None:
        """Nothing where it holds.

        Raises:
            Refused: it does not; every reason is told.
        """
        if not self.ok:
            raise Refused(
                f"{file} is not believed",
                why="\n".join(self.broken),
                next_step="ask the security holder for a new one, and tell them of this one",
            )


def judge(text: str, *, trust: Trust, now: datetime) -> Verdict:
    """The verdict over a passport's text.

    Raises:
        Refused: it is no passport, was changed, or its signer is not allowed; then nothing in it means anything.
        BadInput: a file of signers is absent, or ssh-keygen is.
    """
    envelope = dsse.unseal(text)
    passport = from_payload(envelope.payload)
    if passport.key != envelope.signature.fingerprint:
        raise _refused(f"it says that {passport.key} signs it, and {envelope.signature.fingerprint} did")
    if passport.made_at > now + _AHEAD:
        raise _refused(f"it was made at {iso(passport.made_at)}, which is yet to come")
    principals = envelope.principals(signers=trust.signers, now=passport.made_at)
    if file := trust.withdrawn.revoked_in(
        envelope.message, envelope.signature.armour, namespace=dsse.NAMESPACE
    ):
        raise _refused(f"the key of {principals[0]} is revoked ({file})")
    found = [Finding("holds", f"signed by {', '.join(principals)} with {passport.key} and not changed since")]
    if envelope.signature.untouched:
        found.append(
            Finding("note", "nobody touched the FIDO token when it signed: whoever used its host could")
        )
    try:
        envelope.principals(signers=trust.signers, now=now)
    except Refused:
        found.append(
            Finding("note", f"the signer's key counted at {iso(passport.made_at)}, and does no more")
        )
    found += contents(passport, trust=trust, now=now)
    return Verdict(passport, principals, tuple(found))


def judge_after(text: str, earlier: str, *, trust: Trust, now: datetime) -> Verdict:
    """The same, and whether all that an earlier passport of the node told is still in it.

    Raises:
        Refused: as `judge`; or the earlier one is not believed, so that it says nothing of this one.
        BadInput: as `judge`.
    """
    verdict = judge(text, trust=trust, now=now)
    former = judge(earlier, trust=trust, now=now)
    former.refuse("the earlier passport")
    return replace(verdict, findings=(*verdict.findings, *continues(former.passport, verdict.passport)))


def contents(passport: Passport, *, trust: Trust, now: datetime) -> Iterator[Finding]:
    """Every check but that of the passport's own signature."""
    ticket, found = _ticket(passport, trust)
    yield from found
    receipts, found = _receipts(passport, trust)
    yield from found
    leaf, found = _certificate(passport, trust, now)
    yield from found
    yield from agreement(passport, Contents(ticket, receipts, leaf))
    if any(receipt.audit_head for receipt in receipts):
        yield Finding(
            "unchecked", "the heads of the audit in the receipts: node-ca audit --receipt, on its host"
        )
    if passport.certificate is not None and passport.certificate.audit_head is not None:
        head, entries = passport.certificate.audit_head, passport.certificate.audit_entries
        yield Finding(
            "unchecked", f"the head of the audit, entry {entries}: node-ca audit --expect {head}, on its host"
        )
    if passport.verification is not None:
        yield Finding(
            "unchecked", f"by the verification: {', '.join(passport.verification.not_checked) or '-'}"
        )


def _ticket(passport: Passport, trust: Trust) -> tuple[Ticket | None, list[Finding]]:
    kept, signers = passport.ticket, trust.ticket_signers
    if kept is None:
        return None, []
    try:
        ticket = peek_ticket(kept.text)
        key = signature.signed_with(kept.text, namespace=TICKET_NAMESPACE, what="the ticket")
        if (key, signature.fingerprint(kept.text)) != (kept.key, kept.fingerprint):
            return ticket, [Finding("broken", "the ticket's key or fingerprint is not the one that is told")]
        if file := trust.withdrawn.revoked_of(kept.text, namespace=TICKET_NAMESPACE):
            return None, [Finding("broken", f"the ticket's key, {key}, is revoked ({file})")]
        if signers is None:
            return ticket, [
                Finding("holds", f"the ticket is as it was signed with {key}"),
                Finding("unchecked", "whether that key may sign tickets: no --ticket-signers was given"),
            ]
        believed = signed_ticket(kept.text, signers=signers, now=ticket.made_at)
    except Refused as error:
        return None, [Finding("broken", f"{error.what}: {error.why}")]
    return ticket, [Finding("holds", f"the ticket was signed by {believed.signer} with {key}")]


def _receipts(passport: Passport, trust: Trust) -> tuple[tuple[Receipt, ...], list[Finding]]:
    taken, found = [], []
    for number, kept in enumerate(passport.receipts, 1):
        try:
            made_at = peek_receipt(kept.text).made_at
            receipt, signer = read_receipt(kept.text, signers=trust.signers, now=made_at)
            key = signature.signed_with(kept.text, namespace=RECEIPT_NAMESPACE, what="the receipt")
        except Refused as error:
            found.append(Finding("broken", f"receipt {number}: {error.what}: {error.why}"))
            continue
        if key != kept.key:
            found.append(Finding("broken", f"receipt {number}: its key is not the one that is told"))
        if file := trust.withdrawn.revoked_of(kept.text, namespace=RECEIPT_NAMESPACE):
            # Nothing rests on a former receipt, and a node lives longer than its holder's keys.
            newest = number == len(passport.receipts)
            text = f"receipt {number}: its key, {key}, is revoked ({file})"
            found.append(Finding("broken" if newest else "note", text))
            continue
        taken.append(receipt)
        what = f"receipt {number}, {receipt.kind} at {iso(receipt.made_at)}, was signed by {signer}"
        found.append(Finding("holds", what))
    return tuple(taken), found


def _certificate(passport: Passport, trust: Trust, now: datetime) -> tuple[Leaf | None, list[Finding]]:
    certificate, judging = passport.certificate, trust.judge
    if certificate is None:
        return None, []
    if isinstance(judging, Absent):
        why = f"the certificate: there is no openssl here, and {judging.why}"
        return None, [Finding("unchecked", why)]
    try:
        leaf = judging.leaf(certificate.chain[0])
    except ValueError as error:
        return None, [Finding("broken", f"the certificate: {error}")]
    if trust.roots is None:
        return leaf, [Finding("unchecked", "the certificate's chain and revocation: no --ca was given")]
    return leaf, [*_chain(passport, certificate, leaf, judging, trust, now)]


def _chain(
    passport: Passport, certificate: Certificate, leaf: Leaf, judging: Judge, trust: Trust, now: datetime
) -> Iterator[Finding]:
    made_at, roots, needed = passport.made_at, trust.roots or "", passport.state in _NEEDS_IT
    try:
        trusted = all_sha256(certificate.chain[2]) & all_sha256(roots)
    except ValueError:
        trusted = set()
    if certificate.standing == "revoked" and needed:
        yield Finding(
            "broken", f"the ledger has the certificate as revoked, and the node is {passport.state}"
        )
    if not trusted:
        yield Finding("broken", "the certificate's root is not among the roots that were given")
        return
    if not leaf.not_before <= made_at:
        yield Finding("broken", f"the certificate began at {iso(leaf.not_before)}, after the passport")
    # One that ended by itself is no lie, only over: its chain is judged by the last moment that it held.
    over = made_at > leaf.not_after
    faults = judging.faults(certificate.chain, roots=roots, at=min(made_at, leaf.not_after))
    for fault in faults:
        yield Finding("broken", f"the certificate's chain at {iso(min(made_at, leaf.not_after))}: {fault}")
    if over and not needed:
        yield Finding(
            "note", f"the certificate had ended when the passport was made, at {iso(leaf.not_after)}"
        )
    elif over:
        yield Finding(
            "broken", f"the certificate ended at {iso(leaf.not_after)}, and the node is {passport.state}"
        )
    elif not faults:
        yield Finding("holds", f"the certificate's chain, at {iso(made_at)}")
    if faults:
        return
    revoked = [*revocation(certificate, needed=needed, withdrawn=trust.withdrawn, made_at=made_at, now=now)]
    yield from revoked
    if over or any(found.kind in {"broken", "note"} for found in revoked):
        return
    later = judging.faults(certificate.chain, roots=roots, at=now)
    if later:
        yield Finding("note", f"the certificate is not valid now: {later[0]}")
    else:
        yield Finding(
            "holds",
            f"the certificate is valid now, until {iso(leaf.not_after)}"
            + ("" if revoked else "; no revocation list was asked"),
        )


def _refused(why: str) -> Refused:
    return Refused(f"{dsse.WHAT} is not believed", why=why, next_step="ask whoever sent it for a new one")
