"""What a passport says: an in-toto Statement v1 about one node, read as strictly as it is written (pure).

docs/passport.md explains each field. A section that is None has its entry in `missing`, and its reason.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, TypeAdapter, ValidationError

from inventory import canonical, claims
from inventory.errors import Refused
from inventory.model import STRICT, Address, Fabric, HostKey, State
from inventory.ticket import Hex, Moment, NodeText

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://passmuster.example/passport/v1"
"""A name, at which nothing is to be found (RFC 2606): the form of what a passport says, in its first version."""
SECTIONS = ("asked", "ticket", "certificate", "verification")
_MAX_FAULTS = 20


def _hosts(items: tuple[HostKey, ...]) -> tuple[HostKey, ...]:
    return items if not items else claims.host_keys(items)


@dataclass(frozen=True, slots=True)
class Move:
    """One event of the record, as it is kept there."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    at: Moment
    actor: str
    host: str
    before: State | None
    after: State
    why: str
    role: str | None
    db_user: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """Who wanted the node: the oldest event of its name."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    at: Moment
    actor: str
    host: str
    why: str


@dataclass(frozen=True, slots=True)
class Machine:
    """The VM, as the record has it; None is what the record does not know."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    uuid: str | None
    vmid: int | None
    proxmox_node: str | None
    site: str | None
    profile: str | None
    spec_hash: str | None
    machine_id: str | None
    macs: tuple[str, ...]
    address: Address | None
    ssh_port: int
    user: str | None
    host_keys: Annotated[tuple[HostKey, ...], AfterValidator(_hosts)]
    fabrics: tuple[Fabric, ...]


@dataclass(frozen=True, slots=True)
class SignedTicket:
    """The ticket as it was signed. key: what it was signed with. made_by: the principal that it names itself."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    text: str
    sha256: Hex
    key: str
    fingerprint: str
    made_by: str | None


@dataclass(frozen=True, slots=True)
class SignedReceipt:
    """A receipt as it was signed. db_user: by whose login a shared record took it."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    text: str
    sha256: Hex
    key: str
    db_user: str | None


