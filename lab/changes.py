"""A change of a VM's config, as a Proxmox host judges and applies it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lab import cloudinit, hardware
from lab.guests import Vm, check_lock, die, faulty, set_lock

_NOT_CONFIG = frozenset(
    {"node", "vmid", "digest", "skiplock", "force", "delete", "revert", "background_delay"}
)
_CPU = frozenset({"cores", "cpu", "cpulimit", "cpuunits", "numa", "sockets", "vcpus", "affinity"})
_MEMORY = frozenset({"memory", "balloon", "shares"})
_DISK = frozenset({"boot", "bootdisk", "vmstatestorage"})
_OPTIONS = frozenset(
    {
        "agent",
        "autostart",
        "bios",
        "description",
        "keyboard",
        "localtime",
        "migrate_downtime",
        "migrate_speed",
        "name",
        "onboot",
        "ostype",
        "protection",
        "reboot",
        "startdate",
        "startup",
        "tags",
        "tdf",
        "template",
    }
)
_ROOT = frozenset({"args", "lock"})
# What a running VM takes at once; all else waits in `pending` for its next start.
_AT_ONCE = frozenset(
    {
        "description",
        "hookscript",
        "lock",
        "name",
        "onboot",
        "protection",
        "shares",
        "startup",
        "tags",
        "template",
    }
)
_NO_RAW = {
    "hostpci": "only root can set '{}' config for non-mapped devices",
    "serial": "only root can modify '{}' config for real devices",
    "usb": "only root can set '{}' config for real devices",
}
ROOT = "root@pam"

Require = Callable[[str, str], None]  # path, privilege; refuses whoever lacks it


@dataclass(frozen=True)
class Change:
    """What one request asks for. skiplock: work on a locked VM too."""

    values: Mapping[str, Any]
    delete: tuple[str, ...]
    revert: tuple[str, ...]
    digest: str | None
    skiplock: bool

    @property
    def drives(self) -> tuple[str, ...]:
        """The drives that are set."""
        return tuple(sorted(filter(hardware.DRIVE.fullmatch, self.values)))

    @property
    def told(self) -> str:
        """The change as the log of its task tells it."""
        parts = [f"-{key} {value}" for key, value in sorted(self.values.items())]
        return " ".join([*parts, *([f"-delete {','.join(self.delete)}"] if self.delete else [])])


def asked(values: Mapping[str, Any], user: str, *, known: Callable[[str], bool]) -> Change:
    """Read a request; `known` tells whether there is a config key of some name.

    Raises:
        Refused: it asks for nothing, or for what contradicts itself.
    """
    found = {key: value for key, value in values.items() if key not in _NOT_CONFIG}
    skiplock = bool(int(values.get("skiplock", 0)))
    if skiplock and user != ROOT:
        raise faulty(skiplock="Only root may use this option.")
    delete, revert = (tuple(filter(None, re.split(r"[,; ]+", str(values.get(name, ""))))) for name in _LISTS)
    if not found and not delete and not revert:
        die("no options specified")
    for key in delete:
        if key in found:
            raise faulty(delete=f"you can't use '-{key}' and -delete {key}' at the same time")
        if not known(key):
            raise faulty(delete=f"unknown option '{key}'")
    if "sshkeys" in found and not cloudinit.are_public_keys(str(found["sshkeys"])):
        die("SSH public key validation error")
    if "tags" in found:
        found["tags"] = hardware.tags(found["tags"])
    if "hookscript" in found:
        raise faulty(hookscript=f"script '{found['hookscript']}' does not exist\n")  # the lab has no snippets
    found |= {key: " " for key in found if key.startswith("ipconfig") and found[key] == ""}
    return Change(found, delete, revert, values.get("digest"), skiplock)


_LISTS = ("delete", "revert")


def check_rights(change: Change, vm: Vm, user: str, require: Require) -> None:
    """Let a change through that its user may make.

    Raises:
        Refused: a privilege is missing, or only root may do that.
    """
    here = f"/vms/{vm.vmid}"
    for key in sorted({*change.values, *change.delete, *change.revert}):
        new = str(change.values.get(key, ""))
        kind = re.sub(r"\d+$", "", key)
        if user != ROOT and key in _ROOT:
            die(f"only root can set '{key}' config")
        if kind == "hostpci" and (mapping := cloudinit.properties(new).get("mapping")):
            require(f"/mapping/pci/{mapping}", "Mapping.Use")
        elif user != ROOT and kind in _NO_RAW and new and not _harmless(kind, new):
            die(_NO_RAW[kind].format(key))
        if key == "startup":
            require("/", "Sys.Modify")
        require(here, privilege(key, new or str(vm.config.get(key, ""))))


def _harmless(kind: str, value: str) -> bool:
    return (kind == "serial" and value == "socket") or (
        kind == "usb" and value.startswith(("spice", "mapping="))
    )


def privilege(key: str, value: str) -> str:
    """What it takes to set a config key to a value."""
    if cloudinit.is_cloudinit_key(key):
        return "VM.Config.Cloudinit"
    if hardware.DRIVE.fullmatch(key):
        volume, _, options = value.partition(",")
        cdrom = cloudinit.properties(options).get("media") == "cdrom" or volume.endswith(":cloudinit")
        return "VM.Config.CDROM" if cdrom else "VM.Config.Disk"
    if re.fullmatch(r"net\d+", key):
        return "VM.Config.Network"
    if key in _DISK or key.startswith("unused"):
        return "VM.Config.Disk"
    groups = ((_CPU, "VM.Config.CPU"), (_MEMORY, "VM.Config.Memory"), (_OPTIONS, "VM.Config.Options"))
    return next((name for keys, name in groups if key in keys), "VM.Config.HWType")


def check_state(change: Change, vm: Vm) -> None:
    """Hold a change against the config as it is now.

    Raises:
        Refused: the config is another one by now, or it is locked, or the change does not fit it.
    """
    if change.digest and change.digest != vm.digest():
        die("checksum mismatch (file change by other user?)")
    if not change.skiplock:
        check_lock(vm)
    order = str(change.values.get("boot", ""))
    if order.startswith("order="):
        devices = {*vm.config, *change.values}
        for device in filter(None, order.removeprefix("order=").split(";")):
            if device not in devices:
                raise faulty(boot=f"invalid bootorder: device '{device}' does not exist")
    for key, volume, _options in hardware.drives(change.values):
        if volume.endswith(":cloudinit"):
            for present in hardware.cloudinit_drives(vm.config).keys() - {key}:
                die(f"{key} - cloud-init drive is already attached at '{present}'")


@dataclass(frozen=True)
class Workshop:
    """Where the parts of a VM come from, and where they go.

    drive: the value of a drive (device, value), its volume made if it has to be.
    nic: a network device with a MAC.
    free: takes a volume away.
    """

    drive: Callable[[str, str], str]
    nic: Callable[[str], str]
    free: Callable[[str], None]


def apply(change: Change, vm: Vm, workshop: Workshop) -> None:
    """Make a change that was checked."""
    running = vm.status == "running"
    made = {key: workshop.drive(key, str(change.values[key])) for key in change.drives}
    for key in change.revert:
        vm.pending.pop(key, None)
    for key in change.delete:
        if hardware.DRIVE.fullmatch(key) and not running:
            _let_go(vm, key, workshop)
        _set(vm, key, None, wait=running)
    for key, value in change.values.items():
        if key in made:
            _let_go(vm, key, workshop, instead=made[key])
        nic = workshop.nic(str(value)) if re.fullmatch(r"net\d+", key) else value
        _set(vm, key, made.get(key, nic), wait=running)
    vm.name = vm.config.get("name") or f"VM {vm.vmid}"


def _set(vm: Vm, key: str, value: object, *, wait: bool) -> None:
    if key == "lock":
        set_lock(vm, None if value is None else str(value))
    elif (
        wait
        and key not in _AT_ONCE
        and not cloudinit.is_cloudinit_key(key)
        and not _other_disc(vm, key, value)
    ):
        vm.pending[key] = value
    else:
        vm.pending.pop(key, None)
        if value is None:
            vm.config.pop(key, None)
        else:
            vm.config[key] = value
        if key == "template":
            vm.template = bool(int(str(value or 0)))


def _other_disc(vm: Vm, key: str, value: object) -> bool:
    """Whether only the disc in a CD drive is changed, which a running VM takes (vmconfig_update_disk)."""
    return _is_cd(vm.config.get(key, "")) and _is_cd(value)


def _is_cd(value: object) -> bool:
    return cloudinit.properties(str(value).partition(",")[2]).get("media") == "cdrom"


def _let_go(vm: Vm, key: str, workshop: Workshop, *, instead: str = "") -> None:
    """A disk that leaves stays in the config, as an unused one; a cloud-init drive goes."""
    old = str(vm.config.get(key, "")).partition(",")[0]
    if ":" not in old or old == instead.partition(",")[0]:
        return
    if hardware.is_cloudinit(old):
        workshop.free(old)
    elif not _is_cd(vm.config[key]):
        free = next(n for n in range(256) if f"unused{n}" not in vm.config)
        vm.config[f"unused{free}"] = old
