"""The privileges that each step needs, and the pveum lines that grant them; pure.

From the permission checks of qemu-server (API2/Qemu.pm), pve-storage and pve-access-control; the same on Proxmox 8
and 9, but for what the guest agent needs.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from inventory.errors import Refused
from provision.plan import (
    AttachSeed,
    Clone,
    Configure,
    Create,
    Fetch,
    ReadFacts,
    RemoveSeed,
    Resize,
    Start,
    Step,
    UploadSeed,
)
from provision.properties import Config, split, split_nic
from provision.wanted import NodeSpec

Held: TypeAlias = Mapping[str, Mapping[str, int]]
"""GET /access/permissions: by path, each privilege and whether it holds below the path too."""

AGENT: Mapping[int, tuple[str, ...]] = {
    8: ("VM.Monitor",),
    9: ("VM.GuestAgent.Audit", "VM.GuestAgent.FileRead"),
}
"""What reading the guest's facts needs, by Proxmox's major version."""

_INSTEAD: Mapping[str, tuple[str, ...]] = {
    "VM.Config.Cloudinit": ("VM.Config.Network",),
    "VM.GuestAgent.Audit": ("VM.GuestAgent.Unrestricted",),
    "VM.GuestAgent.FileRead": ("VM.GuestAgent.Unrestricted",),
    "Datastore.Audit": ("Datastore.AllocateSpace", "Datastore.Allocate"),
}
"""What Proxmox takes in the place of a privilege; more than is needed, so it is never asked for."""

_LOCAL_ZONE = "/sdn/zones/localnetwork/"

_BY_KEY = (
    (re.compile(r"cores|sockets|cpu|numa\d*"), "VM.Config.CPU"),
    (re.compile(r"memory|balloon"), "VM.Config.Memory"),
    (re.compile(r"net\d+"), "VM.Config.Network"),
    (re.compile(r"ci.*|sshkeys|ipconfig\d+"), "VM.Config.Cloudinit"),
    (re.compile(r"name|agent|bios|description|ostype|tags"), "VM.Config.Options"),
    (re.compile(r"(?:scsi|efidisk)\d+|boot"), "VM.Config.Disk"),
    (re.compile(r"ide\d+"), "VM.Config.CDROM"),
)
_ROLES = (
    ("/pool/", "MusterNode"),
    ("/vms/", "MusterTemplate"),
    ("/vms", "MusterNode"),
    ("/storage/", "MusterStorage"),
    ("/sdn/", "MusterBridge"),
    ("/mapping/", "MusterDevice"),
    ("/nodes", "MusterHost"),
)


@dataclass(frozen=True, slots=True, order=True)
class Need:
    """One privilege. path: where to grant it. others: paths where it may stand instead; so may all of `ids`."""

    path: str
    privilege: str
    others: tuple[str, ...] = ()
    ids: range | None = field(default=None, compare=False)

    def met(self, held: Held) -> bool:
        """Whether it is held."""
        paths = (self.path, *self.others, *_in_other_zones(self.path, held))
        names = (self.privilege, *_INSTEAD.get(self.privilege, ()))
        if any(holds(held, path, name) for path in paths for name in names):
            return True
        # A right on single VMs is listed one by one, so a long range that nobody lists is not walked through.
        listed = self.ids is not None and len(self.ids) <= len(held)
        return listed and all(holds(held, f"/vms/{vmid}", self.privilege) for vmid in self.ids or ())


@dataclass(frozen=True, slots=True)
class Grant:
    """A role on a path."""

    path: str
    role: str
    privileges: tuple[str, ...]


def needs(
    spec: NodeSpec,
    steps: Iterable[Step],
    config: Config,
    *,
    version: int,
    vmid: int | None = None,
    ids: range | None = None,
) -> frozenset[Need]:
    """What these steps need.

    config: of the template, or of the VM that is there, whose id is `vmid`. ids: where a new VM's id comes from;
    rights may be granted on each of them.
    """
    return frozenset(
        need for step in steps for need in _of(spec, step, config, version, _Vm(spec, vmid, ids))
    )


def holds(held: Held, path: str, privilege: str) -> bool:
    """Whether a privilege is held on a path: by the nearest path that is listed, for it replaces those above."""
    here = path
    while True:
        if here in held:
            below = held[here].get(privilege)
            return below is not None and (here == path or bool(below))
        if here == "/":
            return False
        here = here.rpartition("/")[0] or "/"


def _in_other_zones(path: str, held: Held) -> Iterator[str]:
    """The paths that a bridge has if it is a virtual network of the SDN; its zone is not told by its name."""
    if path.startswith(_LOCAL_ZONE):
        zones = {other.split("/")[3] for other in held if other.startswith("/sdn/zones/")}
        for zone in sorted(zones - {"localnetwork"}):
            yield f"/sdn/zones/{zone}/{path.removeprefix(_LOCAL_ZONE)}"


def grants(wanted: Iterable[Need], *, only: Iterable[Need] | None = None) -> tuple[Grant, ...]:
    """The smallest roles for what is wanted, one a path; with `only`, just for the paths of those.

    A role holds all that is wanted on its path, for what is granted there replaces what comes from above.
    """
    wanted = tuple(wanted)
    paths = {need.path for need in (wanted if only is None else only)}
    by_path = {
        path: tuple(sorted({need.privilege for need in wanted if need.path == path}))
        for path in sorted(paths)
    }
    names: dict[tuple[str, ...], str] = {}
    for path, privileges in by_path.items():
        if privileges not in names:
            usual = next((name for start, name in _ROLES if path.startswith(start)), "MusterOther")
            taken = sum(re.sub(r"\d+$", "", name) == usual for name in names.values())
            names[privileges] = usual if not taken else f"{usual}{taken + 1}"
    return tuple(Grant(path, names[privileges], privileges) for path, privileges in by_path.items())


def commands(given: Iterable[Grant], *, token: str, user: str) -> list[str]:
    """The lines that a Proxmox administrator types; rights of a token are the intersection with its user's."""
    given = tuple(given)
    roles = {grant.role: grant.privileges for grant in given}
    lines = []
    for role, privileges in sorted(roles.items()):
        names = shlex.quote(",".join(privileges))
        lines.append(
            f"pveum role add {role} --privs {names} || pveum role modify {role} --append 1 --privs {names}"
        )
    for grant in given:
        for kind, who in (("users", user), ("tokens", token)):
            lines.append(
                f"pveum acl modify {shlex.quote(grant.path)} --{kind} {shlex.quote(who)} --roles {grant.role}"
            )
    return lines


