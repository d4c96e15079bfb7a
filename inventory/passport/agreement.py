"""Do the parts of a passport tell one story? Every check is a sentence, held or broken (pure)."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from inventory.lifecycle import MOVES
from inventory.model import State
from inventory.passport.identity import sha256_of
from inventory.passport.leaf import Finding, Leaf
from inventory.passport.statement import Certificate, Passport
from inventory.ticket import Receipt, Ticket, iso

_AHEAD = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Contents:
    """What the signed texts and the certificate in a passport say; None: not there, or nobody could read it."""

    ticket: Ticket | None
    receipts: tuple[Receipt, ...]
    leaf: Leaf | None


def agreement(passport: Passport, said: Contents) -> Iterator[Finding]:
    """Every check that needs nothing but the passport itself."""
    yield from _digests(passport)
    yield from _who(passport, said)
    yield from _against_ticket(passport, said)
    yield from _against_receipt(passport, said)
    if passport.certificate is not None and said.leaf is not None:
        yield from _against_leaf(passport.certificate, said.leaf)
    yield from _drills(passport, said)
    yield from _road(passport)
    yield from _times(passport, said)


def _digests(passport: Passport) -> Iterator[Finding]:
    wrong = []
    if passport.ticket is not None and _sha256(passport.ticket.text) != passport.ticket.sha256:
        wrong.append("the ticket")
    for number, receipt in enumerate(passport.receipts, 1):
        if _sha256(receipt.text) != receipt.sha256:
            wrong.append(f"receipt {number}")
    if passport.certificate is not None:
        # each link is read by several tools, of which each would take another certificate out of two
        links = [_sha256_of(each) for each in passport.certificate.chain]
        if links[0] != passport.certificate.sha256 or None in links:
            wrong.append("the certificate")
    if _twice(receipt.sha256 for receipt in passport.receipts):
        yield Finding("broken", "one receipt is in it twice")
    if wrong:
        yield Finding("broken", f"the digest is not that of the text: {', '.join(wrong)}")
    else:
        yield Finding("holds", "every digest is that of its text")


def _who(passport: Passport, said: Contents) -> Iterator[Finding]:
    names = [("the passport", passport.node)]
    uuids = [("the record", passport.vm.uuid)]
    if said.ticket is not None:
        names.append(("the ticket", said.ticket.node))
        uuids.append(("the ticket", said.ticket.vm_uuid))
    for number, receipt in enumerate(said.receipts, 1):
        names.append((f"receipt {number}", receipt.node))
        uuids.append((f"receipt {number}", receipt.vm_uuid))
    if passport.certificate is not None:
        names.append(("the certificate", passport.certificate.spiffe_id.rpartition("/node/")[2]))
    yield from _same("name", names)
    yield from _same("uuid", uuids)


def _against_ticket(passport: Passport, said: Contents) -> Iterator[Finding]:
    vm, ticket = passport.vm, said.ticket
    if ticket is None:
        return
    if passport.ticket is not None and passport.ticket.made_by != ticket.made_by:
        yield Finding("broken", "the ticket names another maker than the passport says of it")
    firm: list[tuple[str, object, object]] = [
        ("vmid", vm.vmid, ticket.vmid),
        ("machine-id", vm.machine_id, ticket.machine_id),
        ("MAC addresses", set(vm.macs), set(ticket.macs)),
        ("SSH host keys", set(vm.host_keys), set(ticket.host_keys)),
    ]
    # These may change under a running node: a migration, a lease, a profile that grew.
    loose: list[tuple[str, object, object]] = [
        ("Proxmox node", vm.proxmox_node, ticket.proxmox_node),
        ("site", vm.site, ticket.site),
        ("address", vm.address, ticket.address),
        ("login user", vm.user, ticket.user),
        ("SSH port", vm.ssh_port, ticket.ssh_port),
        ("wanted VM", vm.spec_hash, ticket.profile_hash),
        ("fabrics", set(vm.fabrics), set(ticket.fabrics)),
    ]
    other = [what for what, known, signed in firm if known and signed and known != signed]
    if other:
        yield Finding("broken", f"record and ticket differ in: {', '.join(other)}")
    else:
        yield Finding("holds", "the VM of the record is the ticket's")
    moved = [what for what, known, signed in loose if known and signed and known != signed]
    if moved:
        yield Finding("note", f"since the ticket these changed: {', '.join(moved)}")


def _against_receipt(passport: Passport, said: Contents) -> Iterator[Finding]:
    certificate, leaf = passport.certificate, said.leaf
    receipt = said.receipts[-1] if said.receipts else None
    serials: list[tuple[str, str | None]] = []
    ids: list[tuple[str, str | None]] = []
    ends: list[tuple[str, str | None]] = []
    if certificate is not None:
        serials.append(("the ledger", _bare(certificate.serial)))
        ids.append(("the ledger", certificate.spiffe_id))
        ends.append(("the ledger", iso(certificate.not_after)))
    if leaf is not None:
        serials.append(("the certificate", leaf.serial))
        ids.append(("the certificate", " ".join(leaf.uris) or "none"))
        ends.append(("the certificate", iso(leaf.not_after)))
    if receipt is not None:
        serials.append(("the newest receipt", _bare(receipt.serial)))
        ids.append(("the newest receipt", receipt.spiffe_id))
        ends.append(("the newest receipt", iso(receipt.not_after)))
    if passport.verification is not None:
        ids.append(("the verification", passport.verification.spiffe_id))
    for what, told in (("serial number", serials), ("identity", ids), ("end of validity", ends)):
        yield from _same(what, told)
    if receipt is None:
        return
    if certificate is not None:
        roots = [("the chain's root", _root_of(certificate.chain)), ("the receipt", receipt.ca_fingerprint)]
        yield from _same("root certificate", roots)
    if said.ticket is not None:
        yield from _receipt_of(said.ticket, receipt)


def _against_leaf(certificate: Certificate, leaf: Leaf) -> Iterator[Finding]:
    """What is told of the certificate beside it, for whoever reads no X.509, is what stands in it."""
    told: list[tuple[str, object, object]] = [
        ("names", sorted(certificate.names), sorted(leaf.names)),
        ("addresses", sorted(certificate.addresses), sorted(leaf.addresses)),
        ("beginning", certificate.not_before, leaf.not_before),
    ]
    if other := [what for what, said, found in told if said != found]:
        yield Finding("broken", f"the ledger's words and the certificate differ in: {', '.join(other)}")


def _receipt_of(ticket: Ticket, receipt: Receipt) -> Iterator[Finding]:
    if receipt.made_at < ticket.made_at:
        yield Finding("note", "the ticket is newer than the newest receipt: the node is to be onboarded anew")
        return
    if receipt.kind != "decommissioned":
        yield from _same(
            "ticket's id", [("the ticket", ticket.id), ("the newest receipt", receipt.ticket_id)]
        )
    if set(receipt.host_keys) - set(ticket.host_keys):
        yield Finding("broken", "the newest receipt pins an SSH host key that the ticket does not")


def _drills(passport: Passport, said: Contents) -> Iterator[Finding]:
    verification = passport.verification
    if verification is None:
        return
    failed = [drill.name for drill in verification.drills if not drill.ok]
    failed += [check.name for check in verification.checks if check.verdict == "critical"]
    twice = _twice(drill.name for drill in verification.drills)
    kinds = {drill.kind for drill in verification.drills}
    if verification.passed and (failed or verification.error):
        yield Finding(
            "broken", f"the verification passed, yet it failed in: {', '.join(failed) or 'a check'}"
        )
    elif verification.passed and twice:
        yield Finding("broken", f"the verification counts drills twice: {', '.join(twice)}")
    elif verification.passed and not {"positive", "negative"} <= kinds:
        yield Finding("broken", "the verification passed without drills of both kinds, positive and negative")
    elif verification.passed:
        count = len(verification.drills)
        yield Finding("holds", f"the verification of {iso(verification.at)} passed, {count} drills")
    elif passport.state is State.IN_SERVICE:
        yield Finding("broken", "the node is in-service, and its last verification did not pass")
    else:
        yield Finding("note", f"the verification of {iso(verification.at)} did not pass")
    if said.leaf is not None and verification.serial and _bare(verification.serial) != said.leaf.serial:
        yield Finding("note", f"the last verification ran over another certificate, {verification.serial}")


def _road(passport: Passport) -> Iterator[Finding]:
    faults = []
    before: State | None = None
    for number, move in enumerate(passport.events, 1):
        if move.before is not before:
            faults.append(
                f"event {number} leaves {move.before or 'nothing'}, but the node was {before or 'nothing'}"
            )
        elif (
            move.before is not None and move.after is not move.before and move.after not in MOVES[move.before]
        ):
            faults.append(f"event {number} goes from {move.before} to {move.after}, which no node may")
        before = move.after
    if passport.events:
        first = passport.events[0]
        if passport.state is not before:
            faults.append(f"the last event leaves the node {before}, and it is said to be {passport.state}")
        asked = passport.asked
        if asked is not None and (asked.at, asked.actor, asked.host, asked.why) != (
            first.at,
            first.actor,
            first.host,
            first.why,
        ):
            faults.append("who asked is not who the first event names")
    for fault in faults:
        yield Finding("broken", f"the history is no road: {fault}")
    if passport.events and not faults:
        count = len(passport.events)
        yield Finding("holds", f"{count} events make a road that a node may go, to {passport.state}")


def _times(passport: Passport, said: Contents) -> Iterator[Finding]:
    latest = passport.made_at + _AHEAD
    told: list[tuple[str, datetime]] = [
        *((f"event {number}", move.at) for number, move in enumerate(passport.events, 1)),
        *((f"receipt {number}", receipt.made_at) for number, receipt in enumerate(said.receipts, 1)),
    ]
    if said.ticket is not None:
        told.append(("the ticket", said.ticket.made_at))
    if passport.verification is not None:
        told.append(("the verification", passport.verification.at))
    back = [
        str(number)
        for number, (before, move) in enumerate(pairwise(passport.events), 2)
        if move.at < before.at - _AHEAD
    ]
    if back:
        yield Finding(
            "note", f"dated before the event that they follow, by some host's clock: {', '.join(back[:10])}"
        )
    late = [what for what, at in told if at > latest]
    if late:
        yield Finding("broken", f"made after the passport itself: {', '.join(late[:10])}")


def _twice(items: Iterable[str]) -> list[str]:
    return [item for item, count in Counter(items).items() if count > 1]


def _same(what: str, told: Sequence[tuple[str, str | None]]) -> Iterator[Finding]:
    """One finding, where at least two tell."""
    known = [(who, text) for who, text in told if text is not None]
    if len(known) < 2:
        return
    if len({text for _, text in known}) == 1:
        yield Finding("holds", f"one {what} in {_listed(who for who, _ in known)}: {known[0][1]}")
    else:
        yield Finding(
            "broken", f"the {what} differs: " + ", ".join(f"{text} in {who}" for who, text in known)
        )


def _listed(items: Iterable[str]) -> str:
    found = list(items)
    receipts = [item for item in found if item.startswith("receipt ")]
    others = [item for item in found if item not in receipts]
    return ", ".join([*others, *([f"{len(receipts)} receipts"] if receipts else [])])


def _bare(serial: str) -> str:
    return serial.lower().lstrip("0")


def _root_of(chain: tuple[str, str, str]) -> str:
    return _sha256_of(chain[2]) or "no certificate"


def _sha256_of(pem: str) -> str | None:
    try:
        return sha256_of(pem)
    except ValueError:
        return None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
