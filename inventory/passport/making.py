"""A passport is gathered from the record and the authority's ledger, looked at, and only then signed."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from inventory import signature
from inventory.errors import Refused
from inventory.model import Event, HostKey, KeptReceipt, KeptReport, Node
from inventory.passport import dsse
from inventory.passport.judging import Trust, Verdict, judge
from inventory.passport.statement import (
    Asked,
    Certificate,
    Check,
    Drill,
    Machine,
    Missing,
    Move,
    Passport,
    SignedReceipt,
    SignedTicket,
    Verification,
    to_payload,
)
from inventory.show import need_node
from inventory.store import Store
from inventory.ticket import RECEIPT_NAMESPACE, TICKET_NAMESPACE, peek_receipt, peek_ticket

MAX_RECEIPTS = 64
"""The first and the newest ones; a node that is verified every day has a new one every day."""
_MAX_REPORTS = 20


@dataclass(frozen=True, slots=True)
class Known:
    """All that is known of a node here.

    reports: newest first. receipts, events: oldest first.
    """

    node: Node
    events: Sequence[Event]
    receipts: Sequence[KeptReceipt]
    reports: Sequence[KeptReport]


@dataclass(frozen=True, slots=True)
class Maker:
    """Who makes a passport, when and with what.

    who: user@host. with_what: product and version. key: fingerprint of the key that will sign.
    """

    who: str
    with_what: str
    key: str
    at: datetime


@dataclass(slots=True)
class _Missing:
    found: list[Missing] = field(default_factory=list)

    def say(self, what: str, why: str) -> None:
        self.found.append(Missing(what, why))


def known(store: Store, name: str) -> Known:
    """What the record has of a node.

    Raises:
        BadInput: it is not on record.
    """
    return Known(
        need_node(store, name),
        store.history(name),
        store.receipts(name),
        store.reports(name, last=_MAX_REPORTS),
    )


def newest_serial(told: Known) -> str | None:
    """The serial number of the certificate that the newest receipt of this VM tells of.

    Raises:
        Refused: that receipt is malformed.
    """
    own = _own(told)
    return peek_receipt(own[-1].text).serial if own else None


def gather(told: Known, *, certificate: Certificate | str, maker: Maker) -> Passport:
    """The passport of a node, not signed yet; `certificate` is a reason where there is none.

    Raises:
        Refused: a signed text on record was changed, or is malformed.
    """
    node, missing = told.node, _Missing()
    own = _own(told)
    if len(own) < len(told.receipts):
        count = len(told.receipts) - len(own)
        missing.say("former receipts", f"{count} in the record are of former VMs of this name")
    if not own:
        missing.say("receipts", "the record has none of this VM")
    if len(own) > MAX_RECEIPTS:
        missing.say("receipts between", f"{len(own) - MAX_RECEIPTS} after the first are in the record alone")
        own = [own[0], *own[1 - MAX_RECEIPTS :]]
    if node.ticket is None:
        missing.say("ticket", "the record has none: none was signed, or it was not taken into this record")
    if isinstance(certificate, str):
        missing.say("certificate", certificate)
    if not told.events:
        missing.say("events", "the record has none")
        missing.say("asked", "the record has no event")
    for name in ("uuid", "vmid", "proxmox_node", "site", "profile", "spec_hash", "machine_id", "address"):
        if getattr(node, name) is None:
            missing.say(f"vm.{name}", "the record does not know it")
    verification = _last_whole(told.reports, missing)
    first = told.events[0] if told.events else None
    return Passport(
        node=node.name,
        state=node.state,
        reason=node.reason,
        made_at=maker.at,
        made_by=maker.who,
        made_with=maker.with_what,
        key=maker.key,
        asked=None if first is None else Asked(first.at, first.actor, first.host, first.why),
        vm=_machine(node),
        ticket=None if node.ticket is None else _ticket(node.ticket),
        receipts=tuple(_receipt(kept) for kept in own),
        certificate=None if isinstance(certificate, str) else certificate,
        verification=verification,
        events=tuple(_move(event) for event in told.events),
        missing=tuple(missing.found),
    )


def sign(passport: Passport, *, key_file: Path, trust: Trust) -> tuple[str, Verdict]:
    """The signed text, and what a reader with `trust` finds in it; one that would not be believed does not leave.

    Raises:
        Refused: the parts contradict each other; every contradiction is told.
        BadInput: the key does not sign.
    """
    text = dsse.seal(to_payload(passport), key_file=key_file)
    verdict = judge(text, trust=trust, now=passport.made_at)
    if not verdict.ok:
        raise Refused(
            f"no passport of {passport.node} was made",
            why="\n".join(verdict.broken),
            next_step="where receipts are another holder's, name the holders' keys with --signers FILE; else mend the"
            f" record: node-inventory check {passport.node}",
        )
    return text, verdict


def _own(told: Known) -> list[KeptReceipt]:
    """The receipts of the VM that the node has now."""
    return [kept for kept in told.receipts if kept.uuid == told.node.uuid]


def _machine(node: Node) -> Machine:
    return Machine(
        uuid=node.uuid,
        vmid=node.vmid,
        proxmox_node=node.proxmox_node,
        site=node.site,
        profile=node.profile,
        spec_hash=node.spec_hash,
        machine_id=node.machine_id,
        macs=node.macs,
        address=node.address,
        ssh_port=node.ssh_port,
        user=node.user,
        host_keys=node.host_keys,
        fabrics=node.fabrics,
    )


def _ticket(text: str) -> SignedTicket:
    return SignedTicket(
        text=text,
        sha256=_sha256(text),
        key=signature.signed_with(text, namespace=TICKET_NAMESPACE, what="the ticket on record"),
        fingerprint=signature.fingerprint(text),
        made_by=peek_ticket(text).made_by,
    )


def _receipt(kept: KeptReceipt) -> SignedReceipt:
    return SignedReceipt(
        text=kept.text,
        sha256=_sha256(kept.text),
        key=signature.signed_with(kept.text, namespace=RECEIPT_NAMESPACE, what="a receipt on record"),
        db_user=kept.db_user,
    )


def _move(event: Event) -> Move:
    return Move(
        at=event.at,
        actor=event.actor,
        host=event.host,
        before=event.before,
        after=event.after,
        why=event.why,
        role=event.role,
        db_user=event.db_user,
    )


def _last_whole(reports: Sequence[KeptReport], missing: _Missing) -> Verification | None:
    """The newest run of all scenarios; a run of some of them stands for nothing."""
    for later, kept in enumerate(reports):
        if _is_whole(kept.document):
            if later:
                missing.say("later reports", f"{later} after the one in it ran some scenarios only, or none")
            return _verification(kept)
    missing.say(
        "verification",
        "no report in the record is of a whole verification"
        if reports
        else "the record has no report; it may lie in the record on the host where verify-node ran",
    )
    return None


def _is_whole(document: Mapping[str, Any]) -> bool:
    if "whole" in document:
        return bool(document["whole"]) and "verification" in document
    kinds = {each.get("kind") for each in _part(document, "verification").get("scenarios", ())}
    return {"positive", "negative"} <= kinds


def _verification(kept: KeptReport) -> Verification:
    document = kept.document
    run, identity = _part(document, "verification"), _part(document, "identity")
    error = document.get("error")
    return Verification(
        at=kept.at,
        run_id=_text(document.get("run_id")),
        passed=kept.passed,
        ranks=run.get("ranks"),
        seconds=_seconds(document.get("seconds")),
        probe_sha256=document.get("probe_sha256"),
        report_sha256=_sha256(json.dumps(document, sort_keys=True, separators=(",", ":"), default=dict)),
        serial=_text(identity.get("serial")),
        spiffe_id=_text(identity.get("spiffe_id")),
        drills=tuple(_drills(run.get("scenarios", ()))),
        checks=tuple(
            Check(str(each.get("name")), str(each.get("verdict")), str(each.get("found") or ""))
            for each in run.get("checks", ())
        ),
        not_checked=tuple(str(each) for each in run.get("not_checked", ())),
        error=f"{error.get('what')}: {error.get('why')}" if isinstance(error, Mapping) else None,
        db_user=kept.db_user,
    )


def _drills(scenarios: Iterable[Mapping[str, Any]]) -> Iterable[Drill]:
    for each in scenarios:
        yield Drill(
            name=str(each.get("name")),
            kind=str(each.get("kind")),
            ok=each.get("ok") is True,
            seconds=_seconds(each.get("seconds")) or 0.0,
            expected=str(each.get("expected") or ""),
            found=str(each.get("found") or ""),
        )


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = document.get(name)
    return part if isinstance(part, Mapping) else {}


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _seconds(value: object) -> float | None:
    """To the millisecond: what a canonical number can say (RFC 8785), and more than was measured."""
    return round(float(value), 3) if isinstance(value, int | float) else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint_of(public_key_line: str) -> str:
    """Of the key that will sign: SHA256:...; ValueError: it is no public key."""
    return HostKey.from_line(public_key_line).fingerprint
