"""A new key and certificate for a node that has an identity of ours; who it is, our own ledger says.

The former certificate counts until the new one has been verified; then it is revoked as superseded. Where the
identity does not verify, the former generation comes back on the node, and the new certificate is revoked.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from ca.profile import timestamp
from ca.record import Record, Standing
from ca.request import read_request
from ca.signer import Signer
from inventory import signature
from inventory.errors import MusterError, OtherSide, Refused
from inventory.model import Node
from inventory.reach import Session
from inventory.ticket import Receipt, sign_receipt
from onboard import enroll, upkeep, upkeep_scripts
from onboard.desk import Desk, Outcome, keep_receipt, onboarded
from onboard.plan import MakeKey, Plan, place_of
from onboard.renewal_plan import Renewal, begun, planned_for, renewal_of, shown
from onboard.upkeep import Known
from verify.report import NodeReport


def renew(name: str, desk: Desk) -> Outcome:
    """Give a node the same names over a new key, or end a renewal that was not ended.

    Raises:
        Refused: the node has no identity of ours, or the machine, the policy or the holder says no.
        OtherSide: the node was out of reach, or did not take the identity (and put back what it had).
        Damaged: the authority's files contradict themselves.
    """
    if desk.dry_run:
        return _renew(name, desk)
    with desk.alone_with(name):
        return _renew(name, desk)


def unsettled(known: Known, desk: Desk, now: datetime) -> bool:
    """Is the certificate in force from a renewal that has not come to its end?"""
    if known.renewal is None:
        return False
    return bool(_others(known, desk, now)) or _receipt_on_file(known, desk) != known.record.serial


def refuse_unsettled(known: Known, desk: Desk, now: datetime) -> None:
    """Refuse upkeep that would take away the generation which may have to come back.

    Raises:
        Refused: a renewal has not come to its end.
    """
    if unsettled(known, desk, now):
        name = known.record.node
        raise Refused(
            f"{name} is not refreshed",
            why="its renewal has not come to its end",
            next_step=f"end it: onboard-node --renew {name}",
        )


def _renew(name: str, desk: Desk) -> Outcome:
    authority, now = desk.authority, desk.clock()
    known = upkeep.known(authority, name)
    node = upkeep.on_record(known, desk)
    if unsettled(known, desk, now):
        if desk.dry_run:
            return _outcome(node, known, changed=False, steps=("end the renewal that was not ended",))
        desk.console.say(f"{name}: ending the renewal that was not ended, certificate {known.record.serial}")
        return _settle(known, node, (), desk)
    place = place_of(authority.policy)
    due = enroll.list_due(authority, now)
    crl_number, crl = (None, None) if due is None else (due.number, due.pem)
    with upkeep.session(known, desk) as session:
        look = upkeep.look(session, place)
        now = desk.clock()
        upkeep.refuse_lower(name, look.crl, crl_number)
        renewal = renewal_of(known, look)
        planned = planned_for(renewal, known, look, desk, now, crl=crl is not None)
        desk.put(name, shown(known, look, planned, desk, now))
        steps = tuple(str(step) for step in planned.steps)
        if desk.dry_run:
            return _outcome(node, known, changed=False, steps=steps, warnings=planned.warnings)
        desk.agree(name)
        signer = _unlocked(desk, renewal, known, now)
        try:
            record = _put_in_force(session, planned, renewal, known, signer, desk, crl)
        except MusterError as error:
            upkeep.told_record(node, desk, f"not renewed: {error.what}: {error.why}")
            raise
    if crl_number is not None:
        authority.crl_installed(name, crl_number, now=desk.clock(), actor=desk.actor)
    upkeep.tell_bundle(name, desk)
    authority.installed(record.serial, now=desk.clock(), actor=desk.actor)
    done = _settle(upkeep.known(authority, name), node, steps, desk)
    return replace(done, warnings=planned.warnings)


def _unlocked(desk: Desk, renewal: Renewal, known: Known, now: datetime) -> Callable[[], Signer]:
    """The passphrase is asked before the node is changed, unless a certificate is there already."""
    if begun(renewal, known, desk, now):
        return desk.signer
    unlocked = desk.signer()
    return lambda: unlocked


def _put_in_force(
    session: Session,
    planned: Plan,
    renewal: Renewal,
    known: Known,
    signer: Callable[[], Signer],
    desk: Desk,
    crl: bytes | None,
) -> Record:
    authority = desk.authority
    make = next(step for step in planned.steps if isinstance(step, MakeKey))
    desk.console.say(f"{renewal.node}: making the key there")
    csr = enroll.make_key(session, make, place_of(authority.policy), renewal)
    paper = _certify(csr, renewal, known, signer, desk)
    desk.console.say(f"{renewal.node}: certificate {paper.serial} signed, installing it")
    try:
        told = enroll.install(
            session,
            planned,
            paper,
            authority,
            login=known.user,
            holder_key=" ".join(signature.public_key_line(desk.key_file).split()[:2]),
            uuid=known.vm_uuid,
            crl=crl,
        )
    except enroll.RolledBack as error:
        why = f"not installed: {error.why}"[:400]
        authority.revoke(paper.serial, reason=why, now=desk.clock(), actor=desk.actor)
        raise OtherSide(
            f"{renewal.node} did not take its new identity; it keeps the former one",
            why=error.why,
            next_step=f"mend the cause on the node, then run onboard-node --renew {renewal.node} again",
        ) from error
    for line in told:
        desk.console.say(f"{renewal.node}: {line}")
    return authority.find(paper.serial)


def _certify(
    csr: bytes, renewal: Renewal, known: Known, signer: Callable[[], Signer], desk: Desk
) -> enroll.Paper:
    """The certificate for the node's new key: the one signed for it by a run that was stopped, or a new one."""
    authority, now, former = desk.authority, desk.clock(), known.record
    key = read_request(csr).sha256
    for record in begun(renewal, known, desk, now):
        if record.key_sha256 == key:
            return enroll.Paper(
                record.serial, authority.load_issued(record.serial).chain_pem, enroll.held_by(record)
            )
    issued = authority.issue(
        csr,
        node=renewal.node,
        vm_uuid=known.vm_uuid,
        static_address=None,
        signer=signer(),
        now=now,
        actor=desk.actor,
        host_keys=former.host_keys,
        machine_id=former.machine_id,
        pin={**former.pin, "ticket_id": known.ticket_id, "renewal": renewal.id},
        names=former.names,
        addresses=former.addresses,
    )
    return enroll.Paper(issued.serial, issued.chain_pem, enroll.held_by(authority.find(issued.serial)))


