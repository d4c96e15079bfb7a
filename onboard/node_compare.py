"""What each node says of itself, against the ledger and the record: several are asked at once, and only read."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from ca.authority import Authority
from inventory.checking import Asked, Disagreement, NotChecked
from inventory.checking_record import SERVING
from inventory.errors import MusterError
from inventory.model import Node
from inventory.reach import WrongMachine, open_session
from inventory.store import utc_now
from inventory.ticket import iso
from onboard import enroll, upkeep
from onboard import node_checker as kinds
from onboard.desk import SESSION_S
from onboard.plan import place_of

AT_ONCE = 16
"""Nodes that are asked at a time."""

Found = Disagreement | NotChecked


def compare(authority: Authority, asked: Asked, *, key_file: Path) -> Iterator[Found]:
    """What does not agree; a node that is out of reach is told as not checked."""
    place = place_of(authority.policy)
    known: list[tuple[Node, upkeep.Known]] = []
    for node in asked.nodes():
        if node.state not in SERVING:
            continue
        try:
            known.append((node, upkeep.known(authority, node.name)))
        except MusterError as error:
            yield NotChecked.of(error, kinds.SOURCE, node.name)
    try:
        due = enroll.list_due(authority, asked.now)
    except MusterError as error:
        due = None
        yield NotChecked.of(error, kinds.SOURCE)
    wanted = Wanted(authority, None if due is None else due.number)

    def look(of: upkeep.Known) -> tuple[upkeep.Look, datetime] | MusterError:
        try:
            with open_session(
                host=of.address.ip,
                port=of.ssh_port,
                user=of.user,
                host_keys=of.record.host_keys,
                key_file=key_file,
                timeout_s=SESSION_S,
                jump=asked.jump,
            ) as session:
                found = upkeep.look(session, place)
                return found, utc_now()
        except MusterError as error:
            return error

    if not known:
        return
    pool = ThreadPoolExecutor(min(AT_ONCE, len(known)), thread_name_prefix="check")
    try:
        with asked.console.waiting(f"{len(known)} nodes over SSH", timeout_s=SESSION_S + upkeep.SCRIPT_S):
            answers = list(pool.map(look, [of for _, of in known]))
    finally:
        pool.shutdown(cancel_futures=True)
    for (node, of), answer in zip(known, answers, strict=True):
        # A jump host that is another one says nothing of the node behind it.
        if isinstance(answer, WrongMachine) and answer.there == (of.address.ip, of.ssh_port):
            pinned = ", ".join(key.fingerprint for key in of.record.host_keys)
            yield kinds.HOST_KEY.of(node.name, found=answer.found, recorded=pinned, address=of.address.ip)
        elif isinstance(answer, MusterError):
            yield NotChecked.of(answer, kinds.SOURCE, node.name)
        else:
            yield from wanted.against(node, of, *answer)


class Wanted:
    """What every node of an authority must have."""

    def __init__(self, authority: Authority, list_number: int | None) -> None:
        """list_number: of the revocation list that is due; None where there is none."""
        self._policy = authority.policy
        self._bundle = authority.bundle_sha256
        self._list = list_number

    def against(self, node: Node, of: upkeep.Known, look: upkeep.Look, now: datetime) -> Iterator[Found]:
        """What one node has otherwise. now: when it told its clock."""
        yield from self._identity(node, of, look)
        facts = look.facts
        if facts.machine_uuid is not None and facts.machine_uuid != node.uuid:
            yield kinds.UUID.of(node.name, found=facts.machine_uuid, recorded=node.uuid)
        if None not in {facts.machine_id, node.machine_id} and facts.machine_id != node.machine_id:
            yield kinds.MACHINE_ID.of(node.name, found=facts.machine_id, recorded=node.machine_id)
        skew = abs((facts.clock - now).total_seconds())
        if skew > self._policy.max_clock_skew_s:
            yield kinds.CLOCK.of(node.name, found=f"{iso(facts.clock)}, {skew:.0f} s off", recorded=iso(now))
        if self._list is not None and (look.crl is None or look.crl < self._list):
            yield kinds.LIST.of(node.name, found=look.crl or "none", recorded=f"list {self._list} is due")
        if look.bundle is not None and look.bundle != self._bundle:
            yield kinds.BUNDLE.of(node.name, found=look.bundle, recorded=self._bundle)
        if look.pending:
            yield kinds.PENDING.of(
                node.name, found="it was swapped in, and not ended", recorded=of.record.serial
            )

    def _identity(self, node: Node, of: upkeep.Known, look: upkeep.Look) -> Iterator[Found]:
        found = look.facts.current_sha256
        recorded = f"{of.record.serial}, SHA-256 {of.record.fingerprint_sha256}"
        if found is None:
            yield kinds.NO_CERTIFICATE.of(node.name, found="none", recorded=recorded)
            return
        if found != of.record.fingerprint_sha256:
            yield kinds.ANOTHER_CERTIFICATE.of(node.name, found=f"SHA-256 {found}", recorded=recorded)
        file = f"{self._policy.install.dir}/current/agent.yaml"
        if look.agent is None or look.agent.node != node.name:
            told = "absent or faulty" if look.agent is None else f"of {look.agent.node}"
            yield kinds.AGENT.of(node.name, found=told, recorded=node.name, file=file)
            return
        has, wants = ({fabric.name for fabric in fabrics} for fabrics in (look.agent.fabrics, node.fabrics))
        if has != wants:
            yield kinds.FABRICS.of(
                node.name,
                found=", ".join(sorted(has)) or "none",
                recorded=", ".join(sorted(wants)) or "none",
                file=file,
            )
