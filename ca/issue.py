"""One certificate, from what is asked to what may leave: drafted, signed, judged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509

from ca.judge import Wanted, judge, outside
from ca.policy import NodeProfile, Policy, Request, allow
from ca.profile import BACKDATE, fingerprint, node, node_validity, pem
from ca.record import Record, Standing
from ca.request import NodeKey
from ca.rules import Machine
from ca.signer import Signer, sign_certificate
from inventory.errors import Refused


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate that may leave.

    audit_head: of the audit once it was recorded; kept elsewhere, it tells an older audit (`check_heads`).
    serial: hex, lower case. chain_pem: the leaf, then its issuing authority (RFC 8446, section 4.4.2).
    """

    serial: str
    certificate_pem: bytes
    chain_pem: bytes
    not_before: datetime
    not_after: datetime
    spiffe_id: str
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    fingerprint_sha256: str
    audit_head: str | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls,
        record: Record,
        leaf: x509.Certificate,
        above_pem: bytes,
        *,
        audit_head: str | None = None,
    ) -> "Issued":
        """A certificate with what is recorded of it; `above_pem` follows it in its chain."""
        return cls(
            serial=record.serial,
            certificate_pem=pem(leaf),
            chain_pem=pem(leaf) + above_pem,
            not_before=record.not_before,
            not_after=record.not_after,
            spiffe_id=record.spiffe_id,
            names=record.names,
            addresses=record.addresses,
            fingerprint_sha256=fingerprint(leaf),
            audit_head=audit_head,
        )


@dataclass(frozen=True, slots=True)
class Draft:
    """A certificate that is allowed and complete, but for its signature; `record` announces it."""

    key: NodeKey
    profile: NodeProfile
    serial: int
    record: Record


def draft(
    key: NodeKey,
    machine: Machine,
    *,
    static_address: str | None,
    names: Sequence[str] = (),
    addresses: Sequence[str] = (),
    policy: Policy,
    issuing: x509.Certificate,
    serial: int,
    now: datetime,
    actor: str,
    ticket_id: str | None = None,
    pin: Mapping[str, Any] | None = None,
) -> Draft:
    """What would be signed.

    Raises:
        Refused: the policy or the authority's own constraints forbid it, or it would outlive its issuer.
    """
    profile = allow(policy, Request(machine.node, static_address, tuple(names), tuple(addresses)))
    reasons = [*outside(issuing, profile.names, profile.addresses)]
    if reasons:
        raise Refused(
            f"{machine.node} gets no certificate",
            why="\n".join(reasons),
            next_step="the policy became wider than the authority; narrow it, or rotate: node-ca rotate",
        )
    # A node whose clock is as late as the policy bears must not find its certificate not yet valid.
    backdate = max(BACKDATE, timedelta(seconds=policy.max_clock_skew_s))
    begin, end = node_validity(issuing, profile.lifetime, now=now, backdate=backdate)
    record = Record(
        serial=f"{serial:x}",
        node=machine.node,
        vm_uuid=machine.vm_uuid,
        standing=Standing.OPEN,
        names=profile.names,
        addresses=tuple(str(address) for address in profile.addresses),
        spiffe_id=profile.spiffe_id,
        not_before=begin,
        not_after=end,
        key_sha256=key.sha256,
        actor=actor,
        at=now,
        ticket_id=ticket_id,
        host_keys=machine.host_keys,
        machine_id=machine.machine_id,
        pin=dict(pin or {}),
    )
    return Draft(key, profile, serial, record)


def sign(
    draft: Draft,
    *,
    signer: Signer,
    issuing: x509.Certificate,
    root: x509.Certificate,
    now: datetime,
    one_of_many: bool = False,
) -> x509.Certificate:
    """The certificate of a draft, signed and judged; `one_of_many` as the judge knows it.

    Raises:
        Refused: a judge held it back.
    """
    builder = node(
        draft.key.public,
        issuer=issuing,
        wanted=draft.profile,
        validity=(draft.record.not_before, draft.record.not_after),
        serial=draft.serial,
    )
    leaf = sign_certificate(builder, signer)
    wanted = Wanted(draft.profile, draft.key.sha256, draft.serial)
    judge(
        pem(leaf) + pem(issuing), issuing=issuing, root=root, wanted=wanted, now=now, one_of_many=one_of_many
    )
    return leaf
