"""New lists and trust bundle for a node that keeps its key and certificate."""

import hashlib

from ca.profile import timestamp
from inventory.document import dump
from inventory.errors import OtherSide, Refused
from inventory.model import Node
from inventory.reach import Session
from onboard import enroll, scripts, upkeep, upkeep_scripts
from onboard.desk import Desk, Outcome, Shown, brief
from onboard.plan import place_of
from onboard.renewal import refuse_unsettled
from onboard.upkeep import Known, Look


def refresh(name: str, desk: Desk) -> Outcome:
    """Bring a node the revocation list that is due and the trust bundle; its key and certificate stay.

    Raises:
        Refused: the node has a newer list, another certificate or no identity of ours, or no list is valid.
        OtherSide: the node was out of reach, or did not take them (and put back what it had).
        Damaged: the authority's files contradict themselves.
    """
    if desk.dry_run:
        return _refresh(name, desk)
    with desk.alone_with(name):
        return _refresh(name, desk)


def _refresh(name: str, desk: Desk) -> Outcome:
    authority, now = desk.authority, desk.clock()
    known = upkeep.known(authority, name)
    node = upkeep.on_record(known, desk)
    if not known.record.live(now):
        raise Refused(
            f"{name} gets no revocation list",
            why=f"its certificate ended at {timestamp(known.record.not_after)}",
            next_step=f"onboard-node --renew {name}",
        )
    refuse_unsettled(known, desk, now)
    due = enroll.list_due(authority, now)
    number, crl = (None, None) if due is None else (due.number, due.pem)
    place = place_of(authority.policy)
    with upkeep.session(known, desk) as session:
        look = upkeep.look(session, place)
        _same_identity(look, known)
        upkeep.refuse_lower(name, look.crl, number)
        wanted = {"bundle.pem": authority.bundle_pem, **({} if crl is None else {"crl.pem": crl})}
        agent = upkeep.config_of(look, known, place, crl=crl is not None)
        steps = _steps(look, wanted, number, changed=agent != look.agent)
        if steps and not desk.dry_run:
            desk.put(name, _shown(known, look, steps, desk))
            desk.agree(name)
            files = {**wanted, "agent.yaml": dump(agent).encode()}
            _bring(session, place, look, files, known, desk)
    if not desk.dry_run:
        _write_down(known, node, number, steps, desk)
    return Outcome(
        name,
        None if node is None else node.state,
        changed=bool(steps) and not desk.dry_run,
        held=enroll.held_by(known.record),
        steps=steps,
        what=f"revocation list {number or 'none'}" if steps else f"up to date, list {number or 'none'}",
    )


def _same_identity(look: Look, known: Known) -> None:
    if look.facts.current_sha256 != known.record.fingerprint_sha256:
        name = known.record.node
        raise Refused(
            f"{name} is not refreshed",
            why=f"it has not certificate {known.record.serial} in force, which is the one on record",
            next_step=f"give it a new one: onboard-node --renew {name}",
        )


def _steps(look: Look, wanted: dict[str, bytes], number: int | None, *, changed: bool) -> tuple[str, ...]:
    steps = []
    if number is not None and look.crl != number:
        before = "none" if look.crl is None else f"list {look.crl}"
        steps.append(f"install revocation list {number}, where {before} is now")
    if look.bundle != hashlib.sha256(wanted["bundle.pem"]).hexdigest():
        steps.append("install the trust bundle, which is another than the node's")
    if changed and not steps:
        steps.append("write agent.yaml, which does not name these files")
    if look.pending and not steps:
        steps.append("end a refresh that was interrupted")
    return tuple(steps)


def _shown(known: Known, look: Look, steps: tuple[str, ...], desk: Desk) -> Shown:
    left = brief(known.record.not_after - desk.clock())
    text = "; ".join(steps)
    lines = (f"  {known.record.node}: certificate {known.record.serial}, {left} left", f"  1. {text}")
    uuid = "uuid agrees" if look.facts.machine_uuid == known.vm_uuid else "uuid not compared"
    apart = f"{brief(abs(look.facts.clock - desk.clock().replace(microsecond=0)))} apart"
    return Shown(lines, (f"certificate {known.record.serial}, {left} left", uuid, apart, text))


def _bring(
    session: Session,
    place: scripts.Place,
    look: Look,
    files: dict[str, bytes],
    known: Known,
    desk: Desk,
) -> None:
    name, policy = known.record.node, desk.authority.policy
    digest = hashlib.sha256(b"".join(files[key] for key in sorted(files)))
    mark = hashlib.sha256(f"refresh {known.record.serial} {digest.hexdigest()}".encode()).hexdigest()[:32]
    script = upkeep_scripts.refresh(
        place,
        generation=_generation(look, mark),
        mark=mark,
        files=files,
        check_command=policy.install.check_command,
        reload_command=policy.install.reload_command,
    )
    desk.console.say(f"{name}: installing a generation with the same key and certificate")
    said = upkeep.run(session, place, script, "refresh", timeout_s=upkeep.INSTALL_S)
    if said.failed is not None:
        raise OtherSide(
            f"{name} did not take the lists and the bundle; it keeps what it had",
            why=said.failed,
            next_step=f"mend the cause on the node, then run onboard-node --refresh {name} again",
        )
    if not said.ended("refresh"):
        raise OtherSide(
            f"the end of {name}'s refresh was not seen",
            why=said.last,
            next_step="run the command again; it goes on from here",
        )


def _generation(look: Look, mark: str) -> int:
    """The one that a killed run of this very refresh has left, else the next number."""
    facts = look.facts
    for generation in facts.generations:
        if generation.ticket == mark and generation.number != facts.current:
            return generation.number
    return max((generation.number for generation in facts.generations), default=0) + 1


def _write_down(
    known: Known,
    node: Node | None,
    number: int | None,
    steps: tuple[str, ...],
    desk: Desk,
) -> None:
    name, now = known.record.node, desk.clock()
    if number is not None:
        desk.authority.crl_installed(name, number, now=now, actor=desk.actor)
    upkeep.tell_bundle(name, desk)
    if steps:
        upkeep.told_record(node, desk, f"refreshed: {'; '.join(steps)}")