def _settle(known: Known, node: Node | None, steps: tuple[str, ...], desk: Desk) -> Outcome:
    """Bring a renewal to its end: told, verified, and the former certificate revoked; or taken back.

    The same again goes on where it was stopped.
    """
    receipt = _told(known, node, desk)
    report = desk.verify(receipt) if desk.verify is not None else None
    former = _former(known, desk)
    if report is not None and former is not None and identity_failed(report):
        return _take_back(known, former, node, report, desk)
    if report is None or report.findings is not None:
        for record in _others(known, desk, desk.clock()):
            desk.authority.revoke(
                record.serial,
                reason=f"superseded by {known.record.serial}",
                now=desk.clock(),
                actor=desk.actor,
            )
    else:
        desk.console.warn(
            f"{known.record.node}: it could not be verified, so the former certificate still counts; "
            f"end the renewal by: onboard-node --renew {known.record.node}"
        )
    return _outcome(node, known, changed=True, steps=steps, receipt=receipt, report=report, desk=desk)


def identity_failed(report: NodeReport) -> bool:
    """Is it the identity that did not verify: the files, the certificate on record, or the mutual TLS over it?"""
    findings = report.findings
    if findings is None or report.error is None:
        return False
    assembled = all(result.ok for result in findings.scenarios if result.name == "assemble")
    against = any(line.startswith("identity:") for line in report.error.why.splitlines())
    return findings.identity.fault is not None or against or not assembled


