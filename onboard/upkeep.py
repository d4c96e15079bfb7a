"""What renewing and refreshing share: who a node is by our own ledger, and what its identity has come to."""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter

from ca.authority import Authority
from ca.record import Record, Standing
from inventory.agent_config import AgentConfig
from inventory.document import loads
from inventory.errors import BadFile, OtherSide, Refused
from inventory.model import STRICT, Address, Fabric, Node, State
from inventory.reach import Session
from inventory.ticket import Receipt, peek_receipt
from onboard import facts as node_facts
from onboard import scripts, upkeep_scripts
from onboard.desk import Desk, session_to

SCRIPT_S = 60.0
INSTALL_S = 240.0
"""The policy's commands may take their time there, and a rollback calls one again."""

_SERVING = frozenset({State.AWAITING_VERIFICATION, State.VERIFYING, State.VERIFY_FAILED, State.IN_SERVICE})
_NOT_ALONE = 75
_VALUE = {
    "agent": r"[A-Za-z0-9+/=]{0,131072}",
    "bundle": r"[0-9a-f]{64}",
    "crl": r"(0[xX])?[0-9A-Fa-f]{1,40}",
    "pending": r"yes",
}


@dataclass(frozen=True, slots=True)
class _Pin:
    """What a certificate's record says of its machine, beside its keys."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {**STRICT, "extra": "ignore"}
    address: str
    ssh_port: int
    user: str
    ticket_id: str | None = None
    renewal: str | None = None


_pin = TypeAdapter(_Pin)


@dataclass(frozen=True, slots=True)
class Known:
    """A node as our ledger knows it: the certificate that was installed last, and how its machine is reached.

    ticket_id: of the ticket that it all began with. renewal: the id of the renewal that the certificate is from.
    """

    record: Record
    address: Address
    ssh_port: int
    user: str
    ticket_id: str
    renewal: str | None

    @property
    def vm_uuid(self) -> str:
        """Of the machine; every ticket has one."""
        return self.record.vm_uuid or ""


@dataclass(frozen=True, slots=True)
class Look:
    """What a node says of its identity in force. agent: its agent.yaml; crl: its list's number.

    bundle: SHA-256 of the trust bundle's file. pending: a refresh was swapped in, and not ended.
    """

    facts: node_facts.Facts
    agent: AgentConfig | None
    bundle: str | None
    crl: int | None
    pending: bool


def known(authority: Authority, name: str) -> Known:
    """Who the node called `name` is.

    Raises:
        Refused: no certificate was installed on it that still counts, or none by onboard-node.
    """
    records = authority.records(name)
    installed = [record for record in records if record.standing is Standing.INSTALLED]
    again = f"ask infra for a ticket: provision-node {name} --reissue-ticket, then onboard-node {name}"
    if not installed:
        begun = any(record.standing is Standing.ISSUED for record in records)
        raise Refused(
            f"{name} has no identity to keep up",
            why="its onboarding has not come to its end"
            if begun
            else "no certificate was installed on it, or each one was revoked",
            next_step=f"onboard-node {name}" if begun else again,
        )
    found = _machine(installed[-1])
    if found is None:
        raise Refused(
            f"{name} has no identity that onboard-node could keep up",
            why=f"certificate {installed[-1].serial} was not made by it, so no machine is pinned for it",
            next_step=again,
        )
    return found


def on_record(known: Known, desk: Desk) -> Node | None:
    """The node in our record, if it is there; the record says nothing of who it is.

    Raises:
        Refused: its state forbids upkeep.
    """
    name = known.record.node
    node = desk.store.get(name)
    state = None if node is None else node.state
    if (state is not None and state not in _SERVING) or ended(name, desk):
        raise Refused(
            f"{name} is not kept up",
            why=f"it is {state}" if state is not None else "it was decommissioned",
            next_step=f"node-inventory show {name}",
        )
    return node


def is_kept_up(name: str, desk: Desk) -> bool:
    """Whether a node that nobody named is to be looked after: not one that is on its way in or out."""
    node = desk.store.get(name)
    return (node is None or node.state in _SERVING) and not ended(name, desk)


def receipt_of(name: str, desk: Desk) -> Receipt | None:
    """The receipt that is kept beside the authority, where nobody but the holder writes."""
    try:
        return peek_receipt((desk.authority.layout.receipts / f"{name}.receipt").read_text("utf-8"))
    except (OSError, UnicodeDecodeError, Refused):
        return None


def ended(name: str, desk: Desk) -> bool:
    """Was the node decommissioned, and not onboarded since?"""
    receipt = receipt_of(name, desk)
    return receipt is not None and receipt.kind == "decommissioned"


def session(known: Known, desk: Desk) -> Session:
    """A session to the machine of our ledger, and to no other.

    Raises:
        OtherSide: it is out of reach, is another machine, or lets nobody in.
    """
    return session_to(
        known.address, desk, port=known.ssh_port, user=known.user, host_keys=known.record.host_keys
    )


def look(session: Session, place: scripts.Place) -> Look:
    """What the node says of itself and of its identity, in one go; changes nothing.

    Raises:
        OtherSide: it does not answer as it should.
    """
    both = scripts.facts(place) + upkeep_scripts.look(place)
    output = run(session, place, both, "look").stdout
    told = _told(output)
    crl = told.get("crl")
    return Look(
        facts=node_facts.parse(output),
        agent=_agent(told.get("agent")),
        bundle=told.get("bundle"),
        crl=None if crl is None else int(crl, 16),
        pending="pending" in told,
    )


def run(
    session: Session, place: scripts.Place, script: bytes, what: str, *, timeout_s: float = SCRIPT_S
) -> "Said":
    """Run a script there; how it ended, and what it said.

    Raises:
        OtherSide: it did not run, or was refused because another one is at work.
    """
    result = session.run(scripts.run(place), stdin=script, timeout_s=timeout_s)
    words = result.stderr.decode("utf-8", "replace").strip().splitlines()
    last = words[-1][:400] if words else f"exit status {result.exit_status}, no word"
    if result.exit_status == _NOT_ALONE or (not result.stdout and result.exit_status != 0):
        raise OtherSide(
            f"the node ran no script ({what})",
            why=last,
            next_step="see what is at work there and whether `sh` works, then run the command again",
        )
    return Said(result.stdout, node_facts.failure(result.stdout), last)


@dataclass(frozen=True, slots=True)
class Said:
    """What a script said. failed: what it says went wrong. last: the last words on stderr."""

    stdout: bytes
    failed: str | None
    last: str

    def ended(self, what: str) -> bool:
        """Did it come to its end?"""
        return f"\nend={what}\n".encode() in b"\n" + self.stdout


def refuse_lower(name: str, held: int | None, number: int | None) -> None:
    """Refuse to go back to a list before the one that the node has.

    Raises:
        Refused: it would.
    """
    if held is not None and (number is None or number < held):
        raise Refused(
            f"{name} keeps its revocation list",
            why=f"it has list {held}, and ours is {'none' if number is None else number}: "
            "this authority's folder may be an older copy",
            next_step="see node-ca status; then sign a new list: node-ca crl --out FILE",
        )


def config_of(look: Look, known: Known, place: scripts.Place, *, crl: bool) -> AgentConfig:
    """The agent.yaml that the node gets: its own fabrics, and the files of its identity.

    Raises:
        Refused: the one that it has cannot be read.
    """
    name = known.record.node
    if look.agent is None or look.agent.node != name:
        raise Refused(
            f"{name} is not kept up",
            why=f"{place.dir}/current/agent.yaml there is absent, faulty, or of another node",
            next_step=f"mend that file, or ask infra for a ticket: provision-node {name} --reissue-ticket",
        )
    here = Path(place.dir) / "current"
    files = {"cert_file": here / "chain.pem", "key_file": here / "key.pem", "ca_file": here / "bundle.pem"}
    if crl:
        files["crl_file"] = here / "crl.pem"
    return look.agent.model_copy(update={"identity": type(look.agent.identity)(**files)})


def fabrics_of(look: Look) -> tuple[Fabric, ...]:
    """The node's fabrics as its own agent.yaml has them."""
    if look.agent is None:
        return ()
    return tuple(
        Fabric(fabric.name, interface=fabric.interface, mtu=fabric.mtu, rate_gbps=fabric.rate_gbps)
        for fabric in look.agent.fabrics
    )


