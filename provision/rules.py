"""What Proxmox would refuse, or fail at when the VM starts: told before anything is written, all of it at once."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from inventory.errors import Refused
from provision.config import PCI_SLOTS, differences, wanted_config
from provision.plan import StorageFound, TemplateFound
from provision.properties import (
    Config,
    boot_disk,
    disk_kib,
    has_cloud_init_drive,
    mean,
    size_text,
    split,
    split_nic,
    storage_of,
)
from provision.wanted import NodeSpec

ROOT_ONLY = frozenset(
    {
        "hugepages",
        "keephugepages",
        "affinity",
        "args",
        "hookscript",
        "ivshmem",
        "amd-sev",
        "intel-tdx",
        "arch",
    }
)
"""Keys that no API token may set (qemu-server API2/Qemu.pm, check_vm_modify_config_perm); a clone keeps them."""

Bridges: TypeAlias = Mapping[str, int]
"""The bridges of a host that the token may see, with their MTU in octets."""

_GIB = 1024**2  # KiB in a GiB
_HOSTPCI = re.compile(r"hostpci\d+")
_NUMA = re.compile(r"numa\d+")
_NIC = re.compile(r"net\d+")


@dataclass(frozen=True, slots=True)
class _Case:
    """A VM as it would become. before: its config, or its template's; after: with what the profile wants."""

    spec: NodeSpec
    before: Config
    after: Mapping[str, str]
    where: str
    host: str

    def of(self, pattern: re.Pattern[str]) -> dict[str, str]:
        """The keys of one kind, in the order of their numbers."""
        found = {key: self.after[key] for key in self.after if pattern.fullmatch(key)}
        return dict(sorted(found.items(), key=lambda item: int(re.sub(r"\D", "", item[0]))))

    def number(self, key: str, default: int) -> int:
        found = str(mean(key, self.after.get(key)) or default)
        return int(found) if found.isdigit() else default

    @property
    def vcpus(self) -> int:
        return self.number("sockets", 1) * self.number("cores", 1)


def check_rules(
    spec: NodeSpec,
    template: TemplateFound,
    storages: Mapping[str, StorageFound],
    bridges: Bridges | None = None,
    *,
    more: Iterable[str] = (),
) -> list[str]:
    """Refuse what would fail after the VM was made; returns warnings. more: faults that are known already.

    Raises:
        Refused: a rule does not hold; all that do not are told at once.
    """
    where = f"template {template.vmid} '{template.name}' on {template.host}"
    case = _case(spec, template.config, where, template.host)
    faults = [*more, *_template_faults(case), *_cloud_init_faults(case), *_config_faults(case, bridges or {})]
    faults += _storage_faults(spec, template, storages, boot_disk(template.config))
    _refuse(spec, faults)
    return [*_template_warnings(case), *_warnings(case, bridges)]


def check_change(spec: NodeSpec, config: Config, *, vmid: int, host: str) -> None:
    """The same for a VM that is there already, whose config would be changed.

    Raises:
        Refused: a rule does not hold; all that do not are told at once.
    """
    if differences(spec, config, None):
        case = _case(spec, config, f"VM {vmid} on {host}", host)
        _refuse(spec, [fault for check in (*_SETTINGS, _root_only) for fault in check(case)], done="changed")


def check_created(
    spec: NodeSpec, config: Mapping[str, str], *, host: str, bridges: Bridges | None
) -> list[str]:
    """The same for a VM that is built from an image, with this config."""
    case = _Case(spec, {}, dict(config), "a VM from an image", host)
    _refuse(spec, list(_config_faults(case, bridges or {})))
    return _warnings(case, bridges)


def _case(spec: NodeSpec, before: Config, where: str, host: str) -> _Case:
    after = {key: str(value) for key, value in before.items()}
    for key, value in wanted_config(spec, before, None).items():
        after.pop(key, None)
        if value is not None:
            after[key] = value
    return _Case(spec, before, after, where, host)


def _refuse(spec: NodeSpec, faults: list[str], *, done: str = "made") -> None:
    if faults:
        raise Refused(
            f"{spec.name} was not {done}",
            why="\n".join(faults),
            next_step=f"mend profile {spec.profile} in the site file, or the template; nothing was changed",
        )


