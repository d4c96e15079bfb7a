"""Nodes that are virtual machines: firmware, kernel, systemd, cloud-init and guest agent of their own."""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from inventory.errors import OtherSide
from lab import personalise, seed_disc
from lab.guest_agent import AgentRefused, AgentSilent, GuestAgent
from lab.image import VmImage, images_home, missing_packages, obtain
from lab.nodes import Install, NodeSpec
from lab.qemu_accel import accelerators, make_overlay, prove, start
from lab.qemu_command import (
    AGENT_SOCKET,
    CONSOLE,
    MONITOR_SOCKET,
    OVERLAY,
    PROGRAM,
    SEED,
    Accelerator,
    Limits,
    command,
)
from lab.qemu_monitor import tell
from lab.seed_disc import put_seed
from lab.spawner import Spawner, end, find_program, free_port, last_words

PROGRAMS = {PROGRAM: "qemu-system-x86", "qemu-img": "qemu-utils"}  # with Debian's package for each
_LOGIN = "muster"
_SCENARIOS = "a VM's image is as it should be; the namespaces backend has such templates"
_BANNER_S = 5.0  # for one try: a busy guest takes its time, and a try that was made too early never succeeds
_PAUSE_S = 0.5
_ANSWER_S = 20.0
_PING_S = 3.0  # how long a real host waits for guest-ping
_QUIT_S = 5.0
_PRESS_EVERY_S = 10.0
_FILE_LIMIT = 16 << 20


def candidates(state_dir: Path, trial_address: str) -> Iterator[Callable[[], "QemuBackend"]]:
    """Makers of backends, best first: with KVM if a guest gets on with it, then without."""
    for accelerator in accelerators():
        yield lambda accelerator=accelerator: QemuBackend(  # type: ignore[misc] # a lambda has no types
            state_dir, accelerator=accelerator, trial_address=trial_address
        )


