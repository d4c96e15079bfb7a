"""What concerns every node of one run: the cluster, its templates and storages, each asked for once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from inventory.errors import OtherSide, Refused
from provision.config import TAG, created_config
from provision.grants import Held, check_grants, needs
from provision.hypervisor import Guest, Hypervisor
from provision.images import volume_of
from provision.placement import Candidate, Devices, Load, place
from provision.plan import Fetch, ImageFound, MachineFound, Source, Step, StorageFound, TemplateFound
from provision.properties import boot_disk, split, storage_of
from provision.room import Room, room
from provision.rules import check_change, check_created, check_rules
from provision.wanted import NodeSpec, WantedImage


class Survey:
    """Looks at Proxmox on first need and remembers the answer for this run; it never writes."""

    def __init__(self, hypervisor: Hypervisor, *, ids: range | None = None) -> None:
        """Nothing is asked yet. ids: where the ids of new VMs come from."""
        self._hypervisor = hypervisor
        self._ids = ids
        self._guests: tuple[Guest, ...] | None = None
        self._hosts: Mapping[str, Load] | None = None
        self._storages: dict[str, Mapping[str, StorageFound]] = {}
        self._bridges: dict[str, Mapping[str, int]] = {}
        self._devices: dict[str, Mapping[str, Devices]] = {}
        self._templates: dict[int, TemplateFound] = {}
        self._images: dict[tuple[str, str], frozenset[str]] = {}
        self._rights: tuple[int, Held] | None = None
        self._held: dict[str, dict[str, int]] | None = None
        self._placed: dict[str, tuple[str, NodeSpec]] = {}  # by node: where this run puts it

    @property
    def guests(self) -> tuple[Guest, ...]:
        """The VMs that the token may see."""
        if self._guests is None:
            self._guests = self._hypervisor.guests()
        return self._guests

    @property
    def hosts(self) -> Mapping[str, Load]:
        """The Proxmox nodes and what they carry."""
        if self._hosts is None:
            self._hosts = self._hypervisor.hosts()
        return self._hosts

    def host_of(self, vmid: int) -> str | None:
        """The Proxmox node that has this VM now."""
        return next((guest.host for guest in self.guests if guest.vmid == vmid), None)

    def storages(self, host: str) -> Mapping[str, StorageFound]:
        """The storages of a host."""
        if host not in self._storages:
            self._storages[host] = self._hypervisor.storages(host)
        return self._storages[host]

    def bridges(self, host: str) -> Mapping[str, int]:
        """The bridges of a host, with their MTU."""
        if host not in self._bridges:
            self._bridges[host] = self._hypervisor.bridges(host)
        return self._bridges[host]

    def source(self, spec: NodeSpec) -> tuple[Source, list[str]]:
        """What to make the VM from and the host to put it on, and warnings; every rule was looked at.

        Raises:
            Refused: there is no such source or host, or a rule does not hold; all of them are told at once.
            OtherSide: a host is offline.
        """
        if spec.image is not None:
            return self._image(spec, spec.image)
        return self._from_template(spec)

    def check(
        self, spec: NodeSpec, steps: Sequence[Step], *, source: Source | None, machine: MachineFound | None
    ) -> None:
        """Refuse steps that a rule or a missing privilege would make fail; nothing is asked if there are none.

        Raises:
            Refused: what does not hold, and the lines that grant what is missing.
        """
        if not steps:
            return
        if machine is not None:
            check_change(spec, machine.config, vmid=machine.vmid, host=machine.host)
        if self._rights is None:
            self._rights = self._hypervisor.version(), self._hypervisor.permissions()
        version, held = self._rights
        config = machine.config if machine else source.config if isinstance(source, TemplateFound) else {}
        wanted = needs(
            spec, steps, config, version=version, vmid=machine.vmid if machine else None, ids=self._ids
        )
        done = "changed" if machine else "made"
        check_grants(spec.name, wanted, held, token=self._hypervisor.token_id, done=done)

    def _from_template(self, spec: NodeSpec) -> tuple[Source, list[str]]:
        copies = self._copies(spec)
        reach = {copy.vmid: self._reach(spec, copy) for copy in copies}
        hosts = sorted({host for reached in reach.values() for host in reached})
        if spec.host is not None:
            self._check_online(spec, spec.host)
            hosts = [spec.host]
        elif len(copies) == 1:
            self._check_online(spec, copies[0].host)
        placed = place(spec, [self.candidate(spec, host) for host in hosts])
        chosen = placed.host or hosts[0]
        room = self._room(spec, chosen)
        template = _nearest(copies, reach, placed.host or hosts[0], target=placed.host)
        self._check_online(spec, template.host)
        host = placed.host or template.host
        more = (*placed.faults, *(fault for fault in room.faults if fault not in "".join(placed.faults)))
        warnings = check_rules(spec, template, self.storages(template.host), self.bridges(host), more=more)
        self._placed[spec.name] = (host, spec)
        return template, [*placed.warnings, *room.warnings, *warnings]

    def _image(self, spec: NodeSpec, image: WantedImage) -> tuple[Source, list[str]]:
        """The image on the host that has room for the VM, and that has the image or can fetch it."""
        if spec.host is not None:
            self._check_online(spec, spec.host)
        hosts = [host for host in self.hosts if spec.host in {None, host}]
        found = {host: self._image_on(spec, image, host) for host in hosts if self.hosts[host].online}
        candidates = [self.candidate(spec, host) for host in hosts]
        lacks = {host: why for host, why in found.items() if isinstance(why, str)}
        placed = place(spec, [replace(each, lacks=lacks.get(each.host)) for each in candidates])
        if placed.host is None:
            raise _refused(spec, "\n".join(placed.faults))
        chosen = found[placed.host]
        if isinstance(chosen, str):
            raise _refused(spec, f"{placed.host}: {chosen}")
        config = created_config(spec, None, image=chosen.volume)
        warnings = check_created(spec, config, host=placed.host, bridges=self.bridges(placed.host))
        self._placed[spec.name] = (placed.host, spec)
        return chosen, [*placed.warnings, *self._room(spec, placed.host).warnings, *warnings]

    def _image_on(self, spec: NodeSpec, image: WantedImage, host: str) -> ImageFound | str:
        """The image as this host has it or would fetch it, or why it cannot."""
        storages = self.storages(host)
        disks = storages.get(spec.storage)
        if disks is None or not disks.active or not disks.images:
            return f"it has no active storage {spec.storage} for VM images"
        if faults := self._room(spec, host).faults:
            return "; ".join(faults)
        if image.volume is not None:
            name = image.volume.partition(":")[0]
            if name not in storages or not storages[name].active:
                return f"it has no active storage {name}"
            there = image.volume in self._images_of(host, name)
            return ImageFound(image.volume, host, None) if there else f"{image.volume} is not there"
        keeping = [name for name, kept in storages.items() if kept.imports and kept.active]
        if not keeping:
            return "none of its storages takes images to import (content type import)"
        name = min(keeping, key=lambda each: (not storages[each].shared, each))
        volume = volume_of(image, name)
        step = Fetch(str(image.url), str(image.sha256), host, name, volume)
        return ImageFound(volume, host, None if volume in self._images_of(host, name) else step)

    def _images_of(self, host: str, storage: str) -> frozenset[str]:
        if (host, storage) not in self._images:
            self._images[host, storage] = self._hypervisor.images(host, storage)
        return self._images[host, storage]

    def _copies(self, spec: NodeSpec) -> list[TemplateFound]:
        """The templates that answer to what the profile says, on hosts that are online."""
        named = spec.template if spec.tag is None else f"with tag {spec.tag}"
        if isinstance(spec.template, int):
            found = [guest for guest in self.guests if guest.vmid == spec.template]
        elif spec.tag is not None:
            found = [guest for guest in self.guests if spec.tag.lower() in guest.tags and guest.template]
        else:
            found = [guest for guest in self.guests if guest.name == spec.template]
        silent = [guest for guest in found if not guest.reported]
        if not any(guest.template for guest in found) and not silent and not isinstance(spec.template, int):
            silent = [guest for guest in self.guests if not guest.reported]  # one of them may be it
        if silent and not any(guest.template for guest in found):
            raise _not_reported(spec, str(named), silent)
        if not found:
            others = ", ".join(f"{guest.vmid} '{guest.name}'" for guest in self.guests if guest.template)
            raise _refused(
                spec,
                f"template {named} does not exist, or this token may not see it"
                f" (templates it sees: {others or 'none'})",
            )
        if not any(guest.template for guest in found):
            raise _refused(spec, f"VM {found[0].vmid} '{found[0].name}' is not a template")
        found = [guest for guest in found if guest.template]  # a VM may have the name of a template
        by_host: dict[str, list[int]] = {}
        for guest in found:
            by_host.setdefault(guest.host, []).append(guest.vmid)
        for host, vmids in by_host.items():
            if len(vmids) > 1:
                which = " or ".join(map(str, sorted(vmids)))
                raise _refused(spec, f"template {named!r} could be VM {which}, all on {host}; give its VM id")
        online = [guest for guest in found if self.hosts.get(guest.host, Load(online=False)).online]
        if not online:
            self._check_online(spec, found[0].host)
        return [self._template(spec, guest) for guest in online]

    def _template(self, spec: NodeSpec, guest: Guest) -> TemplateFound:
        if guest.vmid not in self._templates:
            config = self._hypervisor.config(guest.host, guest.vmid)
            if config is None:
                raise _refused(spec, f"template {guest.vmid} has gone from {guest.host} a moment ago")
            self._templates[guest.vmid] = TemplateFound(guest.vmid, guest.name, guest.host, config)
        return self._templates[guest.vmid]

    def _reach(self, spec: NodeSpec, copy: TemplateFound) -> list[str]:
        """The hosts on which a clone of this template can stand: its own, or any if all storage is shared."""
        disk = boot_disk(copy.config)
        known = self.storages(copy.host)
        names = {spec.storage, storage_of(copy.config, disk) if disk else spec.storage}
        if not all(name in known and known[name].shared for name in names):
            return [copy.host]
        return [host for host, load in self.hosts.items() if load.online]

    def candidate(self, spec: NodeSpec, host: str) -> Candidate:
        """One host as the placement sees it. VMs of ours that do not run yet are about to."""
        mine = [other for other in self._placed.values() if other[0] == host and other[1].name != spec.name]
        there = [guest for guest in self.guests if guest.host == host and not guest.template]
        coming = [guest for guest in there if not guest.running and TAG in guest.tags]
        waiting = sum(guest.memory_mib for guest in coming) + sum(other.memory_mib for _, other in mine)
        running = [guest for guest in there if guest.running]
        wanted = [other.cores * (other.sockets or 1) for _, other in mine]
        held = dict(self._held_by_running().get(host, {})) if spec.mappings else {}
        for _, other in mine:
            for mapping, count in other.mappings.items():
                held[mapping] = held.get(mapping, 0) + count
        load = self.hosts.get(host, Load(online=False))
        return Candidate(
            host,
            load,
            promised_mib=waiting + sum(guest.memory_mib for guest in running),
            promised_cpus=sum(guest.cpus for guest in [*running, *coming]) + sum(wanted),
            waiting_mib=waiting,
            devices=self._devices_of(host) if spec.mappings and load.online else {},
            held=held,
            lacks=self._lacks(spec, host) if load.online else None,
        )

    def _lacks(self, spec: NodeSpec, host: str) -> str | None:
        if host == spec.host:
            return None  # the rules say it
        found = self.storages(host).get(spec.storage)
        if found is not None and not found.active:
            return f"storage {spec.storage} is not active there"
        return "; ".join(self._room(spec, host).faults) or None

    def _room(self, spec: NodeSpec, host: str) -> Room:
        """Whether the storages have room on a host, beside the disks that this run puts on them."""
        others = [(where, other) for where, other in self._placed.values() if other.name != spec.name]
        return room(spec, self.storages(host), host=host, others=others)

    def _devices_of(self, host: str) -> Mapping[str, Devices]:
        if host not in self._devices:
            self._devices[host] = self._hypervisor.devices(host)
        return self._devices[host]

    def _held_by_running(self) -> Mapping[str, Mapping[str, int]]:
        """How many devices of each mapping running VMs hold, by host; Proxmox itself has no list of them."""
        if self._held is None:
            self._held = {}
            for guest in self.guests:
                # One of ours that does not run yet is about to, and its device with it.
                if guest.template or not (guest.running or TAG in guest.tags):
                    continue
                config = self._hypervisor.config(guest.host, guest.vmid) or {}
                held = self._held.setdefault(guest.host, {})
                for mapping in _mappings(str(value) for key, value in config.items() if key[:7] == "hostpci"):
                    held[mapping] = held.get(mapping, 0) + 1
        return self._held

    def _check_online(self, spec: NodeSpec, host: str) -> None:
        if host not in self.hosts:
            known = ", ".join(self.hosts) or "none"
            raise _refused(spec, f"there is no Proxmox node {host!r} (there are: {known})")
        if not self.hosts[host].online:
            raise OtherSide(
                f"{spec.name} was not made",
                why=f"Proxmox node {host} is offline",
                next_step=f"bring {host} up, or choose another template or node in the site file",
            )


def _nearest(
    copies: Iterable[TemplateFound], reach: Mapping[int, list[str]], host: str, *, target: str | None
) -> TemplateFound:
    """The copy on the host itself, else one that can be cloned to it, else any: the rules then say why not."""
    ordered = sorted(copies, key=lambda copy: (copy.host != host, host not in reach[copy.vmid], copy.vmid))
    found = ordered[0]
    return TemplateFound(found.vmid, found.name, found.host, found.config, target or None)


def _not_reported(spec: NodeSpec, template: str, silent: Iterable[Guest]) -> OtherSide:
    hosts: dict[str, list[int]] = {}
    for guest in silent:
        hosts.setdefault(guest.host, []).append(guest.vmid)
    told = "; ".join(
        f"{host} does not report its VM {', '.join(map(str, sorted(vmids)))} (status unknown)"
        for host, vmids in sorted(hosts.items())
    )
    return OtherSide(
        f"{spec.name} was not made",
        why=f"whether template {template} is there cannot be told: {told}",
        next_step=f"see that {' and '.join(sorted(hosts))} and its pvestatd run (it reports every 10 s),"
        " then run the command again",
    )


def _mappings(values: Iterable[str]) -> Iterable[str]:
    for value in values:
        if mapping := split(value, default_key="host").get("mapping"):
            yield mapping


def _refused(spec: NodeSpec, why: str) -> Refused:
    return Refused(
        f"{spec.name} was not made",
        why=why,
        next_step=f"mend profile {spec.profile} in the site file; nothing was changed",
    )
