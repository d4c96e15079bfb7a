"""From the VM that is wanted and the one that is found to steps; pure; no steps when nothing is left to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from inventory.errors import Refused
from provision.config import Change, differences, makes_new_host_keys, marker, shown
from provision.properties import (
    Config,
    boot_disk,
    disk_kib,
    has_cloud_init_drive,
    size_text,
    storage_of,
)
from provision.wanted import NodeSpec

_GIB = 1024**2  # KiB in a GiB


@dataclass(frozen=True, slots=True)
class TemplateFound:
    """The template. host: the Proxmox node that has its config."""

    vmid: int
    name: str
    host: str
    config: Config


@dataclass(frozen=True, slots=True)
class StorageFound:
    """A storage as one Proxmox node sees it."""

    active: bool
    images: bool
    shared: bool


@dataclass(frozen=True, slots=True)
class MachineFound:
    """The VM that is the node's own (its uuid was checked)."""

    vmid: int
    host: str
    config: Config
    running: bool


@dataclass(frozen=True, slots=True)
class Clone:
    """Make the VM: a full copy of a template. source: the host of the template; host: of the VM."""

    template: int
    template_name: str
    source: str
    host: str
    storage: str
    pool: str | None


@dataclass(frozen=True, slots=True)
class Configure:
    """Set the keys that differ, on condition that nobody changed the config meanwhile (`digest`)."""

    changes: tuple[Change, ...]
    digest: str | None


@dataclass(frozen=True, slots=True)
class Resize:
    """Grow a disk. before_kib: KiB, None if unknown. size_gib: GiB."""

    disk: str
    before_kib: int | None
    size_gib: int