class QemuBackend:
    """Makes VMs, once a guest has shown that it gets on here.

    Args:
        state_dir: where the disks lie, one directory per vmid under `nodes`.
        accelerator: what runs the guests' code.
        trial_address: where it is tried which port a VM can be reached at.
        images: where images are kept.
    """

    name = "qemu"
    machine_uuid: Literal["required", "optional"] = "required"
    login_user = _LOGIN
    install = Install("/etc/muster", _LOGIN, _LOGIN)
    cannot: Mapping[str, str] = MappingProxyType(
        dict.fromkeys(("cloned", "degraded", "cloud-init-fails", "sudo-asks"), _SCENARIOS)
    )

    def __init__(
        self, state_dir: Path, *, accelerator: Accelerator, trial_address: str, images: Path | None = None
    ) -> None:
        """Get the image, which is built where it never was, and boot it as far as it takes to believe in it.

        Raises:
            OtherSide: no VM starts on this machine.
        """
        images = images or images_home()
        missing = {program: package for program, package in PROGRAMS.items() if find_program(program) is None}
        missing |= missing_packages(images) | seed_disc.missing_packages()
        if missing:
            packages = " ".join(dict.fromkeys(missing.values()))
            raise _unable(
                f"this machine has no {', no '.join(missing)}: apt-get install --no-install-recommends {packages}"
            )
        port = free_port(trial_address)
        if port is None:
            raise _unable(f"no port for SSH is free on {trial_address}")
        self.ssh_port = port
        self.accelerator = accelerator
        self.limits = limits_here()
        self._image: VmImage = obtain(images)
        self._places = state_dir.resolve() / "nodes"
        self._places.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._nodes: dict[int, QemuNode] = {}
        self._closed = False
        self._lock = threading.Lock()
        self._spawner = Spawner()
        try:
            prove(self._image, accelerator, self._places, self._spawner)
        except BaseException:
            self._spawner.close()
            raise

    @property
    def not_real(self) -> tuple[str, ...]:
        """What its nodes are not."""
        told = []
        if self.accelerator.why:
            told.append(
                f"its processors are emulated (TCG), some ten times slower than this machine's: {self.accelerator.why}"
            )
        most = f"{self.limits.cores} cores and {self.limits.memory_mib} MiB"
        told += [
            "its network is cut off: nothing goes out, and SSH alone comes in",
            "its address is one of loopback, which its kernel was told to take for a network",
            "further network devices are there, and lead nowhere",
            f"more than {most} are told and not given",
            "its kernel is handed to it at the start: there is no boot loader",
            "another disc in its CD drive is there at its next start",
        ]
        if self.ssh_port != 22:
            told.append(f"SSH listens on port {self.ssh_port}: port 22 cannot be bound here")
        return tuple(told)

    def boot(self, spec: NodeSpec) -> "QemuNode":
        """Start a VM; see `lab.nodes.Backend`."""
        personalise.check(spec)
        place = self._places / str(spec.vmid)
        node = QemuNode(spec, self.ssh_port, place, GuestAgent(place / AGENT_SOCKET))
        with self._lock:
            former = self._nodes.get(spec.vmid)
        if former is not None:
            former.stop()
        with self._lock:
            if self._closed:
                raise _no_start(spec, "the lab ends")
            self._nodes[spec.vmid] = node
        try:
            self._start(node)
        except BaseException as error:
            node.stop()
            if isinstance(error, OSError | subprocess.SubprocessError):
                raise _no_start(spec, str(error)) from error
            raise
        return node

    def cut(self, vmid: int) -> None:
        """Power a VM off that may still boot; its disk stays."""
        with self._lock:
            node = self._nodes.get(vmid)
        if node is not None:
            node.stop()

    def destroy(self, vmid: int) -> None:
        """Stop a VM and forget its disk."""
        self.cut(vmid)
        with self._lock:
            self._nodes.pop(vmid, None)
        shutil.rmtree(self._places / str(vmid), ignore_errors=True)

    def close(self) -> None:
        """Stop every VM, also those that still boot."""
        with self._lock:
            self._closed = True
            nodes = list(self._nodes.values())
            self._nodes.clear()
        for node in nodes:
            node.stop()
        self._spawner.close()

    def _start(self, node: "QemuNode") -> None:
        spec, place = node.spec, node.place
        if free_port(spec.address, (self.ssh_port,)) is None:
            # Else the greeting of whoever listens there would pass for the node's.
            raise _no_start(spec, f"{spec.address}:{self.ssh_port} is taken")
        place.mkdir(mode=0o700, exist_ok=True)
        for stale in (AGENT_SOCKET, MONITOR_SOCKET):
            (place / stale).unlink(missing_ok=True)
        make_overlay(self._image, place / OVERLAY, size_mib=spec.disk_mib)
        put_seed(spec, place / SEED)
        line = command(
            spec,
            self._image,
            self.accelerator,
            self.limits,
            place=place,
            ssh_port=self.ssh_port,
            now=datetime.now(UTC),
        )
        if not node.power_on(lambda: start(line, place, self._spawner)):
            raise _no_start(spec, "it was switched off")
        until = time.monotonic() + self.accelerator.boot_s
        while not _greets(spec.address, self.ssh_port):
            if not node.alive():
                switched = "it was switched off" if node.switched_off else last_words(place / "qemu.log")
                raise _no_start(spec, switched)
            if time.monotonic() > until:
                told = last_words(place / CONSOLE)
                raise _no_start(spec, f"no SSH server answered in {self.accelerator.boot_s:.0f} s: {told}")
            time.sleep(_PAUSE_S)


