"""What is known of one certificate and of one ticket (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from ca.ledger import moment
from ca.profile import timestamp
from inventory.model import HostKey


class Standing(StrEnum):
    """How far a certificate has come."""

    OPEN = "open"
    FAILED = "failed"
    ISSUED = "issued"
    INSTALLED = "installed"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one certificate; its intent was written before it was signed.

    serial: hex, lower case, as its file is named.
    key_sha256: of the node's SubjectPublicKeyInfo. fingerprint_sha256: of the certificate, once issued.
    host_keys, machine_id, pin: the verified facts of the machine it was made for.
    why: of a failure or a revocation.
    """

    serial: str
    node: str
    vm_uuid: str | None
    standing: Standing
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    spiffe_id: str
    not_before: datetime
    not_after: datetime
    key_sha256: str
    actor: str
    at: datetime
    ticket_id: str | None = None
    host_keys: tuple[HostKey, ...] = ()
    machine_id: str | None = None
    pin: Mapping[str, Any] = field(default_factory=dict)
    fingerprint_sha256: str | None = None
    installed_at: datetime | None = None
    ended_at: datetime | None = None
    why: str | None = None

    def live(self, now: datetime) -> bool:
        """Whether a verifier that knows of every revocation would still accept it."""
        return self.standing in {Standing.ISSUED, Standing.INSTALLED} and now <= self.not_after

    def state(self, now: datetime) -> str:
        """Its standing, or `expired`."""
        expired = self.standing in {Standing.ISSUED, Standing.INSTALLED} and now > self.not_after
        return "expired" if expired else str(self.standing)

    def to_json(self, now: datetime) -> dict[str, Any]:
        """As --json shows it."""
        return {
            "serial": self.serial,
            "node": self.node,
            "vm_uuid": self.vm_uuid,
            "state": self.state(now),
            "names": list(self.names),
            "addresses": list(self.addresses),
            "spiffe_id": self.spiffe_id,
            "not_before": timestamp(self.not_before),
            "not_after": timestamp(self.not_after),
            "key_sha256": self.key_sha256,
            "fingerprint_sha256": self.fingerprint_sha256,
            "ticket_id": self.ticket_id,
            "host_keys": [key.line for key in self.host_keys],
            "machine_id": self.machine_id,
            "pin": dict(self.pin),
            "actor": self.actor,
            "intended_at": timestamp(self.at),
            "installed_at": timestamp(self.installed_at) if self.installed_at else None,
            "ended_at": timestamp(self.ended_at) if self.ended_at else None,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class TicketUse:
    """The one use of a ticket: for which node, machine and key."""

    node: str
    vm_uuid: str | None
    key_sha256: str


@dataclass(frozen=True, slots=True)
class Pinned:
    """Who a node is, as it was verified when its newest certificate was made."""

    node: str
    vm_uuid: str | None
    host_keys: tuple[HostKey, ...]
    machine_id: str | None
    pin: Mapping[str, Any]
    serial: str
    not_after: datetime
    ticket_id: str | None

    @classmethod
    def of(cls, record: Record) -> "Pinned":
        """What a record says of the machine."""
        return cls(
            node=record.node,
            vm_uuid=record.vm_uuid,
            host_keys=record.host_keys,
            machine_id=record.machine_id,
            pin=record.pin,
            serial=record.serial,
            not_after=record.not_after,
            ticket_id=record.ticket_id,
        )


def intent(record: Record) -> dict[str, Any]:
    """The body of the line that announces a certificate."""
    return {
        "serial": record.serial,
        "node": record.node,
        "vm_uuid": record.vm_uuid,
        "names": list(record.names),
        "addresses": list(record.addresses),
        "spiffe_id": record.spiffe_id,
        "not_before": timestamp(record.not_before),
        "not_after": timestamp(record.not_after),
        "key_sha256": record.key_sha256,
        "ticket_id": record.ticket_id,
        "host_keys": [key.line for key in record.host_keys],
        "machine_id": record.machine_id,
        "pin": dict(record.pin),
    }


def issued(serial: str, fingerprint_sha256: str, replaces: Sequence[str]) -> dict[str, Any]:
    """The body of the line that says that a certificate was signed and stored."""
    return {"serial": serial, "fingerprint_sha256": fingerprint_sha256, "replaces": list(replaces)}


def recorded(body: Mapping[str, Any], *, actor: str, at: datetime, **since: Any) -> Record:  # noqa: ANN401 - fields of Record
    """The record that the body of an `intent` line begins, and what became of it since.

    Raises:
        KeyError, TypeError, ValueError: the body lacks what it must say.
    """
    return Record(
        serial=body["serial"],
        node=body["node"],
        vm_uuid=body["vm_uuid"],
        names=tuple(body["names"]),
        addresses=tuple(body["addresses"]),
        spiffe_id=body["spiffe_id"],
        not_before=moment(body["not_before"]),
        not_after=moment(body["not_after"]),
        key_sha256=body["key_sha256"],
        actor=actor,
        at=at,
        ticket_id=body["ticket_id"],
        host_keys=tuple(HostKey.from_line(line) for line in body["host_keys"]),
        machine_id=body["machine_id"],
        pin=body["pin"],
        **since,
    )
