"""The adapter's verbs for what a cluster consists of and what the token may do; part of `proxmox.Proxmox`."""

import re
from collections.abc import Mapping
from typing import Any

from provision.hypervisor import Guest
from provision.placement import Devices, Load
from provision.plan import Fetch, StorageFound
from provision.properties import split, split_tags

_MIB = 1024**2
_BRIDGES = frozenset({"bridge", "OVSBridge"})
_USUAL_MTU = 1500  # octets; Proxmox names a bridge's MTU only where it was set


class Cluster:
    """Verbs over the one call that the adapter has."""

    def _get(self, *path: str | int, **params: Any) -> Any:  # noqa: ANN401 - JSON
        raise NotImplementedError

    def _write(self, method: str, path: tuple[str | int, ...], **params: Any) -> Any:  # noqa: ANN401 - JSON
        raise NotImplementedError

    def version(self) -> int:
        """Proxmox's major version."""
        return int(re.split(r"\D", str(self._get("version")["version"]), maxsplit=1)[0])

    def permissions(self) -> Mapping[str, Mapping[str, int]]:
        """What the token may do, by path: each privilege, and whether it holds below that path too."""
        found = self._get("access", "permissions") or {}
        return {
            str(path): {str(name): int(below) for name, below in held.items()} for path, held in found.items()
        }

    def guests(self) -> tuple[Guest, ...]:
        """The VMs that we may see."""
        return tuple(
            Guest(
                vmid=int(row["vmid"]),
                name=str(row.get("name", "")),
                host=str(row["node"]),
                template=bool(row.get("template")),
                tags=split_tags(str(row.get("tags") or "")),
                running=row.get("status") == "running",
                cpus=int(row.get("maxcpu") or 0),
                memory_mib=int(row.get("maxmem") or 0) // _MIB,
                reported=row.get("status") != "unknown",
            )
            for row in self._get("cluster", "resources", type="vm")
            if row.get("type") == "qemu"
        )

    def hosts(self) -> Mapping[str, Load]:
        """The Proxmox nodes and what they carry."""
        return {
            str(row["node"]): Load(
                online=row.get("status") == "online",
                memory_mib=int(row["maxmem"]) // _MIB if row.get("maxmem") else None,
                used_mib=int(row["mem"]) // _MIB if row.get("mem") is not None else None,
                cpus=int(row["maxcpu"]) if row.get("maxcpu") else None,
            )
            for row in self._get("nodes")
        }

    def storages(self, host: str) -> Mapping[str, StorageFound]:
        """The storages of a host."""
        return {
            str(row["storage"]): StorageFound(
                active=bool(int(row.get("active", 0))) and bool(int(row.get("enabled", 1))),
                images="images" in str(row.get("content", "")).split(","),
                shared=bool(int(row.get("shared", 0))),
                imports="import" in str(row.get("content", "")).split(","),
                discs="iso" in str(row.get("content", "")).split(","),
                kind=str(row.get("type", "")),
                free_mib=int(row.get("avail") or 0) // _MIB if row.get("total") else None,
            )
            for row in self._get("nodes", host, "storage")
        }

    def bridges(self, host: str) -> Mapping[str, int]:
        """The bridges of a host that the token may use, with their MTU."""
        return {
            str(row["iface"]): int(row.get("mtu") or _USUAL_MTU)
            for row in self._get("nodes", host, "network", type="any_bridge")
            # A bridge without `active` is staged or down; a virtual network of the SDN never tells.
            if row.get("type") == "vnet" or (row.get("type") in _BRIDGES and row.get("active"))
        }

    def devices(self, host: str) -> Mapping[str, Devices]:
        """The PCI mappings that the token may see, with their devices on a host."""
        found = {}
        for row in self._get("cluster", "mapping", "pci", **{"check-node": host}):
            here = [entry for entry in map(split, row.get("map") or ()) if entry.get("node") == host]
            errors = [
                str(check.get("message", "")).strip()
                for check in row.get("checks") or ()
                if check.get("severity") == "error"
            ]
            if here or errors:
                found[str(row["id"])] = Devices(len(here), "; ".join(errors) or None)
        return found

    def images(self, host: str, storage: str) -> frozenset[str]:
        """The images that a storage has to make VMs of, by their volumes."""
        rows = self._get("nodes", host, "storage", storage, "content", content="import")
        return frozenset(str(row["volid"]) for row in rows)

    def download(self, step: Fetch) -> str:
        """Begin to download an image, checked by Proxmox as it arrives; the task's UPID."""
        path = ("nodes", step.host, "storage", step.storage, "download-url")
        checked = {"checksum": step.sha256.lower(), "checksum-algorithm": "sha256"}
        return str(
            self._write("POST", path, content="import", filename=step.file_name, url=step.url, **checked)
        )

    def newest_download(self, step: Fetch) -> str | None:
        """The UPID of the newest download of that file."""
        rows = self._get("nodes", step.host, "tasks", typefilter="download", source="all")
        mine = [row for row in rows if row.get("id") in {step.file_name, step.storage}]
        return str(max(mine, key=lambda row: int(row.get("starttime", 0)))["upid"]) if mine else None
