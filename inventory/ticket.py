"""The hand-off: the ticket that infra signs for a VM, and the receipt that the holder signs for a node."""

import ipaddress
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from inventory import signature
from inventory.errors import BadInput, Refused
from inventory.model import STRICT, Address, Fabric, HostKey, check_mac, check_node_name, check_user

TICKET_NAMESPACE = "muster-ticket"
RECEIPT_NAMESPACE = "muster-receipt"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEX = re.compile(r"[0-9a-f]+")
_PRINTABLE = re.compile(r"[\x20-\x7e]{1,255}")
_AHEAD = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Ticket:
    """What infra says of a VM that is to become a node.

    vm_uuid: the SMBIOS uuid, lower case. machine_id: /etc/machine-id
    (machine-id(5)), where it could be read.
    profile_hash: SHA-256 (hex) of the wanted VM. made_at, expires: aware UTC.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    id: str
    node: str
    site: str
    vmid: int
    proxmox_node: str
    vm_uuid: str
    machine_id: str | None
    macs: tuple[str, ...]
    address: Address
    ssh_port: int
    host_keys: tuple[HostKey, ...]
    user: str
    fabrics: tuple[Fabric, ...]
    profile_hash: str
    made_by: str
    made_at: datetime
    expires: datetime
    nonce: str
    schema: Literal[1] = 1

    def __post_init__(self) -> None:
        _check_common(self)
        for mac in self.macs:
            check_mac(mac)
        for field in ("id", "nonce", "profile_hash"):
            _check(_HEX, getattr(self, field), f"{field} is not lower-case hex")
        if self.machine_id is not None:
            _check(_HEX, self.machine_id, "machine_id is not lower-case hex")
        for text in (self.site, self.proxmox_node, self.made_by):
            _check(_PRINTABLE, text, "a text holds what cannot be printed, or is empty or too long")
        _check_aware(self.made_at, self.expires)
        if self.expires <= self.made_at:
            raise ValueError("it expires before it was made")
        if not 100 <= self.vmid <= 999_999_999:
            raise ValueError(f"vmid {self.vmid} is not between 100 and 999999999")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the security holder says of a node.

    serial: of its certificate, hex. ca_fingerprint: SHA-256 (hex) of the root certificate.
    host_keys: the pin that verify-node uses. install_dir, owner: where the identity lies and whose it is.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    kind: Literal["onboarded", "verified", "decommissioned"]
    node: str
    vm_uuid: str
    ticket_id: str
    serial: str
    spiffe_id: str
    not_after: datetime
    host_keys: tuple[HostKey, ...]
    address: Address
    ssh_port: int
    user: str
    ca_fingerprint: str
    install_dir: str
    owner: str
    made_by: str
    made_at: datetime
    schema: Literal[1] = 1

    def __post_init__(self) -> None:
        _check_common(self)
        check_user(self.owner)
        for field in ("ticket_id", "serial", "ca_fingerprint"):
            _check(_HEX, getattr(self, field), f"{field} is not lower-case hex")
        for text in (self.spiffe_id, self.made_by):
            _check(_PRINTABLE, text, "a text holds what cannot be printed, or is empty or too long")
        if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", self.install_dir) or ".." in self.install_dir.split("/"):
            raise ValueError("install_dir is not an absolute path of plain words")
        _check_aware(self.made_at, self.not_after)


T = TypeVar("T", Ticket, Receipt)
_ticket = TypeAdapter(Ticket)
_receipt = TypeAdapter(Receipt)


@dataclass(frozen=True, slots=True)
class Believed:
    """A ticket whose signature, dates and form hold.

    signer: the principal found from the key, the only name to show. fingerprint: for both screens.
    """

    ticket: Ticket
    signer: str
    fingerprint: str


def sign_ticket(ticket: Ticket, *, key_file: Path) -> str:
    """The ticket as it travels: one JSON line and the operator's SSH signature under it.

    Raises:
        BadInput: the key does not sign.
    """
    line = signature.canonical(_ticket.dump_python(ticket, mode="json"))
    return signature.sign(line, key_file=key_file, namespace=TICKET_NAMESPACE)


def read_ticket(text: str, *, signers: Path, now: datetime, max_age: timedelta | None = None) -> Believed:
    """The ticket in `text`, if it may be believed at `now`.

    Raises:
        Refused: not signed by an allowed signer, changed, malformed, expired, too old or from the future.
    """
    signed = signature.check(text, signers=signers, namespace=TICKET_NAMESPACE, what="the ticket")
    ticket = _parse(_ticket, signed, "the ticket")
    again = f"ask infra for a new one: provision-node {ticket.node} --reissue-ticket"
    if ticket.made_at > now + _AHEAD:
        raise Refused(
            f"the ticket for {ticket.node} is not believed",
            why=f"it was made at {iso(ticket.made_at)}, which is yet to come: one of the two clocks is wrong",
            next_step="compare `date -u` on both hosts",
        )
    if now >= ticket.expires:
        raise Refused(
            f"the ticket for {ticket.node} has expired",
            why=f"it held until {iso(ticket.expires)}",
            next_step=again,
        )
    if max_age is not None and now - ticket.made_at > max_age:
        raise Refused(
            f"the ticket for {ticket.node} is too old",
            why=f"it was made at {iso(ticket.made_at)}; policy believes tickets for {max_age}",
            next_step=again,
        )
    return Believed(ticket=ticket, signer=signed.principal, fingerprint=signature.fingerprint(text))


def peek_ticket(text: str) -> Ticket:
    """What a ticket says, believed by nobody yet: for showing a file or a record to its own maker.

    Raises:
        Refused: it is malformed.
    """
    return _parse(_ticket, signature.Signed(text.partition("\n")[0], ""), "the ticket")


def sign_receipt(receipt: Receipt, *, key_file: Path) -> str:
    """The receipt as it travels, signed by the holder's key.

    Raises:
        BadInput: the key does not sign.
    """
    line = signature.canonical(_receipt.dump_python(receipt, mode="json"))
    return signature.sign(line, key_file=key_file, namespace=RECEIPT_NAMESPACE)


def read_receipt(text: str, *, signers: Path) -> tuple[Receipt, str]:
    """The receipt in `text` and the principal who signed it.

    Raises:
        Refused: not signed by an allowed signer, changed, or malformed.
    """
    signed = signature.check(text, signers=signers, namespace=RECEIPT_NAMESPACE, what="the receipt")
    return _parse(_receipt, signed, "the receipt"), signed.principal


def iso(moment: datetime) -> str:
    """2026-11-30T12:00:00Z."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _parse(adapter: TypeAdapter[T], signed: signature.Signed, what: str) -> T:
    try:
        return adapter.validate_json(signed.line)
    except ValidationError as error:
        faults = error.errors()[:8]
        why = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'text'}: {e['msg']}" for e in faults)
        raise Refused(
            f"{what} is malformed", why=why, next_step="ask whoever sent it for a new one"
        ) from None


def _check_common(value: Ticket | Receipt) -> None:
    try:
        check_node_name(value.node)
    except BadInput as error:
        raise ValueError(f"{error.what}: {error.why}") from None
    check_user(value.user)
    _check(_UUID, value.vm_uuid, "vm_uuid is not a lower-case uuid")
    if not value.host_keys:
        raise ValueError("it pins no SSH host key")
    if not 1 <= value.ssh_port <= 65535:
        raise ValueError(f"port {value.ssh_port} is not between 1 and 65535")
    address = ipaddress.ip_address(value.address.ip)
    if address.is_multicast or address.is_unspecified:
        raise ValueError(f"{address} is no node's address")


def _check(pattern: re.Pattern[str], text: str, fault: str) -> None:
    if not pattern.fullmatch(text):
        raise ValueError(fault)


def _check_aware(*moments: datetime) -> None:
    if any(moment.utcoffset() != timedelta(0) for moment in moments):
        raise ValueError("a time is not in UTC")
