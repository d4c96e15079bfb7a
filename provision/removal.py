"""The adapter's verbs for taking a VM away and for looking closer at one; part of `proxmox.Proxmox`."""

from typing import Any

from provision.hypervisor import Pending

_PAGE = 500


class Removal:
    """Verbs over the two calls that the adapter has."""

    def _get(self, *path: str | int, **params: Any) -> Any:  # noqa: ANN401 - JSON
        raise NotImplementedError

    def _write(self, method: str, path: tuple[str | int, ...], **params: Any) -> Any:  # noqa: ANN401 - JSON
        raise NotImplementedError

    def task_lines(self, upid: str, *, start: int) -> tuple[str, ...]:
        """The lines of a task's log from the line number `start` on, counted from 0."""
        path = ("nodes", upid.split(":")[1], "tasks", upid, "log")
        return tuple(str(row.get("t", "")) for row in self._get(*path, start=start, limit=_PAGE) or ())

    def stop_task(self, upid: str) -> None:
        """Ask a task to stop; it then ends with an error."""
        self._write("DELETE", ("nodes", upid.split(":")[1], "tasks", upid))

    def stop(self, host: str, vmid: int) -> str:
        """Begin to switch the VM off; the task's UPID."""
        return str(self._write("POST", ("nodes", host, "qemu", vmid, "status", "stop")))

    def destroy(self, host: str, vmid: int) -> str:
        """Begin to destroy the VM, with what names it elsewhere (backup jobs, HA); the task's UPID.

        Disks that its config does not name stay: another cluster on the same storage may own them.
        """
        return str(self._write("DELETE", ("nodes", host, "qemu", vmid), purge=1))

    def ha_managed(self, host: str, vmid: int) -> bool:
        """Whether the HA manager would start it again."""
        state = self._get("nodes", host, "qemu", vmid, "status", "current").get("ha") or {}
        return bool(int(state.get("managed", 0)))

    def leave_ha(self, vmid: int) -> None:
        """Take the VM out of the HA manager's hands."""
        self._write("DELETE", ("cluster", "ha", "resources", f"vm:{vmid}"))

    def pending(self, host: str, vmid: int) -> tuple[Pending, ...]:
        """What was changed and is taken on only when the VM is next stopped and started."""
        return tuple(
            Pending(
                str(row["key"]),
                before=None if row.get("value") is None else str(row["value"]),
                after=None if row.get("delete") else str(row["pending"]),
            )
            for row in self._get("nodes", host, "qemu", vmid, "pending")
            if row.get("delete") or row.get("pending") not in {None, row.get("value")}
        )
