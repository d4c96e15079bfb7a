"""The real nodes behind the lab's VMs: started, stopped and asked in threads that last as long as the lab."""

import ipaddress
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from lab import cloudinit, discs, hardware
from lab.nodes import Backend, Cutter, LiveNode, NodeSpec, Powered
from lab.scenarios import GOOD, Template

P = ParamSpec("P")
T = TypeVar("T")

_WORKERS = 8
_FIRST_LEASE, _LAST_LEASE = 221, 250  # profiles of the lab use .10 to .220 as static addresses
_CLOSE_TIMEOUT_S = 30.0


def _given(
    config: cloudinit.Config, name: str, disc: bytes | None
) -> tuple[cloudinit.Seed, str, tuple[str, ...]]:
    """What a machine gets of its cloud-init drive, or of the disc in its place: texts, login user, keys."""
    if disc is not None:
        try:
            return discs.seed(disc, config, name=name)
        except discs.NoDisc as error:
            raise CannotStart(f"the lab's cloud-init reads nothing on the disc: {error}") from error
    return cloudinit.seed(config, name=name), str(config.get("ciuser") or ""), cloudinit.ssh_keys(config)


class CannotStart(Exception):
    """Why a VM cannot start, in the words its task ends with."""


class SwitchedOff(Exception):
    """A machine was switched off while it booted."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine that is switched on: what it was started with, and its node once that is up.

    agent: whether a guest agent runs in it. off: set when it is switched off.
    """

    spec: NodeSpec
    booting: Future[LiveNode]
    agent: bool = True
    off: threading.Event = field(default_factory=threading.Event)

    @property
    def node(self) -> LiveNode | None:
        """The live node, or None while it boots and after its boot failed."""
        ended = self.booting.done() and not self.booting.cancelled()
        return self.booting.result() if ended and self.booting.exception() is None else None


