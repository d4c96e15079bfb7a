"""A renewal before it is done: what it is, what it takes, and what the holder reads."""

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime

from ca.policy import Request, allow
from ca.profile import timestamp
from ca.record import Record, Standing
from inventory.model import Fabric
from onboard import upkeep
from onboard.desk import Desk, Shown, brief
from onboard.plan import Certify, Install, Plan, RemoveBootstrap, place_of, plan
from onboard.upkeep import Known, Look


@dataclass(frozen=True, slots=True)
class Renewal:
    """What is to be done for a node.

    id: follows from the former certificate, so that a stopped run finds the key that the node made for it.
    """

    id: str
    node: str
    vm_uuid: str
    machine_id: str | None
    user: str
    fabrics: tuple[Fabric, ...]


def renewal_of(known: Known, look: Look) -> Renewal:
    """The renewal of the certificate that a node has."""
    record = known.record
    number = hashlib.sha256(f"renewal of {record.serial}".encode()).hexdigest()[:32]
    return Renewal(number, record.node, known.vm_uuid, record.machine_id, known.user, upkeep.fabrics_of(look))


def planned_for(renewal: Renewal, known: Known, look: Look, desk: Desk, now: datetime, *, crl: bool) -> Plan:
    """As for an onboarding, but with the names that the node has, and its own agent.yaml; no login is touched.

    Raises:
        Refused: the machine is not ours any more, or the policy does not grant what it has.
    """
    policy, record = desk.authority.policy, known.record
    granted = allow(policy, Request(record.node, None, record.names, record.addresses))
    addresses = tuple(str(address) for address in granted.addresses)
    certify = Certify(granted.names, addresses, granted.spiffe_id, granted.lifetime)
    planned = plan(renewal, look.facts, policy, certify, now=now, crl=crl)
    agent = upkeep.config_of(look, known, place_of(policy), crl=crl)
    steps = tuple(
        replace(step, agent=agent) if isinstance(step, Install) else step
        for step in planned.steps
        if not isinstance(step, RemoveBootstrap)
    )
    warnings = list(planned.warnings)
    signed = begun(renewal, known, desk, now)
    ours = {record.fingerprint_sha256, *(one.fingerprint_sha256 for one in signed)}
    if look.facts.current_sha256 not in ours:
        warnings.append(
            f"certificate {record.serial}, which is on record, is not the one that it has in force"
        )
    if not record.live(now):
        warnings.append(f"its certificate ended at {timestamp(record.not_after)}")
    return replace(planned, steps=steps, warnings=tuple(warnings))


def shown(known: Known, look: Look, planned: Plan, desk: Desk, now: datetime) -> Shown:
    """What the holder reads: shorter than for a ticket, for nobody new is let in."""
    record = known.record
    left = f"{brief(record.not_after - now)} left" if record.live(now) else "ended"
    uuid = "uuid agrees" if look.facts.machine_uuid == known.vm_uuid else "uuid not readable"
    pins = ", ".join(f"{key.type} {key.fingerprint}" for key in record.host_keys)
    names = ", ".join((*record.names, *record.addresses))
    lines = [
        f"  node         {record.node}",
        f"  has          certificate {record.serial}, until {timestamp(record.not_after)} ({left})",
        f"  for          {names}",
        f"  machine      uuid {known.vm_uuid} ({uuid}), machine-id {record.machine_id or '-'}",
        f"  address      {known.address.ip}, port {known.ssh_port}, as {known.user}",
        f"  host key     {pins}",
        f"  clock        {brief(abs(planned.skew))} apart",
        f"  valid until  {timestamp(now + desk.authority.policy.lifetime)}",
        "",
        *(f"  {number}. {step}" for number, step in enumerate(planned.steps, 1)),
        *(f"! {warning}" for warning in planned.warnings),
    ]
    row = (
        f"certificate {record.serial}, {left}",
        uuid,
        f"{brief(abs(planned.skew))} apart",
        "; ".join(("new key and certificate", *planned.warnings[:1])),
    )
    return Shown(tuple(lines), row)


def begun(renewal: Renewal, known: Known, desk: Desk, now: datetime) -> tuple[Record, ...]:
    """What was signed in this very renewal, and not seen to be installed."""
    return tuple(
        record
        for record in desk.authority.records(known.record.node)
        if record.standing is Standing.ISSUED and record.pin.get("renewal") == renewal.id and record.live(now)
    )
