"""Receipts that the security holder sent back: checked, then told to the record."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from inventory.document import Model, RelativePath, load
from inventory.errors import BadInput, MusterError, Refused
from inventory.model import Node, State
from inventory.show import need_node
from inventory.store import Store
from inventory.ticket import Receipt, iso, peek_ticket, read_receipt

_AHEAD = timedelta(minutes=5)
_ENROLLED = (State.ONBOARDING, State.AWAITING_VERIFICATION)
_SERVING = (State.VERIFYING, State.IN_SERVICE)
_ENDED = (State.DECOMMISSIONING, State.AWAITING_RETIREMENT)

ROADS: dict[str, dict[State, tuple[State, ...]]] = {
    "onboarded": {
        State.AWAITING_IDENTITY: _ENROLLED,
        State.ONBOARD_FAILED: _ENROLLED,
        State.VERIFY_FAILED: _ENROLLED,
        State.ONBOARDING: _ENROLLED[1:],
        State.AWAITING_VERIFICATION: (),
        State.VERIFYING: (),
        State.IN_SERVICE: (),
    },
    "verified": {
        State.AWAITING_IDENTITY: _ENROLLED + _SERVING,
        State.ONBOARD_FAILED: _ENROLLED + _SERVING,
        State.ONBOARDING: _ENROLLED[1:] + _SERVING,
        State.AWAITING_VERIFICATION: _SERVING,
        State.VERIFY_FAILED: _SERVING,
        State.VERIFYING: _SERVING[1:],
        State.IN_SERVICE: (),
    },
    "decommissioned": {
        State.AWAITING_IDENTITY: (State.ONBOARDING, State.ONBOARD_FAILED, *_ENDED),
        State.ONBOARDING: (State.ONBOARD_FAILED, *_ENDED),
        State.ONBOARD_FAILED: _ENDED,
        State.AWAITING_VERIFICATION: _ENDED,
        State.VERIFYING: (State.VERIFY_FAILED, *_ENDED),
        State.VERIFY_FAILED: _ENDED,
        State.IN_SERVICE: _ENDED,
        State.DECOMMISSIONING: _ENDED[1:],
        State.DECOMMISSION_FAILED: _ENDED,
        State.AWAITING_RETIREMENT: (),
    },
}
"""How a node comes from its state in infra's record to where the receipt says it is: each move is in its life."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a receipt did to the record. why: where it changed nothing, the reason."""

    receipt: Receipt
    signer: str
    state: State
    changed: bool
    why: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As --json shows it."""
        receipt = self.receipt
        return {
            "name": receipt.node,
            "ok": True,
            "kind": receipt.kind,
            "signer": self.signer,
            "serial": receipt.serial,
            "not_after": iso(receipt.not_after),
            "made_at": iso(receipt.made_at),
            "state": str(self.state),
            "changed": self.changed,
            "why": self.why,
        }


def take(text: str, *, signers: Path, store: Store, now: datetime, dry_run: bool = False) -> Taken:
    """Tell the record what a receipt says; the same again, or one that is older, changes nothing.

    Raises:
        Refused: it is not believed, is for another machine or ticket, or the node's state does not allow it.
        BadInput: the node is not on record.
    """
    receipt, signer = read_receipt(text, signers=signers, now=now)
    node = need_node(store, receipt.node)
    if receipt.vm_uuid != node.uuid:
        raise _refused(
            receipt, f"it is for VM {receipt.vm_uuid}, and the record's is {node.uuid or 'unknown'}"
        )
    if receipt.made_at > now + _AHEAD:
        raise _refused(receipt, f"it was made at {iso(receipt.made_at)}, which is yet to come")
    if node.receipt == text:
        return Taken(receipt, signer, node.state, changed=False, why="it is on record already")
    if older := _older(receipt, node, signers):
        return Taken(receipt, signer, node.state, changed=False, why=older)
    _check_ticket(receipt, node)
    road = ROADS[receipt.kind].get(node.state)
    if road is None:
        raise _refused(receipt, f"it says {receipt.kind}, and the node is {node.state}")
    if not dry_run:
        why = f"receipt of {signer}: {receipt.kind} at {iso(receipt.made_at)}, certificate {receipt.serial}"
        for state in road[:-1]:
            node = store.save(replace(node, state=state, reason=None), why=why)
        last = road[-1] if road else node.state
        node = store.save(replace(node, state=last, receipt=text, reason=None), why=why)
    return Taken(receipt, signer, road[-1] if road else node.state, changed=True)


class _Site(Model):
    """The one key of site.yaml that is asked for here; provision-node judges the rest."""

    model_config = ConfigDict(extra="ignore")
    receipt_signers: RelativePath | None = None


def signers_file(given: Path | None, site: Path | None) -> Path:
    """Whose receipts count: the file that was named, else the one that the site file names.

    Raises:
        BadInput: neither names one, or the site file cannot be read.
    """
    found = given if given is not None or site is None else signers_of_site(site)
    if found is None:
        raise BadInput(
            "no receipt was read",
            why="nobody is named whose receipts count",
            next_step="name the file with --receipt-signers, or a site file with receipt_signers with --site",
        )
    return found


def signers_of_site(site: Path) -> Path | None:
    """The file of signers that a site file names, if it does.

    Raises:
        BadInput: the site file cannot be read.
    """
    return load(site, _Site).receipt_signers


def _older(receipt: Receipt, node: Node, signers: Path) -> str | None:
    """Why the record knows better already; None if it does not."""
    if node.receipt is not None:
        try:
            known, _ = read_receipt(node.receipt, signers=signers)
        except MusterError:
            known = None  # nobody whom we believe has signed it
        if known is not None and known.vm_uuid == receipt.vm_uuid and known.made_at > receipt.made_at:
            return f"a later one is on record: {known.kind} at {iso(known.made_at)}"
    if node.ticket is not None:
        ticket = peek_ticket(node.ticket)
        if ticket.id != receipt.ticket_id and ticket.made_at > receipt.made_at:
            return f"it was made at {iso(receipt.made_at)}, before the node's ticket of {iso(ticket.made_at)}"
    return None


def _check_ticket(receipt: Receipt, node: Node) -> None:
    """An identity must come from the ticket that is on record; its end may come from any."""
    if node.ticket is None or receipt.kind == "decommissioned":
        return
    ticket = peek_ticket(node.ticket)
    if ticket.id != receipt.ticket_id:
        raise _refused(receipt, f"it is for ticket {receipt.ticket_id}, in whose place {ticket.id} was made")
    if set(receipt.host_keys) - set(ticket.host_keys):
        raise _refused(receipt, "it pins another SSH host key than the ticket")


def _refused(receipt: Receipt, why: str) -> Refused:
    return Refused(
        f"the receipt for {receipt.node} was not taken",
        why=why,
        next_step=f"look at node-inventory show {receipt.node}, then ask the holder for the newest receipt",
    )
