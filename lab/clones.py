"""Clones as a Proxmox host makes them: checked at once, locked while they are made, gone when they fail."""

import asyncio
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableSequence
from dataclasses import dataclass
from typing import Any, Protocol

from lab import cloudinit, hardware, volumes
from lab.guests import Refused, TaskFailed, Vm, check_lock, die, no_config, not_found, set_lock
from lab.tasks import Tasks
from lab.volumes import Allocation

TEMPORARY = " qmclone temporary file"
_NOT_COPIED = re.compile(
    r"lock|template|parent|snaptime|snapstate|snapshots|vmstate|running\S+|unused\d+|"
    + hardware.DRIVE.pattern
)
_LINES = 100  # qemu-img tells of each percent
_GIB, _MIB = 1 << 30, 1 << 20

Log = Callable[[str], None]


class Host(Protocol):
    """What cloning needs of the API."""

    storages: dict[str, dict[str, Any]]
    pools: dict[str, set[int]]
    nodes: Mapping[str, Any]
    vms: MutableSequence[Any]

    def vm(self, vmid: int) -> Vm | None:
        """A VM by its id, on whatever node."""

    def new_vm(self, vmid: int, *, node: str, config: dict[str, Any]) -> Vm:
        """A further VM of the host."""

    def require(self, user: str, path: str, priv: str) -> None:
        """Refuse whoever lacks a privilege."""

    def need_quorum(self) -> None:
        """Refuse writes to a cluster without quorum."""

    def new_nic(self, value: str) -> str:
        """A network device with another MAC."""


@dataclass(frozen=True)
class Order:
    """What one clone will be.

    drives: device -> volume and options in the source; the cloud-init drive is among them.
    copied: the devices that are copied in full; the others are linked to their base.
    """

    source: Vm
    config: dict[str, Any]
    drives: Mapping[str, tuple[str, dict[str, str]]]
    copied: Collection[str]
    storage: str | None
    format: str | None
    pool: str | None
    target: str | None


def check(host: Host, values: Mapping[str, Any], user: str) -> Order:
    """Everything that a host checks before it answers, in its order.

    Raises:
        Refused: the clone is not even begun.
    """
    node, vmid, newid = values["node"], int(values["vmid"]), int(values["newid"])
    pool, storage = values.get("pool"), values.get("storage")
    target = values.get("target") if values.get("target") not in {node, "localhost"} else None
    source = host.vm(vmid)
    if source is None or source.node != node:
        die(not_found(node, vmid))
    if pool and pool not in host.pools:
        raise Refused(403, f"Permission check failed (pool '{pool}' does not exist)")
    if target and target not in host.nodes:
        die(f"no such cluster node '{target}'")
    if storage:
        volumes.usable(host.storages, storage, node)
    host.need_quorum()
    check_lock(source)
    snapshot = values.get("snapname")
    if snapshot and snapshot not in source.snapshots:
        die(f"snapshot '{snapshot}' does not exist")
    full = bool(int(values.get("full", not source.template)))
    for name in ("storage", "format"):
        if values.get(name) and not full:
            die(f"parameter '{name}' not allowed for linked clones")
    config = source.snapshots[snapshot] if snapshot else source.config
    drives = {key: (volume, options) for key, volume, options in hardware.drives(config) if ":" in volume}
    local = _check_storages(host, user, node, drives, storage)
    for _number, _mac, bridge in cloudinit.nics(config):
        host.require(user, f"/sdn/zones/localnetwork/{bridge}", "SDN.Use")
    if target and local:
        die(f"can't clone VM to node '{target}' (VM uses local storage)")
    if host.vm(newid) is not None:
        die(f"unable to create VM {newid}: config file already exists")
    copied = {key for key in drives if full or hardware.is_cloudinit(drives[key][0])}
    for key in sorted(drives.keys() - copied):
        if not drives[key][0].replace(":", "/").rpartition("/")[2].startswith("base-"):
            die(f"Linked clone feature is not supported for '{drives[key][0]}' ({key})")
    return Order(
        source,
        _copied_config(host, config, values, name=values.get("name")),
        drives,
        copied,
        storage,
        values.get("format"),
        pool,
        target,
    )


def _check_storages(
    host: Host,
    user: str,
    node: str,
    drives: Mapping[str, tuple[str, dict[str, str]]],
    storage: str | None,
) -> bool:
    """Whether a storage that the clone needs is not shared."""
    wanted = {
        storage or volume.partition(":")[0] for volume, options in drives.values() if not _cdrom(options)
    }
    for name in sorted(wanted):
        volumes.usable(host.storages, name, node)
        host.require(user, f"/storage/{name}", "Datastore.AllocateSpace")
        volumes.check_images(host.storages, name)
    return any(not host.storages[name].get("shared") for name in wanted)


def _cdrom(options: Mapping[str, str]) -> bool:
    return options.get("media") == "cdrom"


def _copied_config(
    host: Host, old: Mapping[str, Any], values: Mapping[str, Any], *, name: str | None
) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for key, value in old.items():
        if re.fullmatch(r"net\d+", key):
            config[key] = host.new_nic(str(value))
        elif not _NOT_COPIED.fullmatch(key) or (
            key.startswith("ide") and ":" not in str(value).split(",")[0]
        ):
            config[key] = value
    config["name"] = name or f"Copy-of-VM-{old.get('name') or values['vmid']}"
    if values.get("description"):
        config["description"] = values["description"]
    smbios = {**cloudinit.properties(old.get("smbios1", "")), "uuid": str(uuid.uuid4())}
    config["smbios1"] = ",".join(f"{key}={value}" for key, value in sorted(smbios.items()))
    if old.get("vmgenid"):
        config["vmgenid"] = str(uuid.uuid4())
    return config


