"""One node's enrolment over an open session: key and CSR there, signature here, installation there."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ca.authority import Authority, Issued
from ca.policy import Policy
from ca.profile import BACKDATE
from ca.record import Record, Standing
from ca.request import read_request
from ca.signer import Signer
from inventory.document import dump
from inventory.errors import OtherSide, Refused
from inventory.reach import Result, Session
from inventory.ticket import Ticket
from onboard import facts as node_facts
from onboard import scripts
from onboard.plan import Install, MakeKey, Plan, RemoveBootstrap, Subject

_TIMEOUT_S = 60.0
_INSTALL_S = 240.0
"""The policy's commands may take their time there, and a rollback calls one again."""

_NOT_ALONE = 75


@dataclass(frozen=True, slots=True)
class Held:
    """The identity that the node holds now."""

    serial: str
    spiffe_id: str
    not_after: datetime
    fingerprint_sha256: str


@dataclass(frozen=True, slots=True)
class Paper:
    """A certificate ready to be installed."""

    serial: str
    chain_pem: bytes
    held: Held


@dataclass(frozen=True, slots=True)
class DueList:
    """The revocation list that a node is given with its identity, in PEM form."""

    number: int
    pem: bytes


def list_due(authority: Authority, now: datetime) -> DueList | None:
    """The revocation list that is due; None where the authority has never signed one.

    Raises:
        Refused: the last one has ended: a node that got it would refuse every other one.
        Damaged: its file is not the one that was signed.
    """
    if authority.lists is None:
        return None
    slot, pem = authority.due_list(now)
    return DueList(slot.number, pem)


def backdate(policy: Policy) -> timedelta:
    """How long before now a certificate begins, for clocks that are behind."""
    return max(BACKDATE, timedelta(seconds=policy.max_clock_skew_s))


def read_facts(session: Session, place: scripts.Place) -> node_facts.Facts:
    """What the node says of itself; changes nothing.

    Raises:
        OtherSide: it does not answer as it should.
    """
    return node_facts.parse(_run(session, place, scripts.facts(place), "facts").stdout)


def make_key(session: Session, step: MakeKey, place: scripts.Place, ticket: Subject) -> bytes:
    """Have the node make its key, or find the one made for this ticket; its CSR comes back.

    Raises:
        OtherSide: it could not.
    """
    script = scripts.make_key(place, generation=step.generation, ticket=ticket.id, node=ticket.node)
    result = _run(session, place, script, "key")
    if result.exit_status != 0:
        raise OtherSide(
            f"{ticket.node} made no key",
            why=_last_words(result),
            next_step=f"look at {place.dir} on the node, then run the command again",
        )
    return node_facts.csr(result.stdout)


def certify(
    authority: Authority,
    csr: bytes,
    ticket: Ticket,
    *,
    signer: Callable[[], Signer],
    now: datetime,
    actor: str,
    replace: bool,
) -> Paper:
    """The certificate for the node's key: the one already issued for this ticket and key, or a new one.

    Raises:
        Refused: policy, or an earlier certificate, forbids it.
        Damaged: it could not be written down.
    """
    key = read_request(csr).sha256
    open_record = begun(authority, ticket, now)
    if open_record is not None:
        if open_record.key_sha256 == key:
            return _paper(authority.load_issued(open_record.serial))
        # Its key was wiped, or lost: what was certified with it can be in force nowhere.
        authority.revoke(open_record.serial, reason="its key is gone from the node", now=now, actor=actor)
        raise Refused(
            f"{ticket.node} gets no identity by this ticket",
            why=f"certificate {open_record.serial} was signed for it, and the key is gone from the node; "
            "it is revoked",
            next_step=f"ask infra for a new ticket: provision-node {ticket.node} --reissue-ticket",
        )
    issued = authority.issue(
        csr,
        node=ticket.node,
        vm_uuid=ticket.vm_uuid,
        static_address=ticket.address.ip if ticket.address.source == "static" else None,
        signer=signer(),
        now=now,
        actor=actor,
        ticket_id=ticket.id,
        host_keys=ticket.host_keys,
        machine_id=ticket.machine_id,
        supersedes=ticket.supersedes,
        pin={"address": ticket.address.ip, "ssh_port": ticket.ssh_port, "user": ticket.user},
        replace=replace,
    )
    return _paper(issued)


