"""A VM taken away: out of HA, switched off, destroyed; each write is noted first, and can be resumed.

Only a VM with the node's uuid is touched, or one that was never configured and has our marker.
"""

import contextlib

from inventory.errors import OtherSide, Refused
from provision.config import is_ours
from provision.hypervisor import Unanswered, Unreachable
from provision.journal import Journal
from provision.properties import Config
from provision.seeding import Seeding
from provision.slots import attached_seeds
from provision.tasks import TaskFailed, Tools, follow

_TASK_KINDS = {"stop": "qmstop", "destroy": "qmdestroy", "start": "qmstart", "resize": "resize"}


class Unmaking:
    """One node's VM on its way out.

    Args:
        configured: the VM surely has our uuid; without it our marker counts too.
    """

    def __init__(self, tools: Tools, journal: Journal, *, configured: bool) -> None:
        """Nothing is asked or written yet."""
        self._tools = tools
        self._hypervisor = tools.hypervisor
        self._journal = journal
        self._configured = configured
        self.warnings: list[str] = []

    def to_the_end(self, host: str) -> bool:
        """Take the VM away, wherever a former run stopped; False if there was none any more.

        host: the Proxmox node where it stands now.

        Raises:
            Refused: another VM has its id; that one is left alone.
            OtherSide: a step failed; the journal says which, and this can be called again.
        """
        seeds = set(self._journal.seeds)
        was_there = self._vm_to_the_end(host, seeds)
        seeding = Seeding(self._tools, self._journal)
        seeding.delete(seeds)
        self.warnings += seeding.warnings
        return was_there

    def _vm_to_the_end(self, host: str, seeds: set[str]) -> bool:
        """The VM alone; `seeds` learns of a disc of ours that is still attached to it."""
        node = self._journal.node
        if node.vmid is None:
            return False
        vmid = node.vmid
        if self._after_its_tasks(host, vmid) is None:
            return False
        if self._hypervisor.ha_managed(host, vmid):
            self._leave_ha(vmid)
        if self._hypervisor.running(host, vmid):
            self._stop(host, vmid)
        config = self._own(host, vmid)  # once more: much time may have gone by
        if config is None:
            return False
        for volume in set(attached_seeds(config, node.uuid).values()) - seeds:
            self._journal.note_seed("destroy", volume)  # Proxmox leaves an ISO image where it is
            seeds.add(volume)
        self._destroy(host, vmid)
        return True

    def _after_its_tasks(self, host: str, vmid: int) -> Config | None:
        """The VM once no task of a former run works on it; None if there is none."""
        if self._journal.step == "clone":
            return self._after_its_clone(host, vmid)
        upid = self._begun(host, vmid)
        if upid is not None:
            with contextlib.suppress(TaskFailed):  # what it left is looked at next
                self._follow(upid, f"the {self._journal.step} of VM {vmid}", self._tools.patience.destroy_s)
        return self._own(host, vmid)

    def _after_its_clone(self, host: str, vmid: int) -> Config | None:
        """A clone that runs is stopped, upon which Proxmox removes what it had made; one that was lost may appear."""
        patience = self._tools.patience
        config = self._own(host, vmid)
        upid = self._journal.upid
        if upid is not None:
            status = self._hypervisor.task(upid)
            if status is not None and status.outcome is None:
                self._hypervisor.stop_task(upid)
                with contextlib.suppress(TaskFailed):
                    self._follow(upid, f"the end of the clone to VM {vmid}", patience.clone_s)
            return self._unlocked(host, vmid, patience.stop_s)
        if config is None:
            what = f"whether VM {vmid} appears after all"
            with self._tools.console.waiting(what, timeout_s=patience.lost_answer_s) as waiting:
                for _ in self._tools.tries(patience.lost_answer_s):
                    config = self._own(host, vmid)
                    if config is not None:
                        break
                    waiting.update("there is none")
        return None if config is None else self._unlocked(host, vmid, patience.clone_s)

    def _unlocked(self, host: str, vmid: int, timeout_s: float) -> Config | None:
        """The VM once it is no longer being cloned."""
        config = self._own(host, vmid)
        with self._tools.console.waiting(
            f"the clone to VM {vmid} to be over", timeout_s=timeout_s
        ) as waiting:
            for _ in self._tools.tries(timeout_s):
                if config is None or config.get("lock") not in {"clone", "create"}:
                    return config
                waiting.update(f"it is locked ({config['lock']})")
                config = self._own(host, vmid)
        raise OtherSide(
            f"VM {vmid} is still being cloned after {timeout_s:.0f} s",
            why="its config has the lock of a clone, and we do not know the task",
            next_step=f"look at the tasks of {host} in Proxmox, then run the command again",
        )

    def _own(self, host: str, vmid: int) -> Config | None:
        """The config of the VM at our id, proved to be ours; None if there is none.

        Raises:
            Refused: it is another's.
        """
        node = self._journal.node
        config = self._hypervisor.config(host, vmid)
        if config is None:
            return None
        if config.get("lock") in {"clone", "create"} and "smbios1" not in config and not self._configured:
            return config  # the first moment of a clone; it is looked at again before anything is destroyed
        if is_ours(config, node.name, str(node.uuid), configured=self._configured):
            return config
        raise Refused(
            f"VM {vmid} on {host} was not touched",
            why=f"it is another machine: {config.get('smbios1', 'no uuid')}, and {node.name}'s is {node.uuid}",
            next_step=f"leave VM {vmid} alone; look for {node.name}'s in Proxmox by its uuid",
        )

    def _leave_ha(self, vmid: int) -> None:
        self._journal.note("leave-ha")
        try:
            self._hypervisor.leave_ha(vmid)
        except (Unreachable, Unanswered):
            raise
        except OtherSide as error:
            # Stopping goes through HA then, and the purge takes the VM out of it.
            self.warnings.append(f"VM {vmid} stays in HA until it is destroyed: {error.why}")

    def _stop(self, host: str, vmid: int) -> None:
        self._intend("stop", host, vmid)
        try:
            upid = self._hypervisor.stop(host, vmid)
        except Unanswered:
            found = self._begun(host, vmid)
            if found is None and self._hypervisor.running(host, vmid):
                raise
            upid = found or ""
        timeout_s = self._tools.patience.stop_s
        if upid:
            self._journal.note("stop", upid=upid)
            self._follow(upid, f"the stop of VM {vmid}", timeout_s)
        # A task of the HA manager only asks for the stop.
        with self._tools.console.waiting(f"VM {vmid} to be off", timeout_s=timeout_s) as waiting:
            for _ in self._tools.tries(timeout_s):
                if not self._hypervisor.running(host, vmid):
                    return
                waiting.update("it runs")
        raise OtherSide(
            f"VM {vmid} still runs after {timeout_s:.0f} s",
            why="its stop was asked for, and ended without an error",
            next_step=f"look at VM {vmid} on {host} in Proxmox, then run the command again",
        )

    def _destroy(self, host: str, vmid: int) -> None:
        self._intend("destroy", host, vmid)
        try:
            upid = self._hypervisor.destroy(host, vmid)
        except Unanswered:
            found = self._begun(host, vmid)
            if found is None and self._hypervisor.config(host, vmid) is not None:
                raise
            upid = found or ""
        if upid:
            self._journal.note("destroy", upid=upid)
            self._follow(upid, f"the removal of VM {vmid}", self._tools.patience.destroy_s)
        if self._hypervisor.config(host, vmid) is not None:
            raise OtherSide(
                f"VM {vmid} is still there",
                why="the task that destroys it ended well, and its config is left",
                next_step=f"look at VM {vmid} on {host} in Proxmox, then run the command again",
            )

    def _intend(self, step: str, host: str, vmid: int) -> None:
        known = self._hypervisor.newest_task(host, vmid=vmid, kind=_TASK_KINDS[step])
        self._journal.note(step, known=known)

    def _begun(self, host: str, vmid: int) -> str | None:
        """The task of the noted step: by its UPID, or the one that began after the note."""
        step = self._journal.step or ""
        if self._journal.upid is not None or step not in _TASK_KINDS:
            return self._journal.upid
        return self._hypervisor.newest_task(
            host, vmid=vmid, kind=_TASK_KINDS[step], known=self._journal.known
        )

    def _follow(self, upid: str, what: str, timeout_s: float) -> None:
        self.warnings += follow(self._tools, upid, what, timeout_s=timeout_s)