def placeholder(host: Host, order: Order, newid: int, *, node: str) -> Vm:
    """The clone as it is from the call on: an id that is taken, and a lock."""
    vm = host.new_vm(newid, node=node, config={"lock": "clone", "description": TEMPORARY})
    vm.lock = "clone"
    vm.pool = order.pool
    if order.pool:
        host.pools[order.pool].add(newid)
    return vm


async def work(host: Host, order: Order, vm: Vm, *, tasks: Tasks, copy_s: float) -> None:
    """What the task of a clone does; a failure takes the config and the disks away again.

    A disk that is copied in full takes `copy_s` seconds.

    Raises:
        TaskFailed: `clone failed: ...`, in Proxmox's words.
    """
    allocation = Allocation(host.storages)
    try:
        async with tasks.cloned(order.source):
            await asyncio.sleep(copy_s / _LINES)
            vm.config = {**order.config, "lock": "clone"}
            vm.name = order.config["name"]
            for key in sorted(order.drives):
                vm.config[key] = await _drive(host, order, vm, key, allocation, log=tasks.log, copy_s=copy_s)
    except BaseException as error:
        allocation.undo()
        if vm in host.vms:
            host.vms.remove(vm)
        if order.pool:
            host.pools[order.pool].discard(vm.vmid)
        if isinstance(error, (TaskFailed, Refused)):
            raise TaskFailed(f"clone failed: {error}") from error
        raise
    set_lock(vm, None)
    vm.node = order.target or vm.node


async def _drive(
    host: Host, order: Order, vm: Vm, key: str, allocation: Allocation, *, log: Log, copy_s: float
) -> str:
    volume, options = order.drives[key]
    full = key in order.copied
    log(f"create {'full' if full else 'linked'} clone of drive {key} ({volume})")
    source, _, old = volume.partition(":")
    storage = order.storage or source
    for name in (source, storage):
        volumes.activate(host.storages, name)
    store = host.storages[storage]
    drawn = hardware.is_cloudinit(volume)
    size = volumes.CLOUDINIT_BYTES if drawn else _size(host, source, old, options)
    was = host.storages[source].get("volumes", {}).get(old, {}).get("format") or _suffix(old)
    kind = order.format or (was if storage == source else None) or "raw"
    kind = kind if volumes.is_files(store) else "raw"
    if drawn:
        name = volumes.spelt(store, vm.vmid, f"vm-{vm.vmid}-cloudinit", kind)
    else:
        taken = [str(vm.config[other]) for other in vm.config if hardware.DRIVE.fullmatch(other)]
        name = volumes.disk_name(store, vm.vmid, kind, taken=taken)
    base = ""
    if not full:
        base = old
        if volumes.is_files(store):
            log(
                f"clone {base}: images, {name.rpartition('/')[2]}, {vm.vmid} to {name.rpartition('/')[2]} "
                f"(base=../{base})"
            )
            name = f"{base}/{name}"
    made = allocation.allocate(storage, name, size=size, vmid=vm.vmid, format_=kind)
    log(volumes.announced(store, name, format_=kind, size=size, base=base))
    if full:
        log(f"allocated target volume '{made}'")
        full_at = volumes.take_space(store, name, size=size)
        if not drawn or full_at is not None:
            await _copy(size, full_at, log=log, seconds=copy_s)
        if full_at is not None:
            was_path = volumes.path_of(host.storages[source], old)
            raise TaskFailed(
                f"copy failed: command '/usr/bin/qemu-img convert -p -n -f {was or 'raw'} -O {kind} {was_path} "
                f"zeroinit:{volumes.path_of(store, name)}' failed: exit code 1"
            )
    changed = {**options, "size": hardware.spelt_size(size)} if size else options
    return ",".join([made, *(f"{option}={changed[option]}" for option in sorted(changed))])


async def _copy(size: int, full_at: int | None, *, log: Log, seconds: float) -> None:
    """The lines of qemu-img, in time; a storage that runs full ends them at that byte."""
    for line, done in _progress(size):
        if full_at is not None and done > full_at:
            log(f"qemu-img: error while writing at byte {full_at}: No space left on device")
            return
        log(line)
        await asyncio.sleep(seconds / _LINES)


def _progress(size: int) -> Iterator[tuple[str, int]]:
    for percent in range(_LINES + 1):
        done = size * percent // _LINES
        yield f"transferred {_told(done)} of {_told(size)} ({100 * done / (size or 1):.2f}%)", done


def _told(size: int) -> str:
    if size >= _GIB:
        return f"{size / _GIB:.1f} GiB"
    return f"{size / _MIB:.1f} MiB" if size else "0.0 B"


def _size(host: Host, storage: str, name: str, options: Mapping[str, str]) -> int:
    known = host.storages[storage].get("volumes", {}).get(name, {}).get("size")
    return int(known) if known else hardware.size_in_bytes(options.get("size", "0"))


def _suffix(name: str) -> str | None:
    ending = name.rpartition(".")[2]
    return ending if ending in {"qcow2", "raw", "vmdk"} else None


def check_unused(vms: Iterable[Vm], vm: Vm) -> None:
    """Let nobody destroy a VM that runs, has gone, or on whose disks others stand.

    Raises:
        TaskFailed: it is so.
    """
    others = list(vms)
    if vm not in others:
        raise TaskFailed(no_config(vm.node, vm.vmid))
    if vm.status == "running":
        raise TaskFailed(f"VM {vm.vmid} is running - destroy failed")
    for _key, volume, _options in hardware.drives(vm.config):
        linked = any(f"{volume}/" in str(value) for other in others for value in other.config.values())
        if f"base-{vm.vmid}-" in volume and linked:
            raise TaskFailed(f"base volume '{volume}' is still in use by linked cloned")  # sic
