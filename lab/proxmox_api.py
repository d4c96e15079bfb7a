# SPDX-License-Identifier: AGPL-3.0-or-later
# ruff: noqa: ANN401 - fakepve carries no types
"""The lab's Proxmox API: fakepve, corrected where a real host answers otherwise, with real nodes as its VMs.

This one module is licensed AGPL-3.0-or-later, because it extends fakepve, which is. Nothing else in Muster
imports fakepve, and everything else is Apache-2.0.
"""

import re
import socket
import ssl
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web
from fakepve import FakePve, PveError, TaskError
from fakepve import schema as pve_schema
from fakepve.lxc import random_mac
from fakepve.qemu import with_mac
from fakepve.server import API, EXTJS, USER, params
from fakepve.shapes import FINGERPRINT, PRIVILEGES

from lab import changes, hardware, rights, status, volumes
from lab.guests import Refused, TaskFailed, die, faulty
from lab.machines import Machines
from lab.power import Power, done
from lab.tasks import Body, Tasks
from lab.uploads import UploadCalls
from lab.vm_calls import VERSION, Call, VmCalls, data

Values = Mapping[str, Any]

_COUNTED_EVERY_S = 10.0  # pvestatd's rhythm, in which /cluster/resources learns of VMs
_UPID = re.compile(r"UPID:[^:\s]+:[0-9A-F]{8}:[0-9A-F]{8,9}:[0-9A-F]{8}:[^:\s]+:[^:\s]*:[^:\s]+:")
_QEMU = "/nodes/{node}/qemu/{vmid}"


