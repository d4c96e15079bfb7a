"""Tasks of the lab's API: they run beside the requests, hold the lock file of their VM, and write a log."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from lab.guests import TaskFailed, Vm

Body = Callable[[], Awaitable[str | None]]

_CLONES = "clones"  # who holds the lock file of a VM that is being cloned, by several tasks maybe
_TASK: ContextVar[dict[str, Any]] = ContextVar("task")  # the record of the task that this code runs in


class Host(Protocol):
    """What tasks need of the API."""

    tasks: dict[str, dict[str, Any]]
    tasklog: list[dict[str, Any]]

    def _upid(self, node: str, ttype: str, tid: object, user: str) -> tuple[str, int, int]: ...

    async def acquire(self, vm: Vm, holder: str) -> None:
        """Take the lock file of a VM; an error when it stays another's."""

    def release(self, vm: Vm, holder: str) -> None:
        """Give the lock file of a VM back."""


class Tasks:
    """The tasks of one host.

    Args:
        host: the API, which keeps their records.
        foreseen: the errors that end a task with their own words.
    """

    def __init__(self, host: Host, *, foreseen: tuple[type[Exception], ...]) -> None:
        """No task runs."""
        self._host = host
        self._foreseen: tuple[type[Exception], ...] = (TaskFailed, *foreseen)
        self._running: set[asyncio.Task[None]] = set()
        self._clones_of: dict[int, int] = {}  # vmid -> how many tasks clone it now

    def begin(
        self,
        node: str,
        kind: str,
        tid: object,
        user: str,
        body: Body,
        *,
        vm: Vm | None = None,
        log: Iterable[str] = (),
    ) -> str:
        """Start a task, which holds the lock file of its VM while it runs; its UPID."""
        upid, pid, start = self._host._upid(node, kind, tid, user)  # noqa: SLF001 - how the host counts them
        record = {
            "upid": upid,
            "node": node,
            "pid": pid,
            "pstart": pid * 7,
            "starttime": start,
            "type": kind,
            "id": str(tid),
            "user": user,
            "status": "running",
            "log": list(log),
        }
        self._host.tasks[upid] = record
        self._host.tasklog.append(record)
        running = asyncio.ensure_future(self._run(record, body, vm))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return upid

    def close(self) -> None:
        """End what still runs."""
        for running in self._running:
            running.cancel()

    @staticmethod
    def log(text: str) -> None:
        """Add a line to the log of the task that this is called in."""
        _TASK.get()["log"].append(text)

    @asynccontextmanager
    async def cloned(self, vm: Vm) -> AsyncIterator[None]:
        """Hold a VM's lock file as its clones do: together, while nobody else may have it.

        Raises:
            TaskFailed: somebody else kept it.
        """
        if vm.lock_holder != _CLONES:
            try:
                await self._host.acquire(vm, _CLONES)
            except self._foreseen as error:
                raise TaskFailed(str(error)) from error
        self._clones_of[vm.vmid] = self._clones_of.get(vm.vmid, 0) + 1
        try:
            yield
        finally:
            self._clones_of[vm.vmid] -= 1
            if not self._clones_of[vm.vmid]:
                self._host.release(vm, _CLONES)

    async def _run(self, record: dict[str, Any], body: Body, vm: Vm | None) -> None:
        _TASK.set(record)
        log: list[str] = record["log"]
        outcome = "OK"
        try:
            note = await self._locked(body, vm, record["upid"])
            log.extend(note.splitlines() if note else ())
        except self._foreseen as error:
            outcome = " ".join(str(error).split())
        except Exception as error:  # noqa: BLE001 - a task always ends, and says how
            sys.stderr.write(f"{record['type']} {record['id']}: {type(error).__name__}: {error}\n")
            outcome = " ".join(str(error).split()) or type(error).__name__
        log.append("TASK OK" if outcome == "OK" else f"TASK ERROR: {outcome}")
        record |= {"status": "stopped", "exitstatus": outcome, "endtime": int(time.time())}

    async def _locked(self, body: Body, vm: Vm | None, upid: str) -> str | None:
        if vm is None:
            return await body()
        if waits := vm.lock_holder is not None:
            self.log("trying to acquire lock...")
        await self._host.acquire(vm, upid)
        try:
            if waits:
                self.log(" OK")
            return await body()
        finally:
            self._host.release(vm, upid)
