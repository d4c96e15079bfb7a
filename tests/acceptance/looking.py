"""The port to Proxmox with one verb more: what lies in the storages, for a look at what was left behind."""

from collections.abc import Iterable

from inventory.errors import OtherSide
from provision.proxmox import Proxmox


class Looking(Proxmox):
    """The adapter, and what a look after the end needs; it writes no more than the adapter does."""

    def volumes(self, host: str) -> Iterable[tuple[str, int | None]]:
        """Every volume that the token may see on a host: its name, and the VM whose it is, if any."""
        try:
            storages = self.storages(host)
        except OtherSide:
            return
        for name, storage in storages.items():
            if not storage.active:
                continue
            try:
                rows = self._get("nodes", host, "storage", name, "content")
            except OtherSide:  # it may not look there, and so has put nothing there
                continue
            for row in rows:
                vmid = row.get("vmid")
                yield str(row["volid"]), None if vmid is None else int(vmid)
