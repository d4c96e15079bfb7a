"""Switching the lab's VMs on and off: what their tasks do, and what becomes of them afterwards."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from lab import hardware
from lab.guests import TaskFailed, Vm, no_config, not_found
from lab.machines import CannotStart, Machine, Machines
from lab.nodes import LiveNode, Powered
from lab.tasks import Tasks

_LAUNCH_GRACE_S = 0.3  # a node that cannot be launched says so in this time, and its start task fails
_WATCH_EVERY_S = 1.0
_SHUTDOWN_S = 180.0  # a real host gives a machine of its own speed 60 s

_T = TypeVar("_T")


async def done(future: Future[_T]) -> _T:
    """The result of work in a thread."""
    return await asyncio.wrap_future(future)


class Power:
    """The power switch of every VM.

    Args:
        machines: the nodes behind the VMs.
        vms: all VMs of the host, as they are now.
        written: called with a VM whose cloud-init drive is being written, as a start does.
        disc: the ISO image that a VM starts with; it raises TaskFailed if its file is no more.
    """

    def __init__(
        self,
        machines: Machines,
        *,
        vms: Callable[[], Iterable[Vm]],
        written: Callable[[Vm], None],
        disc: Callable[[Vm], bytes | None] = lambda _vm: None,
    ) -> None:
        """Everything is off."""
        self._machines = machines
        self._vms = vms
        self._written = written
        self._disc = disc
        self._background: set[asyncio.Task[None]] = set()

    def watch(self) -> None:
        """From now on, a node that switches itself off, or dies, is a VM that is stopped."""
        self._in_background(self._watch())

    def close(self) -> None:
        """Stop watching."""
        for task in self._background:
            task.cancel()

    def work(self, action: str) -> Callable[[str, int], Awaitable[None]] | None:
        """What the task of an action does to a VM; None for what the lab's machines cannot."""
        works: dict[str, Callable[[str, int], Awaitable[None]]] = {
            "start": self.start,
            "stop": self.stop,
            "shutdown": self.shut_down,
            "reboot": self.shut_down,
            "reset": self.reset,
        }
        return works.get(action)

    def unlocked(self, node: str, vmid: int) -> Vm:
        """The VM, where a task may work on it.

        Raises:
            TaskFailed: it does not exist, or it is locked.
        """
        vm = self._find(node, vmid)
        if vm is None:
            raise TaskFailed(no_config(node, vmid))
        if vm.lock:
            raise TaskFailed(f"VM is locked ({vm.lock})")
        return vm

    async def start(self, node: str, vmid: int) -> None:
        """What a start task does; it ends when the node is launched, and the agent answers once it is up.

        Raises:
            TaskFailed: the VM cannot start.
        """
        vm = self.unlocked(node, vmid)
        if vm.template:
            raise TaskFailed("you can't start a vm if it's a template")
        if vm.status == "running":
            raise TaskFailed(f"VM {vmid} already running")
        vm.apply_pending()
        drive = bool(hardware.cloudinit_drives(vm.config))
        if drive and (reason := hardware.why_no_drive(vm.config)) is not None:
            raise TaskFailed(reason)
        if drive:
            Tasks.log("generating cloud-init ISO")
            self._written(vm)
        if (reason := hardware.why_not_started(vm.config)) is not None:
            raise TaskFailed(reason)
        try:
            disc = self._disc(vm)
            machine = self._machines.start(vmid, vm.config, name=vm.config.get("name", vm.name), disc=disc)
        except CannotStart as error:
            raise TaskFailed(str(error)) from error
        vm.status = vm.qmpstatus = "running"
        vm.started_at = time.time()
        if (failed := await self._boot_error(machine, timeout_s=_LAUNCH_GRACE_S)) is not None:
            await self._fallen(vm)
            raise TaskFailed(f"start failed: {failed}")
        self._in_background(self._boot_ends(vm, machine))

    async def stop(self, node: str, vmid: int) -> None:
        """What a stop task does; a VM that is off stays so."""
        vm = self._find(node, vmid)
        if vm is None:
            raise TaskFailed(not_found(node, vmid))
        if vm.status == "running":
            self.unlocked(node, vmid)
            await done(self._machines.stop(vmid))
            vm.status = vm.qmpstatus = "stopped"

    async def shut_down(self, node: str, vmid: int) -> None:
        """What a shutdown task does, and the first half of a reboot.

        Raises:
            TaskFailed: the guest did not switch itself off in time; the VM runs on.
        """
        vm = self._find(node, vmid)
        if vm is None:
            raise TaskFailed(not_found(node, vmid))
        if vm.status == "running":
            self.unlocked(node, vmid)
            if not await done(self._machines.shut_down(vmid, timeout_s=_SHUTDOWN_S)):
                raise TaskFailed("VM quit/powerdown failed - got timeout")
            vm.status = vm.qmpstatus = "stopped"

    async def reset(self, node: str, vmid: int) -> None:
        """What a reset task does."""
        await self.stop(node, vmid)
        await self.start(node, vmid)

    async def live_node(self, vmid: int, *, timeout_s: float) -> LiveNode | None:
        """The node of a VM that is up, or comes up within the time; None otherwise."""
        machine = self._machines.get(vmid)
        if machine is None or not machine.agent:
            return None
        await self._boot_error(machine, timeout_s=timeout_s)
        node = machine.node
        if node is None:
            return None
        # The agent of a guest that has one can be down while the guest runs.
        answers = node.agent_answers if isinstance(node, Powered) else node.alive
        return node if await done(self._machines.ask(answers)) else None

    def _find(self, node: str, vmid: int) -> Vm | None:
        return next((vm for vm in self._vms() if vm.vmid == vmid and vm.node == node), None)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            for vm in [vm for vm in self._vms() if vm.status == "running"]:
                machine = self._machines.get(vm.vmid)
                if machine is None or machine.node is None:
                    continue
                alive = await done(self._machines.ask(machine.node.alive))
                if not alive and self._machines.get(vm.vmid) is machine:
                    await self._fallen(vm)

    @staticmethod
    async def _boot_error(machine: Machine, *, timeout_s: float | None) -> BaseException | None:
        """Why a boot failed, if it did within the time."""
        booting = asyncio.wrap_future(machine.booting)
        booting.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        await asyncio.wait({booting}, timeout=timeout_s)
        return booting.exception() if booting.done() and not booting.cancelled() else None

    async def _boot_ends(self, vm: Vm, machine: Machine) -> None:
        """A machine that was launched and then never came up is a VM that stopped."""
        if (error := await self._boot_error(machine, timeout_s=None)) is not None:
            sys.stderr.write(f"vm {vm.vmid} did not come up: {error}\n")
            if self._machines.get(vm.vmid) is machine:
                await self._fallen(vm)

    async def _fallen(self, vm: Vm) -> None:
        vm.status = vm.qmpstatus = "stopped"
        await done(self._machines.stop(vm.vmid))

    def _in_background(self, work: Any) -> None:  # noqa: ANN401 - a coroutine of any kind
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
