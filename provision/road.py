"""One node's way from the site file to `awaiting-identity`: looked at, planned, then carried out."""

import uuid as uuids
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from inventory.errors import BadInput, MusterError, Refused
from inventory.lifecycle import anew, unadopted
from inventory.model import Node, State, check_node_name
from inventory.store import AddressTaken, Store, utc_now
from provision.apply import Making
from provision.config import Change, is_ours
from provision.drift import Drift, accepting, is_accepted, refusal
from provision.facts import Facts, read_facts
from provision.gates import Gates
from provision.handover import new_ticket, void_tickets
from provision.ids import Ids
from provision.journal import Journal
from provision.known import Known
from provision.plan import MachineFound, Source, Step, drift, plan, writes
from provision.recorded import as_wanted, name_the_vm, not_adopted, stays_as_found
from provision.spec import Site
from provision.survey import Survey
from provision.tasks import Tools
from provision.wanted import NodeSpec, login_keys, want

_BEING_MADE = frozenset({State.PLANNED, State.PROVISIONING, State.PROVISION_FAILED})
_ADDRESS_TURNS = 64
LEAVING = frozenset(
    {
        State.DECOMMISSIONING,
        State.DECOMMISSION_FAILED,
        State.AWAITING_RETIREMENT,
        State.RETIRING,
        State.RETIRE_FAILED,
    }
)
"""A node on its way out is not changed any more."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A node that was looked at. steps: what is left to do; nothing was changed yet.

    node: its record, if there is one. drift: what differs and is not mended (it would change host keys), for which
    the node is not changed at all; accepted: the same, which its ticket has accepted.
    vmid: the id that was drawn for its VM; the clone may find it taken, and draws another.
    """

    spec: NodeSpec
    node: Node | None
    template: Source | None
    machine: MachineFound | None
    steps: tuple[Step, ...]
    drift: tuple[Change, ...] = ()
    warnings: tuple[str, ...] = ()
    vmid: int | None = None
    accepted: tuple[Change, ...] = ()

    @property
    def refusal(self) -> Refused | None:
        """Why the node cannot be changed although the steps are known."""
        return refusal(self.spec.name, self.spec.profile, self.drift) if self.drift else None


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
        self._survey = Survey(tools.hypervisor, ids=site.vmids.range if site.vmids else None)
        self._now = now
        self._new_uuid = new_uuid
        self._in_flight: list[Node] = []
        self._gates = Gates()
        self._ids: Ids | None = None
        self._known = Known(store)

    def before_threads(self) -> None:
        """Ask what all threads will need, on this one's connection."""
        self._run_ids()
        _ = self._survey.guests

    def for_thread(self, tools: Tools) -> "Road":
        """The same road for another thread, with tools of its own; what the run shares is shared."""
        other = Road(self._site, self._store, tools, now=self._now, new_uuid=self._new_uuid)
        other._survey, other._in_flight = self._survey, self._in_flight
        other._gates, other._ids, other._known = self._gates, self._ids, self._known
        return other

    def draw_id(self, prepared: Prepared) -> Prepared:
        """The same with an id for its VM, so that the nodes of one run get theirs in the order of their names.

        Raises:
            OtherSide: no id is free.
        """
        if prepared.machine is not None or (prepared.node is not None and prepared.node.vmid is not None):
            return prepared
        vmid = self._run_ids().draw(self._tools.hypervisor, prepared.spec.name)
        return replace(prepared, vmid=vmid)

    def prepare(self, name: str, *, profile: str | None) -> Prepared:
        """Look at a node and plan; nothing is changed.

        Raises:
            MusterError: it cannot be made, and why; nothing was changed.
        """
        check_node_name(name)
        node = self._store.get(name)
        if node is not None and node.state in LEAVING:
            raise Refused(
                f"{name} was not changed",
                why=f"it is {node.state}",
                next_step=f"node-inventory history {name}",
            )
        if node is not None and unadopted(node):
            raise not_adopted(name)
        again = node is not None and node.state is State.RETIRED
        node = anew(node) if node is not None and again else node
        chosen = self._site.profile_for(asked=profile, recorded=node.profile if node else None)
        if node is not None and node.vmid is not None and node.profile != chosen:
            raise Refused(
                f"{name} was not changed",
                why=f"its VM {node.vmid} was made from profile {node.profile}, not {chosen}",
                next_step=f"leave --profile away, or make {chosen} under another name",
            )
        spec = self._want(name, chosen)
        self._in_flight.append(as_wanted(Node(name=name, state=State.PLANNED), spec, self._site))
        if again:
            told = f"{name} was retired, and is made again as another machine"
            prepared = self._prepare_new(spec, node)
            return replace(prepared, warnings=(told, *prepared.warnings))
        if node is None or node.state in _BEING_MADE:
            return self._prepare_new(spec, node)
        return self._prepare_known(spec, node)

    def drift(self, prepared: Prepared) -> Drift:
        """What differs between the VM of a node and its profile, whether the same command would mend it or not.

        Raises:
            Refused: its VM is not made yet.
            OtherSide: Proxmox did not tell.
        """
        node, machine = prepared.node, prepared.machine
        if node is None or machine is None or node.state in _BEING_MADE:
            raise Refused(
                f"{prepared.spec.name} cannot be compared with its profile",
                why="its VM is not made yet",
                next_step=f"provision-node {prepared.spec.name}",
            )
        pending = self._tools.hypervisor.pending(machine.host, machine.vmid)
        return Drift(prepared.steps, prepared.drift, pending, prepared.accepted)

    def carry_out(self, prepared: Prepared) -> Made:
        """Do what is left to do for one node.

        Raises:
            MusterError: a step failed; the record says so, and the same call goes on from there.
        """
        node = prepared.node
        if node is not None and node.state not in _BEING_MADE:
            return self._mend(prepared, node)
        prepared, journal = self._begin(prepared)
        making = self._making(prepared, journal)
        try:
            _, facts = making.to_the_end()
            if facts is None:
                raise ValueError("a new VM's facts are always read")
            warnings = self._finish(journal, facts, why=f"VM {journal.node.vmid} was made")
        except MusterError as error:
            name_the_vm(error, journal.node)
            journal.fail(error)
            raise
        return Made(journal.node, changed=True, warnings=(*making.warnings, *warnings))

    def reissue(self, name: str) -> Made:
        """Read the facts of a node again and sign a new ticket; Proxmox is not written to.

        The ticket accepts the VM as it is: what differs and would change its host keys is refused no more.

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
        if unadopted(node):
            raise not_adopted(name)
        if self._site.ticket is None:
            raise BadInput(
                f"no ticket was made for {name}",
                why="the site file names no key to sign it",
                next_step="add ticket.signing_key to the site file",
            )
        spec = self._want(name, self._site.profile_for(asked=node.profile, recorded=None))
        machine = self._own_machine(node)
        facts = read_facts(self._tools, spec, machine)
        journal = Journal(self._store, replace(node, spec_hash=spec.hash))
        former = void_tickets(node)
        void = f"; ticket {former[0]} is void" if former else ""
        stays = drift(spec, machine, str(node.uuid))
        warnings = self._finish(journal, facts, why=f"a new ticket was made{void}", stays=stays)
        warnings += [stays_as_found(node, stays)] if stays else []
        return Made(journal.node, changed=True, warnings=(*facts.warnings, *warnings))

    def _prepare_new(self, spec: NodeSpec, node: Node | None) -> Prepared:
        machine = self._machine_being_made(spec, node) if node else None
        template: Source | None = None
        warnings: list[str] = []
        if machine is None:
            template, warnings = self._survey.source(spec)
        uuid = node.uuid if node else None
        steps = plan(spec, template=template, machine=machine, uuid=uuid, known=False)
        self._survey.check(spec, steps, source=template, machine=machine)
        return Prepared(spec, node, template, machine, steps, warnings=tuple(warnings))

    def _prepare_known(self, spec: NodeSpec, node: Node) -> Prepared:
        machine = self._own_machine(node)
        uuid = str(node.uuid)
        steps = plan(spec, template=None, machine=machine, uuid=uuid, known=True)
        self._survey.check(spec, steps, source=None, machine=machine)
        found = drift(spec, machine, uuid)
        accepted = tuple(change for change in found if is_accepted(change, node))
        stays = tuple(change for change in found if change not in accepted)
        return Prepared(spec, node, None, machine, steps, drift=stays, accepted=accepted)

    def _machine_being_made(self, spec: NodeSpec, node: Node) -> MachineFound | None:
        if node.vmid is None or node.uuid is None or node.proxmox_node is None:
            return None
        config = self._tools.hypervisor.config(node.proxmox_node, node.vmid)
        if config is None or config.get("lock") in {"clone", "create"}:
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

    def _want(self, name: str, profile: str, *, anew: bool = False) -> NodeSpec:
        keys = login_keys(self._site.profile(profile).ssh_keys_file)
        nodes = (*self._known.nodes(anew=anew), *(node for node in self._in_flight if node.name != name))
        return want(self._site, name, profile, ssh_keys=keys, nodes=nodes)

    def _begin(self, prepared: Prepared) -> tuple[Prepared, Journal]:
        """The record in `provisioning` with the VM's uuid and addresses, before the first write to Proxmox.

        An address that another run has put on record meanwhile is chosen anew.
        """
        prepared = replace(prepared, node=self._alive_again(prepared.node))
        for _ in range(_ADDRESS_TURNS):
            try:
                return prepared, self._recorded(prepared.spec, prepared.node)
            except AddressTaken as taken:
                again = self._want(prepared.spec.name, prepared.spec.profile, anew=True)
                if again == prepared.spec:
                    raise  # it is the node's own in the site file
                told = f"{taken.why} meanwhile; {prepared.spec.name} was given others"
                prepared = replace(prepared, spec=again, warnings=(*prepared.warnings, told))
        return prepared, self._recorded(prepared.spec, prepared.node)

    def _alive_again(self, node: Node | None) -> Node | None:
        """A retired name as a node that is planned: what is on record of its former machine goes now."""
        if node is None or node.state is not State.PLANNED:
            return node
        former = self._store.get(node.name)
        if former is None or former.state is not State.RETIRED:
            return node
        was = f"VM {former.vmid}, uuid {former.uuid}" if former.vmid else "no VM"
        return self._store.save(node, why=f"its name is used again; it was {was}")

    def _recorded(self, spec: NodeSpec, node: Node | None) -> Journal:
        why = f"provisioning from profile {spec.profile}"
        if node is None:
            fresh = Node(name=spec.name, state=State.PROVISIONING, uuid=str(self._new_uuid()))
            return Journal(self._store, self._store.add(as_wanted(fresh, spec, self._site), why=why))
        journal = Journal(self._store, node)
        journal.node = as_wanted(
            replace(node, uuid=node.uuid or str(self._new_uuid()), reason=None), spec, self._site
        )
        journal.move(State.PROVISIONING, why=f"{why} goes on")
        return journal

    def _run_ids(self) -> Ids:
        if self._ids is None:
            nodes = (node for node in self._store.summaries() if node.state is not State.RETIRED)
            taken = frozenset(node.vmid for node in nodes if node.vmid is not None)
            self._ids = Ids(self._site.vmids, taken=taken)
        return self._ids

    def _making(self, prepared: Prepared, journal: Journal) -> Making:
        return Making(
            self._tools,
            journal,
            prepared.spec,
            template=prepared.template,
            ids=self._run_ids(),
            gates=self._gates,
            vmid=prepared.vmid,
        )

    def _mend(self, prepared: Prepared, node: Node) -> Made:
        """Steps on a VM whose facts are on record, which they leave as they are."""
        if prepared.machine is None:
            raise ValueError("a known node has a machine")
        if prepared.refusal is not None:
            raise prepared.refusal
        if not prepared.steps:
            if node.state is State.AWAITING_IDENTITY and node.ticket is None and self._site.ticket:
                return self.reissue(node.name)
            return Made(node, changed=False)
        journal = Journal(self._store, node)
        making, machine = self._making(prepared, journal), prepared.machine
        for step in prepared.steps:
            machine, _ = making.carry_out(step, machine)
        done = replace(journal.node, journal=journal.accepted, spec_hash=prepared.spec.hash)
        journal.node = done
        journal.move(done.state, why="the VM was changed to what its profile wants")
        return Made(journal.node, changed=any(map(writes, prepared.steps)), warnings=tuple(making.warnings))

    def _finish(self, journal: Journal, facts: Facts, *, why: str, stays: Iterable[Change] = ()) -> list[str]:
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
            journal=accepting(stays),
        )
        ticket, warnings = new_ticket(self._site, known, now=self._now())
        journal.node = replace(known, ticket=ticket)
        journal.move(State.AWAITING_IDENTITY, why=why)
        return warnings
