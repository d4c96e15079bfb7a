"""The steps, carried out against the `Hypervisor` port: each is noted before its write, and can be resumed.

A VM is ours if it has our uuid or, before it was configured, our marker; no other VM is ever touched.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, assert_never

from inventory.errors import OtherSide
from provision.config import differences, is_ours, marker
from provision.facts import Facts, read_facts
from provision.hypervisor import IdTaken, Unanswered, Unreachable
from provision.journal import Journal
from provision.plan import (
    Clone,
    Configure,
    MachineFound,
    ReadFacts,
    Resize,
    Start,
    Step,
    TemplateFound,
    plan,
)
from provision.properties import Config
from provision.spec import VmIds
from provision.tasks import TaskFailed, Tools, follow
from provision.wanted import NodeSpec

Other = Literal["absent", "foreign", "unclear", "cloning"]
# The config of a clone in its first moment, before Proxmox has written the real one (qemu-server clone_vm).
_TEMPORARY = "qmclone temporary file"
_TASK_KINDS = {"resize": "resize", "start": "qmstart"}


class Making:
    """One node's VM on its way.

    Args:
        template: what it is cloned from; None where the VM is known to exist.
        taken: VM ids that are on record for other nodes.
    """

    def __init__(
        self,
        tools: Tools,
        journal: Journal,
        spec: NodeSpec,
        *,
        template: TemplateFound | None,
        vmids: VmIds | None,
        taken: frozenset[int],
    ) -> None:
        """Nothing is asked or written yet."""
        self._tools = tools
        self._hypervisor = tools.hypervisor
        self._journal = journal
        self._spec = spec
        self._template = template
        self._vmids = vmids
        self._taken = taken
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
        facts = None
        for step in plan(self._spec, template=None, machine=machine, uuid=self._uuid, known=False):
            machine, facts = self.carry_out(step, machine)
        return machine, facts

    def carry_out(self, step: Step, machine: MachineFound) -> tuple[MachineFound, Facts | None]:
        """One step on a VM that is there; the VM after it."""
        match step:
            case Clone():
                raise ValueError("a VM that is there is not cloned")
            case Configure():
                return self._configure(step, machine), None
            case Resize():
                self._resize(step, machine)
                return machine, None
            case Start():
                self._start(step, machine)
                return replace(machine, running=True), None
            case ReadFacts():
                self._journal.note("read")
                facts = read_facts(self._tools, self._spec, machine)
                self.warnings += facts.warnings
                return machine, facts
            case _:
                assert_never(step)

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
        order, *_ = plan(self._spec, template=self._template, machine=None, uuid=self._uuid, known=False)
        if not isinstance(order, Clone):
            raise TypeError("a plan without a machine begins with a clone")
        for vmid in self._ids():
            self._journal.note("clone", vmid=vmid, proxmox_node=order.host)
            try:
                upid = self._hypervisor.clone(
                    order, vmid=vmid, name=self._spec.name, description=marker(self._spec.name, self._uuid)
                )
            except IdTaken:
                found = self._look()  # ours, if an answer to a former run was lost
                if isinstance(found, MachineFound):
                    return found
                self._tools.console.detail(f"VM id {vmid} was taken meanwhile; another one is drawn")
                self._journal.note("clone", vmid=None)
                continue
            except Unanswered:
                found = self._look(patient=True)
                if isinstance(found, MachineFound):
                    return found
                raise
            self._journal.note("clone", upid=upid)
            what = f"the clone of template {order.template} to VM {vmid}"
            self.warnings += follow(self._tools, upid, what, timeout_s=self._tools.patience.clone_s)
            found = self._look(patient=True)
            if isinstance(found, MachineFound):
                return found
            raise OtherSide(
                f"{what} ended well, and there is no such VM",
                why=f"on {order.host} VM {vmid} is {found}",
                next_step="look who removed it, then run the command again",
            )
        raise OtherSide(
            f"no VM id was free for {self._spec.name}",
            why=f"{self._tools.patience.draws} ids were drawn, and each was taken before the clone began",
            next_step="run the command again, or widen vmids in the site file",
        )

    def _ids(self) -> Iterator[int]:
        """VM ids to try: the one on record (a lost clone may stand there), then drawn ones."""
        if self._journal.node.vmid is not None:
            yield self._journal.node.vmid
        tried: set[int] = set()
        for _ in range(self._tools.patience.draws):
            vmid = self._draw(tried)
            tried.add(vmid)
            yield vmid

    def _draw(self, tried: set[int]) -> int:
        """A VM id that looks free; it is claimed by the clone only."""
        passed = tried | self._taken
        if self._vmids is None:
            first = self._hypervisor.free_id()
            if first is not None and first not in passed:
                return first
            # The cluster still calls it free while another clone claims it.
            candidates = range((first or 99) + 1, (first or 99) + 1000)
        else:
            candidates = range(self._vmids.first, self._vmids.last + 1)
            passed |= {guest.vmid for guest in self._hypervisor.guests()}
        for candidate in candidates:
            if candidate not in passed and self._hypervisor.free_id(candidate) is not None:
                return candidate
        raise OtherSide(
            f"no VM id is free for {self._spec.name}",
            why=f"every id from {candidates.start} to {candidates.stop - 1} is taken",
            next_step="widen vmids in the site file, or retire a node",
        )

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
        return MachineFound(vmid, host, config, self._hypervisor.running(host, vmid))

    def _owned(self, config: Config) -> bool:
        return is_ours(config, self._spec.name, self._uuid, configured=self._journal.configured)

    def _after_its_tasks(self, machine: MachineFound) -> MachineFound:
        """The VM after the task that a former run began and did not see end; a failure is left to the plan."""
        step = self._journal.step or ""
        if step not in _TASK_KINDS:
            return machine
        upid = self._journal.upid or self._hypervisor.newest_task(
            machine.host, vmid=machine.vmid, kind=_TASK_KINDS[step]
        )
        status = None if upid is None else self._hypervisor.task(upid)
        if upid is None or status is None or status.outcome is not None:
            return machine
        self._journal.note(step, upid=upid)
        self._follow_noted(step, f"the {step} of VM {machine.vmid}", self._tools.patience.clone_s)
        config = self._hypervisor.config(machine.host, machine.vmid)
        running = self._hypervisor.running(machine.host, machine.vmid)
        return replace(machine, config=config or machine.config, running=running)

    def _follow_noted(self, step: str, what: str, timeout_s: float) -> None:
        if self._journal.step == step and self._journal.upid is not None:
            try:
                self.warnings += follow(self._tools, self._journal.upid, what, timeout_s=timeout_s)
            except TaskFailed as error:
                self._tools.console.detail(f"{error.what}: {error.outcome}; it is begun again")

    def _configure(self, step: Configure, machine: MachineFound) -> MachineFound:
        self._journal.note("configure")
        lost: Unanswered | None = None
        try:
            self._hypervisor.configure(
                machine.host,
                machine.vmid,
                changes={change.key: change.after for change in step.changes if change.after is not None},
                delete=[change.key for change in step.changes if change.after is None],
                digest=step.digest,
            )
        except Unanswered as error:
            lost = error
        config = self._hypervisor.config(machine.host, machine.vmid) or {}
        asked = {change.key for change in step.changes}
        left = [change for change in differences(self._spec, config, self._uuid) if change.key in asked]
        if left and machine.running:
            keys = ", ".join(change.key for change in left)
            self.warnings.append(f"VM {machine.vmid} takes on {keys} when it is next stopped and started")
        elif left:
            raise lost or OtherSide(
                f"VM {machine.vmid} did not take its config",
                why="; ".join(f"{each.key} is {each.before!r} instead of {each.after!r}" for each in left),
                next_step="look at its config in Proxmox, then run the command again",
            )
        return replace(machine, config=config)

    def _resize(self, step: Resize, machine: MachineFound) -> None:
        self._journal.note("resize")
        try:
            upid = self._hypervisor.resize(machine.host, machine.vmid, disk=step.disk, size_gib=step.size_gib)
        except Unanswered:
            upid = self._hypervisor.newest_task(machine.host, vmid=machine.vmid, kind="resize")
            if upid is None:
                raise
        if upid is not None:
            self._journal.note("resize", upid=upid)
            what = f"growing {step.disk} of VM {machine.vmid} to {step.size_gib} GiB"
            self.warnings += follow(self._tools, upid, what, timeout_s=self._tools.patience.resize_s)

    def _start(self, step: Start, machine: MachineFound) -> None:
        self._journal.note("start")
        try:
            upid: str | None = self._hypervisor.start(machine.host, machine.vmid)
        except Unanswered:
            upid = self._hypervisor.newest_task(machine.host, vmid=machine.vmid, kind="qmstart")
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
    return config.get("lock") == "clone" and str(config.get("description", "")).strip() in {"", _TEMPORARY}
