"""How Proxmox writes a VM's config: property strings taken apart, compared by meaning, put together again."""

import re
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

Config: TypeAlias = Mapping[str, Any]
"""A VM's config as `GET .../config` gives it: numbers or strings, by Proxmox's own whim."""

Properties: TypeAlias = dict[str, str]

NIC_MODELS = frozenset(
    {"e1000", "e1000-82540em", "e1000-82544gc", "e1000-82545em", "e1000e", "i82551", "i82557b", "i82559er"}
    | {"ne2k_isa", "ne2k_pci", "pcnet", "rtl8139", "virtio", "vmxnet3"}
)
_DRIVE = re.compile(r"(?:scsi|virtio|sata|ide)\d+")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)")
_KIB = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}
_DEFAULT_KEY = {
    "agent": "enabled",
    "memory": "current",
    "hostpci": "host",
    "cpu": "cputype",
    "machine": "type",
}
_NUMBERS = frozenset({"cores", "sockets", "numa", "hugepages", "balloon", "ciupgrade"})
_TRUE = {"yes": "1", "on": "1", "true": "1", "no": "0", "off": "0", "false": "0"}


def split(text: str, *, default_key: str = "") -> Properties:
    """`a=1,b=2` as a dict; a bare first word is the value of `default_key`."""
    found: Properties = {}
    for number, part in enumerate(filter(None, str(text).strip().split(","))):
        key, equals, value = part.partition("=")
        if not equals and number == 0 and default_key:
            key, value = default_key, key
        found[key.strip()] = value.strip()
    return found


def join(properties: Mapping[str, str]) -> str:
    """The opposite of `split`, in the dict's order."""
    return ",".join(f"{key}={value}" for key, value in properties.items())


def split_nic(text: str) -> Properties:
    """A netN value with `model` and `macaddr` (lower case) spelled out, however it was written."""
    properties = split(text)
    for model in NIC_MODELS.intersection(properties):
        mac = properties.pop(model)
        properties = {"model": model, **({"macaddr": mac} if mac else {}), **properties}
    if properties.get("macaddr"):
        properties["macaddr"] = properties["macaddr"].lower()
    return properties


def join_nic(properties: Mapping[str, str]) -> str:
    """A netN value as Proxmox writes it: model=MAC first."""
    rest = {key: value for key, value in properties.items() if key not in {"model", "macaddr"}}
    head = {properties.get("model", "virtio"): properties["macaddr"].upper()}
    return join(head | rest)


def encode_keys(lines: tuple[str, ...]) -> str:
    """Login keys for `sshkeys`: percent-encoded once here; the form layer encodes a second time."""
    return quote("\n".join(lines), safe="")


def decode_keys(value: str) -> tuple[str, ...]:
    """The login keys of an `sshkeys` value."""
    return tuple(line.strip() for line in unquote(value).splitlines() if line.strip())


def split_tags(value: str) -> tuple[str, ...]:
    """Tags, sorted, lower case, each once (as Proxmox stores them)."""
    return tuple(sorted({tag.lower() for tag in re.split(r"[;, ]+", value) if tag}))


def mean(key: str, value: Any) -> Any:  # noqa: ANN401 - a config value goes in, something comparable comes out
    """What a config value means, so that two ways of writing one thing are equal."""
    if value is None:
        return None
    text = str(value).strip()
    kind = key.rstrip("0123456789") if key[-1:].isdigit() and key != "smbios1" else key
    if key in _NUMBERS:
        return int(_TRUE.get(text, text)) if _TRUE.get(text, text).isdigit() else text
    if key == "memory":
        return split(text, default_key="current").get("current")
    if key == "sshkeys":
        return frozenset(decode_keys(text))
    if key == "tags":
        return split_tags(text)
    if key == "smbios1":
        return {name: word.lower() if name == "uuid" else word for name, word in split(text).items()}
    if kind == "net":
        return split_nic(text)
    if kind in {"agent", "hostpci", "ipconfig", "cpu", "machine", "numa"}:
        found = split(text, default_key=_DEFAULT_KEY.get(kind, ""))
        return {name: _TRUE.get(word, word) for name, word in found.items()}
    return text


def boot_disk(config: Config) -> str | None:
    """The key of the disk that the VM boots from: the first of `boot`, else the first there is."""
    ordered = split(str(config.get("boot", ""))).get("order", "").split(";")
    usual = ("scsi0", "virtio0", "sata0", "ide0")
    drives = sorted(key for key in config if _DRIVE.fullmatch(key))
    for key in (*ordered, *usual, *drives):
        if _DRIVE.fullmatch(key) and key in config:
            volume = str(config[key])
            if "media=cdrom" not in volume and "cloudinit" not in volume and not volume.startswith("none"):
                return key
    return None


def disk_kib(config: Config, disk: str) -> int | None:
    """The size of a disk in KiB, where the config tells it."""
    found = _SIZE.fullmatch(split(str(config[disk]), default_key="file").get("size", ""))
    if not found:
        return None
    return int(float(found[1]) * _KIB[found[2]]) if found[2] else int(float(found[1])) // 1024


def size_text(kib: int) -> str:
    """A size for people: 8 GiB, 3.5 GiB, 528 KiB."""
    for unit, name in ((1024**2, "GiB"), (1024, "MiB")):
        if kib >= unit:
            return f"{kib / unit:.4g} {name}"
    return f"{kib} KiB"


def storage_of(config: Config, disk: str) -> str:
    """The storage that a disk lies on."""
    return str(config[disk]).partition(",")[0].removeprefix("file=").partition(":")[0]


def has_cloud_init_drive(config: Config) -> bool:
    """Whether a cloud-init drive is attached; without one the cloud-init keys reach nobody."""
    return any(_DRIVE.fullmatch(key) and "cloudinit" in str(value) for key, value in config.items())
