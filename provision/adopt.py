"""A VM that was made by hand: found by its uuid, looked at, then put on record with a ticket; Proxmox is only read.

Nothing that a list said of it is believed: its address, host keys and machine-id are read from the guest itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from inventory.errors import MusterError, OtherSide
from inventory.importing_record import free_uuid, put_on_record
from inventory.lifecycle import unadopted
from inventory.model import HostKey, Node, State, check_node_name
from inventory.store import Store, utc_now
from provision import guest
from provision.adopt_addresses import Seen, addresses_of, static_addresses, wanted_as_found
from provision.adopt_find import Uuids
from provision.adopt_look import AGAIN, Look, refused
from provision.config import is_ours, mac_of
from provision.drift import Drift, accepting
from provision.facts import Facts, read_facts
from provision.grants import Held, check_grants, needs
from provision.handover import new_ticket
from provision.hypervisor import Unreachable
from provision.plan import MachineFound, ReadFacts, drift, plan
from provision.properties import mean, split_tags
from provision.recorded import stays_as_found
from provision.road import LEAVING, Made
from provision.spec import Site
from provision.survey import Survey
from provision.tasks import Tools
from provision.wanted import NodeSpec, login_keys

_NAMELESS = frozenset({State.PLANNED, State.RETIRED})
"""A name that has no machine (any more)."""
_BEING_MADE = frozenset({State.PROVISIONING, State.PROVISION_FAILED})


@dataclass(frozen=True, slots=True)
class Which:
    """Which VM: by its id, its uuid, or both; by neither the record tells the uuid."""

    vmid: int | None = None
    uuid: str | None = None


class Adopting:
    """What the nodes of one run share."""

    def __init__(
        self, site: Site, store: Store, tools: Tools, *, now: Callable[[], datetime] = utc_now
    ) -> None:
        """Nothing is asked yet."""
        self._site = site
        self._store = store
        self._tools = tools
        self._now = now
        self._survey = Survey(tools.hypervisor)
        self._uuids = Uuids(self._survey, tools)
        self._rights: tuple[int, Held] | None = None

    def look(self, name: str, which: Which, *, profile: str | None) -> Look | None:
        """Look at the VM and at all that may forbid it; None if the node is one of ours already.

        Raises:
            MusterError: it cannot be adopted, and why; nothing was changed.
        """
        node = self._on_record(check_node_name(name))
        known = node if node is not None and node.state not in _NAMELESS else None
        found = self._uuids.find(name, vmid=which.vmid, uuid=which.uuid or (known.uuid if known else None))
        if known is not None and found.uuid != known.uuid:
            why = f"it is on record with uuid {known.uuid}, and VM {found.vmid} has {found.uuid}"
            raise refused(name, why, f"adopt VM {found.vmid} under another name")
        if known is not None and not unadopted(known):
            if profile is not None and known.profile != profile:
                why = f"it is on record with profile {known.profile}, not {profile}"
                raise refused(name, why, "leave --profile away")
            return None
        self._check_claims(name, found.uuid, found.vmid)
        chosen = self._site.profile_for(asked=profile, recorded=known.profile if known else None)
        part = self._site.profile(chosen)
        machine = self._machine(name, found.host, found.vmid)
        seen = self._asked(name, machine)
        found_on = Seen(machine, seen)
        spec = wanted_as_found(
            self._site,
            name,
            chosen,
            ssh_keys=login_keys(part.ssh_keys_file),
            told=known,
            found=found_on,
        )
        self._check_taken(spec)
        self._check_rights(spec, machine)
        keys, machine_id = self._identity(name, machine)
        self._check_twin(name, found.vmid, keys, machine_id, uuid=found.uuid)
        steps = plan(spec, template=None, machine=machine, uuid=found.uuid, known=True)
        return Look(
            name,
            node,
            spec,
            machine,
            uuid=found.uuid,
            tags=split_tags(str(machine.config.get("tags", ""))),
            macs=tuple(mac for index in range(32) if (mac := mac_of(machine.config, index))),
            addresses=guest.addresses_seen(seen),
            ips=found_on.ips,
            machine_id=machine_id,
            host_keys=keys,
            user=(known.user if known else None) or spec.user,
            ssh_port=known.ssh_port if known else spec.ssh_port,
            drift=Drift(
                steps,
                pending=self._tools.hypervisor.pending(machine.host, machine.vmid),
                accepted=drift(spec, machine, found.uuid),
            ),
            silent=self._uuids.silent,
        )

    def carry_out(self, look: Look, tools: Tools) -> Made:
        """Read the guest's facts and put the node on record with its ticket, in one go.

        Raises:
            MusterError: it is not as it was shown, or is not to be told from another node; nothing was changed.
        """
        name, vmid, host = look.name, look.machine.vmid, look.machine.host
        config = tools.hypervisor.config(host, vmid)
        if config is None or not is_ours(config, name, look.uuid, configured=True):
            raise refused(name, f"VM {vmid} on {host} is not the one that was shown any more", AGAIN)
        facts = read_facts(tools, look.spec, replace(look.machine, config=config))
        if set(facts.host_keys) != set(look.host_keys):
            told = ", ".join(key.fingerprint for key in facts.host_keys)
            raise refused(name, f"its SSH host keys are not those that were shown any more: {told}", AGAIN)
        self._check_twin(name, vmid, facts.host_keys, facts.machine_id, uuid=look.uuid)
        node = self._as_node(look, facts)
        ticket, warnings = new_ticket(self._site, node, now=self._now())
        stays = look.drift.accepted
        why = f"adopted: VM {vmid} on {host} was made by hand; a ticket was made"
        node = replace(node, ticket=ticket)
        if look.node is not None and unadopted(look.node):
            node = self._store.save(replace(node, version=look.node.version), why=why)
        else:
            node = put_on_record(self._store, node, why=why)
        warnings += [stays_as_found(node, stays)] if stays else []
        return Made(node, changed=True, warnings=(*facts.warnings, *warnings))

    def _as_node(self, look: Look, facts: Facts) -> Node:
        return Node(
            look.name,
            State.AWAITING_IDENTITY,
            uuid=look.uuid,
            vmid=look.machine.vmid,
            proxmox_node=look.machine.host,
            site=self._site.name,
            profile=look.spec.profile,
            spec_hash=look.spec.hash,
            address=facts.address,
            ssh_port=look.ssh_port,
            user=look.user,
            macs=facts.macs,
            host_keys=facts.host_keys,
            machine_id=facts.machine_id,
            fabrics=facts.fabrics,
            journal=accepting(look.drift.accepted),
        )

    def _on_record(self, name: str) -> Node | None:
        node = self._store.get(name)
        if node is None:
            return None
        if node.state in _BEING_MADE or (node.state is State.PLANNED and node.vmid is not None):
            why = f"it is {node.state}: a VM is being made for it"
            raise refused(name, why, f"provision-node {name}, or provision-node {name} --rollback")
        if node.state in LEAVING:
            raise refused(name, f"it is {node.state}", f"node-inventory history {name}")
        return node

    def _machine(self, name: str, host: str, vmid: int) -> MachineFound:
        """The VM, which must run with a guest agent, for nothing can be learnt of it otherwise."""
        config = self._tools.hypervisor.config(host, vmid)
        if config is None:
            raise refused(name, f"VM {vmid} has gone from {host} a moment ago", AGAIN)
        if config.get("lock") in {"clone", "create"}:
            raise refused(name, f"VM {vmid} is still being made ({config['lock']})", AGAIN)
        if not self._tools.hypervisor.running(host, vmid):
            raise refused(
                name, f"VM {vmid} on {host} is stopped", f"start it (qm start {vmid}), then: {AGAIN}"
            )
        if (mean("agent", config.get("agent")) or {}).get("enabled") != "1":
            how = f"qm set {vmid} --agent enabled=1, install qemu-guest-agent in it, stop and start it"
            raise refused(name, f"VM {vmid} on {host} has no guest agent", how)
        if mac_of(config, 0) is None:
            raise refused(
                name, f"VM {vmid} on {host} has no net0, so its address cannot be known", "give it one"
            )
        return MachineFound(vmid, host, config, running=True)

    def _asked(self, name: str, machine: MachineFound) -> list[dict[str, object]]:
        try:
            seen = self._tools.hypervisor.interfaces(machine.host, machine.vmid)
        except Unreachable as error:
            raise _silent(name, machine, error.why) from error
        if seen is None:
            raise _silent(name, machine, "it is enabled, and nothing answers in the guest")
        return [dict(each) for each in seen]

    def _identity(self, name: str, machine: MachineFound) -> tuple[tuple[HostKey, ...], str | None]:
        read = self._tools.hypervisor.read_file
        try:
            texts = [read(machine.host, machine.vmid, path) for path in guest.HOST_KEYS]
            machine_id = guest.machine_id(read(machine.host, machine.vmid, guest.MACHINE_ID))
        except Unreachable as error:
            raise _silent(name, machine, error.why) from error
        keys = tuple(key for text in texts if (key := guest.host_key(text)))
        if not keys:
            raise OtherSide(
                f"{name} was not adopted",
                why=f"VM {machine.vmid} shows no SSH host key; looked for {', '.join(guest.HOST_KEYS)}",
                next_step=f"install and enable an SSH server in it, then: {AGAIN}",
            )
        return keys, machine_id

    def _check_rights(self, spec: NodeSpec, machine: MachineFound) -> None:
        if self._rights is None:
            self._rights = self._tools.hypervisor.version(), self._tools.hypervisor.permissions()
        version, held = self._rights
        wanted = needs(spec, [ReadFacts()], machine.config, version=version, vmid=machine.vmid)
        check_grants(spec.name, wanted, held, token=self._tools.hypervisor.token_id, done="adopted")

    def _check_claims(self, name: str, uuid: str, vmid: int) -> None:
        """Refuse a VM that the record has as another node's; a VM id is one machine at one site alone."""
        for other in self._store.claimants(uuid=uuid, vmid=vmid):
            if other.name == name:
                continue
            if other.uuid == uuid and not free_uuid(other):
                why = f"uuid {uuid} is on record as {other.name}'s, which is {other.state}"
                raise refused(name, why, f"node-inventory show {other.name}")
            if other.vmid == vmid and other.state is not State.RETIRED and self._is_here(other):
                why = f"VM {vmid} is on record as {other.name}'s, with uuid {other.uuid}; this one has {uuid}"
                raise refused(
                    name, why, f"look what became of {other.name}: node-inventory show {other.name}"
                )

    def _is_here(self, node: Node) -> bool:
        """Whether it is of this site, as far as anybody knows."""
        return node.site in {None, self._site.name}

    def _check_taken(self, spec: NodeSpec) -> None:
        """Refuse static addresses that another node has, here or where nobody knows."""
        mine = addresses_of(spec)
        for other in self._store.claimants(ips=mine, site=self._site.name):
            if other.name != spec.name:
                taken = mine & static_addresses(other)
                why = f"{', '.join(sorted(taken))} is on record as {other.name}'s"
                raise refused(
                    spec.name, why, f"look which of the two has it: node-inventory show {other.name}"
                )

    def _check_twin(
        self, name: str, vmid: int, keys: tuple[HostKey, ...], machine_id: str | None, *, uuid: str
    ) -> None:
        twin = self._store.find_machine(host_keys=keys, machine_id=machine_id, other_than_uuid=uuid)
        if twin is None:
            return
        shared = [key for key in keys if key in twin.host_keys]
        what = f"SSH host key {shared[0].fingerprint}" if shared else f"machine-id {machine_id}"
        raise refused(
            name,
            f"it cannot be told from {twin.name}: both have {what}, so one is a copy of the other",
            f"make VM {vmid} its own (rm /etc/ssh/ssh_host_*; ssh-keygen -A; systemd-machine-id-setup), restart it,"
            f" then: {AGAIN}",
        )


def _silent(name: str, machine: MachineFound, why: str) -> MusterError:
    return OtherSide(
        f"{name} was not adopted",
        why=f"the guest agent of VM {machine.vmid} on {machine.host} does not answer: {why}",
        next_step=f"see that qemu-guest-agent runs in it, then: {AGAIN}",
    )
