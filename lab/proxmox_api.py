# SPDX-License-Identifier: AGPL-3.0-or-later
# ruff: noqa: ANN401 - fakepve carries no types
"""The lab's Proxmox API: fakepve, corrected where a real host answers otherwise, with real nodes as its VMs.

This one module is licensed AGPL-3.0-or-later, because it extends fakepve, which is. Nothing else in Muster
imports fakepve, and everything else is Apache-2.0.
"""

import re
import socket
import ssl
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from aiohttp import web
from fakepve import FakePve, FakeVm, PveError, TaskError
from fakepve import schema as pve_schema
from fakepve.lxc import random_mac
from fakepve.qemu import drives_of, split_drive, with_mac
from fakepve.routing import param_error
from fakepve.server import API, EXTJS, USER, params

from lab import agent, cloudinit, hardware
from lab.machines import Machines
from lab.power import Power, TaskFailed, done

Body = Callable[[], Awaitable[str | None]]
Values = Mapping[str, Any]

VERSION, RELEASE = "9.2.11", "9.2"
_AGENT_PING_S = 3.0  # how long a real host waits for guest-ping
_UPID = re.compile(r"UPID:[^:\s]+:[0-9A-F]{8}:[0-9A-F]{8,9}:[0-9A-F]{8}:[^:\s]+:[^:\s]*:[^:\s]+:")
_QEMU = "/nodes/{node}/qemu/{vmid}"
_ROOT_ONLY = frozenset({"args", "hookscript", "lock"})


def _data(data: object) -> web.Response:
    return web.json_response({"data": data})


