"""The config that a node's VM must have, written upon the one it has: what is not ours stays as it is."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_interface

from provision.parts import Lease
from provision.properties import (
    Config,
    Properties,
    decode_keys,
    encode_keys,
    join,
    join_nic,
    mean,
    split,
    split_nic,
    split_tags,
)
from provision.wanted import NodeSpec, WantedFabric, WantedNuma

TAG = "muster"
UNKNOWN_UUID = "(chosen when the VM is made)"
_HOSTPCI = re.compile(r"hostpci\d+")
_NUMA = re.compile(r"numa\d+")
PCI_SLOTS = 16
_LEASES: Mapping[Lease, str] = {"dhcp": "ip=dhcp", "dhcp6": "ip6=dhcp", "auto": "ip6=auto"}
# What changes the cloud-init data changes the instance-id, and so the SSH host keys at the next boot
# (qemu-server Cloudinit.pm nocloud_gen_metadata; cloud-init's ssh module runs once per instance).
_MAKES_NEW_HOST_KEYS = re.compile(r"name|ciuser|sshkeys|ciupgrade|ipconfig\d+")


@dataclass(frozen=True, slots=True)
class Change:
    """One config key that differs. before, after: Proxmox's own text; None where the key is absent."""

    key: str
    before: str | None
    after: str | None


def marker(name: str, uuid: str | None) -> str:
    """The line in a VM's description by which a clone is known as ours before it has our uuid."""
    return f"muster: {name} {uuid or UNKNOWN_UUID}"


def is_ours(config: Config, name: str, uuid: str, *, configured: bool) -> bool:
    """Whether a VM is the one on record: by its uuid, or (before it was configured) by our marker."""
    found = split(str(config.get("smbios1", ""))).get("uuid", "").lower()
    if found == uuid:
        return True
    return not configured and marker(name, uuid) in str(config.get("description", "")).splitlines()


def differences(spec: NodeSpec, config: Config, uuid: str | None) -> tuple[Change, ...]:
    """The keys of `config` that must change to become what `spec` wants, in the order of their names.

    uuid: None while it is not chosen yet; a plan then says so.
    """
    wanted = wanted_config(spec, config, uuid)
    found = []
    for key in sorted(wanted):
        before, after = config.get(key), wanted[key]
        if mean(key, before) != mean(key, after):
            found.append(Change(key, None if before is None else str(before), after))
    return tuple(found)


def makes_new_host_keys(change: Change) -> bool:
    """Whether the guest would make new SSH host keys after this change."""
    return _MAKES_NEW_HOST_KEYS.fullmatch(change.key) is not None


def wanted_config(spec: NodeSpec, config: Config, uuid: str | None) -> dict[str, str | None]:
    """Every key that we set, as a text for Proxmox; None for a key that has to go."""
    known = uuid or UNKNOWN_UUID
    wanted: dict[str, str | None] = {
        "name": spec.name,
        "cores": str(spec.cores),
        "memory": str(spec.memory_mib),
        "agent": join(split(str(config.get("agent", "")), default_key="enabled") | {"enabled": "1"}),
        "ciuser": spec.user,
        "sshkeys": encode_keys(spec.ssh_keys),
        "ciupgrade": "0",  # else an offline guest hangs on package_upgrade at its first boot
        "ipconfig0": _LEASES[spec.lease] if spec.address is None else _ipconfig(spec.address, spec.gateway),
        "tags": ";".join(split_tags(f"{config.get('tags', '')};{TAG}")),
        "smbios1": join({"uuid": known} | _without_uuid(str(config.get("smbios1", "")))),
        "description": _description(str(config.get("description", "")), spec.name, known),
        "net0": _management_nic(spec, config.get("net0"), uuid),
    }
    wanted |= _hardware(spec, config) | _pci(spec.mappings, config)
    if spec.mappings or any(map(_HOSTPCI.fullmatch, config)):
        # PCI passthrough pins all memory when the VM starts, so a balloon has nothing to give back.
        wanted["balloon"] = "0"
    for index, fabric in enumerate(spec.fabrics, start=1):
        if fabric.bridge is None:
            continue  # a passed function is no netN, and Proxmox's cloud-init knows nothing of it
        wanted[f"net{index}"] = _fabric_nic(fabric, config.get(f"net{index}"), uuid, index)
        if fabric.address is not None:
            wanted[f"ipconfig{index}"] = _ipconfig(fabric.address, None)
    return wanted


def created_config(spec: NodeSpec, uuid: str | None, *, image: str) -> dict[str, str]:
    """Every key of a VM that is built from an image (a volume), as texts for Proxmox."""
    base = {
        "scsihw": "virtio-scsi-single",
        "scsi0": f"{spec.storage}:0,import-from={image},discard=on,iothread=1,ssd=1",
        "ide2": f"{spec.storage}:cloudinit",
        "boot": "order=scsi0",
        "ostype": "l26",
        "serial0": "socket",  # many cloud images wait for a serial console
        "vga": "serial0",
    }
    if spec.bios == "ovmf":
        keys = int(spec.secure_boot)
        base["efidisk0"] = f"{spec.storage}:1,efitype=4m,pre-enrolled-keys={keys}"
    wanted = wanted_config(spec, base, uuid)
    return base | {key: value for key, value in wanted.items() if value is not None}


