"""The screen before a signature: the ticket set against the machine, for the person who answers for it (pure).

What differs begins with an exclamation mark and says so in words, for a terminal may have no colour.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ca.record import Record
from inventory.console import printable
from inventory.ticket import Believed, Ticket, iso
from onboard.facts import Facts
from onboard.plan import Certify, Install, Plan

_KEY_TYPE = "P-256, made on the node; its private half stays there"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the screen. differs: what the machine says, where that is not what the ticket says."""

    title: str
    value: str
    differs: str | None = None


def lines(
    believed: Believed,
    facts: Facts,
    planned: Plan,
    *,
    now: datetime,
    ca_name: str,
    validity: tuple[datetime, datetime],
    records: Sequence[Record] = (),
) -> list[str]:
    """What the holder reads before typing the node's name.

    records: the certificates of this name, to tell an older identity by.
    """
    rows = [
        *_asked(believed, now),
        *_compared(believed.ticket, facts),
        Row("clock", _skew(planned.skew)),
        *_identity(planned, ca_name, validity),
        Row("older identity", _older(facts, records)),
    ]
    width = max(len(row.title) for row in rows)
    text = []
    for row in rows:
        title = f"{row.title:<{width}}"
        if row.differs is None:
            text.append(f"  {title}  {_flat(row.value)}")
        else:
            text.append(f"! {title}  ticket:  {_flat(row.value)}")
            text.append(f"! {'':<{width}}  machine: {_flat(row.differs)}  <- DIFFERS")
    text += ["", *(f"  {number}. {_flat(str(step))}" for number, step in enumerate(planned.steps, 1))]
    text += [f"! {_flat(warning)}" for warning in planned.warnings]
    return text


def _asked(believed: Believed, now: datetime) -> Iterator[Row]:
    ticket = believed.ticket
    yield Row("node", ticket.node)
    yield Row("asked by", f"{believed.signer}, {_span(now - ticket.made_at)} ago, on {_both(ticket.made_at)}")
    yield Row("ticket", f"{believed.fingerprint}, until {_both(ticket.expires)}")
    yield Row("VM", f"{ticket.vmid} on {ticket.proxmox_node} ({ticket.site})")


def _compared(ticket: Ticket, facts: Facts) -> Iterator[Row]:
    yield _row("host name", ticket.node, facts.hostname, said="not told")
    yield _row("machine uuid", ticket.vm_uuid, facts.machine_uuid, said="not readable")
    if ticket.machine_id is None:
        yield Row("machine-id", f"{facts.machine_id or 'none'}, which the ticket does not tell")
    else:
        yield _row("machine-id", ticket.machine_id, facts.machine_id, said="none")
    absent = [mac for mac in ticket.macs if mac not in facts.interfaces]
    there = ", ".join(f"{mac} ({facts.interfaces[mac]})" for mac in ticket.macs if mac not in absent)
    macs = ", ".join(ticket.macs) or "none"
    yield Row("MACs", macs if absent else there or macs, f"lacks {', '.join(absent)}" if absent else None)
    pins = ", ".join(f"{key.type} {key.fingerprint}" for key in ticket.host_keys)
    yield Row("SSH host key", f"{pins}, with which this session was opened")
    address = ticket.address
    yield Row("reached at", f"{address.ip} ({address.source}), port {ticket.ssh_port}, as {ticket.user}")


def _identity(planned: Plan, ca_name: str, validity: tuple[datetime, datetime]) -> Iterator[Row]:
    certify = next((step for step in planned.steps if isinstance(step, Certify)), None)
    if certify is not None:
        yield Row("names", ", ".join(certify.names))
        yield Row("addresses", ", ".join(certify.addresses) or "none: the address is leased")
        yield Row("identity", certify.spiffe_id)
    yield Row("key", _KEY_TYPE)
    yield Row("signed by", ca_name)
    yield Row("valid from", _both(validity[0]))
    yield Row("valid until", _both(validity[1]))
    install = next((step for step in planned.steps if isinstance(step, Install)), None)
    if install is not None:
        place, crl = install.place, ", crl.pem" if install.agent.identity.crl_file else ""
        files = f"key.pem, chain.pem, bundle.pem{crl}, agent.yaml, uuid"
        yield Row("written to", f"{place.dir}/generations/{install.generation}: {files}")
        yield Row("owned by", f"{place.owner}:{place.group}, key.pem for {place.owner} alone")


def _older(facts: Facts, records: Sequence[Record]) -> str:
    if facts.current is None:
        return "none"
    shown = f"generation {facts.current}"
    if facts.current_sha256 is None:
        return f"{shown}, whose certificate cannot be read"
    for record in records:
        if record.fingerprint_sha256 == facts.current_sha256:
            return (
                f"{shown}, certificate {record.serial} ({record.standing}), until {_both(record.not_after)}"
            )
    return f"{shown}, a certificate that this authority does not know, SHA-256 {facts.current_sha256}"


def _row(title: str, ticket: str, machine: str | None, *, said: str) -> Row:
    if machine == ticket:
        return Row(title, f"{ticket}, as the machine says")
    return Row(title, ticket, machine or said)


def _flat(text: str) -> str:
    """One line that steers no terminal, whatever a file or a machine made of it."""
    return printable(text.replace("\n", "\\n").replace("\t", "\\t"))


def _both(at: datetime) -> str:
    """A time in UTC, and as the wall clock here shows it."""
    return f"{iso(at)} ({at.astimezone().strftime('%Y-%m-%d %H:%M %Z')})"


def _span(length: timedelta) -> str:
    seconds = length.total_seconds()
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"


def _skew(skew: timedelta) -> str:
    seconds = skew.total_seconds()
    if abs(seconds) < 2:
        return "the node's agrees with ours"
    return f"the node's is {abs(seconds):.0f} s {'behind' if seconds < 0 else 'ahead of'} ours"