@dataclass(frozen=True, slots=True)
class Certificate:
    """The node's certificate.

    sha256: of its DER form. standing: in the authority's ledger when the passport was made.
    chain: leaf, issuing authority, root; PEM. policy_sha256: of policy.yaml as it lay there then.
    audit_head, audit_entries: of the authority's audit then.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    serial: Hex
    sha256: Hex
    spiffe_id: str
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    not_before: Moment
    not_after: Moment
    standing: str
    chain: tuple[str, str, str]
    policy_sha256: Hex | None
    audit_head: Hex | None
    audit_entries: int | None


@dataclass(frozen=True, slots=True)
class Drill:
    """One scenario and its verdict. kind: positive, or negative: it had to fail."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    name: str
    kind: str
    ok: bool
    seconds: float
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Check:
    """One look at the node itself. verdict: pass, info, warning, critical or unknown."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    name: str
    verdict: str
    found: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The last whole verification that the record keeps.

    serial, spiffe_id: of the identity that the ranks used. probe_sha256: of what ran on the node.
    report_sha256: of the kept report, its keys sorted, no blanks, ASCII only. error: why the node did not pass.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    at: Moment
    run_id: str | None
    passed: bool
    ranks: int | None
    seconds: float | None
    probe_sha256: Hex | None
    report_sha256: Hex
    serial: str | None
    spiffe_id: str | None
    drills: tuple[Drill, ...]
    checks: tuple[Check, ...]
    not_checked: tuple[str, ...]
    error: str | None
    db_user: str | None


@dataclass(frozen=True, slots=True)
class Missing:
    """What a passport does not have, and why."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Passport:
    """A node's whole road, as it was known when the passport was made.

    made_by: user@host, as that host says. key: the fingerprint of the key that signs the passport.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    node: NodeText
    state: State
    reason: str | None
    made_at: Moment
    made_by: str
    made_with: str
    key: str
    asked: Asked | None
    vm: Machine
    ticket: SignedTicket | None
    receipts: tuple[SignedReceipt, ...]
    certificate: Certificate | None
    verification: Verification | None
    events: tuple[Move, ...]
    missing: tuple[Missing, ...]

    def __post_init__(self) -> None:
        told = {item.what for item in self.missing}
        silent = [name for name in SECTIONS if getattr(self, name) is None and name not in told]
        silent += [name for name in ("receipts", "events") if not getattr(self, name) and name not in told]
        if silent:
            raise ValueError(f"{', '.join(silent)}: left out, and `missing` does not say why")

    @property
    def digest(self) -> dict[str, str]:
        """What the subject is known by: `sha256` is of the certificate in DER form, the others of signed texts."""
        found = {}
        if self.certificate is not None:
            found["sha256"] = self.certificate.sha256
        if self.ticket is not None:
            found["ticketSha256"] = self.ticket.sha256
        if self.receipts:
            found["receiptSha256"] = self.receipts[-1].sha256
        return found


_passport = TypeAdapter(Passport)


def to_payload(passport: Passport) -> bytes:
    """The statement, as canonical JSON (RFC 8785).

    Raises:
        Refused: nothing is there that the node could be known by, or a text of the record is no text.
    """
    if not passport.digest:
        raise Refused(
            f"{passport.node} has no passport",
            why=f"it is {passport.state}: neither ticket, receipt nor certificate of it is known here",
            next_step="make it where the record has its ticket, or after provision-node has signed one",
        )
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": passport.node, "digest": passport.digest}],
        "predicateType": PREDICATE_TYPE,
        "predicate": _passport.dump_python(passport, mode="json"),
    }
    try:
        return canonical.dumps(statement, any_text=True).encode()
    except ValueError as error:
        raise Refused(
            f"{passport.node} has no passport",
            why=f"the record holds what cannot be signed: {error}",
            next_step=f"look at node-inventory history {passport.node}",
        ) from None


def from_payload(payload: bytes) -> Passport:
    """The passport in a statement that is exactly the one which we would have written for it.

    Raises:
        Refused: it is another one, and in what.
    """
    try:
        return _passport_of(payload)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise _malformed(faults) from None
    except ValueError as error:
        raise _malformed([str(error)]) from None


def _passport_of(payload: bytes) -> Passport:
    statement = canonical.loads(payload.decode(), any_text=True)
    wanted = {"_type", "subject", "predicateType", "predicate"}
    found = set(statement) if isinstance(statement, dict) else set()
    if found != wanted:
        raise ValueError(f"the statement's keys are not {', '.join(sorted(wanted))} alone")
    for key, value in (("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)):
        if statement[key] != value:
            raise ValueError(f"its {key} is {str(statement[key])[:100]!a}, and {value} is understood")
    passport = _passport.validate_json(canonical.dumps(statement["predicate"], any_text=True))
    subjects = statement["subject"]
    if not isinstance(subjects, list) or len(subjects) != 1:
        raise ValueError("it has not exactly one subject")
    if subjects[0] != {"name": passport.node, "digest": passport.digest}:
        raise ValueError(
            f"its subject is not {passport.node} with the digests of certificate, ticket and receipt in it"
        )
    if not passport.digest or to_payload(passport) != payload:
        raise ValueError("a key is missing, or a value is not written as we write it")
    return passport


def moment(value: datetime) -> datetime:
    """A time as a passport tells it: whole seconds."""
    return value.replace(microsecond=0)


def _malformed(faults: list[str]) -> Refused:
    more = f"\nand {len(faults) - _MAX_FAULTS} more" if len(faults) > _MAX_FAULTS else ""
    return Refused(
        "the passport is malformed",
        why="\n".join(fault[:300] for fault in faults[:_MAX_FAULTS]) + more,
        next_step="ask whoever sent it for a new one",
    )