def _template_faults(case: _Case) -> Iterator[str]:
    lock = case.before.get("lock")
    if lock:
        yield f"{case.where} is locked ({lock}): wait for what holds it; a lock is never taken away here"
    disk = boot_disk(case.before)
    if disk is None:
        yield f"{case.where} has no disk to boot from"
        return
    size = disk_kib(case.before, disk)
    if size is not None and size > case.spec.disk_gib * _GIB:
        yield (
            f"disk_gib asks for {case.spec.disk_gib} GiB, and {disk} of {case.where} has {size_text(size)};"
            " a disk cannot shrink"
        )
    for key, value in case.before.items():
        if _HOSTPCI.fullmatch(key) and "mapping" not in split(str(value), default_key="host"):
            yield (
                f"{key} of {case.where} is {value}: only root@pam may clone a device that is not mapped;"
                " make a resource mapping, and let the template or the profile name it"
            )


def _cloud_init_faults(case: _Case) -> Iterator[str]:
    if case.spec.seed is None:
        return
    if custom := case.before.get("cicustom"):
        yield f"{case.where} has cicustom ({custom}), which user_data_file would do away with; leave one of them out"
    windows = str(case.before.get("ostype", "")).startswith("w")  # win11, w2k8, wxp, wvista
    form = str(case.before.get("citype") or ("configdrive2" if windows else "nocloud"))
    if form != "nocloud":
        yield f"{case.where} takes its cloud-init data as {form}, and user_data_file needs nocloud"


def _config_faults(case: _Case, bridges: Bridges) -> Iterator[str]:
    for check in (*_SETTINGS, _boot_order, _root_only):
        yield from check(case)
    yield from _mtu(case, bridges)


def _pci(case: _Case) -> Iterator[str]:
    devices = case.of(_HOSTPCI)
    wanted = sum(case.spec.mappings.values())
    have = sum(split(value).get("mapping") in case.spec.mappings for value in devices.values())
    if wanted > have:
        yield f"{wanted} mapped PCI devices are asked for, and Proxmox takes {PCI_SLOTS} in all"
    machine = case.after.get("machine", "")
    if "q35" not in machine and any(split(value).get("pcie") == "1" for value in devices.values()):
        what = "GPUs need" if case.spec.gpu_count else "PCI devices need"
        yield (
            f"{what} a q35 machine (pcie=1), and {case.where} has {machine or 'the default, i440fx'};"
            " set machine: q35"
        )


def _firmware(case: _Case) -> Iterator[str]:
    if case.after.get("bios") == "ovmf" and "efidisk0" not in case.after:
        yield f"bios ovmf needs an EFI disk, and {case.where} has none: it would forget its boot entries"


def _hugepages(case: _Case) -> Iterator[str]:
    size = case.after.get("hugepages")
    if not size:
        return
    if case.after.get("numa", "0") != "1":
        yield "hugepages need numa, and it is off"
    nodes = case.of(_NUMA)
    parts = {key: split(value).get("memory", "0") for key, value in nodes.items()} or {
        "memory": str(mean("memory", case.after.get("memory", "0")))
    }
    for key, memory in parts.items():
        if size.isdigit() and memory.isdigit() and int(memory) % int(size):
            yield f"{key} has {memory} MiB, which is no multiple of its hugepages of {size} MiB"
    for key, value in nodes.items():
        if not re.fullmatch(r"\d", split(value).get("hostnodes", "")):
            yield f"{key} needs exactly one host node (0 to 9) with hugepages: give its host_node"


def _numa(case: _Case) -> Iterator[str]:
    nodes = {key: split(value) for key, value in case.of(_NUMA).items()}
    if not nodes:
        return
    total = sum(int(node.get("memory", "0").partition(".")[0] or 0) for node in nodes.values())
    memory = str(mean("memory", case.after.get("memory", "0")))
    if str(total) != memory:
        yield f"the NUMA nodes ({', '.join(nodes)}) have {total} MiB together, and the VM has {memory} MiB"
    seen = [cpu for node in nodes.values() for cpu in _cpus(node.get("cpus", ""))]
    if twice := sorted({cpu for cpu in seen if seen.count(cpu) > 1}):
        yield f"CPU {twice[0]} is in two NUMA nodes"
    if beyond := [cpu for cpu in seen if cpu >= case.vcpus]:
        yield f"the NUMA nodes name CPU {max(beyond)}, and the VM's {case.vcpus} end at {case.vcpus - 1}"
    elif len(set(seen)) < case.vcpus:
        yield f"the NUMA nodes have {len(set(seen))} CPUs, and the VM has {case.vcpus}"


