"""What a Proxmox host says of a VM's config: its devices, its sizes, and why it would not start; pure."""

import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping

from lab import cloudinit
from lab.guests import NO_SUCH_KEY, TaskFailed

BRIDGES = ("vmbr0", "vmbr1")
MAX_CORES = 4  # what fakepve tells of its nodes
DRIVE = re.compile(r"(ide|sata|scsi|virtio)\d+|efidisk0|tpmstate0")
CLOUDINIT_DRIVE = re.compile(r"[^:]+:(\S*/)?vm-\d+-cloudinit(\.\w+)?")

_SUB_KEY = re.compile(r"invalid key in comma-separated list property: (.*)\n")

Declared = Mapping[str, Mapping[str, object]]  # parameters as the API's schema declares them

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def template(vmid: int, *, storage: str, disk_gib: int, mac: str) -> tuple[dict[str, object], dict[str, int]]:
    """A template's config as a person would prepare it, and the sizes (bytes) of its volumes by name."""
    disk, drive = f"base-{vmid}-disk-0", f"vm-{vmid}-cloudinit"
    config: dict[str, object] = {
        "agent": "enabled=1",
        "boot": "order=scsi0",
        "cores": 1,
        "ide2": f"{storage}:{drive},media=cdrom,size=4M",
        "machine": "q35",
        "memory": "1024",
        "meta": f"creation-qemu=10.0.2,ctime={int(time.time())}",
        "net0": f"virtio={mac},bridge={BRIDGES[0]}",
        "ostype": "l26",
        "scsi0": f"{storage}:{disk},size={disk_gib}G",
        "scsihw": "virtio-scsi-single",
        "serial0": "socket",
        "smbios1": f"uuid={uuid.uuid4()}",
        "template": 1,
        "vga": "serial0",
        "vmgenid": str(uuid.uuid4()),
    }
    return config, {disk: disk_gib << 30, drive: 4 << 20}


def shown(config: Mapping[str, object], declared: Declared) -> dict[str, object]:
    """A config as the API gives it: numbers where its schema has one, `memory` and the rest as text."""
    numbers = {"template", *(key for key in declared if declared[key].get("type") in {"integer", "boolean"})}
    found: dict[str, object] = {
        key: int(str(value)) if key in numbers else str(value) for key, value in config.items()
    }
    if "cipassword" in found:
        found["cipassword"] = cloudinit.HIDDEN
    return found


def known(declared: Declared) -> Callable[[str], bool]:
    """Whether a config has a key of some name; `net[n]` stands for net0, net1 and so on."""
    return lambda key: key in declared or re.sub(r"\d+$", "[n]", key) in declared


def faults(found: Mapping[str, str], declared: Declared, values: Mapping[str, object]) -> dict[str, str]:
    """The faults of all parameters, those that were found and those of booleans, in a real host's words.

    A real host takes 0 and 1 (or JSON true and false) for a boolean, not the words.
    """
    found = {name: text.replace("got 'ARRAY'", "got ARRAY") for name, text in found.items()}
    told = {
        name: _SUB_KEY.sub(rf"format error\n{name}.\1: {NO_SUCH_KEY}\n", text) for name, text in found.items()
    }
    wrong = {
        name: f"type check ('boolean') failed - got '{value}'"
        for name, value in values.items()
        if declared.get(name, {}).get("type") == "boolean"
        if not isinstance(value, (bool, list)) and str(value) not in {"0", "1"}
    }
    return {**told, **wrong}


def tags(text: object) -> str:
    """A tag list as Proxmox keeps it: sorted, lower case, each once."""
    return ";".join(sorted({tag.lower() for tag in re.split(r"[;, ]+", str(text)) if tag}))


def drives(config: Mapping[str, object]) -> list[tuple[str, str, dict[str, str]]]:
    """Device, volume and options of every drive of a config."""
    found = []
    for key in sorted(filter(DRIVE.fullmatch, config)):
        volume, _, rest = str(config[key]).partition(",")
        found.append((key, volume.removeprefix("file="), cloudinit.properties(rest)))
    return found


def boot_disk_mib(config: Mapping[str, object]) -> int:
    """The size of the disk that a VM boots from, in MiB, rounded up; 0 where its config does not tell."""
    order = cloudinit.properties(config.get("boot", "")).get("order", "").split(";")
    disks = {key: options for key, _, options in drives(config) if options.get("media") != "cdrom"}
    first = next((disks[key] for key in (*order, *disks) if key in disks), {})
    return -(-size_in_bytes(first.get("size", "0")) // (1 << 20))


def is_cloudinit(volume: str) -> bool:
    """Whether a volume is a cloud-init drive."""
    return CLOUDINIT_DRIVE.fullmatch(volume) is not None


def cloudinit_drives(config: Mapping[str, object]) -> dict[str, str]:
    """The volumes of the cloud-init drives of a config, by device."""
    volumes = ((key, str(value).partition(",")[0]) for key, value in config.items())
    return {key: volume for key, volume in volumes if CLOUDINIT_DRIVE.fullmatch(volume)}


def why_no_drive(config: Mapping[str, object]) -> str | None:
    """Why the cloud-init drive of a VM cannot be written; the lab has no snippets."""
    wanted = cloudinit.properties(config.get("cicustom", "")).values()
    return next((f"volume '{volume}' does not exist" for volume in wanted), None)


def why_not_started(config: Mapping[str, object]) -> str | None:
    """Why a VM with this config does not start, in the words of its task; None when it would."""
    if int(str(config.get("cores", 1))) > MAX_CORES:
        return f"MAX {MAX_CORES} vcpus allowed per VM on this node"
    bridges: Iterable[str] = (bridge for _number, _mac, bridge in cloudinit.nics(config))
    absent = next((bridge for bridge in bridges if bridge and bridge not in BRIDGES), None)
    return absent and f"bridge '{absent}' does not exist"


def resized(device: str, drive: object, *, size: str) -> tuple[str, int] | None:
    """A drive's config value and bytes after `size` (`8G`, `+512M`); None when that changes nothing.

    Raises:
        TaskFailed: there is no such disk, it is a CD-ROM, or it would shrink.
    """
    if drive is None:
        raise TaskFailed(f"disk '{device}' does not exist")
    volume, _, rest = str(drive).partition(",")
    options = cloudinit.properties(rest)
    if options.get("media") == "cdrom" or volume in {"none", "cdrom"}:
        raise TaskFailed("you can't resize a cdrom")
    old = size_in_bytes(options.get("size", "0"))
    new = size_in_bytes(size.removeprefix("+")) + (old if size.startswith("+") else 0)
    if new < old:
        raise TaskFailed("shrinking disks is not supported")
    if new == old:
        return None
    options["size"] = spelt_size(new)
    return ",".join([volume, *(f"{key}={value}" for key, value in sorted(options.items()))]), new


def size_in_bytes(text: str) -> int:
    """A size as a config spells it: `8G`, `528K`, `1.5T`."""
    number, unit = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text.strip()).groups()  # type: ignore[union-attr]  # the API's schema let only these through
    return int(float(number) * _UNITS[unit])


def spelt_size(size: int) -> str:
    """A size in bytes, in the largest unit that divides it."""
    unit = next(unit for unit in ("T", "G", "M", "K", "") if size % _UNITS[unit] == 0)
    return f"{size // _UNITS[unit]}{unit}"
