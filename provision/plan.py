"""From the VM that is wanted and the one that is found to steps; pure; no steps when nothing is left to do."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from provision.config import Change, created_config, differences, makes_new_host_keys, marker, shown
from provision.properties import Config, boot_disk, disk_kib, size_text
from provision.slots import attached_seeds, seed_slot, seed_volume
from provision.wanted import NodeSpec

_GIB = 1024**2  # KiB in a GiB


@dataclass(frozen=True, slots=True)
class TemplateFound:
    """The template. host: the Proxmox node that has its config. target: the one that the VM is to stand on."""

    vmid: int
    name: str
    host: str
    config: Config
    target: str | None = None


@dataclass(frozen=True, slots=True)
class ImageFound:
    """An image to make the VM of, on the host that it is to stand on. fetch: how it gets there; None if it is there."""

    volume: str
    host: str
    fetch: "Fetch | None"

    @property
    def name(self) -> str:
        """The volume, for people."""
        return self.volume


Source: TypeAlias = TemplateFound | ImageFound


@dataclass(frozen=True, slots=True)
class StorageFound:
    """A storage as one Proxmox node sees it. images: holds disks of VMs. imports: holds images to make them from.

    discs: holds ISO images. kind: Proxmox's type of storage. free_mib: MiB; None where it is not told.
    """

    active: bool
    images: bool
    shared: bool
    imports: bool = False
    discs: bool = False
    kind: str = ""
    free_mib: int | None = None


@dataclass(frozen=True, slots=True)
class MachineFound:
    """The VM that is the node's own (its uuid was checked)."""

    vmid: int
    host: str
    config: Config
    running: bool


@dataclass(frozen=True, slots=True)
class Clone:
    """Make the VM from a template. source: the host of the template; host: of the VM. linked: no full copy."""

    template: int
    template_name: str
    source: str
    host: str
    storage: str
    pool: str | None
    linked: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """Let Proxmox download an image and check it. volume: what it becomes there."""

    url: str
    sha256: str
    host: str
    storage: str
    volume: str

    @property
    def file_name(self) -> str:
        """The image's name in its storage."""
        return self.volume.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Create:
    """Make the VM: its boot disk is a copy of `image`, a volume. config: all its keys, as texts for Proxmox."""

    image: str
    host: str
    storage: str
    pool: str | None
    config: tuple[tuple[str, str], ...]


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
class UploadSeed:
    """Put the node's own cloud-init disc on a storage. file: whose user-data is on it."""

    volume: str
    host: str
    file: str


@dataclass(frozen=True, slots=True)
class AttachSeed:
    """Put that disc into the slot `key`, in the place of Proxmox's own cloud-init drive."""

    key: str
    volume: str


@dataclass(frozen=True, slots=True)
class RemoveSeed:
    """Give `key` back to Proxmox's own cloud-init drive, on `storage`, and delete the disc and any of a former run."""

    key: str
    storage: str
    volume: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start the VM. timeout_s: how long Proxmox itself may take for one of this size."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class ReadFacts:
    """Wait for the guest and learn its address, host keys and machine-id."""


Step: TypeAlias = (
    Fetch | Create | Clone | Configure | Resize | UploadSeed | AttachSeed | Start | ReadFacts | RemoveSeed
)


