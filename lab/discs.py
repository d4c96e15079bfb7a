"""Cloud-init discs that were uploaded: read as a guest reads them, and turned into what a node is given; pure."""

import email
import re
from collections.abc import Iterator, Mapping

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from lab import cloudinit
from lab.cloudinit import Config, Seed

LABEL = "cidata"
_SECTOR = 2048
_FIRST_DESCRIPTOR = 16
_JOLIET = re.compile(rb"%/[@CE]")
_DIRECTORY = 2


class NoDisc(Exception):
    """Why an image is no disc that cloud-init would find."""


def attached(config: Config) -> str | None:
    """The volume of the ISO image in a VM's first CD drive that has one."""
    for key in sorted(key for key in config if re.fullmatch(r"(?:ide|sata|scsi)\d+", key)):
        volume, _, rest = str(config[key]).partition(",")
        if ":iso/" in volume and cloudinit.properties(rest).get("media") == "cdrom":
            return volume
    return None


def files(image: bytes) -> dict[str, str]:
    """The files in the root of an image labelled for NoCloud, by their Joliet names (ECMA-119, 8 and 9).

    Raises:
        NoDisc: it is not one.
    """
    label, joliet = "", None
    for sector in range(_FIRST_DESCRIPTOR, len(image) // _SECTOR):
        descriptor = image[sector * _SECTOR : (sector + 1) * _SECTOR]
        if descriptor[1:6] != b"CD001" or descriptor[0] == 255:
            break
        if descriptor[0] == 1:
            label = descriptor[40:72].decode("ascii", errors="replace").strip()
        elif descriptor[0] == 2 and _JOLIET.match(descriptor[88:91]):
            joliet = descriptor[156:190]
    if label.lower() != LABEL or joliet is None:
        raise NoDisc(f"its label is {label!r}, or it has no Joliet names")
    return {name: data.decode() for name, data in _entries(image, joliet)}


def seed(image: bytes, config: Config, *, name: str) -> tuple[Seed, str, tuple[str, ...]]:
    """What a node gets from a disc: the seed's texts, its login user and that one's keys.

    Raises:
        NoDisc: cloud-init would not find what it needs.
    """
    found = files(image)
    meta = _mapping(found.get("meta-data", ""))
    told: dict[str, object] = {}
    for text in _cloud_configs(found.get("user-data", "")):
        told |= _mapping(text)  # a later part's keys take the place of an earlier one's
    instance_id = str(meta.get("instance-id") or "")
    if not instance_id:
        raise NoDisc(f"its meta-data has no instance-id, and {name} would not boot from it")
    listed = told.get("ssh_authorized_keys")
    keys = tuple(map(str, listed)) if isinstance(listed, list) else ()
    user = str(told.get("user") or config.get("ciuser") or "")
    texts = Seed(found.get("user-data", ""), found.get("network-config", ""), found["meta-data"], instance_id)
    return texts, user, keys


def _entries(image: bytes, root: bytes) -> Iterator[tuple[str, bytes]]:
    first, length = int.from_bytes(root[2:6], "little"), int.from_bytes(root[10:14], "little")
    folder = image[first * _SECTOR : first * _SECTOR + length]
    at = 0
    while at < len(folder):
        size = folder[at]
        if size == 0:  # records do not cross sectors
            at = (at // _SECTOR + 1) * _SECTOR
            continue
        record = folder[at : at + size]
        at += size
        if not record[25] & _DIRECTORY:
            where, length = int.from_bytes(record[2:6], "little"), int.from_bytes(record[10:14], "little")
            name = record[33 : 33 + record[32]].decode("utf-16-be").partition(";")[0]
            yield name, image[where * _SECTOR : where * _SECTOR + length]


def _cloud_configs(user_data: str) -> Iterator[str]:
    if user_data.startswith("#cloud-config"):
        yield user_data
        return
    for part in email.message_from_string(user_data).walk():
        if part.get_content_type() == "text/cloud-config":
            data = part.get_payload(decode=True)
            yield data.decode() if isinstance(data, bytes) else ""


def _mapping(text: str) -> Mapping[str, object]:
    try:
        found = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise NoDisc(f"not YAML: {error}") from error
    return found if isinstance(found, dict) else {}
