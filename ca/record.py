"""What the audit's lines add up to: one record for each certificate, one use for each ticket (pure)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from ca.ledger import Entry
from ca.profile import timestamp
from inventory.model import HostKey

_BEGINNING = ("trust_domain", "root_sha256", "issuing_sha256", "root_key")
"""What the first line says."""


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


class Book:
    """The records and ticket uses that the lines read so far add up to."""

    def __init__(self) -> None:
        """Empty; `take` adds line by line."""
        self.records: dict[str, Record] = {}
        self.tickets: dict[str, TicketUse] = {}
        self.beginning: Mapping[str, str] = {}
        self._open: dict[str, None] = {}

    def take(self, entry: Entry) -> None:
        """Add one line.

        Raises:
            KeyError, TypeError, ValueError: the line lacks what its kind must say, or speaks of a
                certificate that no line announced.
        """
        body = entry.body
        match entry.kind:
            case "init":
                self.beginning = {key: str(body[key]) for key in _BEGINNING}
            case "ticket-used":
                use = TicketUse(body["node"], body["vm_uuid"], body["key_sha256"])
                self.tickets.setdefault(body["ticket_id"], use)
            case "intent":
                self.records[body["serial"]] = _intended(entry)
                self._open[body["serial"]] = None
            case "issued":
                self._change(entry, standing=Standing.ISSUED, fingerprint_sha256=body["fingerprint_sha256"])
                for serial in body["replaces"]:
                    why = f"superseded: replaced by {body['serial']}"
                    self._end(serial, Standing.REVOKED, entry, why)
            case "installed":
                standing = self.records[body["serial"]].standing
                if standing is Standing.ISSUED:
                    standing = Standing.INSTALLED
                self._change(entry, standing=standing, installed_at=entry.at)
            case "failed" | "revoked":
                self._end(body["serial"], Standing(entry.kind), entry, body["why"])

    def open(self) -> tuple[Record, ...]:
        """What was about to be signed and has no end yet."""
        return tuple(self.records[serial] for serial in self._open)

    def of_node(self, node: str) -> Iterator[Record]:
        """The records of a node's name, oldest first."""
        return (record for record in self.records.values() if record.node == node)

    def _change(self, entry: Entry, **changes: Any) -> None:  # noqa: ANN401 - fields of Record
        serial = entry.body["serial"]
        self.records[serial] = replace(self.records[serial], **changes)
        self._open.pop(serial, None)

    def _end(self, serial: str, standing: Standing, entry: Entry, why: str) -> None:
        self.records[serial] = replace(self.records[serial], standing=standing, ended_at=entry.at, why=why)
        self._open.pop(serial, None)


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


def _intended(entry: Entry) -> Record:
    body = entry.body
    return Record(
        serial=body["serial"],
        node=body["node"],
        vm_uuid=body["vm_uuid"],
        standing=Standing.OPEN,
        names=tuple(body["names"]),
        addresses=tuple(body["addresses"]),
        spiffe_id=body["spiffe_id"],
        not_before=_moment(body["not_before"]),
        not_after=_moment(body["not_after"]),
        key_sha256=body["key_sha256"],
        actor=entry.actor,
        at=entry.at,
        ticket_id=body["ticket_id"],
        host_keys=tuple(HostKey.from_line(line) for line in body["host_keys"]),
        machine_id=body["machine_id"],
        pin=body["pin"],
    )


def _moment(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