def plan(
    spec: NodeSpec,
    *,
    template: Source | None,
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
        if isinstance(template, ImageFound):
            return _from_image(spec, template, uuid)
        # A clone is given its name and its marker as it is made.
        config = {**template.config, "name": spec.name, "description": marker(spec.name, uuid)}
        steps.append(
            Clone(
                template=template.vmid,
                template_name=template.name,
                source=template.host,
                host=_host(spec, template),
                storage=spec.storage,
                pool=spec.pool,
                linked=spec.linked,
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
    running = machine is not None and machine.running
    host = machine.host if machine is not None else _host(spec, template)
    before, after = _seeds(spec, config, uuid, host=host, running=running, known=known)
    steps += before
    if not running:
        steps.append(Start(start_timeout_s(spec, config)))
    if not known:
        steps.append(ReadFacts())
    return (*steps, *after)


def drift(spec: NodeSpec, machine: MachineFound, uuid: str) -> tuple[Change, ...]:
    """What differs from the profile and is not mended, since the guest would make new host keys."""
    return tuple(filter(makes_new_host_keys, differences(spec, machine.config, uuid)))


def writes(step: Step) -> bool:
    """Whether a step changes something at Proxmox."""
    return not isinstance(step, ReadFacts)


def start_timeout_s(spec: NodeSpec, config: Config) -> float:
    """How long Proxmox gives a VM to start (qemu-server Helpers.pm, config_aware_timeout)."""
    seconds = spec.memory_mib // 1024 if spec.memory_mib > 30720 else 30
    if spec.mappings or any(key.startswith("hostpci") for key in config):
        seconds *= 4
    if spec.hugepages_mib or config.get("hugepages"):
        seconds = max(seconds, 150)
    nics = {key for key in config if key.startswith("net") and key[3:].isdigit()}
    return float(seconds + 5 * len(nics | {f"net{index}" for index in range(len(spec.fabrics) + 1)}))


def as_json(step: Step) -> dict[str, Any]:
    """A step for --json."""
    match step:
        case Clone():
            where = {"template": step.template, "host": step.host, "storage": step.storage}
            return {"step": "clone", **where, "linked": step.linked}
        case Fetch():
            return {"step": "fetch", "url": step.url, "host": step.host, "volume": step.volume}
        case Create():
            where = {"image": step.image, "host": step.host, "storage": step.storage}
            return {"step": "create", **where, "config": dict(step.config)}
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
        case UploadSeed():
            return {"step": "upload-seed", "volume": step.volume, "host": step.host, "file": step.file}
        case AttachSeed():
            return {"step": "attach-seed", "key": step.key, "volume": step.volume}
        case RemoveSeed():
            return {"step": "remove-seed", "key": step.key, "volume": step.volume}


def as_text(step: Step) -> list[str]:
    """A step for people, one line each; + makes, ~ changes, > does something else."""
    match step:
        case Clone():
            what = f"template {step.template} '{step.template_name}' on {step.source}"
            how = "linked clone on" if step.linked else "full copy to"
            return [f"+ clone      {what}, {how} storage {step.storage} on {step.host}"]
        case Fetch():
            return [f"+ fetch      {step.url} to {step.volume} on {step.host}, checked by its SHA-256"]
        case Create():
            lines = [f"+ create     from image {step.image}, on storage {step.storage} of {step.host}"]
            told = [entry for key, value in step.config for entry in shown(Change(key, None, value))]
            return lines + [f"+ configure  {key}: {after}" for key, _, after in told]
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
        case UploadSeed():
            return [f"+ upload     {step.volume}, a cloud-init disc with the user-data of {step.file}"]
        case AttachSeed():
            return [f"~ attach     {step.key}: {step.volume} in the place of Proxmox's cloud-init drive"]
        case RemoveSeed():
            return [
                f"- remove     {step.volume}, once cloud-init has ended; {step.key} is Proxmox's drive again"
            ]


def _from_image(spec: NodeSpec, image: ImageFound, uuid: str | None) -> tuple[Step, ...]:
    """A VM from an image is made with all its keys at once; how large the image is shows only then."""
    config = created_config(spec, uuid, image=image.volume)
    create = Create(image.volume, image.host, spec.storage, spec.pool, tuple(config.items()))
    fetched = () if image.fetch is None else (image.fetch,)
    resize = Resize("scsi0", None, spec.disk_gib)
    before, after = _seeds(spec, config, uuid, host=image.host, running=False, known=False)
    return (*fetched, create, resize, *before, Start(start_timeout_s(spec, config)), ReadFacts(), *after)


def _host(spec: NodeSpec, template: Source | None) -> str:
    """Where a clone of this template stands."""
    target = template.target if isinstance(template, TemplateFound) else None
    return target or spec.host or (template.host if template is not None else "")


def _seeds(
    spec: NodeSpec, config: Config, uuid: str | None, *, host: str, running: bool, known: bool
) -> tuple[list[Step], list[Step]]:
    """What is to be done about our own cloud-init disc before the VM starts, and after its facts were read.

    It is uploaded anew at each try to start, for its texts may have been mended since. One that is attached and
    has no use (any more) goes; a start with it would fail once its file is gone.
    """
    attached = attached_seeds(config, uuid)
    if known or spec.seed is None:
        gone: list[Step] = [RemoveSeed(key, spec.storage, volume) for key, volume in attached.items()]
        return ([], gone) if running else (gone, [])
    volume = seed_volume(spec.seed.storage, uuid)
    key = next(iter(attached), None) or seed_slot(config)
    after: list[Step] = [RemoveSeed(key, spec.storage, volume)]
    if running:
        return [], after
    before: list[Step] = [UploadSeed(volume, host, spec.seed.user_data.file)]
    if attached.get(key) != volume:
        before.append(AttachSeed(key, volume))
    return before, after


def _growth(spec: NodeSpec, config: Config) -> list[Step]:
    disk = boot_disk(config)
    if disk is None:
        return []
    size = disk_kib(config, disk)
    if size is not None and size >= spec.disk_gib * _GIB:
        return []
    return [Resize(disk, size, spec.disk_gib)]
