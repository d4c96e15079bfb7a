"""The port to Proxmox: the few verbs that making a node needs, what they answer, and how they fail.

OtherSide               4
├── Unreachable             nobody answered, or the host behind the API did not (595 to 599)
├── Unanswered              a write was sent and its answer is lost: it may have happened
├── IdTaken                 the VM id belongs to another VM already
└── ChangedMeanwhile        the digest does not hold: somebody else changed the config
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from inventory.errors import OtherSide
from provision.plan import Clone, StorageFound
from provision.properties import Config


class Unreachable(OtherSide):
    """Nobody answered; asking again is safe."""


class Unanswered(OtherSide):
    """A write was sent and its answer is lost: it may have happened, and is never sent again blindly."""


class IdTaken(OtherSide):
    """The VM id belongs to another VM already."""


class ChangedMeanwhile(OtherSide):
    """Somebody else changed the config after it was read."""


@dataclass(frozen=True, slots=True)
class Guest:
    """A VM as the cluster lists it; a VM made a moment ago may still lack its name."""

    vmid: int
    name: str
    host: str
    template: bool


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task. outcome: None while it runs, then OK, `WARNINGS: n`, or the error's text."""

    outcome: str | None


class Hypervisor(Protocol):
    """What Proxmox does for us. Every call has its own deadline and raises OtherSide."""

    def guests(self) -> tuple[Guest, ...]:
        """The VMs that we may see."""

    def hosts(self) -> Mapping[str, bool]:
        """The Proxmox nodes, and whether each is online."""

    def storages(self, host: str) -> Mapping[str, StorageFound]:
        """The storages of a host."""

    def config(self, host: str, vmid: int) -> Config | None:
        """The VM's config; None if there is no such VM on that host."""

    def running(self, host: str, vmid: int) -> bool:
        """Whether the VM runs."""

    def free_id(self, vmid: int | None = None) -> int | None:
        """A free VM id; with `vmid`, that one if it is free, else None. It is not reserved."""

    def clone(self, order: Clone, *, vmid: int, name: str, description: str) -> str:
        """Begin a full clone; the task's UPID. Raises IdTaken, Unanswered."""

    def configure(
        self, host: str, vmid: int, *, changes: Mapping[str, str], delete: Sequence[str], digest: str | None
    ) -> None:
        """Change the config. Raises ChangedMeanwhile, Unanswered."""

    def resize(self, host: str, vmid: int, *, disk: str, size_gib: int) -> str | None:
        """Begin to grow a disk; the task's UPID (None from a Proxmox that did it at once)."""

    def start(self, host: str, vmid: int) -> str:
        """Begin to start the VM; the task's UPID."""

    def task(self, upid: str) -> TaskStatus | None:
        """How a task stands; None if Proxmox does not know it (any more)."""

    def task_log(self, upid: str) -> tuple[str, ...]:
        """The last lines of a task's log."""

    def newest_task(self, host: str, *, vmid: int, kind: str) -> str | None:
        """The UPID of the newest task of a kind on a VM."""

    def interfaces(self, host: str, vmid: int) -> Sequence[Mapping[str, Any]] | None:
        """What the guest agent tells of the network; None while the agent does not answer."""

    def read_file(self, host: str, vmid: int, path: str) -> str | None:
        """A file of the guest, one of `guest.READABLE` only; None if it is not there."""
