"""The record against itself: what a state must have, how long it may last, and what no two nodes may share."""

import hashlib
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from ipaddress import ip_interface

from inventory.checking import Asked, Disagreement, Kind, NotChecked, Severity
from inventory.errors import Refused
from inventory.lifecycle import unadopted
from inventory.model import Node, State
from inventory.ticket import Receipt, Ticket, iso, peek_receipt, peek_ticket

SOURCE = "record"
ENDS_SOON = timedelta(days=7)
LASTS: dict[State, timedelta] = {
    State.PROVISIONING: timedelta(hours=3),
    State.ONBOARDING: timedelta(hours=1),
    State.VERIFYING: timedelta(hours=1),
    State.DECOMMISSIONING: timedelta(hours=1),
    State.RETIRING: timedelta(hours=1),
}
"""How long a node may be on the move; whoever is longer at it was killed, or hangs."""
MADE = frozenset(State) - {State.PLANNED, State.PROVISIONING, State.PROVISION_FAILED, State.RETIRED}
"""The states of a node whose VM was made, and who is known."""
SERVING = frozenset(
    {State.AWAITING_VERIFICATION, State.VERIFYING, State.VERIFY_FAILED, State.IN_SERVICE},
)
"""The states of a node that has an identity in force."""


def _kind(about: str, severity: Severity, meaning: str, mend: str) -> Kind:
    return Kind(SOURCE, about, severity, meaning, mend)


_TICKET = "provision-node {node} --reissue-ticket"
_TAKE_RECEIPT = "node-inventory import {node}.receipt, as the holder hands it over"
UNADOPTED = _kind(
    "not-adopted",
    Severity.NOTICE,
    "it was joined by hand and imported; nothing of it was read from its VM yet",
    "provision-node {node} --adopt",
)
NO_TICKET = _kind(
    "ticket-missing", Severity.WRONG, "it awaits its identity, and no ticket was signed for it", _TICKET
)
TICKET_ENDED = _kind(
    "ticket-expired", Severity.WRONG, "it awaits its identity, and its ticket has expired", _TICKET
)
TICKET_STRANGE = _kind(
    "ticket-unfit", Severity.WRONG, "its ticket cannot be read, or is another machine's", _TICKET
)
NO_HOST_KEYS = _kind(
    "host-keys-missing", Severity.WRONG, "its VM was made, and no host key is known", _TICKET
)
NO_VM = _kind(
    "vm-missing",
    Severity.WRONG,
    "its state says that it has a VM, and the record knows no uuid, id or host of one",
    "restore the record from a backup; or provision-node {node} --retire, then make it anew",
)
NO_RECEIPT = _kind(
    "receipt-missing",
    Severity.WRONG,
    "its state says that it has an identity, without a receipt",
    _TAKE_RECEIPT,
)
RECEIPT_STRANGE = _kind(
    "receipt-unfit", Severity.WRONG, "its receipt cannot be read, or is another machine's", _TAKE_RECEIPT
)
NOT_ENDED = _kind(
    "receipt-not-ended",
    Severity.WRONG,
    "it awaits its retirement, and its receipt does not say that its identity ended",
    "onboard-node {node} --decommission on the CA host, then node-inventory import {node}.receipt",
)
_STUCK = {
    State.PROVISIONING: "provision-node {node}",
    State.ONBOARDING: "onboard-node {node}",
    State.VERIFYING: "verify-node {node}",
    State.DECOMMISSIONING: "onboard-node {node} --decommission",
    State.RETIRING: "provision-node {node} --retire",
}
STUCK = {
    state: _kind(
        f"stuck-{state}",
        Severity.WRONG,
        f"it is {state} for over {int(LASTS[state].total_seconds() // 3600)} h, and no run is at work on it",
        f"{command}; it goes on from where it was",
    )
    for state, command in _STUCK.items()
}
ENDED = _kind(
    "certificate-ended", Severity.WRONG, "its certificate's time is over", "onboard-node {node} --renew"
)
ENDS = _kind(
    "certificate-ends-soon",
    Severity.NOTICE,
    f"its certificate ends within {ENDS_SOON.days} days",
    "onboard-node {node} --renew",
)
ADDRESS_TWICE = _kind(
    "address-double",
    Severity.WRONG,
    "another node of its site has the same address",
    "see which one answers there: node-inventory show {node}; give the other one its own in the site file",
)
MACHINE_TWICE = _kind(
    "machine-double",
    Severity.WRONG,
    "another node has the same SSH host key or machine-id, so it came from the template",
    "empty /etc/machine-id and remove /etc/ssh/ssh_host_* in the template, then make {node} anew",
)
VMID_TWICE = _kind(
    "vmid-double",
    Severity.WRONG,
    "another node of its site has the same VM id",
    "node-inventory show {node}, and see in Proxmox whose uuid that VM has; provision-node NAME --retire the other",
)


class RecordChecker:
    """What the record says of a node, against what its state must have and what the others have."""

    source = SOURCE
    kinds = (
        *(UNADOPTED, NO_TICKET, TICKET_ENDED, TICKET_STRANGE, NO_HOST_KEYS, NO_VM),
        *(NO_RECEIPT, RECEIPT_STRANGE, NOT_ENDED),
        *STUCK.values(),
        *(ENDED, ENDS, ADDRESS_TWICE, MACHINE_TWICE, VMID_TWICE),
    )

    def was_asked(self, asked: Asked) -> bool:  # noqa: ARG002 - a record is always there
        """Always: without a record there is nothing to check."""
        return True

    def check(self, asked: Asked) -> Iterable[Disagreement | NotChecked]:
        """What does not agree."""
        for node in asked.nodes():
            yield from _lacking(node, asked.now)
            yield from _stuck(node, asked)
        yield from _shared(asked)


