"""Whether a storage has room for what is to be put on it; pure, from what Proxmox told of all storages at once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from provision.placement import gib
from provision.plan import StorageFound
from provision.wanted import NodeSpec

THICK = frozenset({"lvm"})
"""The type of storage that takes a disk's whole size at once. A file, a thin volume and most others take only what is
written to them; how ZFS was set up (`sparse`) is not told."""

_GIB = 1024  # MiB in a GiB
_DISC_MIB = 4  # our cloud-init disc takes less


@dataclass(frozen=True, slots=True)
class Room:
    """What stands against a host as to its storages."""

    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def room(
    spec: NodeSpec,
    storages: Mapping[str, StorageFound],
    *,
    host: str,
    others: Iterable[tuple[str, NodeSpec]] = (),
) -> Room:
    """Whether the VM's disk fits on its storage, and its cloud-init disc on that of it.

    storages: of `host`, each with its free space. others: the VMs that this run makes beside it, with their hosts.
    """
    faults = list(_disc_faults(spec, storages, host))
    found = storages.get(spec.storage)
    if spec.linked or found is None or not found.active or found.free_mib is None:
        return Room(tuple(faults))
    beside = [
        other
        for where, other in others
        if other.storage == spec.storage and not other.linked and (found.shared or where == host)
    ]
    taken = sum(other.disk_gib for other in beside)
    if (spec.disk_gib + taken) * _GIB <= found.free_mib:
        return Room(tuple(faults))
    told = (
        f"storage {spec.storage} on {host} has {gib(found.free_mib)} free, and {spec.disk_gib} GiB are wanted"
    )
    if beside:
        told += f" beside {taken} GiB for {len(beside)} other VM{'s' if len(beside) > 1 else ''} of this run"
    if found.kind in THICK:
        return Room((*faults, told))
    return Room(tuple(faults), (f"{told}; it may run full later, for it takes only what is written",))


def _disc_faults(spec: NodeSpec, storages: Mapping[str, StorageFound], host: str) -> Iterable[str]:
    if spec.seed is None:
        return
    name = spec.seed.storage
    found = storages.get(name)
    usable = ", ".join(sorted(other for other, each in storages.items() if each.active and each.discs))
    there = f"(there are: {usable or 'none'})"
    if found is None:
        yield f"seed_storage {name} is not on {host}, or is hidden from this token {there}"
    elif not found.active:
        yield f"seed_storage {name} is not active on {host} {there}"
    elif not found.discs:
        yield f"seed_storage {name} on {host} holds no ISO images (content iso) {there}"
    elif found.free_mib is not None and found.free_mib < _DISC_MIB:
        yield (
            f"seed_storage {name} on {host} has {gib(found.free_mib)} free, and the cloud-init disc takes up to"
            f" {gib(_DISC_MIB)}"
        )
