"""What differs between a node's VM and its profile, key by key, and what waits for the next stop and start."""

from dataclasses import dataclass
from typing import Any

from provision.config import Change, shown
from provision.hypervisor import Pending
from provision.plan import Configure, Start, Step, as_json, as_text


@dataclass(frozen=True, slots=True)
class Drift:
    """One node's VM against its profile.

    steps: what the same command without --drift would mend. stays: what it would not, since the guest would
    make new host keys. pending: what Proxmox takes on when the VM is next stopped and started.
    """

    steps: tuple[Step, ...] = ()
    stays: tuple[Change, ...] = ()
    pending: tuple[Pending, ...] = ()

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
        for waiting in self.pending:
            entry = (waiting.key, waiting.before or "", waiting.after or "")
            told.append(f"{_changed('~', entry)}  # pending: at the next stop and start")
        return told

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        return {
            "mendable": [as_json(step) for step in self.steps],
            "stays": [_entry(key, *pair) for change in self.stays for key, *pair in shown(change)],
            "pending": [_entry(each.key, each.before, each.after) for each in self.pending],
        }


def _changed(sign: str, entry: tuple[str, str, str]) -> str:
    key, before, after = entry
    return f"{sign} {key}: {before or '(none)'} -> {after or '(none)'}"


def _entry(key: str, before: str | None, after: str | None) -> dict[str, str | None]:
    return {"key": key, "before": before or None, "after": after or None}