def mac_of(config: Config, index: int) -> str | None:
    """The MAC of netN in lower case."""
    return split_nic(str(config.get(f"net{index}", ""))).get("macaddr")


def _without_uuid(smbios: str) -> Properties:
    return {key: value for key, value in split(smbios).items() if key != "uuid"}


def _description(text: str, name: str, uuid: str) -> str:
    line = marker(name, uuid)
    kept = [other for other in text.splitlines() if not other.startswith(f"muster: {name} ")]
    return text if line in text.splitlines() else "\n".join([line, *kept]).strip()


def _ipconfig(address: str, gateway: str | None) -> str:
    six = "6" if ip_interface(address).version == 6 else ""
    return f"ip{six}={address}" + (f",gw{six}={gateway}" if gateway else "")


def _management_nic(spec: NodeSpec, text: str | None, uuid: str | None) -> str:
    nic = _kept_nic(text, uuid, 0) | {"bridge": spec.bridge}
    return _tagged(nic | _queues(spec.queues), tag=spec.vlan)


def _fabric_nic(fabric: WantedFabric, text: str | None, uuid: str | None, index: int) -> str:
    nic = _kept_nic(text, uuid, index) | {"bridge": str(fabric.bridge)}
    if fabric.mtu is not None:
        nic["mtu"] = str(fabric.mtu)
    return _tagged(nic | _queues(fabric.queues), tag=fabric.vlan)


def _queues(count: int | None) -> Properties:
    return {} if count is None else {"queues": str(count)}


def _kept_nic(text: str | None, uuid: str | None, index: int) -> Properties:
    """The NIC as it is, its MAC above all: a netN without one makes Proxmox draw another."""
    nic = split_nic(str(text or "")) or {"model": "virtio"}
    nic.setdefault("macaddr", _mac(uuid, index))
    return nic


def _tagged(nic: Properties, *, tag: int | None) -> str:
    nic.pop("tag", None)
    return join_nic(nic | ({"tag": str(tag)} if tag else {}))


def _mac(uuid: str | None, index: int) -> str:
    """A locally administered MAC (IEEE 802, section 8.2), the same for one VM in every run."""
    if uuid is None:
        return "(new)"
    digest = hashlib.sha256(f"{uuid} net{index}".encode()).digest()
    return ":".join(f"{octet:02x}" for octet in (0x02, *digest[:5]))


def _hardware(spec: NodeSpec, config: Config) -> dict[str, str | None]:
    """What the profile says of the machine itself; what it leaves out stays as it is."""
    asked: dict[str, str | int | None] = {
        "sockets": spec.sockets,
        "machine": _machine(spec.machine, str(config.get("machine", ""))),
        "bios": spec.bios,
        "cpu": spec.cpu,
        "hugepages": spec.hugepages_mib,
        "affinity": spec.affinity,
    }
    wanted: dict[str, str | None] = {key: str(value) for key, value in asked.items() if value is not None}
    if spec.numa or spec.hugepages_mib:
        wanted["numa"] = "1"
    if spec.numa:
        wanted |= dict.fromkeys(key for key in config if _NUMA.fullmatch(key))
        wanted |= {f"numa{index}": _numa(node) for index, node in enumerate(spec.numa)}
    return wanted


def _machine(wanted: str | None, found: str) -> str | None:
    """`q35` is met by every q35, such as the version that a template is pinned to."""
    return found if wanted == "q35" and "q35" in found else wanted


def _numa(node: WantedNuma) -> str:
    bound = {} if node.host_node is None else {"hostnodes": str(node.host_node), "policy": "bind"}
    return join({"cpus": node.cpus, "memory": str(node.memory_mib)} | bound)


def _pci(mappings: Mapping[str, int], config: Config) -> dict[str, str | None]:
    """The PCI entries: ours are kept in their slots, missing ones take free slots, surplus ones go."""
    taken = {key: split(str(config[key]), default_key="host") for key in config if _HOSTPCI.fullmatch(key)}
    free = [f"hostpci{slot}" for slot in range(PCI_SLOTS) if f"hostpci{slot}" not in taken]
    wanted: dict[str, str | None] = {}
    for mapping, count in mappings.items():
        ours = sorted((key for key, value in taken.items() if value.get("mapping") == mapping), key=_slot)
        slots, free = (ours + free)[:count], free[max(0, count - len(ours)) :]
        wanted |= {key: join(taken.get(key, {"mapping": mapping}) | {"pcie": "1"}) for key in slots}
        wanted |= dict.fromkeys(ours[count:])
    return wanted


def _slot(key: str) -> int:
    return int(key.removeprefix("hostpci"))


def shown(change: Change) -> Iterator[tuple[str, str, str]]:
    """A change for people: key, before, after; login keys are told one by one and decoded."""
    if change.key != "sshkeys":
        yield (
            change.key,
            change.before or "",
            "" if change.after is None else change.after.replace("\n", " | "),
        )
        return
    before, after = decode_keys(change.before or ""), decode_keys(change.after or "")
    for line in before:
        if line not in after:
            yield "sshkeys", line, ""
    for line in after:
        if line not in before:
            yield "sshkeys", "", line