@dataclass(frozen=True, slots=True)
class Start:
    """Start the VM. timeout_s: how long Proxmox itself may take for one of this size."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class ReadFacts:
    """Wait for the guest and learn its address, host keys and machine-id."""


Step: TypeAlias = Clone | Configure | Resize | Start | ReadFacts


def plan(
    spec: NodeSpec,
    *,
    template: TemplateFound | None,
    machine: MachineFound | None,
    uuid: str | None,
    known: bool,
) -> tuple[Step, ...]:
    """The steps from what is found to what is wanted.

    template: needed while there is no machine. known: the guest's facts are on record; then a change
    that would make new SSH host keys is no step any more (`drift` names it).
    """
    steps: list[Step] = []
    if machine is None:
        if template is None:
            raise ValueError("without a machine there must be a template")
        # A clone is given its name and its marker as it is made.
        config = {**template.config, "name": spec.name, "description": marker(spec.name, uuid)}
        steps.append(
            Clone(
                template=template.vmid,
                template_name=template.name,
                source=template.host,
                host=spec.host or template.host,
                storage=spec.storage,
                pool=spec.pool,
            )
        )
    else:
        config = dict(machine.config)
    changes = differences(spec, config, uuid)
    if known:
        changes = tuple(change for change in changes if not makes_new_host_keys(change))
    if changes:
        steps.append(Configure(changes, None if machine is None else config.get("digest")))
    steps += _growth(spec, config)
    if machine is None or not machine.running:
        steps.append(Start(start_timeout_s(spec, config)))
    if not known:
        steps.append(ReadFacts())
    return tuple(steps)


def drift(spec: NodeSpec, machine: MachineFound, uuid: str) -> tuple[Change, ...]:
    """What differs from the profile and is not mended, since the guest would make new host keys."""
    return tuple(filter(makes_new_host_keys, differences(spec, machine.config, uuid)))


def writes(step: Step) -> bool:
    """Whether a step changes something at Proxmox."""
    return not isinstance(step, ReadFacts)


def check_rules(spec: NodeSpec, template: TemplateFound, storages: Mapping[str, StorageFound]) -> list[str]:
    """Refuse what would fail after the VM was made; returns warnings.

    Raises:
        Refused: a rule does not hold; all that do not are told at once.
    """
    where = f"template {template.vmid} '{template.name}' on {template.host}"
    faults: list[str] = []
    disk = boot_disk(template.config)
    if disk is None:
        faults.append(f"{where} has no disk to boot from")
    else:
        size = disk_kib(template.config, disk)
        if size is not None and size > spec.disk_gib * _GIB:
            faults.append(
                f"disk_gib asks for {spec.disk_gib} GiB, and {disk} of {where} has {size_text(size)};"
                " a disk cannot shrink"
            )
    if spec.gpu_count and "q35" not in str(template.config.get("machine", "")):
        machine = template.config.get("machine", "the default, i440fx")
        faults.append(f"GPUs need a q35 machine (pcie=1), and {where} has {machine}")
    faults += _storage_faults(spec, template, storages, disk)
    if faults:
        raise Refused(
            f"{spec.name} was not made",
            why="\n".join(faults),
            next_step=f"mend profile {spec.profile} in the site file, or the template; nothing was changed",
        )
    if has_cloud_init_drive(template.config):
        return []
    return [f"{where} has no cloud-init drive: login user, keys and address will not reach the guest"]


def start_timeout_s(spec: NodeSpec, config: Config) -> float:
    """How long Proxmox gives a VM to start (qemu-server Helpers.pm, config_aware_timeout)."""
    seconds = spec.memory_mib // 1024 if spec.memory_mib > 30720 else 30
    if spec.gpu_count or any(key.startswith("hostpci") for key in config):
        seconds *= 4
    if config.get("hugepages"):
        seconds = max(seconds, 150)
    nics = {key for key in config if key.startswith("net") and key[3:].isdigit()}
    return float(seconds + 5 * len(nics | {f"net{index}" for index in range(len(spec.fabrics) + 1)}))


def as_json(step: Step) -> dict[str, Any]:
    """A step for --json."""
    match step:
        case Clone():
            return {"step": "clone", "template": step.template, "host": step.host, "storage": step.storage}
        case Configure():
            told = [entry for change in step.changes for entry in shown(change)]
            return {
                "step": "configure",
                "changes": [{"key": k, "before": b or None, "after": a or None} for k, b, a in told],
            }
        case Resize():
            return {"step": "resize", "disk": step.disk, "size_gib": step.size_gib}
        case Start():
            return {"step": "start"}
        case ReadFacts():
            return {"step": "read-facts"}


def as_text(step: Step) -> list[str]:
    """A step for people, one line each; + makes, ~ changes, > does something else."""
    match step:
        case Clone():
            what = f"template {step.template} '{step.template_name}' on {step.source}"
            return [f"+ clone      {what}, full copy to storage {step.storage} on {step.host}"]
        case Configure():
            told = [entry for change in step.changes for entry in shown(change)]
            return [
                f"~ configure  {key}: {before or '(none)'} -> {after or '(none)'}"
                for key, before, after in told
            ]
        case Resize():
            before = "unknown" if step.before_kib is None else size_text(step.before_kib)
            return [f"~ resize     {step.disk}: {before} -> {step.size_gib} GiB"]
        case Start():
            return ["> start      the VM"]
        case ReadFacts():
            return ["> read       address, host keys and machine-id through the guest agent"]


def _growth(spec: NodeSpec, config: Config) -> list[Step]:
    disk = boot_disk(config)
    if disk is None:
        return []
    size = disk_kib(config, disk)
    if size is not None and size >= spec.disk_gib * _GIB:
        return []
    return [Resize(disk, size, spec.disk_gib)]


def _storage_faults(
    spec: NodeSpec, template: TemplateFound, storages: Mapping[str, StorageFound], disk: str | None
) -> list[str]:
    usable = ", ".join(sorted(name for name, found in storages.items() if found.active and found.images))
    there = f"(there are: {usable or 'none'})"
    found = storages.get(spec.storage)
    if found is None:
        return [f"storage {spec.storage} is not on {template.host}, or is hidden from this token {there}"]
    if not found.active:
        return [f"storage {spec.storage} is not active on {template.host} {there}"]
    if not found.images:
        return [f"storage {spec.storage} holds no VM images {there}"]
    if spec.host not in {None, template.host}:
        source = storages.get(storage_of(template.config, disk)) if disk else None
        if not found.shared or (source is not None and not source.shared):
            where = f"template {template.vmid} is on {template.host} and the profile names {spec.host}"
            return [f"{where}: a copy from host to host needs shared storage on both sides"]
    return []