def tell_bundle(name: str, desk: Desk) -> None:
    """Record that a node has the trust bundle of now."""
    authority = desk.authority
    authority.bundle_installed(name, authority.bundle_sha256, now=desk.clock(), actor=desk.actor)


def told_record(node: Node | None, desk: Desk, why: str, *, receipt: str | None = None) -> Node | None:
    """An event on the node's record; its state stays."""
    if node is None:
        return None
    fresh = desk.store.get(node.name) or node
    return desk.store.save(fresh if receipt is None else replace(fresh, receipt=receipt), why=why)


def names_in(authority: Authority) -> Mapping[str, Record]:
    """The newest certificate of every node that was issued and not revoked, by the node's name."""
    newest: dict[str, Record] = {}
    for record in authority.records():
        if record.standing is Standing.INSTALLED:
            newest[record.node] = record
    return newest


def _machine(record: Record) -> Known | None:
    """The machine of a certificate; None where none was verified when it was made."""
    try:
        pin = _pin.validate_json(json.dumps(dict(record.pin)))
        address = Address(pin.address, None, "static" if pin.address in record.addresses else "leased")
    except ValueError:
        return None
    ticket_id = record.ticket_id or pin.ticket_id
    if not record.host_keys or not record.vm_uuid or ticket_id is None:
        return None
    return Known(record, address, pin.ssh_port, pin.user, ticket_id, pin.renewal)


def _told(output: bytes) -> dict[str, str]:
    told: dict[str, str] = {}
    for line in output.decode("utf-8", "replace").splitlines():
        key, _, value = line.partition("=")
        if key in _VALUE and re.fullmatch(_VALUE[key], value):
            told.setdefault(key, value)
    return told


def _agent(text: str | None) -> AgentConfig | None:
    try:
        plain = base64.b64decode(text or "", validate=True).decode("utf-8")
        return loads(plain, AgentConfig, name="agent.yaml", base=Path("/"))
    except (binascii.Error, UnicodeDecodeError, BadFile):
        return None