def _lacking(node: Node, now: datetime) -> Iterator[Disagreement]:
    """What it should have by its state, and has not, or has no more."""
    state = f"{node.state}"
    if unadopted(node):
        yield UNADOPTED.of(node.name, found="no ticket, and no fact read from its VM", recorded=state)
        return
    if node.state in MADE:
        facts = {"uuid": node.uuid, "VM id": node.vmid, "Proxmox host": node.proxmox_node}
        if absent := [name for name, value in facts.items() if value is None]:
            yield NO_VM.of(node.name, found=f"no {', no '.join(absent)}", recorded=state)
        if not node.host_keys:
            yield NO_HOST_KEYS.of(node.name, found="no host key", recorded=state)
    if node.state in {State.AWAITING_IDENTITY, State.ONBOARD_FAILED}:
        yield from _of_ticket(node, now)
    if node.state in SERVING or node.state in {State.DECOMMISSIONING, State.AWAITING_RETIREMENT}:
        yield from _of_receipt(node, now)


def _of_ticket(node: Node, now: datetime) -> Iterator[Disagreement]:
    if node.ticket is None:
        yield NO_TICKET.of(node.name, found="no ticket", recorded=node.state)
        return
    try:
        ticket = peek_ticket(node.ticket)
    except Refused as error:
        yield TICKET_STRANGE.of(node.name, found=error.why.splitlines()[0], recorded=node.state)
        return
    if told := _another(ticket, node):
        yield TICKET_STRANGE.of(node.name, found=f"it is for {told}", recorded=f"uuid {node.uuid}")
    elif ticket.expires <= now:
        yield TICKET_ENDED.of(node.name, found=f"it held until {iso(ticket.expires)}", recorded=node.state)


def _of_receipt(node: Node, now: datetime) -> Iterator[Disagreement]:
    if node.receipt is None:
        yield NO_RECEIPT.of(node.name, found="no receipt", recorded=node.state)
        return
    try:
        receipt = peek_receipt(node.receipt)
    except Refused as error:
        yield RECEIPT_STRANGE.of(node.name, found=error.why.splitlines()[0], recorded=node.state)
        return
    if told := _another(receipt, node):
        yield RECEIPT_STRANGE.of(node.name, found=f"it is for {told}", recorded=f"uuid {node.uuid}")
        return
    if node.state is State.AWAITING_RETIREMENT and receipt.kind != "decommissioned":
        yield NOT_ENDED.of(node.name, found=f"it says {receipt.kind}", recorded=node.state)
    if node.state not in SERVING:
        return
    until = iso(receipt.not_after)
    if receipt.not_after <= now:
        yield ENDED.of(node.name, found=f"it ended at {until}", recorded=node.state)
    elif receipt.not_after - now <= ENDS_SOON:
        yield ENDS.of(node.name, found=f"it ends at {until}", recorded=node.state)


def _another(told: Ticket | Receipt, node: Node) -> str | None:
    """Whom a ticket or receipt is for, where that is not this node on this machine."""
    if (told.node, told.vm_uuid) == (node.name, node.uuid):
        return None
    return f"{told.node}, uuid {told.vm_uuid}"


def _stuck(node: Node, asked: Asked) -> Iterator[Disagreement]:
    lasts = LASTS.get(node.state)
    if lasts is None or asked.held(node.name):
        return
    since = None
    for event in reversed(asked.history(node.name)):
        if event.after is not node.state:
            break
        since = event.at  # of the events in this state, the one that is nearest to its beginning
    if since is not None and asked.now - since > lasts:
        yield STUCK[node.state].of(node.name, found=f"since {iso(since)}", recorded=node.state)


def _shared(asked: Asked) -> Iterator[Disagreement]:
    """What two nodes have that only one can have; each of them is told of the first one."""
    seen: dict[bytes, str] = {}
    for node in asked.everyone():
        if node.state is State.RETIRED:
            continue
        for kind, what, mark in _marks(node):
            first = seen.setdefault(_short(mark), node.name)
            if first == node.name:
                continue
            for name, other in ((first, node.name), (node.name, first)):
                if asked.concerns(name):
                    yield kind.of(name, found=f"{what}, as {other}", recorded=what)


def _short(mark: tuple[str, ...]) -> bytes:
    """A mark in a few bytes: those of all nodes are held at once."""
    return hashlib.blake2b("\0".join(mark).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _marks(node: Node) -> Iterator[tuple[Kind, str, tuple[str, ...]]]:
    """What nobody else may have: the kind of disagreement, a text for people, and the thing itself."""
    site = node.site or ""
    addresses = [fabric.address for fabric in node.fabrics if fabric.address is not None]
    addresses += [node.address.ip] if node.address is not None else []
    for address in dict.fromkeys(str(ip_interface(address).ip) for address in addresses):
        yield ADDRESS_TWICE, address, ("address", site, address)
    for key in node.host_keys:
        yield MACHINE_TWICE, f"host key {key.fingerprint}", ("key", key.line)
    if node.machine_id is not None:
        yield MACHINE_TWICE, f"machine-id {node.machine_id}", ("machine-id", node.machine_id)
    if node.vmid is not None:
        yield VMID_TWICE, f"VM {node.vmid}", ("vmid", site, str(node.vmid))