class Machines:
    """All machines of one lab, by vmid.

    The calls that take long give a Future; its work runs in threads that live until `close`, because a
    node dies with the *thread* that started it (prctl(2), PR_SET_PDEATHSIG).

    Args:
        backend: what nodes are made of.
        prefix: the lab's own network; .1 is its API.
        templates: what VMs are cloned from, by vmid.
    """

    def __init__(
        self,
        backend: Backend,
        prefix: ipaddress.IPv4Network,
        *,
        templates: Mapping[int, Template] = MappingProxyType({}),
    ) -> None:
        """Nothing is started yet."""
        self.backend = backend
        self.prefix = prefix
        self._on: dict[int, Machine] = {}
        self._leases: dict[str, str] = {}
        self._templates = dict(templates)  # a clone has its source's
        self._threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix="node")

    def get(self, vmid: int) -> Machine | None:
        """The machine of a VM that is switched on."""
        return self._on.get(vmid)

    def cloned(self, vmid: int, source: int) -> None:
        """A VM was cloned from another, or from a template."""
        self._templates[vmid] = self._templates.get(source, GOOD)

    def start(self, vmid: int, config: cloudinit.Config, *, name: str, disc: bytes | None = None) -> Machine:
        """Switch a machine on as its config says; its boot goes on in a thread.

        disc: an ISO image in its CD drive, in the place of its cloud-init drive.

        Raises:
            CannotStart: the config names an address that the lab cannot give.
        """
        template = self._templates.get(vmid, GOOD)
        nics = cloudinit.nics(config)
        seed, user, keys = _given(config, name, disc)
        spec = NodeSpec(
            vmid=vmid,
            name=name,
            address=self._address(vmid, config, mac=nics[0][1] if nics else "", moves=template.leased),
            uuid=cloudinit.machine_uuid(config),
            macs=tuple(mac for _number, mac, _bridge in nics),
            user=user or self.backend.login_user,
            ssh_keys=keys,
            cores=int(str(config.get("cores", 1))) * int(str(config.get("sockets", 1))),
            memory_mib=int(str(config.get("memory", 512)).split(",")[0].removeprefix("current=")),
            instance_id=seed.instance_id,
            image=template.image,
            clock_offset_s=template.clock_offset_s,
            disk_mib=hardware.boot_disk_mib(config),
            seed=seed,
            disc=disc,
        )
        off = threading.Event()
        booting = self._threads.submit(self._boot, spec, template.boot_delay_s, off)
        machine = Machine(spec, booting, template.agent, off)
        self._on[vmid] = machine
        return machine

    def stop(self, vmid: int) -> Future[None]:
        """Switch a machine off; its disk stays."""
        return self._threads.submit(self._power_off, self._switch_off(vmid))

    def shut_down(self, vmid: int, *, timeout_s: float) -> Future[bool]:
        """Ask a machine to switch itself off; whether it did in time, else it stays on. One that boots is cut off."""
        machine = self._on.get(vmid)

        def work() -> bool:
            node = machine.node if machine is not None else None
            if isinstance(node, Powered) and not node.shut_down(timeout_s=timeout_s):
                return False
            self._power_off(self._switch_off(vmid))
            return True

        return self._threads.submit(work)

    def forget(self, vmid: int) -> Future[None]:
        """Switch a machine off and forget its disk and its lease."""
        machine = self._switch_off(vmid)
        self._templates.pop(vmid, None)

        def work() -> None:
            self._power_off(machine)
            self.backend.destroy(vmid)

        if machine is not None and machine.spec.macs:
            self._leases.pop(machine.spec.macs[0], None)
        return self._threads.submit(work)

    def describe(self, vmid: int) -> dict[str, Any] | None:
        """Where the node of a VM is, and whether it runs; None when the VM is switched off."""
        machine = self._on.get(vmid)
        if machine is None:
            return None
        node = machine.node
        port = node.ssh_port if node is not None else self.backend.ssh_port
        return {
            "address": machine.spec.address,
            "ssh_port": port,
            "alive": node is not None and node.alive(),
        }

    def ask(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call that may block, such as a question to a live node, in a lasting thread."""
        return self._threads.submit(call, *args, **kwargs)

    def close(self) -> None:
        """Switch everything off, within a bounded time; the backend is the caller's to close."""
        wait([self.stop(vmid) for vmid in list(self._on)], timeout=_CLOSE_TIMEOUT_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _boot(self, spec: NodeSpec, delay_s: float, off: threading.Event) -> LiveNode:
        if off.wait(delay_s):
            raise SwitchedOff(f"VM {spec.vmid} was switched off")
        return self.backend.boot(spec)

    def _switch_off(self, vmid: int) -> Machine | None:
        machine = self._on.pop(vmid, None)
        if machine is not None:
            machine.off.set()
        return machine

    def _power_off(self, machine: Machine | None) -> None:
        if machine is None:
            return
        if machine.booting.cancel():
            return
        if not machine.booting.done() and isinstance(self.backend, Cutter):
            self.backend.cut(machine.spec.vmid)
        try:
            machine.booting.result().stop()
        except SwitchedOff:
            return
        except Exception as error:  # noqa: BLE001 - a node whose boot failed has nothing to stop
            sys.stderr.write(f"vm {machine.spec.vmid}: {error}\n")

    def _address(self, vmid: int, config: cloudinit.Config, *, mac: str, moves: bool) -> str:
        wanted = cloudinit.static_address(config)
        if wanted is None:
            return self._lease(vmid, mac, moves=moves)
        address = ipaddress.IPv4Interface(wanted).ip
        first_free = self.prefix.network_address + 2  # .1 is the lab's own
        if not first_free <= address < self.prefix.broadcast_address:
            raise CannotStart(
                f"address {address} of ipconfig0 is not the lab's to give: it has {first_free} to "
                f"{self.prefix.broadcast_address - 1}"
            )
        self._check_free(str(address), other_than=vmid)
        return str(address)

    def _check_free(self, address: str, *, other_than: int) -> None:
        for vmid, machine in self._on.items():
            if vmid != other_than and machine.spec.address == address:
                raise CannotStart(f"address {address} is in use by VM {vmid} ({machine.spec.name})")

    def _lease(self, vmid: int, mac: str, *, moves: bool) -> str:
        """The address of a NIC; one that moves gets another at each start, and its former one is free again."""
        if mac not in self._leases or moves:
            taken = {*self._leases.values(), *(machine.spec.address for machine in self._on.values())}
            addresses = (str(self.prefix.network_address + n) for n in range(_FIRST_LEASE, _LAST_LEASE + 1))
            free = next((address for address in addresses if address not in taken), None)
            if free is None:
                raise CannotStart(f"the lab has no lease left in {self.prefix}")
            self._leases[mac] = free
        self._check_free(self._leases[mac], other_than=vmid)
        return self._leases[mac]