def check_grants(name: str, wanted: Iterable[Need], held: Held, *, token: str, done: str = "made") -> None:
    """Refuse steps for which a privilege is missing, with the lines that grant it.

    done: what is then not done with the node. held: what Proxmox answers to the token itself, so the
    intersection with its user's rights.

    Raises:
        Refused: what is missing, by path.
    """
    wanted = frozenset(wanted)
    missing = sorted(need for need in wanted if not need.met(held))
    if missing:
        lines = commands(grants(wanted, only=missing), token=token, user=token.partition("!")[0])
        raise Refused(
            f"{name} was not {done}",
            why="\n".join(f"the token {token} lacks {need.privilege} on {need.path}" for need in missing),
            next_step="\n".join(
                ["type these as an administrator of Proxmox, then run the command again", *lines]
            ),
        )


@dataclass(frozen=True, slots=True)
class _Vm:
    """Where rights on the VM may stand: on its pool, on all VMs, on itself, or on each id that it may get."""

    spec: NodeSpec
    vmid: int | None
    ids: range | None

    def need(self, privilege: str) -> Need:
        own = () if self.vmid is None else (f"/vms/{self.vmid}",)
        ids = self.ids if self.vmid is None else None
        if self.spec.pool is not None:
            return Need(f"/pool/{self.spec.pool}", privilege, (*own, "/vms"), ids)
        return Need("/vms", privilege, own, ids)


