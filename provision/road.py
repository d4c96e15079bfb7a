"""One node's way from the site file to `awaiting-identity`: looked at, planned, then carried out."""

import uuid as uuids
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from inventory.errors import BadInput, MusterError, Refused
from inventory.model import Address, Fabric, Node, State, check_node_name
from inventory.store import Store, utc_now, whoami
from provision.apply import Making
from provision.config import Change, is_ours
from provision.facts import Facts, read_facts
from provision.handover import new_ticket
from provision.journal import Journal
from provision.plan import MachineFound, Step, TemplateFound, check_rules, drift, plan, writes
from provision.spec import Site
from provision.survey import Survey
from provision.tasks import Tools
from provision.wanted import NodeSpec, login_keys, want

_BEING_MADE = frozenset({State.PLANNED, State.PROVISIONING, State.PROVISION_FAILED})
_LEAVING = frozenset(
    {
        State.DECOMMISSIONING,
        State.DECOMMISSION_FAILED,
        State.AWAITING_RETIREMENT,
        State.RETIRING,
        State.RETIRE_FAILED,
        State.RETIRED,
    }
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A node that was looked at. steps: what is left to do; nothing was changed yet.

    node: its record, if there is one. drift: what differs and is not mended (it would change host keys).
    """

    spec: NodeSpec
    node: Node | None
    template: TemplateFound | None
    machine: MachineFound | None
    steps: tuple[Step, ...]
    drift: tuple[Change, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Made:
    """A node after a run. changed: whether anything was written to Proxmox or a ticket was made."""

    node: Node
    changed: bool
    warnings: tuple[str, ...] = ()


class Road:
    """Everything that the nodes of one run share."""

    def __init__(
        self,
        site: Site,
        store: Store,
        tools: Tools,
        *,
        now: Callable[[], datetime] = utc_now,
        new_uuid: Callable[[], uuids.UUID] = uuids.uuid4,
    ) -> None:
        """Nothing is asked or written yet."""
        self._site = site
        self._store = store
        self._tools = tools
        self._survey = Survey(tools.hypervisor)
        self._now = now
        self._new_uuid = new_uuid
        self._in_flight: list[Node] = []

    def prepare(self, name: str, *, profile: str | None) -> Prepared:
        """Look at a node and plan; nothing is changed.

        Raises:
            MusterError: it cannot be made, and why; nothing was changed.
        """
        check_node_name(name)
        node = self._store.get(name)
        if node is not None and node.state in _LEAVING:
            raise Refused(
                f"{name} was not changed",
                why=f"it is {node.state}",
                next_step=f"node-inventory history {name}",
            )
        chosen = self._site.profile_for(asked=profile, recorded=node.profile if node else None)
        if node is not None and node.vmid is not None and node.profile != chosen:
            raise Refused(
                f"{name} was not changed",
                why=f"its VM {node.vmid} was made from profile {node.profile}, not {chosen}",
                next_step=f"leave --profile away, or make {chosen} under another name",
            )
        spec = want(
            self._site,
            name,
            chosen,
            ssh_keys=login_keys(self._site.profile(chosen).ssh_keys_file),
            nodes=(*self._store.all(), *self._in_flight),
        )
        self._in_flight.append(_as_wanted(Node(name=name, state=State.PLANNED), spec, self._site))
        if node is None or node.state in _BEING_MADE:
            return self._prepare_new(spec, node)
        return self._prepare_known(spec, node)

    def carry_out(self, prepared: Prepared) -> Made:
        """Do what is left to do for one node.

        Raises:
            MusterError: a step failed; the record says so, and the same call goes on from there.
        """
        node = prepared.node
        if node is not None and node.state not in _BEING_MADE:
            return self._mend(prepared, node)
        journal = self._begin(prepared.spec, node)
        making = self._making(prepared, journal)
        try:
            _, facts = making.to_the_end()
            if facts is None:
                raise ValueError("a new VM's facts are always read")
            warnings = self._finish(journal, facts, why=f"VM {journal.node.vmid} was made")
        except MusterError as error:
            _name_the_vm(error, journal.node)
            journal.fail(error)
            raise
        return Made(journal.node, changed=True, warnings=(*making.warnings, *warnings))

    def reissue(self, name: str) -> Made:
        """Read the facts of a node again and sign a new ticket; Proxmox is not written to.

        Raises:
            Refused: its VM is not made yet, not its own any more, or the state does not allow it.
            BadInput: no ticket key is configured.
        """
        node = self._store.get(name)
        if node is None or node.state in _BEING_MADE:
            raise Refused(
                f"there is no ticket to make for {name}",
                why="its VM is not made yet" if node else "it is not on record",
                next_step=f"provision-node {name}",
            )
        if self._site.ticket is None:
            raise BadInput(
                f"no ticket was made for {name}",
                why="the site file names no key to sign it",
                next_step="add ticket.signing_key to the site file",
            )
        profile = self._site.profile_for(asked=node.profile, recorded=None)
        keys = login_keys(self._site.profile(profile).ssh_keys_file)
        spec = want(self._site, name, profile, ssh_keys=keys, nodes=self._store.all())
        facts = read_facts(self._tools, spec, self._own_machine(node))
        journal = Journal(self._store, replace(node, spec_hash=spec.hash))
        warnings = self._finish(journal, facts, why="a new ticket was made")
        return Made(journal.node, changed=True, warnings=(*facts.warnings, *warnings))

    def _prepare_new(self, spec: NodeSpec, node: Node | None) -> Prepared:
        machine = self._machine_being_made(spec, node) if node else None
        template, warnings = None, []
        if machine is None:
            template = self._survey.template(spec)
            warnings = check_rules(spec, template, self._survey.storages(template.host))
        uuid = node.uuid if node else None
        steps = plan(spec, template=template, machine=machine, uuid=uuid, known=False)
        return Prepared(spec, node, template, machine, steps, warnings=tuple(warnings))

    def _prepare_known(self, spec: NodeSpec, node: Node) -> Prepared:
        machine = self._own_machine(node)
        uuid = str(node.uuid)
        steps = plan(spec, template=None, machine=machine, uuid=uuid, known=True)
        return Prepared(spec, node, None, machine, steps, drift=drift(spec, machine, uuid))

    def _machine_being_made(self, spec: NodeSpec, node: Node) -> MachineFound | None:
        if node.vmid is None or node.uuid is None or node.proxmox_node is None:
            return None
        config = self._tools.hypervisor.config(node.proxmox_node, node.vmid)
        if config is None or config.get("lock") == "clone":
            return None
        configured = Journal(self._store, node).configured
        if not is_ours(config, spec.name, node.uuid, configured=configured):
            return None
        running = self._tools.hypervisor.running(node.proxmox_node, node.vmid)
        return MachineFound(node.vmid, node.proxmox_node, config, running)

    def _own_machine(self, node: Node) -> MachineFound:
        """The VM of a node whose facts are on record; only its uuid proves it.

        Raises:
            Refused: it is gone, or another VM has its id now.
        """
        vmid = int(node.vmid or 0)
        host = self._survey.host_of(vmid) or str(node.proxmox_node)
        config = self._tools.hypervisor.config(host, vmid)
        if config is None:
            raise Refused(
                f"{node.name} was not changed",
                why=f"its VM {vmid} is on {host} no more",
                next_step="restore it from a backup, or retire the node",
            )
        if not is_ours(config, node.name, str(node.uuid), configured=True):
            raise Refused(
                f"{node.name} was not changed",
                why=f"VM {vmid} on {host} is another machine: {config.get('smbios1', 'no uuid')}, and"
                f" {node.name}'s is {node.uuid}",
                next_step=f"leave VM {vmid} alone, and retire {node.name}",
            )
        return MachineFound(vmid, host, config, self._tools.hypervisor.running(host, vmid))

    def _begin(self, spec: NodeSpec, node: Node | None) -> Journal:
        """The record in `provisioning` with the VM's uuid, before the first write to Proxmox."""
        if node is None:
            fresh = Node(name=spec.name, state=State.PROVISIONING, uuid=str(self._new_uuid()))
            wanted = _as_wanted(fresh, spec, self._site)
            return Journal(
                self._store, self._store.add(wanted, why=f"provisioning from profile {spec.profile}")
            )
        journal = Journal(self._store, node)
        wanted = _as_wanted(
            replace(node, uuid=node.uuid or str(self._new_uuid()), reason=None), spec, self._site
        )
        journal.node = wanted
        journal.move(State.PROVISIONING, why=f"provisioning from profile {spec.profile} goes on")
        return journal

    def _making(self, prepared: Prepared, journal: Journal) -> Making:
        taken = {node.vmid for node in self._store.all() if node.name != prepared.spec.name and node.vmid}
        return Making(
            self._tools,
            journal,
            prepared.spec,
            template=prepared.template,
            vmids=self._site.vmids,
            taken=frozenset(taken),
        )

    def _mend(self, prepared: Prepared, node: Node) -> Made:
        """Steps on a VM whose facts are on record, which they leave as they are."""
        if prepared.machine is None:
            raise ValueError("a known node has a machine")
        if not prepared.steps:
            if node.state is State.AWAITING_IDENTITY and node.ticket is None and self._site.ticket:
                return self.reissue(node.name)
            return Made(node, changed=False)
        journal = Journal(self._store, node)
        making, machine = self._making(prepared, journal), prepared.machine
        for step in prepared.steps:
            machine, _ = making.carry_out(step, machine)
        done = replace(journal.node, journal={}, spec_hash=prepared.spec.hash)
        journal.node = done
        journal.move(done.state, why="the VM was changed to what its profile wants")
        return Made(journal.node, changed=any(map(writes, prepared.steps)), warnings=tuple(making.warnings))

    def _finish(self, journal: Journal, facts: Facts, *, why: str) -> list[str]:
        node = journal.node
        twin = self._store.find_machine(
            host_keys=facts.host_keys, machine_id=facts.machine_id, other_than_uuid=node.uuid
        )
        if twin is not None:
            shared = sorted(set(facts.host_keys) & set(twin.host_keys), key=lambda key: key.type)
            what = f"SSH host key {shared[0].fingerprint}" if shared else f"machine-id {facts.machine_id}"
            raise Refused(
                f"{node.name} cannot be told from {twin.name}",
                why=f"both have {what}, so it came from the template",
                next_step="remove /etc/ssh/ssh_host_* and empty /etc/machine-id in the template,"
                f" destroy VM {node.vmid}, then run the command again",
            )
        known = replace(
            node,
            address=facts.address,
            macs=facts.macs,
            host_keys=facts.host_keys,
            machine_id=facts.machine_id,
            fabrics=facts.fabrics,
            reason=None,
            journal={},
        )
        ticket, warnings = new_ticket(self._site, known, made_by=whoami(), now=self._now())
        journal.node = replace(known, ticket=ticket)
        journal.move(State.AWAITING_IDENTITY, why=why)
        return warnings


def _as_wanted(node: Node, spec: NodeSpec, site: Site) -> Node:
    """The record with what is known before the VM exists: its static addresses are taken from here on."""
    ip, _, prefix = (spec.address or "").partition("/")
    return replace(
        node,
        site=site.name,
        profile=spec.profile,
        spec_hash=spec.hash,
        address=Address(ip, int(prefix), "static") if spec.address else None,
        ssh_port=spec.ssh_port,
        user=spec.user,
        fabrics=tuple(_fabrics(spec)),
    )


def _fabrics(spec: NodeSpec) -> Iterable[Fabric]:
    for fabric in spec.fabrics:
        yield Fabric(name=fabric.name, mtu=fabric.mtu, rate_gbps=fabric.rate_gbps, address=fabric.address)


def _name_the_vm(error: MusterError, node: Node) -> None:
    """Make the error also say what stays behind and how to go on."""
    if node.vmid is not None:
        rest = f"VM {node.vmid} on {node.proxmox_node} (uuid {node.uuid}) is what there is of {node.name}"
        error.next_step = f"{error.next_step}\n{rest}; the same command goes on from there"
