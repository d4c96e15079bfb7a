"""The nodes on record against the certificates of one authority: both ways, each read once."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ca.authority import Authority
from ca.index import Which
from ca.record import Record, Standing
from inventory.checking import Asked, Disagreement
from inventory.checking_record import SERVING
from inventory.errors import Refused
from inventory.model import Node, State
from inventory.ticket import Receipt, iso, peek_receipt
from onboard import ledger_checker as kinds

_LEAVING = frozenset({State.AWAITING_RETIREMENT, State.RETIRING, State.RETIRE_FAILED, State.RETIRED})
_HEAD_DIGITS = 64
_COUNTS = (str(Standing.ISSUED), str(Standing.INSTALLED))


def compare(authority: Authority, asked: Asked) -> Iterator[Disagreement]:
    """What does not agree; nothing is written, and no key is used.

    Raises:
        Damaged: the audit cannot be read.
    """
    heads: dict[str, list[str]] = {}
    for node in asked.nodes():
        receipt = _read(node.receipt)
        if receipt is not None and receipt.vm_uuid != node.uuid:
            receipt = None  # the record's own checker tells it
        records = authority.records(node.name)
        ours = receipt is not None and receipt.ca_fingerprint in _roots(authority)
        if receipt is not None and not ours:
            found = authority.fingerprint_sha256
            yield kinds.OTHER_CA.of(node.name, found=found, recorded=receipt.ca_fingerprint)
        elif receipt is not None:
            yield from _told(node, receipt, records, asked)
            if receipt.audit_head is not None and len(receipt.audit_head) == _HEAD_DIGITS:
                heads.setdefault(receipt.audit_head, []).append(node.name)
        if node.state in SERVING:
            yield from _serving(node, receipt, records, authority, asked)
        yield from _kept(node, receipt, authority)
    for head in authority.check_heads(heads):
        for name in heads[head]:
            found = f"an audit of {authority.entries} lines, without that one"
            yield kinds.OLDER_COPY.of(name, found=found, recorded=f"line {head}")
    yield from _certificates(authority, asked)


def _told(node: Node, receipt: Receipt, records: Sequence[Record], asked: Asked) -> Iterator[Disagreement]:
    """The certificate that the record's receipt tells of."""
    record = next((each for each in records if each.serial == receipt.serial), None)
    if record is None:
        yield kinds.UNKNOWN.of(node.name, found="no such certificate", recorded=receipt.serial)
        return
    replaced = any(each.standing is Standing.INSTALLED and each.live(asked.now) for each in records)
    if record.standing is Standing.REVOKED and node.state in SERVING and not replaced:
        why = f"{record.serial} was revoked" + (f": {record.why}" if record.why else "")
        yield kinds.REVOKED.of(node.name, found=why, recorded=node.state)
    if record.not_after != receipt.not_after:
        found = f"{record.serial} ends at {iso(record.not_after)}"
        yield kinds.EXPIRY.of(node.name, found=found, recorded=iso(receipt.not_after))


def _serving(
    node: Node, receipt: Receipt | None, records: Sequence[Record], authority: Authority, asked: Asked
) -> Iterator[Disagreement]:
    """A node that has an identity by its state: by the ledger too, and this very machine."""
    installed = [record for record in records if record.standing is Standing.INSTALLED]
    if not installed:
        if receipt is None:  # else what became of its certificate was told already
            found = "no certificate that was installed and not revoked"
            yield kinds.NONE_COUNTS.of(node.name, found=found, recorded=node.state)
        return
    newest = installed[-1]
    if newest.vm_uuid is not None and newest.vm_uuid != node.uuid:
        found = f"{newest.serial} is for uuid {newest.vm_uuid}"
        yield kinds.MACHINE.of(node.name, found=found, recorded=f"uuid {node.uuid}")
    elif newest.host_keys and node.host_keys and not set(newest.host_keys) & set(node.host_keys):
        found, recorded = (
            ", ".join(key.fingerprint for key in keys) for keys in (newest.host_keys, node.host_keys)
        )
        yield kinds.HOST_KEYS.of(node.name, found=found, recorded=recorded)
    file = _file(node, authority)
    if not newest.live(asked.now):
        return
    if newest.ticket_id and not file.exists():
        yield kinds.LOST.of(node.name, found=f"no {file}", recorded=f"{node.state}, {newest.serial}")
    receipts = [each for each in (receipt, _read_kept(node, authority)) if each is not None]
    # A receipt whose certificate the ledger does not know at all is told as such.
    known = {record.serial for record in records} & {each.serial for each in receipts}
    if known and newest.serial not in known:
        found = f"{newest.serial}, until {iso(newest.not_after)}"
        yield kinds.BEHIND.of(node.name, found=found, recorded=receipts[-1].serial)


def _kept(node: Node, receipt: Receipt | None, authority: Authority) -> Iterator[Disagreement]:
    """The receipt beside the authority, where that one is the newer."""
    kept = _read_kept(node, authority)
    if kept is None:
        return
    if receipt is None or kept.made_at > receipt.made_at:
        recorded = f"{receipt.kind} at {iso(receipt.made_at)}" if receipt else "no receipt"
        yield kinds.NEWER.of(
            node.name,
            found=f"{kept.kind} at {iso(kept.made_at)}, certificate {kept.serial}",
            recorded=f"{node.state}, {recorded}",
            file=_file(node, authority),
        )


def _certificates(authority: Authority, asked: Asked) -> Iterator[Disagreement]:
    """Certificates that count, of nodes that have none by the record; and those that were only announced."""
    states = {node.name: node.state for node in asked.everyone()}
    for record in authority.select(Which(states=_COUNTS), now=asked.now):
        name = record.node
        if not asked.concerns(name):
            continue
        found = f"{record.serial}, until {iso(record.not_after)}"
        if name not in states:
            kind = kinds.BY_HAND if record.ticket_id is None else kinds.OF_UNKNOWN
            yield kind.of(name, found=found, recorded="not on record", serial=record.serial)
        elif states[name] in _LEAVING:
            yield kinds.OF_RETIRED.of(name, found=found, recorded=states[name], serial=record.serial)
    for record in authority.open_intents:
        if asked.concerns(record.node):
            recorded = states.get(record.node, "not on record")
            found = f"{record.serial}, announced at {iso(record.at)} by {record.actor}"
            yield kinds.OPEN.of(record.node, found=found, recorded=recorded)


def _roots(authority: Authority) -> frozenset[str]:
    """The fingerprints that this authority has, or had, before it changed its root."""
    return frozenset(each.root_sha256 for each in authority.rotation.all)


def _file(node: Node, authority: Authority) -> Path:
    return authority.layout.receipts / f"{node.name}.receipt"


def _read_kept(node: Node, authority: Authority) -> Receipt | None:
    """The receipt beside the authority, if it is for this very machine."""
    try:
        kept = _read(_file(node, authority).read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return kept if kept is not None and (kept.node, kept.vm_uuid) == (node.name, node.uuid) else None


def _read(text: str | None) -> Receipt | None:
    try:
        return None if text is None else peek_receipt(text)
    except Refused:
        return None