class LabPve(VmCalls, UploadCalls, FakePve):  # type: ignore[misc]  # fakepve carries no types
    """One Proxmox host whose VMs are real machines.

    Args:
        machines: the nodes behind the VMs.
        host: the address that it listens on.
        node: the host's name in the API.
    """

    def __init__(self, machines: Machines, *, host: str, node: str = "lab") -> None:
        """An empty host; `add_template` gives it something to clone."""
        # No password logs in: the lab's world has a token, and root's password is never told.
        VmCalls.__init__(self)
        FakePve.__init__(self, host=host, password=uuid.uuid4().hex)
        self.machines = machines
        self.node_name = node
        self.nodes = {node: {"online": True}}
        self.time_scale = 1.0  # tasks run beside the request, as on a real host
        self.counted_every_s = _COUNTED_EVERY_S
        self.acl: dict[str, list[tuple[str, set[str]]]] = {}
        self.separated: set[str] = set()  # tokens with privilege separation
        self._counted: tuple[float, dict[int, dict[str, Any]]] = (-_COUNTED_EVERY_S, {})
        self.work = Tasks(self, foreseen=(TaskError, PveError, Refused))
        self.power = Power(machines, vms=lambda: self.vms, written=self.write_drive, disc=self.disc_of)

    async def serve(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        """Answer on a socket that already listens, until `stop`."""
        self.runner = web.AppRunner(self._build_app(), access_log=None, shutdown_timeout=1.0)
        await self.runner.setup()
        await web.SockSite(self.runner, listening, ssl_context=context).start()
        self.power.watch()

    async def stop(self) -> None:
        """Stop answering; the machines are the caller's to close."""
        self.power.close()
        self.work.close()
        await super().stop()

    def add_template(self, vmid: int, name: str, *, storage: str, disk_gib: int) -> None:
        """A template that is ready to be cloned, and its volumes."""
        config, made = hardware.template(vmid, storage=storage, disk_gib=disk_gib, mac=random_mac())
        self.add_vm(vmid, name, node=self.node_name, template=True, config=config)
        kept = self.storages[storage].setdefault("volumes", {})
        for volume, size in made.items():
            kept[volume] = {"content": "images", "format": "raw", "size": size, "vmid": vmid, "ctime": 0}

    def add_token(
        self, token: str, secret: str, privileges: Mapping[str, Iterable[str]], *, separated: bool = True
    ) -> None:
        """Let `user@realm!name` in; it and its user have these privileges by path and no others."""
        self.apitokens[token] = secret
        if separated:
            self.separated.add(token)
        for path, names in privileges.items():
            for who in (token, rights.owner(token)):
                self.grant(who, path, *names)

    # ------------------------------------------------------------------ how it answers

    def _routes_lab(self) -> list[tuple[str, str, Any]]:
        return [
            ("GET", "/cluster/mapping/pci", self.no_mappings),
            ("GET", "/cluster/nextid", self._nextid),
            ("GET", "/nodes/{node}/version", self.node_version),
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
        if request.method not in {"GET", "POST", "PUT", "DELETE"}:
            return web.Response(status=501, reason=f"method '{request.method}' not available")
        response: web.StreamResponse = await super()._middleware(request, handler)
        if response.status == 401 and not request.path.endswith("/access/ticket"):
            # The proxy in front of a real API says why in the reason phrase alone.
            response = web.Response(status=401, reason=response.reason)
            response.force_close()
        elif response.content_type == "application/json":
            response.headers["Content-Type"] = "application/json;charset=UTF-8"
        response.headers.update(
            {"Server": "pve-api-daemon/3.0", "Cache-Control": "max-age=0", "Pragma": "no-cache"}
        )
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

    async def _answer(self, request: web.Request, handler: Any, generic: Any, path_node: Any) -> Any:
        async def told(request: web.Request) -> web.StreamResponse:
            try:
                response: web.StreamResponse = await handler(request)
            except (Refused, PveError) as refused:
                text = refused.message if isinstance(refused, PveError) else str(refused)
                message = text if refused.status == 501 else f"{text}\n"
                body = {
                    "data": None,
                    "message": message,
                    **({"errors": refused.errors} if refused.errors else {}),
                }
                response = web.json_response(body, status=refused.status, reason=text.splitlines()[0])
            return response

        if not self.nodes.get(path_node, {"online": True}).get("online", True):
            return web.Response(status=595, reason="No route to host")
        return await super()._answer(request, told, generic, path_node)

    async def answer(
        self, request: web.Request, match: Any, params: Values, user: str | None, call: Any = None
    ) -> Any:
        """Check a request in the order of a real host (method, node, permission, parameters), then answer it."""
        if match is None or request.method not in match.methods:
            path = re.sub(f"^({API}|{EXTJS})", "", request.path)
            raise PveError(501, f"Method '{request.method} {path}' not implemented")
        if match.params.get("node", self.node_name) not in self.nodes:
            die(
                f"hostname lookup '{match.params['node']}' failed - failed to get address info for: "
                f"{match.params['node']}: Name or service not known"
            )
        info = match.methods[request.method]
        spec = info.get("parameters") or {}
        declared = spec.get("properties", {})
        values = {**params, **match.params}
        self.check_permissions(user, info.get("permissions"), values, declared)
        own = {key: value for key, value in values.items() if key in declared or key not in match.params}
        _, errors = pve_schema.validate(spec, own)
        if errors := hardware.faults(errors, declared, own):
            raise faulty(**errors)
        return await super().answer(request, match, params, user, call)

    async def through(self, request: web.Request, call: Call) -> Any:
        """Check a request, then let `call` answer it."""
        values = await params(request)
        if request.content_type == "application/x-www-form-urlencoded":
            # fakepve drops what is empty; a real host judges it.
            sent = parse_qsl((await request.read()).decode(), keep_blank_values=True)
            values |= {key: value for key, value in sent if not value}
        return await self.answer(request, self.resolve(request, API), values, request[USER], call)

    async def _ticket(self, request: web.Request) -> Any:
        if request.headers.get("Authorization", "").startswith("PVEAPIToken"):
            why = "URI '/access/ticket' not available with API token, need proper ticket.\n"
            raise Refused(403, f"Permission check failed ({why})")
        if "password" not in await params(request):
            raise faulty(password="property is missing and it is not optional")  # noqa: S106 - its fault
        return await super()._ticket(request)

    async def _version(self, _request: web.Request) -> web.Response:
        return data(VERSION)

    def _active_store(self, name: str, node: str) -> Any:
        store = self._check_enabled(name, node)
        try:
            volumes.activate(self.storages, name)
        except TaskFailed as error:
            die(str(error))
        return store

    async def _lab_status(self, _request: web.Request) -> web.Response:
        """Not of Proxmox: the VMs and the nodes behind them, for `node-lab status`."""
        rows = []
        for vm in sorted(self.vms, key=lambda vm: int(vm.vmid)):
            row = {"vmid": vm.vmid, "name": vm.name, "status": vm.status, "template": bool(vm.template)}
            rows.append({**row, "node": await done(self.machines.ask(self.machines.describe, vm.vmid))})
        return web.json_response({"vms": rows})

    def allowed(self, user: str, path: str, priv: str) -> bool:
        """Whether a user or token holds a privilege on a path."""
        if rights.owner(user) == changes.ROOT and user not in self.separated:
            return True
        kind, _, name = path.removeprefix("/").partition("/")
        paths = [path]
        if kind == "vms":
            paths += [f"/pool/{pool}" for pool, vmids in self.pools.items() if name in map(str, vmids)]
        return any(priv in rights.held(self.acl, user, one, separated=self.separated) for one in paths)

    async def _permissions(self, values: Values, user: str) -> dict[str, dict[str, int]]:
        who = values.get("userid") or user
        if who != user and rights.owner(who) != user:
            self.require(user, "/access", "Sys.Audit")
        granted = {**self.acl, changes.ROOT: [("/", set(PRIVILEGES))]}
        if "path" in values:
            path = values["path"]
            names = rights.held(granted, who, path, separated=self.separated)
            return {path: dict.fromkeys(sorted(names), 1)} if names else {}
        return rights.listed(granted, who, separated=self.separated)

    # ------------------------------------------------------------------ the cluster

    async def _nextid(self, values: Values, _user: str) -> str:
        if (wanted := values.get("vmid")) is not None:
            if self._qm_taken(int(wanted)):
                raise faulty(vmid=f"VM {wanted} already exists")
            return str(wanted)
        return str(next(n for n in range(100, 10**9) if not self._qm_taken(n)))

    async def _nodes(self, request: web.Request) -> web.Response:
        audited = {name for name in self.nodes if self.allowed(request[USER], f"/nodes/{name}", "Sys.Audit")}
        return data([{**row, "ssl_fingerprint": FINGERPRINT} for row in status.nodes(self.nodes, audited)])

    async def _resources(self, request: web.Request) -> web.Response:
        async def found(_match: Any, values: Values) -> list[dict[str, Any]]:
            user, kind = request[USER], values.get("type")
            audited = {name for name in self.nodes if self.allowed(user, f"/nodes/{name}", "Sys.Audit")}
            rows = [
                row for row in self._counted_vms() if self.allowed(user, f"/vms/{row['vmid']}", "VM.Audit")
            ]
            rows += [{**row, "cgroup-mode": 2} for row in status.nodes(self.nodes, audited)]
            for node in self.nodes:
                rows += [
                    self._storage_resource(node, name)
                    for name in self.storages
                    if self._can_audit(user, name)
                ]
                if self.allowed(user, "/sdn/zones/localnetwork", "SDN.Audit"):
                    rows.append(status.network(node))
            return [row for row in rows if row and (kind in {None, row["type"]} or status.is_kind(row, kind))]

        return data(await self.through(request, found))

    def _counted_vms(self) -> list[dict[str, Any]]:
        """The VMs as the host last counted them: a new one has no name yet, one just stopped still runs."""
        now = time.time()
        if now - self._counted[0] >= self.counted_every_s:
            self._counted = now, {vm.vmid: status.counted(vm, now=now) for vm in self.vms}
        return [status.resource(vm, self._counted[1].get(vm.vmid)) for vm in self.vms]

    async def _qemu_list(self, request: web.Request) -> web.Response:
        async def found(_match: Any, values: Values) -> list[dict[str, Any]]:
            here = [vm for vm in self.vms if vm.node == values["node"]]
            mine = [vm for vm in here if self.allowed(request[USER], f"/vms/{vm.vmid}", "VM.Audit")]
            full = bool(int(values.get("full", 0)))
            return [status.row(vm, now=time.time(), full=full) for vm in mine]

        return data(await self.through(request, found))

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
        """Start a task."""
        work = (lambda: self.destroyed(vm, body)) if ttype == "qmdestroy" else body
        return self.work.begin(node, ttype, tid, user, work, vm=vm if lock else None, log=log)

    def _seen_task(self, upid: str, user: str) -> dict[str, Any]:
        if not _UPID.fullmatch(upid):
            raise faulty(upid="unable to parse worker upid")
        if upid not in self.tasks:
            raise faulty(upid="no such task")
        record: dict[str, Any] = self.tasks[upid]
        if not self._task_owner(user, record):
            self.require(user, f"/nodes/{record['node']}", "Sys.Audit")
        return record

    async def _task_status(self, request: web.Request) -> web.Response:
        async def found(_match: Any, values: Values) -> dict[str, Any]:
            return status.task(self._seen_task(values["upid"], request[USER]))

        return data(await self.through(request, found))

    async def _task_log(self, request: web.Request) -> web.Response:
        async def found(_match: Any, values: Values) -> dict[str, Any]:
            try:
                lines = self._seen_task(values["upid"], request[USER])["log"]
            except Refused as refused:
                if (refused.errors or {}).get("upid") != "no such task":
                    raise
                lines = ["unable to open file - No such file or directory"]
            return status.log(lines, start=int(values.get("start", 0)), limit=int(values.get("limit", 50)))

        return web.json_response(await self.through(request, found))

    async def _task_list(self, request: web.Request) -> web.Response:
        async def found(_match: Any, values: Values) -> dict[str, Any]:
            node, user = values["node"], request[USER]
            audit = self.allowed(user, f"/nodes/{node}", "Sys.Audit")
            mine = [task for task in self.tasklog if audit or self._task_owner(user, task)]
            rows = status.tasks((task for task in mine if task["node"] == node), values)
            start, limit = int(values.get("start", 0)), int(values.get("limit", 50))
            page = {"data": rows[start : start + limit], "total": len(rows)}
            return page if self.tasklog else {"data": []}

        return web.json_response(await self.through(request, found))

    begin = task

    # ------------------------------------------------------------------ what the calls of a VM stand on

    def declared(self) -> dict[str, Any]:
        """The keys of a VM's config."""
        found: dict[str, Any] = pve_schema.load().paths[f"{_QEMU}/config"]["PUT"]["parameters"]["properties"]
        return found

    def identify(self, request: web.Request) -> str:
        """Who asks."""
        return str(request[USER])

    async def acquire(self, vm: Any, holder: str) -> None:
        """Take the lock file of a VM; an error when it stays another's."""
        try:
            await FakePve.acquire(self, vm, holder)
        except TaskError as error:
            raise TaskFailed(str(error)) from error

    def new_vm(self, vmid: int, *, node: str, config: dict[str, Any]) -> Any:
        """A further VM, which has nothing but this config."""
        vm = self.add_vm(vmid, f"VM {vmid}", node=node)
        vm.config = dict(config)
        return vm

    def new_nic(self, value: str) -> str:
        """A network device with another MAC."""
        return str(with_mac(value, fresh=True))

    def kept_nic(self, value: str) -> str:
        """A network device with a MAC, its own if it has one."""
        return str(with_mac(value))

    def check_drive(self, user: str, vm: Any, key: str, value: str) -> None:
        """Refuse a drive that a user may not have, or that cannot be."""
        self._qm_check_drive(user, vm.vmid, vm.pool, key, value, None)

    def new_disk(self, vmid: int, key: str, value: str) -> str:
        """The value of a drive that is no cloud-init drive."""
        try:
            return str(super()._qm_new_drive(vmid, key, value, None)[0])
        except PveError as error:
            die(re.sub(r"^volume (\S+) does not exist$", r"volume '\1' does not exist", error.message))

    def _qm_new_drive(self, vmid: int, key: str, value: object, default: object) -> Any:
        if not str(value).partition(",")[0].endswith(":cloudinit"):
            return super()._qm_new_drive(vmid, key, value, default)
        made = self.new_drive(vmid, key, str(value))
        return made, [made.partition(",")[0]]
