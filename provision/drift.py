"""What differs between a node's VM and its profile, key by key, and what waits for the next stop and start.

What would give the guest new SSH host keys is mended by nobody once the keys are on record: a run refuses it, until
either side is set right or a new ticket accepts the VM as it is. What is accepted is this very difference; a further
one is refused again.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from inventory.errors import Refused
from inventory.model import Node
from provision.config import Change, shown
from provision.hypervisor import Pending
from provision.journal import ACCEPTED
from provision.plan import Configure, Start, Step, as_json, as_text


@dataclass(frozen=True, slots=True)
class Drift:
    """One node's VM against its profile.

    steps: what the same command without --drift would mend. stays: what it refuses, since the guest would
    make new host keys. accepted: the same, which a ticket has accepted; no drift any more. pending: what Proxmox
    takes on when the VM is next stopped and started.
    """

    steps: tuple[Step, ...] = ()
    stays: tuple[Change, ...] = ()
    pending: tuple[Pending, ...] = ()
    accepted: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.steps or self.stays or self.pending)

    def lines(self) -> list[str]:
        """For people: what is found -> what the profile wants."""
        told: list[str] = []
        for step in self.steps:
            if isinstance(step, Configure):
                told += [_changed("~", entry) for change in step.changes for entry in shown(change)]
            elif isinstance(step, Start):
                told.append("~ power: off -> on")
            else:
                told += as_text(step)
        for change in self.stays:
            for entry in shown(change):
                told.append(f"{_changed('-/+', entry)}  # would replace the SSH host keys, so it stays")
        for change in self.accepted:
            told += [f"{_changed('=', entry)}  # accepted with its ticket" for entry in shown(change)]
        for waiting in self.pending:
            entry = (waiting.key, waiting.before or "", waiting.after or "")
            told.append(f"{_changed('~', entry)}  # pending: at the next stop and start")
        return told

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        return {
            "mendable": [as_json(step) for step in self.steps],
            "stays": [_entry(key, *pair) for change in self.stays for key, *pair in shown(change)],
            "accepted": [_entry(key, *pair) for change in self.accepted for key, *pair in shown(change)],
            "pending": [_entry(each.key, each.before, each.after) for each in self.pending],
        }


def accepting(changes: Iterable[Change]) -> dict[str, Any]:
    """What a journal keeps of the drift that a new ticket accepts."""
    digests = {change.key: _digest(change) for change in changes}
    return {ACCEPTED: digests} if digests else {}


def is_accepted(change: Change, node: Node) -> bool:
    """Whether the node's ticket was made with this very difference."""
    return bool(node.journal.get(ACCEPTED, {}).get(change.key) == _digest(change))


def refusal(name: str, profile: str, changes: Iterable[Change]) -> Refused:
    """Why a node is not changed at all while it differs so."""
    told = [entry for change in changes for entry in shown(change)]
    return Refused(
        f"{name} was not changed",
        why="\n".join(
            f"{key} is {found or '(none)'}, profile {profile} wants {wanted or '(none)'}:"
            " the guest would make new SSH host keys"
            for key, found, wanted in told
        ),
        next_step="set the VM right in Proxmox, or the profile in the site file; or keep the VM as it is, with a new"
        f" ticket: provision-node {name} --reissue-ticket",
    )


def _digest(change: Change) -> str:
    text = json.dumps([change.key, change.before, change.after])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _changed(sign: str, entry: tuple[str, str, str]) -> str:
    key, before, after = entry
    return f"{sign} {key}: {before or '(none)'} -> {after or '(none)'}"


def _entry(key: str, before: str | None, after: str | None) -> dict[str, str | None]:
    return {"key": key, "before": before or None, "after": after or None}