def _take_back(known: Known, former: Known, node: Node | None, report: NodeReport, desk: Desk) -> Outcome:
    """The former identity in force again, the new certificate revoked; always ends in the verification's error."""
    name, policy = known.record.node, desk.authority.policy
    place = place_of(policy)
    desk.console.warn(f"{name}: the new identity did not verify; bringing back {former.record.serial}")
    script = upkeep_scripts.restore(
        place,
        former=former.record.fingerprint_sha256 or "",
        failed=known.record.fingerprint_sha256 or "",
        reload_command=policy.install.reload_command,
    )
    with upkeep.session(known, desk) as session:
        said = upkeep.run(session, place, script, "restore", timeout_s=upkeep.INSTALL_S)
    if said.failed is not None or not said.ended("restore"):
        raise OtherSide(
            f"{name} has a new identity that does not verify, and the former one did not come back",
            why=said.failed or said.last,
            next_step=f"ask infra for a new ticket: provision-node {name} --reissue-ticket",
        )
    receipt = _told(former, node, desk, again=True)
    why = report.error.why if report.error is not None else ""
    desk.authority.revoke(
        known.record.serial,
        reason=f"not verified: {' '.join(why.split())}"[:400],
        now=desk.clock(),
        actor=desk.actor,
    )
    if desk.verify is not None:
        desk.verify(receipt)
    return _outcome(node, former, changed=True, steps=(), receipt=receipt, report=report, desk=desk)


def _told(known: Known, node: Node | None, desk: Desk, *, again: bool = False) -> Receipt:
    """The receipt for a certificate, told to the record first and kept last; the same again changes nothing."""
    record = known.record
    receipt = onboarded(
        desk,
        node=record.node,
        vm_uuid=known.vm_uuid,
        ticket_id=known.ticket_id,
        identity=record,
        host_keys=record.host_keys,
        address=known.address,
        ssh_port=known.ssh_port,
        user=known.user,
    )
    if _receipt_on_file(known, desk) == record.serial and not again:
        return receipt
    text = sign_receipt(receipt, key_file=desk.key_file)
    until = f"until {timestamp(record.not_after)}"
    if again:
        why = f"not renewed: the new identity did not verify; certificate {record.serial} is back, {until}"
    else:
        why = f"renewed: certificate {record.serial} installed, {until}"
    upkeep.told_record(node, desk, why, receipt=text)
    keep_receipt(receipt.node, text, desk)
    return receipt


def _receipt_on_file(known: Known, desk: Desk) -> str | None:
    receipt = upkeep.receipt_of(known.record.node, desk)
    return None if receipt is None else receipt.serial


def _others(known: Known, desk: Desk, now: datetime) -> tuple[Record, ...]:
    """The node's older certificates that a verifier would accept; a newer one is of a renewal under way."""
    records = desk.authority.records(known.record.node)
    serials = [record.serial for record in records]
    older = records[: serials.index(known.record.serial)]
    return tuple(record for record in older if record.live(now))


def _former(known: Known, desk: Desk) -> Known | None:
    """The newest of the others that was installed, if there is one."""
    for record in reversed(_others(known, desk, desk.clock())):
        if record.standing is Standing.INSTALLED:
            return replace(known, record=record, renewal=record.pin.get("renewal"))
    return None


def _outcome(
    node: Node | None,
    known: Known,
    *,
    changed: bool,
    steps: tuple[str, ...],
    warnings: tuple[str, ...] = (),
    receipt: Receipt | None = None,
    report: NodeReport | None = None,
    desk: Desk | None = None,
) -> Outcome:
    record = known.record
    now = desk.store.get(record.node) if desk is not None else node
    return Outcome(
        record.node,
        None if now is None else now.state,
        changed=changed,
        held=enroll.held_by(record),
        receipt=receipt,
        steps=steps,
        warnings=warnings,
        what=f"certificate {record.serial} until {timestamp(record.not_after)}",
        report=report,
    )
