"""The volumes on the lab's storages: their names, their space, and why they cannot be made; nothing is stored."""

import re
import time
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from lab.guests import TaskFailed, die, faulty

CLOUDINIT_BYTES = 4 << 20
_FILES = frozenset({"btrfs", "cephfs", "cifs", "dir", "nfs"})  # types that keep their volumes as files
_QCOW2 = (
    "extended_l2=off preallocation=metadata compression_type=zlib size={size} lazy_refcounts=off "
    "refcount_bits=16"
)

Storages = MutableMapping[str, dict[str, Any]]


@dataclass
class Allocation:
    """The volumes that one task has made so far, so that its failure leaves none of them."""

    storages: Storages
    made: list[str] = field(default_factory=list)

    def allocate(self, storage: str, name: str, *, size: int, vmid: int, format_: str) -> str:
        """Make a volume; its id."""
        self.storages[storage].setdefault("volumes", {})[name] = {
            "content": "images",
            "format": format_,
            "size": size,
            "vmid": vmid,
            "ctime": int(time.time()),
        }
        self.made.append(f"{storage}:{name}")
        return self.made[-1]

    def undo(self) -> None:
        """Take everything back."""
        for volume in self.made:
            free(self.storages, volume)
        self.made.clear()


def free(storages: Storages, volume: str) -> None:
    """Take a volume away, and give the space back that it took."""
    storage, _, name = volume.partition(":")
    store = storages.get(storage, {})
    gone = store.get("volumes", {}).pop(name, None)
    if gone is not None and gone.get("written") and "avail" in store:
        store["avail"] += gone["size"]


def usable(storages: Storages, storage: str, node: str) -> dict[str, Any]:
    """A storage that is there and switched on for a node.

    Raises:
        Refused: it is not.
    """
    found = storages.get(storage)
    if found is None:
        die(f"storage '{storage}' does not exist")
    if found.get("disable"):
        die(f"storage '{storage}' is disabled")
    nodes = str(found.get("nodes") or "")
    if nodes and node not in re.split(r"[,; ]+", nodes):
        die(f"storage '{storage}' is not available on node '{node}'")
    return found


def check_images(storages: Storages, storage: str) -> None:
    """Let only storages with disks hold disks.

    Raises:
        Refused: it is not made for them.
    """
    if "images" not in str(storages[storage].get("content", "")).split(","):
        raise faulty(storage=f"storage '{storage}' does not support vm images")


def activate(storages: Storages, storage: str) -> None:
    """What a task does to a storage before it works there.

    Raises:
        TaskFailed: the storage has gone, or is offline.
    """
    found = storages.get(storage)
    if found is None:
        raise TaskFailed(f"storage '{storage}' does not exist")
    if found.get("active", 1):
        return
    if found.get("path"):
        raise TaskFailed(
            f"unable to activate storage '{storage}' - directory is expected to be a mount point but is not "
            f"mounted: '{found['path']}'"
        )
    raise TaskFailed(f"storage '{storage}' is not online")


def is_files(store: Mapping[str, Any]) -> bool:
    """Whether a storage keeps its volumes as files, named by directory and format."""
    return store.get("type", "dir") in _FILES


def path_of(store: Mapping[str, Any], name: str) -> str:
    """Where a volume lies on the host."""
    if is_files(store):
        return f"{store.get('path') or '/var/lib/vz'}/images/{'/'.join(name.split('/')[-2:])}"
    return f"/dev/{store.get('vgname') or store.get('pool') or 'pve'}/{name}"


def disk_name(store: Mapping[str, Any], vmid: int, format_: str, *, taken: Iterable[str]) -> str:
    """The next free name of a disk, as a storage spells it."""
    numbers = {
        int(found[1])
        for name in [*store.get("volumes", {}), *taken]
        if (found := re.search(rf"(?:^|/)(?:vm|base)-{vmid}-disk-(\d+)", name))
    }
    number = next(n for n in range(len(numbers) + 1) if n not in numbers)
    return spelt(store, vmid, f"vm-{vmid}-disk-{number}", format_)


def spelt(store: Mapping[str, Any], vmid: int, name: str, format_: str) -> str:
    """A volume's name as its storage spells it."""
    return f"{vmid}/{name}.{format_}" if is_files(store) else name


def announced(store: Mapping[str, Any], name: str, *, format_: str, size: int, base: str = "") -> str:
    """The line of the tool that makes a volume."""
    if not is_files(store):
        return f'  Logical volume "{name}" created.'
    where = f"Formatting '{path_of(store, name)}', fmt={format_}"
    if format_ != "qcow2":
        return f"{where} size={size} preallocation=off"
    if base:
        rest = _QCOW2.replace("extended_l2=off", "extended_l2=on").format(
            size=f"{size} backing_file=../{base} backing_fmt=qcow2"
        )
        return f"{where} cluster_size=131072 {rest}"
    return f"{where} cluster_size=65536 {_QCOW2.format(size=size)}"


def take_space(store: dict[str, Any], name: str, *, size: int) -> int | None:
    """Use the space of a volume that is written; None, or the byte at which the storage was full."""
    free = store.get("avail")
    if free is not None:
        if size > free:
            return int(free)
        store["avail"] = free - size
        store["volumes"][name]["written"] = True
    return None


def new_cloudinit(storages: Storages, storage: str, vmid: int, format_: str | None) -> str:
    """A new cloud-init drive's volume.

    Raises:
        Refused: the storage cannot have it.
    """
    try:
        activate(storages, storage)
    except TaskFailed as error:
        die(str(error))
    store = storages[storage]
    kind = (format_ or "qcow2") if is_files(store) else "raw"
    name = spelt(store, vmid, f"vm-{vmid}-cloudinit", kind)
    if name in store.get("volumes", {}):
        die(f"disk image '{path_of(store, name)}' already exists")
    return Allocation(storages).allocate(storage, name, size=CLOUDINIT_BYTES, vmid=vmid, format_=kind)
