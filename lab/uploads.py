"""Uploading ISO images to the lab's storages, whose bytes are kept as long as the storage lists them."""

import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from lab import discs, volumes
from lab.guests import TaskFailed, Vm, die, faulty

_PARAMETER = re.compile(r'\b(name|filename)="([^"]*)"')
_SUMS = frozenset({"md5", "sha1", "sha224", "sha256", "sha384", "sha512"})


class UploadCalls:
    """The call `POST .../upload`; what it stands on is the host's, whose class this is part of."""

    storages: dict[str, dict[str, Any]]
    uploads: dict[str, bytes]  # by volume
    require: Callable[[str, str, str], None]  # user, path, privilege
    identify: Callable[[web.Request], str]
    begin: Callable[..., Awaitable[str]]  # a task; its UPID

    async def _upload(self, request: web.Request) -> web.Response:
        storage, node = request.match_info["storage"], request.match_info["node"]
        user = self.identify(request)
        self.require(user, f"/storage/{storage}", "Datastore.AllocateTemplate")
        store = volumes.usable(self.storages, storage, node)
        fields, name, sent = await _received(request)
        if fields.get("content") != "iso":
            raise faulty(content="the lab takes content iso only")
        if not name.endswith(".iso"):
            raise faulty(filename="wrong file extension")
        if "iso" not in str(store.get("content", "")).split(","):
            die(f"storage '{storage}' does not support 'iso' content")

        async def body() -> None:
            volumes.activate(self.storages, storage)
            _check_sum(fields, sent)
            kept = {"content": "iso", "format": "iso", "size": len(sent), "ctime": int(time.time())}
            self.storages[storage].setdefault("volumes", {})[f"iso/{name}"] = kept
            self.uploads[f"{storage}:iso/{name}"] = sent

        return web.json_response({"data": await self.begin(node, "imgcopy", "", user, body)})

    def disc_of(self, vm: Vm) -> bytes | None:
        """The disc that a VM would start with, if it has one.

        Raises:
            TaskFailed: its file is no more.
        """
        for gone in self.uploads.keys() - set(self._listed()):
            del self.uploads[gone]
        volume = discs.attached(vm.config)
        if volume is not None and volume not in self.uploads:
            raise TaskFailed(f"volume '{volume}' does not exist")
        return None if volume is None else self.uploads[volume]

    def _listed(self) -> list[str]:
        return [
            f"{storage}:{name}"
            for storage, store in self.storages.items()
            for name in store.get("volumes", {})
        ]


async def _received(request: web.Request) -> tuple[Mapping[str, str], str, bytes]:
    """The plain fields, the file's name, and the file; taken apart here, for the body was read before (RFC 7578)."""
    _, _, boundary = request.headers.get("Content-Type", "").partition("boundary=")
    if not boundary:
        raise faulty(filename="bad upload request")
    fields: dict[str, str] = {}
    name, sent = "", b""
    for part in (b"\r\n" + await request.read()).split(b"\r\n--" + boundary.strip('"').encode())[1:-1]:
        head, _, value = part.partition(b"\r\n\r\n")
        told = dict(_PARAMETER.findall(head.decode()))
        if "filename" in told:
            name, sent = told["filename"], value
        else:
            fields[told.get("name", "")] = value.decode()
    return fields, name, sent


def _check_sum(fields: Mapping[str, str], sent: bytes) -> None:
    kind = fields.get("checksum-algorithm")
    if kind in _SUMS:
        got, wanted = hashlib.new(kind, sent).hexdigest(), fields.get("checksum", "").lower()
        if got != wanted:
            raise TaskFailed(f"checksum mismatch: got '{got}' != expect '{wanted}'")