@dataclass(slots=True)
class QemuNode:
    """A running VM: its QEMU, and the agent in it."""

    spec: NodeSpec
    ssh_port: int
    place: Path
    agent: GuestAgent
    process: "subprocess.Popen[bytes] | None" = None
    switched_off: bool = False
    _switch: threading.Lock = field(default_factory=threading.Lock)

    def power_on(self, launch: "Callable[[], subprocess.Popen[bytes]]") -> bool:
        """Launch it, unless it was switched off before."""
        with self._switch:
            if not self.switched_off:
                self.process = launch()
            return not self.switched_off

    def read_file(self, path: str) -> bytes:
        """A file of the guest, through its agent."""
        if not self.alive():
            raise FileNotFoundError(f"{path}: the node is off")
        return self.agent.read_file(path, limit=_FILE_LIMIT, timeout_s=_ANSWER_S)

    def interfaces(self) -> list[dict[str, Any]]:
        """The guest's network interfaces, as its agent tells them."""
        found: list[dict[str, Any]] = self.ask_agent("guest-network-get-interfaces")
        return found

    def osinfo(self) -> dict[str, str]:
        """The guest's operating system, as its agent tells it."""
        found: dict[str, str] = self.ask_agent("guest-get-osinfo")
        return found

    def agent_answers(self) -> bool:
        """Whether the agent answers a ping, in the time that a real host gives it."""
        try:
            self.agent.ask("guest-ping", timeout_s=_PING_S)
        except (AgentSilent, AgentRefused):
            return False
        return True

    def ask_agent(self, command: str) -> Any:  # noqa: ANN401 - JSON
        """What its agent returns."""
        return self.agent.ask(command, timeout_s=_ANSWER_S)

    def alive(self) -> bool:
        """Whether its QEMU runs; that ends when the guest powers off."""
        return self.process is not None and self.process.poll() is None

    def shut_down(self, *, timeout_s: float) -> bool:
        """Ask the guest to power off, by its power button and then by its agent; whether it did in time."""
        until = time.monotonic() + timeout_s
        presses = 0
        while self.alive() and (left := until - time.monotonic()) > 0:
            if presses % 2 == 0:
                tell(self.place / MONITOR_SOCKET, "system_powerdown", timeout_s=min(_QUIT_S, left))
            else:
                # The agent gives no answer to this one: it ends with the guest.
                with contextlib.suppress(AgentSilent, AgentRefused):
                    self.agent.ask("guest-shutdown", {"mode": "powerdown"}, timeout_s=min(_PING_S, left))
            presses += 1
            self._ends_within(min(_PRESS_EVERY_S, left))
        if self.alive():
            return False
        self.stop()
        return True

    def stop(self) -> None:
        """Pull the plug; QEMU itself closes the disk in good order."""
        with self._switch:
            self.switched_off = True
            if self.process is None:
                return
            if self.process.poll() is None:
                tell(self.place / MONITOR_SOCKET, "quit", timeout_s=_QUIT_S)
            end(self.process, wait_s=_QUIT_S if self.process.poll() is None else 0.0)
        for name in (AGENT_SOCKET, MONITOR_SOCKET):
            (self.place / name).unlink(missing_ok=True)

    def _ends_within(self, seconds: float) -> None:
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)


def limits_here(meminfo: Path = Path("/proc/meminfo")) -> Limits:
    """All processors, and a quarter of the memory that is free now."""
    available = next(
        (
            int(line.split()[1])
            for line in meminfo.read_text().splitlines()
            if line.startswith("MemAvailable:")
        ),
        0,
    )
    return Limits(cores=len(os.sched_getaffinity(0)), memory_mib=available // 1024 // 4)


def _greets(address: str, port: int) -> bool:
    """Whether an SSH server greets; QEMU itself takes the connection long before the guest does."""
    try:
        with socket.create_connection((address, port), timeout=_BANNER_S) as connection:
            return connection.recv(8).startswith(b"SSH-2.0-")
    except OSError:
        return False


def _unable(why: str) -> OtherSide:
    return OtherSide(
        "no VM starts here",
        why=why,
        next_step="add what is missing, or use another backend, then start the lab again",
    )


def _no_start(spec: NodeSpec, why: str) -> OtherSide:
    return OtherSide(
        f"VM {spec.vmid} ({spec.name}) did not start",
        why=why,
        next_step="look at its console.log in the lab's state directory, then start it again",
    )