class LabPve(FakePve):  # type: ignore[misc]  # fakepve carries no types
    """One Proxmox host whose VMs are real machines.

    Args:
        machines: the nodes behind the VMs.
        host: the address that it listens on.
        node: the host's name in the API.
    """

    def __init__(self, machines: Machines, *, host: str, node: str = "lab") -> None:
        """An empty host; `add_template` gives it something to clone."""
        # No password logs in: the lab's world has a token, and root's password is never told.
        super().__init__(host=host, password=uuid.uuid4().hex)
        self.machines = machines
        self.node_name = node
        self.nodes = {node: {"online": True}}
        self.version, self.release_version = VERSION, RELEASE
        self.time_scale = 1.0  # tasks run beside the request, as on a real host
        self._written: dict[int, dict[str, object]] = {}  # vmid -> cloud-init keys as last put on its drive
        self.acl: dict[str, list[tuple[str, set[str]]]] = {}
        self.power = Power(machines, vms=lambda: list(self.vms), written=self._write_drive)

    # ------------------------------------------------------------------ life of the server

    async def serve(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        """Answer on a socket that already listens, until `stop`."""
        self.runner = web.AppRunner(self._build_app(), access_log=None, shutdown_timeout=1.0)
        await self.runner.setup()
        await web.SockSite(self.runner, listening, ssl_context=context).start()
        self.power.watch()

    async def stop(self) -> None:
        """Stop answering; the machines are the caller's to close."""
        self.power.close()
        await super().stop()

    def add_template(self, vmid: int, name: str, *, storage: str, disk_gib: int) -> None:
        """A template that is ready to be cloned, and its volumes."""
        config, volumes = hardware.template(vmid, storage=storage, disk_gib=disk_gib, mac=random_mac())
        self.add_vm(vmid, name, node=self.node_name, template=True, config=config)
        kept = self.storages[storage].setdefault("volumes", {})
        for volume, size in volumes.items():
            kept[volume] = {"content": "images", "format": "raw", "size": size, "vmid": vmid, "ctime": 0}

    def add_token(self, token: str, secret: str, privileges: Mapping[str, Iterable[str]]) -> None:
        """Let `user@realm!name` in, with these privileges by path and no others."""
        self.apitokens[token] = secret
        for path, names in privileges.items():
            self.grant(token, path, *names)

    # ------------------------------------------------------------------ how it answers

    def _routes_lab(self) -> list[tuple[str, str, Any]]:
        return [
            ("GET", "/cluster/nextid", self._nextid),
            ("PUT", f"{_QEMU}/resize", self._resize),
            ("GET", f"{_QEMU}/cloudinit", self._cloudinit),
            ("PUT", f"{_QEMU}/cloudinit", self._cloudinit_write),
            ("GET", f"{_QEMU}/cloudinit/dump", self._cloudinit_dump),
        ]

    def _build_app(self) -> web.Application:
        app: web.Application = super()._build_app()
        app.router.add_get("/lab/status", self._lab_status)
        return app

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        response: web.StreamResponse = await super()._middleware(request, handler)
        if response.status == 401 and not request.path.endswith("/access/ticket"):
            # The proxy in front of a real API says why in the reason phrase alone.
            response = web.Response(status=401, reason=response.reason)
            response.force_close()
        response.headers["Server"] = "pve-api-daemon/3.0"
        return response

    def _authenticate(self, request: web.Request) -> str | None:
        try:
            user: str | None = super()._authenticate(request)
        except PveError as refused:
            token = request.headers.get("Authorization", "").startswith("PVEAPIToken")
            if "csrf" in refused.message:
                raise
            known = token or "PVEAuthCookie" in request.cookies
            raise PveError(401, "Authentication failed!" if known else "No ticket") from refused
        return user

    async def answer(
        self, request: web.Request, match: Any, params: Values, user: str | None, call: Any = None
    ) -> Any:
        """Check a request in the order of a real host (method, permission, parameters), then answer it."""
        if match is None or request.method not in match.methods:
            path = re.sub(f"^({API}|{EXTJS})", "", request.path)
            raise PveError(501, f"Method '{request.method} {path}' not implemented")
        info = match.methods[request.method]
        declared = (info.get("parameters") or {}).get("properties", {})
        self.check_permissions(user, info.get("permissions"), {**params, **match.params}, declared)
        if wrong := hardware.wrong_booleans(declared, params):
            raise param_error(**wrong)
        return await super().answer(request, match, params, user, call)

    def _verify(self, request: web.Request, values: Values, drop: Iterable[str] = ()) -> Any:
        info = self.resolve(request, API).methods[request.method]
        declared = (info.get("parameters") or {}).get("properties", {})
        if wrong := hardware.wrong_booleans(declared, values):
            raise param_error(**wrong)
        return super()._verify(request, values, drop)

    async def _nextid(self, values: Values, _user: str) -> str:
        if (wanted := values.get("vmid")) is not None:
            if self._qm_taken(int(wanted)):
                raise param_error(vmid=f"VM {wanted} already exists")
            return str(wanted)
        return str(next(n for n in range(100, 10**9) if not self._qm_taken(n)))

    async def _lab_status(self, _request: web.Request) -> web.Response:
        """Not of Proxmox: the VMs and the nodes behind them, for `node-lab status`."""
        rows = []
        for vm in sorted(self.vms, key=lambda vm: int(vm.vmid)):
            row = {"vmid": vm.vmid, "name": vm.name, "status": vm.status, "template": bool(vm.template)}
            rows.append({**row, "node": await done(self.machines.ask(self.machines.describe, vm.vmid))})
        return web.json_response({"vms": rows})

    # ------------------------------------------------------------------ tasks

    async def task(
        self,
        node: str,
        ttype: str,
        tid: object,
        user: str,
        body: Body,
        vm: Any = None,
        lock: bool = True,  # noqa: FBT001, FBT002 - the signature fakepve calls
        log: Iterable[str] = (),
    ) -> str:
        """Start a task; a clone gets its own cloud-init drive, and a VM that goes takes its node with it."""
        if ttype == "qmclone":
            self._own_cloudinit(vm)

        async def run() -> str | None:
            try:
                note = await body()
                if ttype == "qmdestroy":
                    await done(self.machines.forget(vm.vmid))
                    self._written.pop(vm.vmid, None)
            except (TaskFailed, TaskError, PveError) as error:
                raise TaskError(" ".join(str(error).split())) from error
            except Exception as error:
                sys.stderr.write(f"{ttype} {tid}: {type(error).__name__}: {error}\n")
                raise TaskError(" ".join(str(error).split()) or type(error).__name__) from error
            else:
                return note

        upid: str = await super().task(node, ttype, tid, user, run, vm=vm, lock=lock, log=log)
        return upid

    def _task_view(self, task: Mapping[str, Any], listing: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002
        view: dict[str, Any] = super()._task_view(task, listing)
        view["user"] = view["user"].partition("!")[0]
        return view

    def _get_task(self, request: web.Request) -> Any:
        upid = request.match_info["upid"]
        if not _UPID.fullmatch(upid):
            raise param_error(upid="unable to parse worker upid")
        if upid not in self.tasks:
            raise param_error(upid="no such task")
        return super()._get_task(request)

    async def _task_log(self, request: web.Request) -> web.Response:
        asked = self._verify(request, await params(request))
        try:
            lines = list(self._get_task(request)["log"])
        except PveError as error:
            if (error.errors or {}).get("upid") != "no such task":
                raise
            lines = ["unable to open file - No such file or directory"]
        if len(lines) > 1 and lines[-1] == f"TASK ERROR: {lines[-2]}":
            del lines[-2]  # fakepve writes the reason twice
        start, limit = asked.get("start", 0), asked.get("limit", 50) or None
        rows = [{"n": n, "t": text} for n, text in enumerate(lines or ["no content"], 1)]
        page = rows[start : start + limit if limit else None]
        return web.json_response({"data": page, "total": len(rows)})

    async def _task_list(self, request: web.Request) -> web.Response:
        response: web.Response = await super()._task_list(request)
        node, user = request.match_info["node"], request[USER]
        audit = self.allowed(user, f"/nodes/{node}", "Sys.Audit")
        shown = [task for task in self.tasklog if audit or self._task_owner(user, task)]
        text = (response.text or "").removesuffix("}")
        return web.Response(text=f'{text}, "total": {len(shown)}}}', content_type="application/json")

    # ------------------------------------------------------------------ power

    async def _status_action(self, request: web.Request) -> web.Response:
        user = request[USER]

        async def call(match: Any, values: Values) -> str:
            self.need_quorum()
            action, node, vmid = match.template.rsplit("/", 1)[1], values["node"], int(values["vmid"])
            vm = self.vm(vmid)
            if action in {"start", "stop", "shutdown"}:
                work = self.power.start if action == "start" else self.power.stop
                upid = await self.task(node, f"qm{action}", vmid, user, lambda: work(node, vmid), vm=vm)
            elif action in {"reboot", "reset"}:
                self._need_running(self.find(node, vmid))
                upid = await self.task(
                    node, f"qm{action}", vmid, user, lambda: self.power.reboot(node, vmid), vm=vm
                )
            else:
                raise PveError(500, f"the lab's machines cannot {action}")
            return upid

        match = self.resolve(request, API)
        return _data(await self.answer(request, match, await params(request), user, call))

    # ------------------------------------------------------------------ configuration

    def _config_priv(self, key: str) -> str:
        priv: str = "VM.Config.Cloudinit" if cloudinit.is_cloudinit_key(key) else super()._config_priv(key)
        return priv

    async def _config_get(self, request: web.Request) -> web.Response:
        vm = self._vm(request, "VM.Audit")
        declared = pve_schema.load().paths[f"{_QEMU}/config"]["PUT"]["parameters"]["properties"]
        return _data({**hardware.shown(vm.config, declared), "digest": vm.digest()})

    async def _apply_config(self, vm: Any, user: str, changes: Values) -> None:
        updates = dict(changes)
        if not updates.keys() - {"digest", "skiplock", "node", "vmid"}:
            raise PveError(500, "no options specified")
        for key in sorted(updates.keys() & _ROOT_ONLY):
            if user != "root@pam":
                raise PveError(500, f"only root can set '{key}' config")
        if "startup" in updates:
            self.require(user, "/", "Sys.Modify")
        if "sshkeys" in updates and not cloudinit.are_public_keys(str(updates["sshkeys"])):
            raise PveError(500, "SSH public key validation error")
        if "tags" in updates:
            updates["tags"] = hardware.tags(updates["tags"])
        drives = [key for key, _volume, _options in drives_of(updates)]
        for key in drives:
            if split_drive(updates[key])[0].endswith(":cloudinit"):
                self._refuse_second_drive(vm, key)
        updates.update({k: with_mac(v) for k, v in updates.items() if re.fullmatch(r"net\d+", k)})
        await super()._apply_config(vm, user, updates)
        for key in drives:
            where = vm.pending if key in vm.pending else vm.config
            where[key] = self._qm_new_drive(vm.vmid, key, where[key], None)[0]

    @staticmethod
    def _refuse_second_drive(vm: Any, key: str) -> None:
        for present, volume in hardware.cloudinit_drives(vm.config).items():
            if present == key:
                raise PveError(500, f"disk image '{volume}' already exists")
            raise PveError(500, f"{key} - cloud-init drive is already attached at '{present}'")

    async def _resize(self, values: Values, user: str) -> str:
        node, vmid = values["node"], int(values["vmid"])

        async def body() -> str | None:
            vm = self.power.unlocked(node, vmid)
            if values.get("digest") not in {None, vm.digest()}:
                raise TaskError("checksum mismatch (file change by other user?)")
            device, size = values["disk"], str(values["size"])
            try:
                change = hardware.resized(device, vm.config.get(device), size=size)
            except hardware.CannotResize as error:
                raise TaskFailed(str(error)) from error
            if change is None:
                return None
            storage, _, volume = split_drive(change[0])[0].partition(":")
            self.require(user, f"/storage/{storage}", "Datastore.AllocateSpace")
            self.storages[storage].setdefault("volumes", {}).setdefault(volume, {})["size"] = change[1]
            vm.config[device] = change[0]
            return f"update VM {vmid}: resize --disk {device} --size {size}"

        return await self.task(node, "resize", vmid, user, body, vm=self.vm(vmid))

    # ------------------------------------------------------------------ clones and cloud-init

    async def _qm_clone(self, values: Values, user: str) -> Any:
        source = self.vm(int(values["vmid"]))
        if source is None or source.node != values["node"]:
            raise PveError(
                500, f"unable to find configuration file for VM {values['vmid']} on node '{values['node']}'"
            )
        for _number, _mac, bridge in cloudinit.nics(source.config):
            self.require(user, f"/sdn/zones/localnetwork/{bridge}", "SDN.Use")
        return await super()._qm_clone(values, user)

    def _qm_free_name(self, sid: str, vmid: int, fmt: str) -> str:
        name: str = self._next_volume or super()._qm_free_name(sid, vmid, fmt)
        return name

    _next_volume = ""

    def _qm_new_drive(self, vmid: int, key: str, value: object, default: object) -> Any:
        if split_drive(value)[0].endswith(":cloudinit"):
            self._next_volume = f"vm-{vmid}-cloudinit"
        try:
            return super()._qm_new_drive(vmid, key, value, default)
        finally:
            self._next_volume = ""

    def _own_cloudinit(self, vm: Any) -> None:
        """Give a clone a cloud-init drive of its own (a real host copies it in full, always)."""
        for key, volume in hardware.cloudinit_drives(vm.config).items():
            storage = volume.partition(":")[0]
            made = self._qm_new_drive(vm.vmid, key, f"{storage}:cloudinit", None)[1][0]
            vm.config[key] = f"{made},media=cdrom,size=4M"

    def _write_drive(self, vm: FakeVm) -> None:
        self._written[vm.vmid] = {k: v for k, v in vm.config.items() if cloudinit.is_cloudinit_key(k)}

    async def _cloudinit(self, values: Values, _user: str) -> list[dict[str, object]]:
        vm = self.find(values["node"], values["vmid"])
        return cloudinit.differences({**vm.config, **vm.pending}, self._written.get(vm.vmid, {}))

    async def _cloudinit_write(self, values: Values, _user: str) -> None:
        self._write_drive(self.find(values["node"], values["vmid"]))

    async def _cloudinit_dump(self, values: Values, _user: str) -> str:
        vm = self.find(values["node"], values["vmid"])
        files = cloudinit.seed(vm.config, name=vm.config.get("name", vm.name))
        return {"user": files.user, "network": files.network, "meta": files.meta}[values["type"]]

    # ------------------------------------------------------------------ guest agent

    async def _agent_call(self, match: Any, values: Values) -> Any:
        vm = self.find(values["node"], values["vmid"])
        option = agent.enabled(vm.config.get("agent"))
        if option is None:
            raise PveError(500, "No QEMU guest agent configured")
        if vm.status != "running":
            raise PveError(500, f"VM {vm.vmid} is not running")
        node = await self.power.live_node(vm.vmid, timeout_s=_AGENT_PING_S) if option else None
        if node is None:
            raise PveError(500, "QEMU guest agent is not running")
        command = match.template.rsplit("/", 1)[1]
        try:
            return await done(self.machines.ask(agent.answer, node, command, values))
        except agent.AgentError as error:
            raise PveError(500, f"Agent error: {error}") from error