def _of(spec: NodeSpec, step: Step, config: Config, version: int, vm: _Vm) -> Iterator[Need]:
    match step:
        case Fetch():
            yield Need(f"/storage/{step.storage}", "Datastore.AllocateTemplate")
            yield Need(f"/storage/{step.storage}", "Datastore.Audit")
            yield Need(f"/nodes/{step.host}", "Sys.AccessNetwork")
        case Create():
            yield vm.need("VM.Allocate")
            yield vm.need("VM.Audit")
            yield Need(f"/storage/{step.storage}", "Datastore.AllocateSpace")
            yield Need(f"/storage/{step.image.partition(':')[0]}", "Datastore.Audit")
            for key, value in step.config:
                yield from _of_key(spec, key, value, vm)
            yield vm.need("VM.Config.Cloudinit")
        case Clone():
            yield Need(f"/vms/{step.template}", "VM.Clone")
            yield Need(f"/vms/{step.template}", "VM.Audit")
            yield vm.need("VM.Allocate")
            yield vm.need("VM.Audit")
            yield Need(f"/storage/{step.storage}", "Datastore.AllocateSpace")
            for key, value in config.items():
                yield from _of_device(key, str(value))
        case Configure():
            yield vm.need("VM.Audit")
            for change in step.changes:
                yield from _of_key(spec, change.key, change.after or "", vm)
        case Resize():
            yield vm.need("VM.Config.Disk")
            yield Need(f"/storage/{spec.storage}", "Datastore.AllocateSpace")
        case UploadSeed():
            disc = f"/storage/{step.volume.partition(':')[0]}"
            yield vm.need("VM.Audit")
            yield Need(disc, "Datastore.AllocateTemplate")
            yield Need(disc, "Datastore.Audit")
        case AttachSeed():
            yield vm.need("VM.Config.CDROM")
            yield vm.need("VM.Config.Cloudinit")  # the drive that it takes the place of
        case RemoveSeed():
            disc = f"/storage/{step.volume.partition(':')[0]}"
            yield vm.need("VM.Config.CDROM")
            yield vm.need("VM.Config.Cloudinit")
            yield Need(f"/storage/{step.storage}", "Datastore.AllocateSpace")
            yield Need(
                disc, "Datastore.Allocate"
            )  # for an ISO image belongs to no VM (API2/Storage/Content.pm)
            yield Need(disc, "Datastore.Audit")
        case Start():
            yield vm.need("VM.PowerMgmt")
        case ReadFacts():
            for privilege in AGENT[8 if version < 9 else 9]:
                yield vm.need(privilege)


def _of_key(spec: NodeSpec, key: str, value: str, vm: _Vm) -> Iterator[Need]:
    found = next((name for pattern, name in _BY_KEY if pattern.fullmatch(key)), "VM.Config.HWType")
    yield vm.need(found)
    if found == "VM.Config.Disk" and key != "boot":
        yield Need(f"/storage/{spec.storage}", "Datastore.AllocateSpace")
    yield from _of_device(key, value)


def _of_device(key: str, value: str) -> Iterator[Need]:
    """What a NIC's bridge and a device's mapping need; a NIC with a VLAN has a path of its own below the bridge's."""
    if re.fullmatch(r"net\d+", key) and value:
        nic = split_nic(value)
        if nic.get("bridge"):
            tag = f"/{nic['tag']}" if nic.get("tag") else ""
            yield Need(f"{_LOCAL_ZONE}{nic['bridge']}{tag}", "SDN.Use")
    if re.fullmatch(r"hostpci\d+", key) and (mapping := split(value, default_key="host").get("mapping")):
        yield Need(f"/mapping/pci/{mapping}", "Mapping.Use")
