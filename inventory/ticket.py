"""The hand-off: the ticket that infra signs for a VM, and the receipt that the holder signs for a node."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

from pydantic import AfterValidator, TypeAdapter, ValidationError

from inventory import canonical, claims, signature
from inventory.errors import Refused
from inventory.model import STRICT, Address, Fabric, HostKey

TICKET_NAMESPACE = "muster-ticket"
RECEIPT_NAMESPACE = "muster-receipt"
_AHEAD = timedelta(minutes=5)
_MAX_FAULTS = 50

NodeText = Annotated[str, AfterValidator(claims.node)]
User = Annotated[str, AfterValidator(claims.user)]
Hex = Annotated[str, AfterValidator(claims.hexadecimal)]
Uuid = Annotated[str, AfterValidator(claims.uuid)]
Words = Annotated[str, AfterValidator(claims.words)]
Folder = Annotated[str, AfterValidator(claims.folder)]
Port = Annotated[int, AfterValidator(claims.port)]
Vmid = Annotated[int, AfterValidator(claims.vmid)]
Moment = Annotated[datetime, AfterValidator(claims.moment)]
Place = Annotated[Address, AfterValidator(claims.address)]
Pins = Annotated[tuple[HostKey, ...], AfterValidator(claims.host_keys)]


@dataclass(frozen=True, slots=True)
class Ticket:
    """What infra says of a VM that is to become a node.

    vm_uuid: the SMBIOS uuid, lower case. machine_id: /etc/machine-id
    (machine-id(5)), where it could be read.
    profile_hash: SHA-256 (hex) of the wanted VM. made_at, expires: aware UTC.
    made_by: the principal that the signer goes by at the CA host; None leaves it to the key.
    supersedes: ids of the tickets that this one makes void.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    id: Hex
    node: NodeText
    site: Words
    vmid: Vmid
    proxmox_node: Words
    vm_uuid: Uuid
    machine_id: Hex | None
    macs: Annotated[tuple[str, ...], AfterValidator(claims.macs)]
    address: Place
    ssh_port: Port
    host_keys: Pins
    user: User
    fabrics: Annotated[tuple[Fabric, ...], AfterValidator(claims.fabrics)]
    profile_hash: Hex
    made_by: Words | None
    made_at: Moment
    expires: Moment
    nonce: Hex
    supersedes: Annotated[tuple[str, ...], AfterValidator(claims.ids)] = ()
    schema: Literal[1] = 1

    def __post_init__(self) -> None:
        faults = claims.faults(self, _checks(Ticket))
        if not faults and self.expires <= self.made_at:
            faults.append("it expires before it was made")
        if self.id in self.supersedes:
            faults.append("it supersedes itself")
        if faults:
            raise ValueError("\n".join(faults))


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the security holder says of a node.

    serial: of its certificate, hex. ca_fingerprint: SHA-256 (hex) of the root certificate.
    host_keys: the pin that verify-node uses. install_dir, owner: where the identity lies and whose it is.
    audit_head: of the authority's audit when it was made; an authority that does not know it is an older copy.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    kind: Literal["onboarded", "verified", "decommissioned"]
    node: NodeText
    vm_uuid: Uuid
    ticket_id: Hex
    serial: Hex
    spiffe_id: Words
    not_after: Moment
    host_keys: Pins
    address: Place
    ssh_port: Port
    user: User
    ca_fingerprint: Hex
    install_dir: Folder
    owner: User
    made_by: Words
    made_at: Moment
    audit_head: Hex | None = None
    schema: Literal[1] = 1

    def __post_init__(self) -> None:
        if faults := claims.faults(self, _checks(Receipt)):
            raise ValueError("\n".join(faults))


@cache
def _checks(kind: type) -> dict[str, Callable[[Any], object]]:
    """The checks that a class's annotations name, so that a value made by hand passes them as well."""
    found: dict[str, Callable[[Any], object]] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for part in (hint, *get_args(hint)):
            for note in getattr(part, "__metadata__", ()):
                found[name] = note.func
    return found


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
    line = canonical.dumps(_ticket.dump_python(ticket, mode="json"))
    return signature.sign(line, key_file=key_file, namespace=TICKET_NAMESPACE)


