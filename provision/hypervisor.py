"""The port to Proxmox: the few verbs that making a node needs, what they answer, and how they fail.

OtherSide               4
├── Unreachable             nobody answered, or the host behind the API did not (595 to 599)
├── Unanswered              a write was sent and its answer is lost: it may have happened
├── IdTaken                 the VM id belongs to another VM already
└── ChangedMeanwhile        the digest does not hold: somebody else changed the config
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from inventory.errors import OtherSide
from provision.placement import Devices, Load
from provision.plan import Clone, Create, Fetch, StorageFound
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
    """A VM as the cluster lists it; one made a moment ago may still lack all but its id. memory_mib: MiB.

    reported: its host has told of it; else nothing but its id is known.
    """

    vmid: int
    name: str
    host: str
    template: bool
    tags: tuple[str, ...] = ()
    running: bool = False
    cpus: int = 0
    memory_mib: int = 0
    reported: bool = True


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task. outcome: None while it runs, then OK, `WARNINGS: n`, or the error's text."""

    outcome: str | None


@dataclass(frozen=True, slots=True)
class Pending:
    """A key of a running VM that waits for the next stop and start. before, after: None where it is absent."""

    key: str
    before: str | None
    after: str | None


class Hypervisor(Protocol):
    """What Proxmox does for us. Every call has its own deadline and raises OtherSide."""

    def guests(self) -> tuple[Guest, ...]:
        """The VMs that we may see."""

    @property
    def token_id(self) -> str:
        """user@realm!name of the token that asks."""

    def version(self) -> int:
        """Proxmox's major version."""

    def permissions(self) -> Mapping[str, Mapping[str, int]]:
        """What the token may do, by path: each privilege, and whether it holds below that path too."""

    def hosts(self) -> Mapping[str, Load]:
        """The Proxmox nodes and what they carry."""

    def bridges(self, host: str) -> Mapping[str, int]:
        """The bridges of a host that the token may use, with their MTU in octets."""

    def devices(self, host: str) -> Mapping[str, Devices]:
        """The PCI mappings that the token may see, with their devices on a host."""

    def storages(self, host: str) -> Mapping[str, StorageFound]:
        """The storages of a host."""

    def images(self, host: str, storage: str) -> frozenset[str]:
        """The images that a storage has to make VMs of, by their volumes."""

    def download(self, step: Fetch) -> str:
        """Begin to download an image; the task's UPID. Raises Unanswered."""

    def newest_download(self, step: Fetch) -> str | None:
        """The UPID of the newest download of that file."""

    def discs(self, host: str, storage: str) -> frozenset[str]:
        """The ISO images of a storage, by their volumes."""

    def upload_disc(self, host: str, volume: str, data: bytes) -> str:
        """Begin to put an ISO image on a storage, in the place of one of this name; the task's UPID.

        Raises Unanswered; to begin it again is safe.
        """

    def delete_disc(self, host: str, volume: str) -> str | None:
        """Begin to delete an ISO image; the task's UPID (None if it was done at once). Raises Unanswered."""

    def cloud_init_file(self, host: str, vmid: int, kind: Literal["user", "meta", "network"]) -> str:
        """A file that Proxmox's own cloud-init drive holds, or would hold."""

    def config(self, host: str, vmid: int) -> Config | None:
        """The VM's config; None if there is no such VM on that host."""

    def running(self, host: str, vmid: int) -> bool:
        """Whether the VM runs."""

    def free_id(self, vmid: int | None = None) -> int | None:
        """A free VM id; with `vmid`, that one if it is free, else None. It is not reserved."""

    def clone(self, order: Clone | Create, *, vmid: int, name: str, description: str) -> str:
        """Begin to make the VM; the task's UPID. Raises IdTaken, Unanswered."""

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

    def newest_task(self, host: str, *, vmid: int, kind: str, known: str | None = None) -> str | None:
        """The UPID of the newest task of a kind on a VM, if it began after the task `known`."""

    def task_lines(self, upid: str, *, start: int) -> tuple[str, ...]:
        """The lines of a task's log from the line number `start` on, counted from 0."""

    def stop_task(self, upid: str) -> None:
        """Ask a task to stop; it then ends with an error."""

    def stop(self, host: str, vmid: int) -> str:
        """Begin to switch the VM off; the task's UPID. Raises Unanswered."""

    def destroy(self, host: str, vmid: int) -> str:
        """Begin to destroy the VM, with what names it elsewhere; the task's UPID. Raises Unanswered."""

    def ha_managed(self, host: str, vmid: int) -> bool:
        """Whether the HA manager would start it again."""

    def leave_ha(self, vmid: int) -> None:
        """Take the VM out of the HA manager's hands."""

    def pending(self, host: str, vmid: int) -> tuple[Pending, ...]:
        """What was changed and is taken on only when the VM is next stopped and started."""

    def interfaces(self, host: str, vmid: int) -> Sequence[Mapping[str, Any]] | None:
        """What the guest agent tells of the network; None while the agent does not answer."""

    def read_file(self, host: str, vmid: int, path: str) -> str | None:
        """A file of the guest, one of `guest.READABLE` only; None if it is not there."""