def _queue_counts(case: _Case) -> Iterator[str]:
    for key, value in case.of(_NIC).items():
        queues = split_nic(value).get("queues", "0")
        if queues.isdigit() and int(queues) > case.vcpus:
            yield f"{key} has {queues} queues, and the VM has {case.vcpus} CPUs to serve them"


def _ballooning(case: _Case) -> Iterator[str]:
    if case.of(_HOSTPCI) and case.after.get("balloon") != "0":
        yield "a balloon has nothing to give back under PCI passthrough, which pins all memory"


def _mtu(case: _Case, bridges: Bridges) -> Iterator[str]:
    for key, value in case.of(_NIC).items():
        nic = split_nic(value)
        mtu, bridge = nic.get("mtu", ""), nic.get("bridge", "")
        if not mtu.isdigit() or mtu == "1":  # 1 is Proxmox's word for the bridge's own
            continue
        if nic.get("model") != "virtio":
            yield f"{key} is {nic.get('model')}: an MTU reaches the guest by virtio only"
        if int(mtu) < 576:
            yield f"{key} asks for MTU {mtu}; Proxmox takes none below 576"
        if bridge in bridges and int(mtu) > bridges[bridge]:
            yield f"{key} asks for MTU {mtu}, and bridge {bridge} on {case.host} has {bridges[bridge]}"


def _boot_order(case: _Case) -> Iterator[str]:
    order = split(case.after.get("boot", "")).get("order", "")
    if absent := [name for name in filter(None, order.split(";")) if name not in case.after]:
        yield f"{case.where} would boot from {', '.join(absent)}, which it does not have"


def _root_only(case: _Case) -> Iterator[str]:
    for key in sorted(ROOT_ONLY & set(case.after)):
        after = case.after[key]
        if mean(key, case.before.get(key)) != mean(key, after):
            yield (
                f"{key} ({after}) is for root@pam only, never for a token; a clone keeps it, so set it once"
                f" in a template: qm set VMID --{key} {_quoted(after)}"
            )


_SETTINGS: tuple[Callable[[_Case], Iterator[str]], ...] = (
    _pci,
    _firmware,
    _hugepages,
    _numa,
    _queue_counts,
    _ballooning,
)


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
    source = storage_of(template.config, disk) if disk else spec.storage
    if spec.linked and source != spec.storage:
        what = (
            f"a linked clone stays on its template's storage, {source}, and the profile names {spec.storage}"
        )
        return [f"{what}; set storage: {source}, or linked: false"]
    if spec.host not in {None, template.host}:
        local = [name for name in (source, spec.storage) if name in storages and not storages[name].shared]
        if local:
            where = f"template {template.vmid} is on {template.host} and the profile names {spec.host}"
            own = f"{local[0]} is {template.host}'s own"
            why = f"a copy from host to host needs shared storage on both sides, and {own}"
            mend = f"make the template on {spec.host} too, or set node: {template.host}"
            return [f"{where}: {why}; {mend}"]
    return []


def _template_warnings(case: _Case) -> list[str]:
    if has_cloud_init_drive(case.before) or case.spec.seed is not None:
        return []
    return [f"{case.where} has no cloud-init drive: login user, keys and address will not reach the guest"]


def _warnings(case: _Case, bridges: Bridges | None) -> list[str]:
    warnings = []
    names = [nic["bridge"] for nic in map(split_nic, case.of(_NIC).values()) if nic.get("bridge")]
    for name in dict.fromkeys(names):
        if bridges is not None and name not in bridges:
            seen = ", ".join(sorted(bridges)) or "none"
            warnings.append(
                f"bridge {name} is not on {case.host}, or this token may not see it (it sees: {seen})"
            )
    if case.of(_HOSTPCI) and split(case.after.get("efidisk0", "")).get("pre-enrolled-keys") == "1":
        warnings.append(
            f"{case.where} starts with Secure Boot keys: a GPU driver that is not signed will not load"
        )
    for fabric in case.spec.fabrics:
        if fabric.mapping and (fabric.address or fabric.mtu):
            warnings.append(
                f"fabric {fabric.name} is a passed function: Proxmox's cloud-init does not set its address"
                " or MTU; the guest has to know them"
            )
    return warnings


def _cpus(text: str) -> Iterator[int]:
    for part in filter(None, text.split(";")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _quoted(value: Any) -> str:  # noqa: ANN401 - a config value
    return f"'{value}'" if re.search(r"[^\w.,:-]", str(value)) else str(value)
