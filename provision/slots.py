"""Where a node's own cloud-init disc lies and is attached; its name carries the node's uuid, so no other is touched."""

import re

from provision.properties import Config

UNKNOWN = "(uuid)"
_DRIVE = re.compile(r"(?:ide|sata|scsi)\d+")
# A slot can change its disc while the VM runs if it was there at the start. q35 has ide0 and ide2 only.
_SLOTS = ("ide2", "ide0", "sata5", "sata4")


def seed_volume(storage: str, uuid: str | None) -> str:
    """The disc's volume; one name for one VM, so that putting it there twice leaves one."""
    return f"{storage}:iso/muster-{uuid or UNKNOWN}.iso"


def is_seed_of(volume: str, uuid: str | None) -> bool:
    """Whether a volume is the disc of the node with this uuid; nothing else is ever deleted."""
    storage, _, _ = volume.partition(":")
    return bool(uuid and storage) and volume == seed_volume(storage, uuid)


def attached_seeds(config: Config, uuid: str | None) -> dict[str, str]:
    """The slots that hold a disc of this node, with its volume."""
    found = {key: str(value).partition(",")[0] for key, value in config.items() if _DRIVE.fullmatch(key)}
    return {key: volume for key, volume in found.items() if is_seed_of(volume, uuid)}


def seed_slot(config: Config) -> str:
    """The slot for the disc: that of Proxmox's own cloud-init drive, else one that is free or has an empty drive."""
    for key, value in config.items():
        if _DRIVE.fullmatch(key) and "cloudinit" in str(value):
            return key
    empty = (key for key in _SLOTS if str(config.get(key, "none")).startswith("none"))
    return next(empty, _SLOTS[0])