def install(
    session: Session,
    planned: Plan,
    paper: Paper,
    authority: Authority,
    *,
    login: str,
    holder_key: str,
    uuid: str,
    crl: bytes | None = None,
) -> tuple[str, ...]:
    """Install the identity and put it in force; what the node did comes back, for people.

    crl: the revocation list that is due (PEM); given just where the plan's agent.yaml names one.

    Raises:
        OtherSide: the session was lost; whether the identity is in force is then unknown.
        RolledBack: the node put back what was there and wiped the key.
    """
    step = next(step for step in planned.steps if isinstance(step, Install))
    policy = authority.policy
    remove = any(isinstance(step, RemoveBootstrap) for step in planned.steps)
    files = {
        "chain.pem": paper.chain_pem,
        "bundle.pem": authority.bundle_pem,
        "agent.yaml": dump(step.agent).encode(),
        "uuid": f"{uuid}\n".encode(),
    }
    script = scripts.install(
        step.place,
        generation=step.generation,
        files=files if crl is None else {**files, "crl.pem": crl},
        login=login,
        holder_key=holder_key,
        bootstrap="remove" if remove else "keep",
        check_command=policy.install.check_command,
        reload_command=policy.install.reload_command,
    )
    result = _run(session, step.place, script, "install", timeout_s=_INSTALL_S)
    failed = node_facts.failure(result.stdout)
    if failed is not None:
        raise RolledBack(failed)
    if result.exit_status != 0 or b"end=install" not in result.stdout:
        raise OtherSide(
            "the installation's end was not seen",
            why=_last_words(result),
            next_step="run the command again; it goes on from here",
        )
    return tuple(_told(result.stdout))


def settle(
    authority: Authority, record: Record, *, crl_number: int | None = None, now: datetime, actor: str
) -> bool:
    """Write down that a certificate is in force, with the list of that number; the node's older ones end.

    The same again changes nothing, so that it may be ended anywhere and done anew; False tells that it was done.

    Raises:
        Damaged: it could not be written down.
    """
    head = authority.head
    if crl_number is not None:
        authority.crl_installed(record.node, crl_number, now=now, actor=actor)
    authority.installed(record.serial, now=now, actor=actor)
    for other in authority.records(record.node):
        if other.live(now) and other.serial != record.serial and other.at <= record.at:
            authority.revoke(other.serial, reason=f"superseded by {record.serial}", now=now, actor=actor)
    return authority.head != head


class RolledBack(OtherSide):
    """The node refused the identity, and put back what was there before."""

    def __init__(self, why: str) -> None:
        """`why` is the node's word on it."""
        super().__init__(
            "the node did not take its identity",
            why=why,
            next_step="mend the cause on the node, ask infra for a new ticket, and run the command again",
        )


def held_by(record: Record) -> Held:
    """What a record says that its node holds."""
    return Held(record.serial, record.spiffe_id, record.not_after, record.fingerprint_sha256 or "")


def finished(authority: Authority, ticket: Ticket, now: datetime) -> Record | None:
    """The live certificate that was installed for this ticket, if there is one."""
    for record in authority.records(ticket.node):
        if record.ticket_id == ticket.id and record.standing is Standing.INSTALLED and record.live(now):
            return record
    return None


def begun(authority: Authority, ticket: Ticket, now: datetime) -> Record | None:
    """The live certificate that was issued for this ticket, whose installation's end was not seen."""
    for record in authority.records(ticket.node):
        if record.ticket_id == ticket.id and record.standing is Standing.ISSUED and record.live(now):
            return record
    return None


def _paper(issued: Issued) -> Paper:
    held = Held(issued.serial, issued.spiffe_id, issued.not_after, issued.fingerprint_sha256)
    return Paper(issued.serial, issued.chain_pem, held)


def _run(
    session: Session, place: scripts.Place, script: bytes, what: str, *, timeout_s: float = _TIMEOUT_S
) -> Result:
    result = session.run(scripts.run(place), stdin=script, timeout_s=timeout_s)
    if result.exit_status == _NOT_ALONE:
        raise OtherSide(
            f"the node was left as it is ({what})",
            why=_last_words(result),
            next_step="see what is at work there, then run the command again",
        )
    if not result.stdout and result.exit_status != 0:
        raise OtherSide(
            f"the node ran no script ({what})",
            why=_last_words(result),
            next_step="log in to the node by hand and see whether `sh` works there",
        )
    return result


def _last_words(result: Result) -> str:
    text = result.stderr.decode("utf-8", "replace").strip().splitlines()
    return text[-1][:400] if text else f"exit status {result.exit_status}, no word"


def _told(output: bytes) -> list[str]:
    words = {"checked": "checked there", "swapped": "in force", "reloaded": "agent reloaded"}
    told = []
    for line in output.decode("utf-8", "replace").splitlines():
        key, _, value = line.partition("=")
        if key == "step" and value in words:
            told.append(words[value])
        elif key == "bootstrap" and value.isdigit():
            told.append(f"{value} bootstrap key{'' if value == '1' else 's'} removed")
        elif key == "bootstrap" and value == "none":
            told.append("no bootstrap key to remove was found")
        elif key == "sudo":
            told.append("sudo of the login user cut down")
    return told
