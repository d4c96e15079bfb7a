"""The nodes on record against the VMs of one Proxmox: one look at the cluster, then one or two at each VM."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from inventory.checking import Asked, Disagreement, NotChecked
from inventory.errors import MusterError, OtherSide
from inventory.lifecycle import unadopted
from inventory.model import Node, State
from provision import checker
from provision.config import TAG, Change, mac_of, shown
from provision.drift import Drift, is_accepted
from provision.hypervisor import Guest, Hypervisor, Pending, Unreachable
from provision.plan import Configure, MachineFound, Step, drift, plan
from provision.properties import Config, mean, split
from provision.spec import Site
from provision.survey import Survey
from provision.wanted import login_keys, want

MOST_STRANGERS = 64
"""VMs with our tag that the record does not know, and that are looked at for their uuid; further ones are listed."""
_NOT_MADE = frozenset({State.PLANNED, State.PROVISIONING, State.PROVISION_FAILED})
_MAY_STOP = frozenset(
    {
        State.DECOMMISSIONING,
        State.DECOMMISSION_FAILED,
        State.AWAITING_RETIREMENT,
        State.RETIRING,
        State.RETIRE_FAILED,
        State.RETIRED,
    }
)
_TOLD_KEYS = 6

Found = Disagreement | NotChecked


def compare(hypervisor: Hypervisor, site: Site, asked: Asked) -> Iterator[Found]:
    """What does not agree; nothing is written.

    Raises:
        OtherSide: Proxmox does not tell which VMs there are.
    """
    look = _Look(
        hypervisor, site
    )  # before the record is read: a VM that is made meanwhile is on record by then
    known = _Known.of(asked, site)
    elsewhere: Counter[str] = Counter()
    lost: list[Node] = []
    for node in asked.nodes():
        if not _is_of(node, site):
            elsewhere[str(node.site)] += 1
        elif node.state is State.RETIRED:
            yield from _retired(node, look)
        elif node.vmid is not None:
            yield from _made(node, look, lost)
    yield from _strangers(look, known, lost, asked)
    for other, count in sorted(elsewhere.items()):
        yield NotChecked(
            checker.SOURCE,
            f"{count} nodes are of the site {other}, and this site file is {site.name}'s",
            "give --site FILE of that site",
        )


@dataclass(frozen=True, slots=True)
class _Known:
    """What the record has of VMs of this site: whose uuid, and which ids are those of nodes."""

    by_uuid: dict[str, Node]
    vmids: frozenset[int]

    @classmethod
    def of(cls, asked: Asked, site: Site) -> "_Known":
        by_uuid: dict[str, Node] = {}
        vmids: set[int] = set()
        for node in asked.everyone():
            if not _is_of(node, site):
                continue
            if node.uuid is not None:
                by_uuid[node.uuid] = node
            if node.vmid is not None and node.state is not State.RETIRED:
                vmids.add(node.vmid)
        return cls(by_uuid, frozenset(vmids))


class _Look:
    """What Proxmox says; each thing is asked for once, and a host that is out of reach is not asked again."""

    def __init__(self, hypervisor: Hypervisor, site: Site) -> None:
        self.site = site
        self.survey = Survey(hypervisor)
        self.guests = {guest.vmid: guest for guest in self.survey.guests}
        self._hypervisor = hypervisor
        self._configs: dict[tuple[str, int], Config | None] = {}
        self._away: dict[str, Unreachable] = {}
        self._keys: dict[str, tuple[str, ...]] = {}

    def config(self, host: str, vmid: int) -> Config | None:
        """The VM's config; None where that host has no such VM.

        Raises:
            OtherSide: it was not told.
        """
        if host in self._away:
            raise self._away[host]
        if (host, vmid) not in self._configs:
            try:
                self._configs[host, vmid] = self._hypervisor.config(host, vmid)
            except Unreachable as error:
                self._away[host] = error
                raise
        return self._configs[host, vmid]

    def runs(self, guest: Guest) -> bool:
        """Whether a VM that the list has as stopped runs: the list is some seconds old (pvestatd fills it).

        Raises:
            OtherSide: it was not told.
        """
        return self._hypervisor.running(guest.host, guest.vmid)

    def drift(self, node: Node, machine: MachineFound, profile: str) -> Drift:
        """What differs between the VM and its profile; what was set and waits for a restart is `pending`.

        Raises:
            MusterError: the site file does not tell what the profile wants.
        """
        if profile not in self._keys:
            self._keys[profile] = login_keys(self.site.profile(profile).ssh_keys_file)
        spec = want(self.site, node.name, profile, ssh_keys=self._keys[profile], nodes=(node,))
        uuid = str(node.uuid)
        steps = plan(spec, template=None, machine=machine, uuid=uuid, known=True)
        stays = drift(spec, machine, uuid)
        steps, pending = self._without_pending(steps, machine)
        return Drift(
            steps,
            pending=pending,
            stays=tuple(change for change in stays if not is_accepted(change, node)),
            accepted=tuple(change for change in stays if is_accepted(change, node)),
        )

    def _without_pending(
        self, steps: tuple[Step, ...], machine: MachineFound
    ) -> tuple[tuple[Step, ...], tuple[Pending, ...]]:
        """The steps without what was set already; Proxmox is asked only where there is something left to set."""
        wanted = {
            change.key: change for step in steps if isinstance(step, Configure) for change in step.changes
        }
        if not wanted:
            return steps, ()
        pending = tuple(
            each
            for each in self._hypervisor.pending(machine.host, machine.vmid)
            if each.key in wanted and mean(each.key, each.after) == mean(each.key, wanted[each.key].after)
        )
        done = {each.key for each in pending}
        left = (
            replace(step, changes=tuple(change for change in step.changes if change.key not in done))
            if isinstance(step, Configure)
            else step
            for step in steps
        )
        return tuple(step for step in left if not isinstance(step, Configure) or step.changes), pending


def _is_of(node: Node, site: Site) -> bool:
    return node.site in {None, site.name}


def _retired(node: Node, look: _Look) -> Iterator[Found]:
    guest = None if node.vmid is None else look.guests.get(node.vmid)
    if guest is None:
        return
    try:
        config = look.config(guest.host, guest.vmid)
    except OtherSide as error:
        yield NotChecked.of(error, checker.SOURCE, node.name)
        return
    if config is not None and node.uuid is not None and _uuid(config) == node.uuid:
        yield _of_retired(node, guest)


def _of_retired(node: Node, guest: Guest) -> Disagreement:
    return checker.OF_RETIRED.of(
        node.name, found=_place(guest), recorded=node.state, vmid=guest.vmid, host=guest.host
    )


def _made(node: Node, look: _Look, lost: list[Node]) -> Iterator[Found]:
    """A node that has a VM by its record; one whose VM is not there is `lost`, and looked for later."""
    vmid = int(node.vmid or 0)
    guest = look.guests.get(vmid)
    host = guest.host if guest is not None else str(node.proxmox_node)
    try:
        config = look.config(host, vmid)
    except OtherSide as error:
        yield NotChecked.of(error, checker.SOURCE, node.name)
        return
    if config is None or _uuid(config) != node.uuid:
        if node.state in _NOT_MADE:
            return  # it may not have been cloned yet, or not been given our uuid
        if config is not None:
            found = f"VM {vmid} on {host}, uuid {_uuid(config) or 'unknown'}"
            yield checker.ANOTHER.of(node.name, found=found, recorded=f"uuid {node.uuid}", vmid=vmid)
        lost.append(node)
        return
    if guest is not None:
        yield from _standing(node, guest, look)
    if node.state not in _NOT_MADE | _MAY_STOP and not unadopted(node):
        yield from _configured(node, MachineFound(vmid, host, config, running=True), look)


def _standing(node: Node, guest: Guest, look: _Look) -> Iterator[Found]:
    """Where it stands, and whether it runs."""
    if node.proxmox_node is not None and guest.host != node.proxmox_node:
        yield checker.MOVED.of(
            node.name,
            found=_place(guest),
            recorded=node.proxmox_node,
            vmid=guest.vmid,
            host=guest.host,
            home=node.proxmox_node,
        )
    if not guest.reported:
        yield NotChecked(
            checker.SOURCE,
            f"{guest.host} tells nothing of VM {guest.vmid}: it may be down",
            f"look whether the Proxmox host {guest.host} is up",
            node.name,
            OtherSide.exit_code,
        )
    elif not guest.running and node.state not in _NOT_MADE | _MAY_STOP:
        try:
            if look.runs(guest):
                return
        except OtherSide as error:
            yield NotChecked.of(error, checker.SOURCE, node.name)
            return
        yield checker.STOPPED.of(node.name, found=f"{_place(guest)} is stopped", recorded=node.state)


def _configured(node: Node, machine: MachineFound, look: _Look) -> Iterator[Found]:
    """Its config, against the record and the profile."""
    name = str(machine.config.get("name", ""))
    where = {"vmid": machine.vmid, "host": machine.host}
    if name != node.name and not is_accepted(Change("name", name or None, node.name), node):
        yield checker.NAME.of(node.name, found=name or "no name", recorded=node.name, **where)
    mac = mac_of(machine.config, 0)
    if node.macs and mac != node.macs[0]:
        yield checker.MAC.of(
            node.name, found=mac or "no NIC", recorded=node.macs[0], mac=node.macs[0], **where
        )
    if node.profile is None:
        return
    if node.profile not in look.site.profiles:
        told = ", ".join(look.site.profiles)
        yield checker.NO_PROFILE.of(node.name, found=told, recorded=node.profile, profile=node.profile)
        return
    try:
        found = look.drift(node, machine, node.profile)
    except MusterError as error:
        yield NotChecked.of(error, checker.SOURCE, node.name)
        return
    if lines := Drift(found.steps).lines():
        yield checker.DRIFT.of(node.name, found=_some(lines), recorded=f"profile {node.profile}")
    if found.pending:
        keys = [
            f"{each.key}: {each.before or '(none)'} -> {each.after or '(none)'}" for each in found.pending
        ]
        yield checker.WAITS.of(node.name, found=_some(keys), recorded=f"profile {node.profile}", **where)
    stays = [change for change in found.stays if change.key != "name"]
    if stays:
        keys = [f"{key}: {before or '(none)'}" for change in stays for key, before, _ in shown(change)]
        yield checker.DRIFT_STAYS.of(
            node.name, found=_some(keys), recorded=f"profile {node.profile}", **where
        )


def _strangers(look: _Look, known: _Known, lost: list[Node], asked: Asked) -> Iterator[Found]:
    """VMs with our tag under ids that no node has: copies, orphans, and those that were lost."""
    missed = {node.uuid: node for node in lost}
    strangers = [
        guest
        for guest in look.guests.values()
        if TAG in guest.tags and not guest.template and guest.vmid not in known.vmids
    ]
    strangers.sort(key=lambda guest: guest.vmid)
    for number, guest in enumerate(strangers):
        where = {"vmid": guest.vmid, "host": guest.host}
        uuid = _uuid_of(guest, look) if number < MOST_STRANGERS else None
        owner = None if uuid is None else known.by_uuid.get(uuid)
        if owner is None:
            if asked.names is None:
                name = guest.name or f"VM {guest.vmid}"
                yield checker.ORPHAN.of(name, found=_place(guest), recorded="not on record", **where)
        elif uuid in missed:
            del missed[uuid]
            recorded = f"VM {owner.vmid}"
            yield checker.OTHER_ID.of(
                owner.name, found=_place(guest), recorded=recorded, own=owner.vmid, **where
            )
        elif asked.concerns(owner.name) and owner.state is State.RETIRED:
            if owner.vmid != guest.vmid:
                yield _of_retired(owner, guest)
        elif asked.concerns(owner.name):
            yield checker.TWICE.of(owner.name, found=_place(guest), recorded=f"VM {owner.vmid}", **where)
    for node in missed.values():
        vmid = int(node.vmid or 0)
        if vmid not in look.guests:
            found = f"no VM {vmid} on {node.proxmox_node}, nor elsewhere that the token may see"
            yield checker.GONE.of(node.name, found=found, recorded=node.state, vmid=vmid)


def _uuid_of(guest: Guest, look: _Look) -> str | None:
    try:
        config = look.config(guest.host, guest.vmid)
    except OtherSide:
        return None
    return None if config is None else _uuid(config)


def _uuid(config: Config) -> str:
    """The SMBIOS uuid, lower case; empty where there is none."""
    return split(str(config.get("smbios1", ""))).get("uuid", "").lower()


def _place(guest: Guest) -> str:
    return f"VM {guest.vmid} on {guest.host}"


def _some(lines: list[str]) -> str:
    more = f"; and {len(lines) - _TOLD_KEYS} more" if len(lines) > _TOLD_KEYS else ""
    return "; ".join(line.removeprefix("~ ") for line in lines[:_TOLD_KEYS]) + more
