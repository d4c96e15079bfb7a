"""What the lab's API does with one VM: its power, its config, its clones, its cloud-init drive, its agent."""

import time
from collections.abc import Awaitable, Callable, Mapping, MutableSequence
from typing import Any

from aiohttp import web

from lab import agent, changes, clones, cloudinit, hardware, status, volumes
from lab.guest_agent import AgentSilent
from lab.guests import Refused, TaskFailed, Vm, die, not_found, set_lock
from lab.machines import Machines
from lab.power import Power, done
from lab.tasks import Body, Tasks

Values = Mapping[str, Any]
Call = Callable[[Any, dict[str, Any]], Awaitable[Any]]

VERSION = {"version": "9.2.11", "release": "9.2", "repoid": "0123456789abcdef"}
AGENT_PING_S = 3.0  # how long a real host waits for guest-ping
COPY_S = 0.2  # how long the lab takes to copy a disk in full
_PUT = "config"  # who holds the lock file of a VM while its config is changed


def data(found: object) -> web.Response:
    """An answer."""
    return web.json_response({"data": found})


class VmCalls:
    """The calls under /nodes/{node}/qemu/{vmid}; what they stand on is the host's, whose class this is part of."""

    machines: Machines
    power: Power
    work: Tasks
    storages: dict[str, dict[str, Any]]
    pools: dict[str, set[int]]
    nodes: Mapping[str, Any]
    vms: MutableSequence[Any]
    vm: Callable[[int], Any]
    find: Callable[[str, object], Any]  # refuses where there is none
    require: Callable[[str, str, str], None]  # user, path, privilege
    need_quorum: Callable[[], None]
    acquire: Callable[[Any, str], Awaitable[None]]
    release: Callable[[Any, str], None]
    declared: Callable[[], dict[str, Any]]  # the config's keys
    new_vm: Callable[..., Any]
    new_nic: Callable[[str], str]
    kept_nic: Callable[[str], str]  # a network device with a MAC, its own if it has one
    check_drive: Callable[[str, Vm, str, str], None]  # user, VM, device, value
    new_disk: Callable[[int, str, str], str]
    through: Callable[[web.Request, Call], Awaitable[Any]]  # checked, then called
    identify: Callable[[web.Request], str]
    begin: Callable[..., Awaitable[str]]  # a task; its UPID

    copy_s = COPY_S
    agent_ping_s = AGENT_PING_S

    def __init__(self) -> None:
        """No cloud-init drive is written."""
        self.written: dict[int, dict[str, object]] = {}  # vmid -> cloud-init keys as last put on its drive
        self.uploads: dict[str, bytes] = {}

    async def of_vm(self, request: web.Request, call: Callable[[Any, Values], Any]) -> web.Response:
        """Answer with what a function makes of the VM that the path names."""

        async def found(_match: Any, values: Values) -> Any:  # noqa: ANN401 - JSON
            return call(self.find(values["node"], values["vmid"]), values)

        return data(await self.through(request, found))

    # The host

    async def node_version(self, _values: Values, _user: str) -> dict[str, str]:
        """What one host runs."""
        return VERSION

    async def no_mappings(self, _values: Values, _user: str) -> list[object]:
        """The PCI mappings: the lab's host has no device to hand on."""
        return []

    # Power

    async def _status_action(self, request: web.Request) -> web.Response:
        async def begun(match: Any, values: Values) -> str:  # noqa: ANN401 - fakepve's
            self.need_quorum()
            action, node, vmid = match.template.rsplit("/", 1)[1], values["node"], int(values["vmid"])
            vm = self.vm(vmid)
            if action not in {"start", "stop", "shutdown"}:
                if vm is None:
                    die(not_found(node, vmid))
                if vm.status != "running":
                    die(f"VM {vmid} not running")
            work = self.power.work(action)
            if work is None:
                die(f"the lab's machines cannot {action}")

            async def body() -> None:
                await work(node, vmid)
                if action == "reboot":  # a host starts a VM that asked for it in a task of its own, as root
                    await self.begin(
                        node, "qmstart", vmid, changes.ROOT, lambda: self.power.start(node, vmid), vm
                    )

            return await self.begin(node, f"qm{action}", vmid, self.identify(request), body, vm)

        return data(await self.through(request, begun))

    async def _status_current(self, request: web.Request) -> web.Response:
        return await self.of_vm(request, lambda vm, _: status.current(vm, now=time.time()))

    # Configuration

    async def _config_get(self, request: web.Request) -> web.Response:
        def told(vm: Vm, values: Values) -> dict[str, Any]:
            if name := values.get("snapshot"):
                if name not in vm.snapshots:
                    die(f"snapshot '{name}' does not exist")
                return {**hardware.shown(vm.snapshots[name], self.declared()), "digest": vm.digest()}
            return status.config(vm, self.declared(), waiting=not int(values.get("current", 0)))

        return await self.of_vm(request, told)

    async def _pending(self, request: web.Request) -> web.Response:
        return await self.of_vm(request, lambda vm, _: status.pending(vm, self.declared()))

    async def _config_put(self, request: web.Request) -> web.Response:
        async def changed(_match: object, values: Values) -> None:
            vm, change = self._change(values, self.identify(request))
            try:
                await self.acquire(vm, _PUT)
            except TaskFailed as error:
                die(str(error))
            try:
                self._apply(vm, change)
            finally:
                self.release(vm, _PUT)

        return data(await self.through(request, changed))

    async def _config_post(self, request: web.Request) -> web.Response:
        async def begun(_match: object, values: Values) -> str:
            user = self.identify(request)
            vm, change = self._change(values, user)

            async def body() -> None:
                self._apply(vm, change)

            log = [f"update VM {vm.vmid}: {change.told}"]
            return await self.begin(vm.node, "qmconfig", vm.vmid, user, body, vm, log=log)

        return data(await self.through(request, begun))

    def _change(self, values: Values, user: str) -> tuple[Vm, changes.Change]:
        change = changes.asked(values, user, known=hardware.known(self.declared()))
        vm: Vm = self.find(values["node"], values["vmid"])
        changes.check_rights(change, vm, user, lambda path, priv: self.require(user, path, priv))
        self.need_quorum()
        for key in change.drives:
            self.check_drive(user, vm, key, str(change.values[key]))
        changes.check_state(change, vm)
        return vm, change

    def _apply(self, vm: Vm, change: changes.Change) -> None:
        changes.check_state(change, vm)
        changes.apply(
            change,
            vm,
            changes.Workshop(
                drive=lambda key, value: self.new_drive(vm.vmid, key, value),
                nic=self.kept_nic,
                free=lambda volume: volumes.free(self.storages, volume),
            ),
        )

    def new_drive(self, vmid: int, key: str, value: str) -> str:
        """The value of a drive, its volume made if it has to be."""
        volume, _, rest = value.partition(",")
        if not volume.endswith(":cloudinit"):
            return self.new_disk(vmid, key, value)
        options = cloudinit.properties(rest)
        made = volumes.new_cloudinit(
            self.storages, volume.partition(":")[0], vmid, options.pop("format", None)
        )
        options["media"] = "cdrom"
        return ",".join([made, *(f"{option}={options[option]}" for option in sorted(options))])

    async def _resize(self, values: Values, user: str) -> str:
        node, vmid = values["node"], int(values["vmid"])

        async def body() -> str | None:
            vm = self.power.unlocked(node, vmid)
            if values.get("digest") not in {None, vm.digest()}:
                raise TaskFailed("checksum mismatch (file change by other user?)")
            device, size = values["disk"], str(values["size"])
            change = hardware.resized(device, vm.config.get(device), size=size)
            if change is None:
                return None
            storage, _, volume = change[0].partition(",")[0].partition(":")
            self.require(user, f"/storage/{storage}", "Datastore.AllocateSpace")
            self.storages[storage].setdefault("volumes", {}).setdefault(volume, {})["size"] = change[1]
            vm.config[device] = change[0]
            return None if vm.status == "running" else "Image resized."

        return await self.begin(node, "resize", vmid, user, body, self.vm(vmid))

    # Clones and their end

    async def _qm_clone(self, values: Values, user: str) -> str:
        order = clones.check(self, values, user)
        node, newid, source = values["node"], int(values["newid"]), order.source
        vm = clones.placeholder(self, order, newid, node=node)

        async def body() -> None:
            await clones.work(self, order, vm, tasks=self.work, copy_s=self.copy_s)
            self.machines.cloned(newid, source.vmid)

        log = [f"creating a clone of VM {source.vmid} with ID {newid}"]
        return await self.begin(node, "qmclone", source.vmid, user, body, vm, log=log)

    async def destroyed(self, vm: Vm, body: Body) -> str | None:
        """What a task does that destroys a VM; it takes the node behind it along.

        Raises:
            TaskFailed: it is in use, which a host checks once more when the task has the lock.
        """
        clones.check_unused(self.vms, vm)
        before = vm.lock
        try:
            note = await body()
        except BaseException:
            set_lock(vm, before)
            raise
        await done(self.machines.forget(vm.vmid))
        self.written.pop(vm.vmid, None)
        return note

    # Cloud-init

    def write_drive(self, vm: Vm) -> None:
        """Put the cloud-init data of a VM's config on its drive."""
        self.written[vm.vmid] = {k: v for k, v in vm.config.items() if cloudinit.is_cloudinit_key(k)}

    async def _cloudinit(self, values: Values, _user: str) -> list[dict[str, object]]:
        vm = self.find(values["node"], values["vmid"])
        return cloudinit.differences({**vm.config, **vm.pending}, self.written.get(vm.vmid))

    async def _cloudinit_write(self, values: Values, _user: str) -> None:
        vm = self.find(values["node"], values["vmid"])
        if hardware.cloudinit_drives(vm.config):
            self.write_drive(vm)

    async def _cloudinit_dump(self, values: Values, _user: str) -> str:
        vm = self.find(values["node"], values["vmid"])
        files = cloudinit.seed(vm.config, name=vm.config.get("name", vm.name))
        return {"user": files.user, "network": files.network, "meta": files.meta}[values["type"]]

    # Guest agent

    async def _agent_call(self, match: Any, values: Values) -> dict[str, Any]:  # noqa: ANN401 - fakepve's
        vm = self.find(values["node"], values["vmid"])
        option = agent.enabled(vm.config.get("agent"))
        if option is None:
            die("No QEMU guest agent configured")
        if vm.status != "running":
            die(f"VM {vm.vmid} is not running")
        node = await self.power.live_node(vm.vmid, timeout_s=self.agent_ping_s) if option else None
        if node is None:
            die("QEMU guest agent is not running")
        command = match.template.rsplit("/", 1)[1]
        try:
            return await done(self.machines.ask(agent.answer, node, command, values))
        except agent.AgentError as error:
            raise Refused(500, f"Agent error: {error}") from error
        except AgentSilent:
            die(f"VM {vm.vmid} qga command 'guest-{command}' failed - got timeout")
