"""The steps, carried out against the `Hypervisor` port: each is noted before its write, and can be resumed.

A VM is ours if it has our uuid or, before it was configured, our marker; no other VM is ever touched.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, assert_never

from inventory.errors import OtherSide, Refused
from provision.config import differences, is_ours, marker
from provision.facts import Facts, read_facts
from provision.gates import Gates
from provision.hypervisor import IdTaken, Unanswered, Unreachable
from provision.ids import Ids
from provision.images import fetch
from provision.journal import Journal
from provision.plan import (
    AttachSeed,
    Clone,
    Configure,
    Create,
    Fetch,
    MachineFound,
    ReadFacts,
    RemoveSeed,
    Resize,
    Source,
    Start,
    Step,
    TemplateFound,
    UploadSeed,
    plan,
)
from provision.properties import Config, boot_disk, storage_of
from provision.seeding import Seeding
from provision.slots import attached_seeds
from provision.tasks import TaskFailed, Tools, follow, is_lock, past_locks, tell_of_lock
from provision.wanted import NodeSpec

Other = Literal["absent", "foreign", "unclear", "cloning"]
# The config of a clone in its first moment, before Proxmox has written the real one (qemu-server clone_vm).
_TEMPORARY = "qmclone temporary file"
_TASK_KINDS = {"resize": "resize", "start": "qmstart"}


class Making:
    """One node's VM on its way.

    Args:
        template: what it is cloned from; None where the VM is known to exist.
        ids, gates: of the whole run, which other threads use too.
        vmid: the id that was drawn for it beforehand.
    """

    def __init__(
        self,
        tools: Tools,
        journal: Journal,
        spec: NodeSpec,
        *,
        template: Source | None,
        ids: Ids,
        gates: Gates,
        vmid: int | None = None,
    ) -> None:
        """Nothing is asked or written yet."""
        self._tools = tools
        self._hypervisor = tools.hypervisor
        self._journal = journal
        self._spec = spec
        self._template = template
        self._run_ids = ids
        self._gates = gates
        self._drawn = vmid
        self._clone_upid: str | None = None
        self.warnings: list[str] = []

    @property
    def _uuid(self) -> str:
        return str(self._journal.node.uuid)

    def to_the_end(self) -> tuple[MachineFound, Facts | None]:
        """Carry out whatever is left between the VM that is there and the wanted one.

        Raises:
            MusterError: a step failed; the journal says which, and this can be called again.
        """
        machine = self._machine()
        self._check_seeded(machine)
        facts = None
        for step in plan(self._spec, template=None, machine=machine, uuid=self._uuid, known=False):
            machine, found = self.carry_out(step, machine)
            facts = found or facts
        return machine, facts

    def carry_out(self, step: Step, machine: MachineFound) -> tuple[MachineFound, Facts | None]:
        """One step on a VM that is there; the VM after it."""
        match step:
            case Clone() | Create() | Fetch():
                raise ValueError("a VM that is there is not made again")
            case Configure():
                return self._configure(step, machine), None
            case Resize():
                what = f"growing {step.disk} of VM {machine.vmid}"
                past_locks(self._tools, what, lambda: self._resize(step, machine))
                return machine, None
            case UploadSeed() | AttachSeed() | RemoveSeed():
                return self._seed(step, machine), None
            case Start():
                what = f"the start of VM {machine.vmid}"
                past_locks(self._tools, what, lambda: self._start(step, machine))
                return replace(machine, running=True), None
            case ReadFacts():
                self._journal.note("read")
                facts = read_facts(self._tools, self._spec, machine)
                self.warnings += facts.warnings
                return machine, facts
            case _:
                assert_never(step)

    def _seed(self, step: UploadSeed | AttachSeed | RemoveSeed, machine: MachineFound) -> MachineFound:
        seeding = Seeding(self._tools, self._journal)
        try:
            if isinstance(step, AttachSeed):
                return seeding.attach(step, machine)
            if isinstance(step, RemoveSeed):
                return seeding.remove(step, machine)
            if self._spec.seed is None:
                raise ValueError("there is no disc to upload without user-data")
            seeding.upload(step, machine, self._spec.seed.user_data)
            return machine
        finally:
            self.warnings += seeding.warnings

    def _check_seeded(self, machine: MachineFound) -> None:
        """Refuse a VM that somebody started before its disc was in it: its first boot went by without the user-data."""
        begun = self._journal.step in {"start", "read", "remove-seed"} and self._journal.seeds
        if self._spec.seed is None or not machine.running or begun:
            return
        if not attached_seeds(machine.config, self._uuid):
            raise Refused(
                f"VM {machine.vmid} runs without its user-data",
                why="it was started before a cloud-init disc was attached to it, and cloud-init has run by now",
                next_step=f"provision-node {self._spec.name} --rollback, then make it anew",
            )

    def _machine(self) -> MachineFound:
        """The VM on record, once every task of a former run on it has ended; else a new clone."""
        found = self._look() if self._journal.node.vmid is not None else "absent"
        if isinstance(found, MachineFound):
            return self._after_its_tasks(found)
        if found == "foreign":
            node = self._journal.node
            self.warnings.append(
                f"VM {node.vmid} on {node.proxmox_node} is not {node.name}'s (it has neither uuid {self._uuid}"
                " nor our marker); it is left alone, and another one is made"
            )
            self._journal.note("clone", vmid=None)
        return self._clone()

    def _clone(self) -> MachineFound:
        if self._template is None:
            raise OtherSide(
                f"{self._spec.name} has no VM any more",
                why=f"VM {self._journal.node.vmid} on record is gone",
                next_step="run the command again",
            )
        first, *rest = plan(self._spec, template=self._template, machine=None, uuid=self._uuid, known=False)
        if isinstance(first, Fetch):
            with self._gates.through(first.volume, at_once=1):  # the others then find it there
                self.warnings += fetch(self._tools, first)
            first = rest[0]
        if not isinstance(first, Clone | Create):
            raise TypeError("a plan without a machine begins with making one")
        order, source = first, first.storage
        if isinstance(self._template, TemplateFound) and (disk := boot_disk(self._template.config)):
            source = storage_of(self._template.config, disk)
        for vmid in self._ids():
            with self._gates.through(source):
                found = self._clone_to(vmid, order)
            if found is not None:
                return found
        raise OtherSide(
            f"no VM id was free for {self._spec.name}",
            why=f"{self._tools.patience.draws} ids were drawn, and each was taken before the clone began",
            next_step="run the command again, or widen vmids in the site file",
        )

    def _clone_to(self, vmid: int, order: Clone | Create) -> MachineFound | None:
        """The clone at this id; None if the id is another VM's. A lock that others hold is waited out."""
        source = f"template {order.template}" if isinstance(order, Clone) else f"image {order.image}"
        what = f"the clone of {source} to VM {vmid}"
        for last in self._tools.turns_of_a_lock():
            self._journal.note("clone", vmid=vmid, proxmox_node=order.host)
            try:
                upid = self._hypervisor.clone(
                    order, vmid=vmid, name=self._spec.name, description=marker(self._spec.name, self._uuid)
                )
                self._journal.note("clone", upid=upid)
                self.warnings += follow(self._tools, upid, what, timeout_s=self._tools.patience.clone_s)
                self._clone_upid = upid
                break
            except IdTaken:
                found = self._look()  # ours, if an answer to a former run was lost
                if isinstance(found, MachineFound):
                    return found
                self._tools.console.detail(f"VM id {vmid} was taken meanwhile; another one is drawn")
                self._journal.note("clone", vmid=None)
                return None
            except Unanswered:
                found = self._look(patient=True)
                if isinstance(found, MachineFound):
                    return found
                raise
            except OtherSide as error:
                if last or not is_lock(error):
                    raise
                tell_of_lock(self._tools, what, error)
        found = self._look(patient=True)
        if isinstance(found, MachineFound):
            return found
        raise OtherSide(
            f"{what} ended well, and there is no such VM",
            why=f"on {order.host} VM {vmid} is {found}",
            next_step="look who removed it, then run the command again",
        )

    def _ids(self) -> Iterator[int]:
        """VM ids to try: the one on record (a lost clone may stand there), the one drawn before, then others."""
        for vmid in (self._journal.node.vmid, self._drawn):
            if vmid is not None:
                yield vmid
        for _ in range(self._tools.patience.draws):
            yield self._run_ids.draw(self._hypervisor, self._spec.name)

    def _look(self, *, patient: bool = False) -> MachineFound | Other:
        """What stands at the VM id on record, once it is no longer being cloned.

        patient: it was asked for just now, and may need a moment to appear.
        """
        patience = self._tools.patience
        found = self._look_once()
        if found == "cloning":
            self._follow_noted("clone", f"the clone to VM {self._journal.node.vmid}", patience.clone_s)
            found = self._look_once()
        if isinstance(found, MachineFound) or found == "foreign" or (found == "absent" and not patient):
            return found
        began = self._tools.clock()
        what = f"VM {self._journal.node.vmid} to be whole"
        with self._tools.console.waiting(what, timeout_s=patience.clone_s) as waiting:
            for _ in self._tools.tries(patience.clone_s):
                if found != "cloning" and self._tools.clock() - began >= patience.lost_answer_s:
                    return found
                waiting.update(found)
                with contextlib.suppress(Unreachable):
                    found = self._look_once()
                if isinstance(found, MachineFound) or found == "foreign":
                    return found
                if found == "absent" and not patient:
                    return found
        return found

    def _look_once(self) -> MachineFound | Other:
        node = self._journal.node
        vmid, host = int(node.vmid or 0), str(node.proxmox_node)
        config = self._hypervisor.config(host, vmid)
        if config is None:
            return "absent"
        if not self._owned(config):
            return "unclear" if _is_temporary(config) else "foreign"
        if config.get("lock") in {"clone", "create"}:
            return "cloning"
        # A clone of this run was not started yet, and if somebody else did that, the start will say so.
        running = self._clone_upid is None and self._hypervisor.running(host, vmid)
        return MachineFound(vmid, host, config, running)

    def _owned(self, config: Config) -> bool:
        return is_ours(config, self._spec.name, self._uuid, configured=self._journal.configured)

    def _after_its_tasks(self, machine: MachineFound) -> MachineFound:
        """The VM after the task that a former run began and did not see end; a failure is left to the plan."""
        step = self._journal.step or ""
        if step not in _TASK_KINDS:
            return machine
        upid = self._journal.upid or self._begun(step, machine)
        status = None if upid is None else self._hypervisor.task(upid)
        if upid is None or status is None or status.outcome is not None:
            return machine
        self._journal.note(step, upid=upid)
        self._follow_noted(step, f"the {step} of VM {machine.vmid}", self._tools.patience.clone_s)
        config = self._hypervisor.config(machine.host, machine.vmid)
        running = self._hypervisor.running(machine.host, machine.vmid)
        return replace(machine, config=config or machine.config, running=running)

    def _intend(self, step: str, machine: MachineFound) -> None:
        """Note a write that begins a task, and the newest task of its kind that was there before it.

        A clone of this run has no tasks before its own; those of a former VM with its id are older.
        """
        known = self._clone_upid or self._hypervisor.newest_task(
            machine.host, vmid=machine.vmid, kind=_TASK_KINDS[step]
        )
        self._journal.note(step, known=known)

    def _begun(self, step: str, machine: MachineFound) -> str | None:
        """The task that the noted write began although nobody told us, if it did."""
        return self._hypervisor.newest_task(
            machine.host, vmid=machine.vmid, kind=_TASK_KINDS[step], known=self._journal.known
        )

    def _follow_noted(self, step: str, what: str, timeout_s: float) -> None:
        if self._journal.step == step and self._journal.upid is not None:
            try:
                self.warnings += follow(self._tools, self._journal.upid, what, timeout_s=timeout_s)
            except TaskFailed as error:
                self._tools.console.detail(f"{error.what}: {error.outcome}; it is begun again")

    def _configure(self, step: Configure, machine: MachineFound) -> MachineFound:
        self._journal.note("configure")
        lost: Unanswered | None = None

        def put() -> None:
            self._hypervisor.configure(
                machine.host,
                machine.vmid,
                changes={change.key: change.after for change in step.changes if change.after is not None},
                delete=[change.key for change in step.changes if change.after is None],
                digest=step.digest,
            )

        try:
            past_locks(self._tools, f"the change of VM {machine.vmid}", put)
        except Unanswered as error:
            lost = error
        config = self._hypervisor.config(machine.host, machine.vmid) or {}
        asked = {change.key for change in step.changes}
        left = [change for change in differences(self._spec, config, self._uuid) if change.key in asked]
        if machine.running:
            waiting = {each.key for each in self._hypervisor.pending(machine.host, machine.vmid)}
            if keys := ", ".join(sorted(waiting & asked)):
                self.warnings.append(f"VM {machine.vmid} takes on {keys} when it is next stopped and started")
            left = [change for change in left if change.key not in waiting]
        if left:
            raise lost or OtherSide(
                f"VM {machine.vmid} did not take its config",
                why="; ".join(f"{each.key} is {each.before!r} instead of {each.after!r}" for each in left),
                next_step="look at its config in Proxmox, then run the command again",
            )
        return replace(machine, config=config)

    def _resize(self, step: Resize, machine: MachineFound) -> None:
        self._intend("resize", machine)
        try:
            upid = self._hypervisor.resize(machine.host, machine.vmid, disk=step.disk, size_gib=step.size_gib)
        except Unanswered:
            upid = self._begun("resize", machine)
            if upid is None:
                raise
        if upid is not None:
            self._journal.note("resize", upid=upid)
            what = f"growing {step.disk} of VM {machine.vmid} to {step.size_gib} GiB"
            self.warnings += follow(self._tools, upid, what, timeout_s=self._tools.patience.resize_s)

    def _start(self, step: Start, machine: MachineFound) -> None:
        self._intend("start", machine)
        try:
            upid: str | None = self._hypervisor.start(machine.host, machine.vmid)
        except Unanswered:
            upid = self._begun("start", machine)
            if upid is None:
                raise
        self._journal.note("start", upid=upid)
        timeout_s = step.timeout_s + self._tools.patience.start_margin_s
        try:
            self.warnings += follow(
                self._tools, str(upid), f"the start of VM {machine.vmid}", timeout_s=timeout_s
            )
        except TaskFailed as error:
            # It is ours, so whoever started it did what we want.
            if error.outcome != f"VM {machine.vmid} already running":
                raise


def _is_temporary(config: Config) -> bool:
    return config.get("lock") in {"clone", "create"} and str(config.get("description", "")).strip() in {
        "",
        _TEMPORARY,
    }