def read_ticket(
    text: str,
    *,
    signers: Path,
    now: datetime,
    max_age: timedelta | None = None,
    revoked: Path | None = None,
) -> Believed:
    """The ticket in `text`, if it may be believed at `now`.

    Raises:
        Refused: not signed by an allowed signer, signed by a revoked key or in another's name, changed,
            malformed, expired, too old or from the future.
        BadInput: the file of signers, or of revoked keys, is absent.
    """
    believed = signed_ticket(text, signers=signers, now=now, revoked=revoked)
    ticket = believed.ticket
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
    return believed


def signed_ticket(text: str, *, signers: Path, now: datetime, revoked: Path | None = None) -> Believed:
    """The ticket in `text`, whose signature and form hold at `now`, whatever its own dates say.

    Raises:
        Refused, BadInput: as `read_ticket`, but for the dates.
    """
    signed = signature.check(
        text, signers=signers, namespace=TICKET_NAMESPACE, what="the ticket", revoked=revoked, now=now
    )
    ticket = _parse(_ticket, signed.line, "the ticket")
    if ticket.made_by is not None and ticket.made_by not in signed.principals:
        raise Refused(
            f"the ticket for {ticket.node} is not believed",
            why=f"it says that {ticket.made_by} made it, but its key is that of {', '.join(signed.principals)}",
            next_step=f"if that is one person, infra gives the key the name that {signers} has for it:"
            f" ssh-keygen -c -C {signed.principal} -f KEY; then a new ticket is asked for",
        )
    signer = ticket.made_by or signed.principal
    return Believed(ticket=ticket, signer=signer, fingerprint=signature.fingerprint(text))


def peek_ticket(text: str) -> Ticket:
    """What a ticket says, believed by nobody yet: for showing a file or a record to its own maker.

    Raises:
        Refused: it is malformed.
    """
    return _parse(_ticket, text[: signature.MAX_BYTES].partition("\n")[0], "the ticket")


def sign_receipt(receipt: Receipt, *, key_file: Path) -> str:
    """The receipt as it travels, signed by the holder's key.

    Raises:
        BadInput: the key does not sign.
    """
    line = canonical.dumps(_receipt.dump_python(receipt, mode="json"))
    return signature.sign(line, key_file=key_file, namespace=RECEIPT_NAMESPACE)


def read_receipt(
    text: str, *, signers: Path, now: datetime | None = None, revoked: Path | None = None
) -> tuple[Receipt, str]:
    """The receipt in `text` and the principal who signed it.

    Raises:
        Refused: not signed by an allowed signer, signed by a revoked key, changed, or malformed.
        BadInput: the file of signers, or of revoked keys, is absent.
    """
    signed = signature.check(
        text, signers=signers, namespace=RECEIPT_NAMESPACE, what="the receipt", revoked=revoked, now=now
    )
    return _parse(_receipt, signed.line, "the receipt"), signed.principal


def peek_receipt(text: str) -> Receipt:
    """What a receipt says, believed by nobody yet.

    Raises:
        Refused: it is malformed.
    """
    return _parse(_receipt, text[: signature.MAX_BYTES].partition("\n")[0], "the receipt")


def iso(moment: datetime) -> str:
    """2026-11-30T12:00:00Z."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _parse(adapter: TypeAdapter[T], line: str, what: str) -> T:
    """The value of a line that is exactly the one which we would have written for it."""
    try:
        canonical.loads(line)
        value = adapter.validate_json(line)
    except ValidationError as error:
        faults = [_fault(".".join(map(str, each["loc"])), each["msg"]) for each in error.errors()]
        raise _malformed(what, faults) from None
    except ValueError as error:
        raise _malformed(what, [str(error)]) from None
    if canonical.dumps(adapter.dump_python(value, mode="json")) != line:
        raise _malformed(what, ["a key is missing, or a value is not written as we write it"])
    return value


def _fault(where: str, text: str) -> str:
    text = text.removeprefix("Value error, ")
    return f"{where[:120]}: {text}" if where else text


def _malformed(what: str, faults: list[str]) -> Refused:
    more = f"\nand {len(faults) - _MAX_FAULTS} more" if len(faults) > _MAX_FAULTS else ""
    return Refused(
        f"{what} is malformed",
        why="\n".join(faults[:_MAX_FAULTS]) + more,
        next_step="ask whoever sent it for a new one",
    )
