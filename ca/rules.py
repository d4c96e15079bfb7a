"""Who may have a name, a key and a ticket, in the light of everything that was certified before (pure)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from ca.record import Record, Standing, TicketUse
from inventory.errors import Refused
from inventory.model import HostKey

_CERTIFIED = frozenset({Standing.ISSUED, Standing.INSTALLED, Standing.REVOKED})


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that asks: its name, and what tells it from every other one.

    key_sha256: of the node key's SubjectPublicKeyInfo.
    """

    node: str
    vm_uuid: str | None
    key_sha256: str
    host_keys: tuple[HostKey, ...] = ()
    machine_id: str | None = None

    @property
    def use(self) -> TicketUse:
        """What a ticket is bound to."""
        return TicketUse(self.node, self.vm_uuid, self.key_sha256)


def refuse_foreign(records: Iterable[Record], machine: Machine, *, replace: bool) -> None:
    """A key, host key or machine-id of another node is a copy of that node, whatever its name is now.

    Raises:
        Refused: one was certified for another node; with `replace`, for one of another name.
    """
    shared = {
        reason: None
        for record in records
        if record.standing in _CERTIFIED
        and (record.node != machine.node or (record.vm_uuid != machine.vm_uuid and not replace))
        for reason in _shared(record, machine)
    }
    if shared:
        raise Refused(
            f"{machine.node} gets no certificate",
            why="\n".join(shared),
            next_step="give the machine keys and a machine-id of its own (a template must not contain them)",
        )


def replaced_by(
    records: Iterable[Record], machine: Machine, *, now: datetime, replace: bool
) -> tuple[str, ...]:
    """The serials that lose the name to `machine`.

    Raises:
        Refused: another machine holds the name, and `replace` was not given.
    """
    held = [
        record
        for record in records
        if record.node == machine.node and record.vm_uuid != machine.vm_uuid and record.live(now)
    ]
    if held and not replace:
        raise Refused(
            f"{machine.node} gets no certificate",
            why=f"the name is held by VM {held[0].vm_uuid or 'without a uuid'}, certificate {held[0].serial}",
            next_step="decommission that node first, or pass --replace, which revokes its certificates",
        )
    return tuple(record.serial for record in held)


def is_first_use(used: TicketUse | None, ticket_id: str, machine: Machine) -> bool:
    """Whether the ticket is fresh; False where it was `used` by this very key, which may go on.

    Raises:
        Refused: it was used for another node, machine or key.
    """
    if used is not None and used != machine.use:
        raise Refused(
            f"ticket {ticket_id} is refused",
            why=f"it was used before, for {used.node} and another key"
            if used.node == machine.node
            else f"it was used before, for {used.node}",
            next_step=f"ask infra for a new one: provision-node {machine.node} --reissue-ticket",
        )
    return used is None


def refuse_void(by: str | None, ticket_id: str, node: str) -> None:
    """A ticket that a later one, seen `by` this authority, made void.

    Raises:
        Refused: there is such a later one.
    """
    if by is not None:
        raise Refused(
            f"ticket {ticket_id} is refused",
            why=f"ticket {by} was issued in its place and has been used since",
            next_step=f"use that one, or ask infra for a new one: provision-node {node} --reissue-ticket",
        )


def _shared(record: Record, machine: Machine) -> Iterator[str]:
    of = f"of {record.node} (VM {record.vm_uuid or 'without a uuid'})"
    if record.key_sha256 == machine.key_sha256:
        yield f"its key is that {of}"
    for key in machine.host_keys:
        if key in record.host_keys:
            yield f"its SSH host key {key.fingerprint} is that {of}"
    if machine.machine_id is not None and record.machine_id == machine.machine_id:
        yield f"its machine-id {machine.machine_id} is that {of}"
