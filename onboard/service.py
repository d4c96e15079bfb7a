"""onboard-node's work for one node: ticket, machine, agreement, enrolment, receipt; each step on record."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from ipaddress import ip_address

from ca.policy import Policy, Request, allow
from ca.record import Record
from ca.rules import Machine, replaced_by
from ca.signer import Signer
from inventory import signature
from inventory.errors import BadInput, MusterError, Refused
from inventory.lifecycle import unadopted
from inventory.model import Node, State
from inventory.reach import Session
from inventory.store import Store
from inventory.ticket import (
    Believed,
    Receipt,
    Ticket,
    iso,
    peek_ticket,
    read_ticket,
    sign_receipt,
    signed_ticket,
)
from onboard import enroll, screen, upkeep
from onboard.desk import Desk, Outcome, Shown, brief, keep_receipt, onboarded, session_to
from onboard.facts import Facts
from onboard.plan import Certify, MakeKey, Plan, place_of, plan

_FRESH = {State.AWAITING_IDENTITY, State.ONBOARDING, State.ONBOARD_FAILED}
_LIVED = {State.AWAITING_VERIFICATION, State.VERIFY_FAILED, State.IN_SERVICE, State.ONBOARD_FAILED}


def ticket_of(store: Store, name: str) -> str:
    """The ticket's bytes from the record; nothing else of the record is believed.

    Raises:
        BadInput, Refused: the node is not on record, or has no ticket.
    """
    node = store.get(name)
    if node is None:
        raise BadInput(
            f"{name} is not on record",
            why="this inventory does not know it",
            next_step="pass the ticket that infra handed over: onboard-node --ticket FILE",
        )
    if node.ticket is None:
        how = "--adopt" if unadopted(node) else "--reissue-ticket"
        raise Refused(
            f"{name} cannot be onboarded",
            why=f"it is {node.state}, and infra has signed no ticket for it",
            next_step=f"ask infra for: provision-node {name} {how}",
        )
    return node.ticket


def onboard(text: str, desk: Desk) -> Outcome:
    """Give the node of a ticket its identity, or find that it has it.

    Raises:
        Refused: the ticket, the machine, the policy, the state or the holder says no.
        OtherSide: the node was out of reach, or did not take the identity (and put back what it had).
        Damaged: the authority's files contradict themselves.
    """
    ticket = peek_ticket(text)
    if desk.dry_run:
        return _onboard(text, ticket, desk)
    with desk.alone_with(ticket.node):
        return _onboard(text, ticket, desk)


def _onboard(text: str, ticket: Ticket, desk: Desk) -> Outcome:
    authority, now = desk.authority, desk.clock()
    done = enroll.finished(authority, ticket, now)
    if done is not None:
        return _nothing_to_do(ticket, done, desk)
    open_record = enroll.begun(authority, ticket, now)
    believed = _believe(text, desk, at=now if open_record is None else open_record.at)
    authority.refuse_void(ticket.id, node=ticket.node)
    _check_place(ticket, authority.policy)
    node = _on_record(believed, text, desk)
    granted = allow(authority.policy, _request(ticket))
    certify = Certify(
        granted.names,
        tuple(str(address) for address in granted.addresses),
        granted.spiffe_id,
        granted.lifetime,
    )
    ends, crl = _ends(ticket, desk, now), enroll.list_due(authority, now)
    with _session(ticket, desk) as session:
        facts = enroll.read_facts(session, place_of(authority.policy))
        now = desk.clock()
        planned = plan(ticket, facts, authority.policy, certify, now=now, crl=crl is not None)
        planned = replace(planned, warnings=(*planned.warnings, *ends))
        _show(believed, facts, planned, desk, now)
        steps = tuple(str(step) for step in planned.steps)
        if desk.dry_run:
            return Outcome(
                ticket.node, node.state, changed=False, held=None, steps=steps, warnings=planned.warnings
            )
        desk.agree(ticket.node)
        signer = _unlocked(desk, needed=open_record is None)
        why = "; ".join((f"ticket {believed.fingerprint} of {believed.signer}", *ends))
        node = _moved(node, State.ONBOARDING, desk, why)
        try:
            held = _enrol(session, planned, ticket, signer, desk, crl)
        except MusterError as error:
            _moved(node, State.ONBOARD_FAILED, desk, f"{error.what}: {error.why}")
            raise
    node, receipt = _receipted(node, ticket, held, desk)
    return Outcome(
        ticket.node,
        node.state,
        changed=True,
        held=held,
        receipt=receipt,
        steps=steps,
        warnings=planned.warnings,
    )


def _believe(text: str, desk: Desk, *, at: datetime) -> Believed:
    policy = desk.authority.policy
    if policy.ticket_signers is None:
        raise Refused(
            "no ticket is believed here",
            why="the policy names no ticket_signers",
            next_step=f"add ticket_signers to {desk.authority.layout.policy} (OpenSSH allowed signers)",
        )
    return read_ticket(
        text,
        signers=policy.ticket_signers,
        now=at,
        max_age=timedelta(hours=policy.max_ticket_age_h),
        revoked=policy.ticket_revoked_keys,
    )


def _check_place(ticket: Ticket, policy: Policy) -> None:
    """Refuse loopback: that is this very host, unless the policy says that its nodes are there."""
    address = ip_address(ticket.address.ip)
    if address.is_loopback and not any(address in network for network in policy.networks):
        raise Refused(
            f"{ticket.node} is not dialled",
            why=f"its ticket says {address}, which is this host itself",
            next_step="ask infra how the node is reached; a lab's policy names loopback in its addresses",
        )


def _check_newest(believed: Believed, known: str, desk: Desk) -> None:
    """Refuse a ticket when the record has a later one of the same machine, by an allowed signer.

    From the record only such a ticket's bytes are believed: whoever writes there what they like stops nobody.
    """
    policy, ticket = desk.authority.policy, believed.ticket
    if policy.ticket_signers is None:
        return
    try:
        other = signed_ticket(
            known, signers=policy.ticket_signers, now=desk.clock(), revoked=policy.ticket_revoked_keys
        )
    except MusterError:
        return
    later = other.ticket
    same = (later.node, later.vm_uuid) == (ticket.node, ticket.vm_uuid)
    if same and later.id != ticket.id and (ticket.id in later.supersedes or later.made_at > ticket.made_at):
        raise Refused(
            f"the ticket for {ticket.node} is not its newest",
            why=f"{other.signer} made ticket {other.fingerprint} at {iso(later.made_at)}, after it",
            next_step=f"use that one, which is on record: onboard-node {ticket.node}",
        )


def _request(ticket: Ticket) -> Request:
    return Request(ticket.node, ticket.address.ip if ticket.address.source == "static" else None)


def _session(ticket: Ticket, desk: Desk) -> Session:
    return session_to(
        ticket.address, desk, port=ticket.ssh_port, user=ticket.user, host_keys=ticket.host_keys
    )


def _ends(ticket: Ticket, desk: Desk, now: datetime) -> tuple[str, ...]:
    """What ends because another machine takes over the name: certificate, uuid and pin, for screen and record.

    Raises:
        Refused: another machine holds the name, and the holder did not say that it is replaced.
    """
    machine = Machine(ticket.node, ticket.vm_uuid.lower(), "", ticket.host_keys, ticket.machine_id)
    records = desk.authority.records(ticket.node)
    ending = set(replaced_by(records, machine, now=now, replace=desk.replace))
    return tuple(
        f"replaced: certificate {record.serial} of VM {record.vm_uuid} ends, and the pin "
        f"{', '.join(key.fingerprint for key in record.host_keys) or '(none)'} counts no more"
        for record in records
        if record.serial in ending
    )


def _show(believed: Believed, facts: Facts, planned: Plan, desk: Desk, now: datetime) -> None:
    authority, ticket = desk.authority, believed.ticket
    name = authority.issuing.subject.rfc4514_string()
    begin = max(now - enroll.backdate(authority.policy), authority.issuing.not_valid_before_utc)
    validity = (begin, now + authority.policy.lifetime)
    records = authority.records(ticket.node)
    lines = screen.lines(believed, facts, planned, now=now, ca_name=name, validity=validity, records=records)
    row = (
        f"{believed.fingerprint} of {believed.signer}, {brief(now - ticket.made_at)} ago",
        "uuid agrees" if facts.machine_uuid == ticket.vm_uuid else "uuid not readable",
        f"{brief(abs(planned.skew))} apart",
        "; ".join(("new identity", *planned.warnings)),
    )
    desk.put(ticket.node, Shown(tuple(lines), row))


def _unlocked(desk: Desk, *, needed: bool) -> Callable[[], Signer]:
    """The passphrase is asked before the record moves, unless a certificate is there already."""
    if not needed:
        return desk.signer
    unlocked = desk.signer()
    return lambda: unlocked


def _enrol(
    session: Session,
    planned: Plan,
    ticket: Ticket,
    signer: Callable[[], Signer],
    desk: Desk,
    crl: enroll.DueList | None,
) -> enroll.Held:
    authority = desk.authority
    make = next(step for step in planned.steps if isinstance(step, MakeKey))
    desk.console.say(f"{ticket.node}: making the key there")
    csr = enroll.make_key(session, make, place_of(authority.policy), ticket)
    now = desk.clock()
    paper = enroll.certify(
        authority, csr, ticket, signer=signer, now=now, actor=desk.actor, replace=desk.replace
    )
    desk.console.say(f"{ticket.node}: certificate {paper.serial} signed, installing it")
    try:
        told = enroll.install(
            session,
            planned,
            paper,
            authority,
            login=ticket.user,
            holder_key=" ".join(signature.public_key_line(desk.key_file).split()[:2]),
            uuid=ticket.vm_uuid,
            crl=crl.pem if crl else None,
        )
    except enroll.RolledBack as error:
        authority.revoke(
            paper.serial, reason=f"not installed: {error.why}"[:400], now=desk.clock(), actor=desk.actor
        )
        raise
    for line in told:
        desk.console.say(f"{ticket.node}: {line}")
    record, number = authority.find(paper.serial), crl.number if crl else None
    upkeep.tell_bundle(ticket.node, desk)
    enroll.settle(authority, record, crl_number=number, now=desk.clock(), actor=desk.actor)
    return paper.held


def _nothing_to_do(ticket: Ticket, record: Record, desk: Desk) -> Outcome:
    """The ticket was carried out: look whether the node still has what it got, and finish the record."""
    pinned = replace(ticket, host_keys=record.host_keys)
    with _session(pinned, desk) as session:
        facts = enroll.read_facts(session, place_of(desk.authority.policy))
    if facts.current_sha256 != record.fingerprint_sha256:
        raise Refused(
            f"{ticket.node} has lost its identity",
            why=f"certificate {record.serial} was installed for this ticket, and the node has it no more",
            next_step=f"ask infra for a new ticket: provision-node {ticket.node} --reissue-ticket",
        )
    held = enroll.held_by(record)
    settled = not desk.dry_run and enroll.settle(desk.authority, record, now=desk.clock(), actor=desk.actor)
    node = desk.store.get(ticket.node)
    if node is not None and node.state in {State.ONBOARDING, State.ONBOARD_FAILED} and not desk.dry_run:
        node = _moved(node, State.ONBOARDING, desk, "going on after an interruption")
        node, receipt = _receipted(node, ticket, held, desk)
        return Outcome(ticket.node, node.state, changed=True, held=held, receipt=receipt)
    state = State.AWAITING_VERIFICATION if node is None else node.state
    return Outcome(ticket.node, state, changed=settled, held=held)


def _on_record(believed: Believed, text: str, desk: Desk) -> Node:
    """The node in our record, its facts taken from the ticket alone."""
    ticket = believed.ticket
    found = desk.store.get(ticket.node)
    if found is not None and found.ticket is not None and found.ticket != text:
        _check_newest(believed, found.ticket, desk)
    node = _told_by(ticket, text, found or Node(ticket.node, State.AWAITING_IDENTITY))
    if desk.dry_run:
        return node
    why = f"ticket {believed.fingerprint} of {believed.signer}"
    if found is None:
        return desk.store.add(node, why=f"{why} came as a file")
    if found.ticket != text and found.state in _LIVED:
        node = desk.store.save(replace(node, state=State.AWAITING_IDENTITY), why=f"a new {why}")
    if node.state not in _FRESH:
        raise Refused(
            f"{ticket.node} is not waiting for an identity",
            why=f"it is {node.state}",
            next_step=f"node-inventory show {ticket.node}",
        )
    return node


def _told_by(ticket: Ticket, text: str, node: Node) -> Node:
    return replace(
        node,
        uuid=ticket.vm_uuid,
        vmid=ticket.vmid,
        proxmox_node=ticket.proxmox_node,
        site=ticket.site,
        address=ticket.address,
        ssh_port=ticket.ssh_port,
        user=ticket.user,
        macs=ticket.macs,
        host_keys=ticket.host_keys,
        machine_id=ticket.machine_id,
        fabrics=ticket.fabrics,
        ticket=text,
    )


def _moved(node: Node, state: State, desk: Desk, why: str) -> Node:
    failed = state is State.ONBOARD_FAILED
    return desk.store.save(replace(node, state=state, reason=why if failed else None), why=why)


def _receipted(node: Node, ticket: Ticket, held: enroll.Held, desk: Desk) -> tuple[Node, Receipt]:
    """The signed receipt, kept beside the authority and in the record, which moves on with it."""
    receipt = onboarded(
        desk,
        node=ticket.node,
        vm_uuid=ticket.vm_uuid,
        ticket_id=ticket.id,
        identity=held,
        host_keys=ticket.host_keys,
        address=ticket.address,
        ssh_port=ticket.ssh_port,
        user=ticket.user,
    )
    text = sign_receipt(receipt, key_file=desk.key_file)
    keep_receipt(ticket.node, text, desk)
    why = f"certificate {held.serial} installed, until {iso(held.not_after)}"
    moved = replace(node, state=State.AWAITING_VERIFICATION, receipt=text, reason=None)
    return desk.store.save(moved, why=why), receipt
