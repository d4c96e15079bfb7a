"""The screen before a signature: the ticket set against the machine, for the person who answers for it (pure)."""

from datetime import datetime

from inventory.ticket import Believed, iso
from onboard.facts import Facts
from onboard.plan import Plan


def lines(
    believed: Believed, facts: Facts, planned: Plan, *, now: datetime, ca_name: str, not_after: datetime
) -> list[str]:
    """What the holder reads before typing the node's name."""
    ticket = believed.ticket
    pins = ", ".join(f"{key.type} {key.fingerprint}" for key in ticket.host_keys)
    age = now - ticket.made_at
    shown = [
        ("node", ticket.node),
        ("asked by", f"{believed.signer}, {_hours(age.total_seconds())} ago; ticket {believed.fingerprint}"),
        ("machine", f"VM {ticket.vmid} on {ticket.proxmox_node} ({ticket.site}), uuid {ticket.vm_uuid}"),
        (
            "machine says",
            f"uuid {facts.machine_uuid or 'not readable'}, machine-id {facts.machine_id or '-'}",
        ),
        (
            "address",
            f"{ticket.address.ip} ({ticket.address.source}), port {ticket.ssh_port}, as {ticket.user}",
        ),
        ("host key", pins),
        ("clock", _skew(planned.skew.total_seconds())),
        ("signed by", ca_name),
        ("valid until", f"{iso(not_after)} ({not_after.astimezone().strftime('%Y-%m-%d %H:%M %Z')})"),
    ]
    width = max(len(title) for title, _ in shown)
    text = [f"  {title:<{width}}  {value}" for title, value in shown]
    text += ["", *(f"  {number}. {step}" for number, step in enumerate(planned.steps, 1))]
    text += [f"  ! {warning}" for warning in planned.warnings]
    return text


def _hours(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"


def _skew(seconds: float) -> str:
    if abs(seconds) < 2:
        return "agrees with ours"
    return f"{abs(seconds):.0f} s {'behind' if seconds < 0 else 'ahead of'} ours"
