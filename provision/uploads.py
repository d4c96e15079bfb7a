"""The adapter's verbs for a disc of ours, and for what Proxmox's own would hold; part of `proxmox.Proxmox`."""

import hashlib
import io
from typing import Any, Literal


class Uploads:
    """Verbs over the two calls that the adapter has."""

    def _get(self, *path: str | int, **params: Any) -> Any:  # noqa: ANN401 - JSON
        raise NotImplementedError

    def _write(self, method: str, path: tuple[str | int, ...], **params: Any) -> Any:  # noqa: ANN401 - JSON
        raise NotImplementedError

    def discs(self, host: str, storage: str) -> frozenset[str]:
        """The ISO images of a storage, by their volumes."""
        rows = self._get("nodes", host, "storage", storage, "content", content="iso")
        return frozenset(str(row["volid"]) for row in rows)

    def upload_disc(self, host: str, volume: str, data: bytes) -> str:
        """Begin to put an ISO image on a storage, in the place of one of this name; the task's UPID.

        Proxmox checks what arrived by its SHA-256.
        """
        storage, _, path = volume.partition(":")
        file = io.BytesIO(data)
        file.name = path.rpartition("/")[2]
        checked = {"checksum": hashlib.sha256(data).hexdigest(), "checksum-algorithm": "sha256"}
        where = ("nodes", host, "storage", storage, "upload")
        return str(self._write("POST", where, content="iso", filename=file, **checked))

    def delete_disc(self, host: str, volume: str) -> str | None:
        """Begin to delete an ISO image; the task's UPID."""
        storage = volume.partition(":")[0]
        upid = self._write("DELETE", ("nodes", host, "storage", storage, "content", volume))
        return None if upid is None else str(upid)

    def cloud_init_file(self, host: str, vmid: int, kind: Literal["user", "meta", "network"]) -> str:
        """A file that Proxmox's own cloud-init drive holds, or would hold."""
        return str(self._get("nodes", host, "qemu", vmid, "cloudinit", "dump", type=kind) or "")
