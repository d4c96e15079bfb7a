"""What a VM of the lab really is, and which kind of it this machine can start."""

import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from inventory.errors import BadInput, MusterError, OtherSide
from lab.cloudinit import Seed
from lab.scenarios import CLEAN, Image

TRIAL_ADDRESS = "127.20.0.250"
_FORESEEN = (MusterError, OSError, subprocess.SubprocessError)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The machine that the API's config asks for.

    name: hostname, one DNS label.
    address: IPv4 address in 127.0.0.0/8, where the node's SSH server listens.
    uuid: what /sys/class/dmi/id/product_uuid tells in the node.
    macs: one per network device; the first is eth0's.
    user: login user; on some backends it must be the backend's `login_user`.
    ssh_keys: OpenSSH public keys that may log in, one line each.
    memory_mib: RAM in MiB, told and not enforced.
    instance_id: cloud-init's; another one than at the last boot makes new host keys.
    image: what the disk that it was cloned from brings along.
    clock_offset_s: seconds that its clock is ahead of the right time.
    disk_mib: size of its boot disk in MiB; 0: the image's own.
    seed: its cloud-init drive; None: what these fields amount to.
    disc: the ISO image in its CD drive, whose texts `seed` has; None: one is made of the seed.
    """

    vmid: int
    name: str
    address: str
    uuid: str
    macs: tuple[str, ...]
    user: str
    ssh_keys: tuple[str, ...]
    cores: int
    memory_mib: int
    instance_id: str
    image: Image = CLEAN
    clock_offset_s: int = 0
    disk_mib: int = 0
    seed: Seed | None = None
    disc: bytes | None = None


@dataclass(frozen=True, slots=True)
class Install:
    """Where an identity can be installed on a node, and who can own it there."""

    dir: str
    owner: str
    group: str


class LiveNode(Protocol):
    """One running node."""

    @property
    def spec(self) -> NodeSpec:
        """What it was booted with."""

    @property
    def ssh_port(self) -> int:
        """Where its SSH server listens, on the spec's address."""

    def read_file(self, path: str) -> bytes:
        """A file as the node sees it; symlinks are followed inside the node.

        Raises:
            FileNotFoundError, PermissionError, OSError: as the guest agent would say.
        """

    def interfaces(self) -> list[dict[str, Any]]:
        """The network interfaces, in the guest agent's form."""

    def osinfo(self) -> dict[str, str]:
        """The operating system, in the guest agent's form."""

    def alive(self) -> bool:
        """Whether it runs."""

    def stop(self) -> None:
        """Power off: when this returns, no process of the node is left. Its disk stays."""


@runtime_checkable
class Powered(Protocol):
    """What a node has beside that has a power button and a guest agent of its own."""

    def shut_down(self, *, timeout_s: float) -> bool:
        """Ask it to power off by itself; whether it did in time."""

    def agent_answers(self) -> bool:
        """Whether its agent answers a ping."""

    def ask_agent(self, command: str) -> Any:  # noqa: ANN401 - JSON
        """What its agent returns for a command without arguments.

        Raises:
            lab.guest_agent.AgentSilent, lab.guest_agent.AgentRefused: no answer came in time, or an error.
        """


@runtime_checkable
class Cutter(Protocol):
    """What a backend has beside whose nodes take long to boot."""

    def cut(self, vmid: int) -> None:
        """Power a node off, also one that still boots, whose `boot` then fails; its disk stays."""


class Backend(Protocol):
    """One way to make nodes on this machine."""

    @property
    def name(self) -> str:
        """`namespaces`, `directory` or `qemu`."""

    @property
    def not_real(self) -> tuple[str, ...]:
        """What its nodes are not, in short sentences for a person."""

    @property
    def login_user(self) -> str:
        """The user that profiles must name."""

    @property
    def ssh_port(self) -> int:
        """The port of its nodes' SSH servers."""

    @property
    def install(self) -> Install:
        """Where onboarding can put an identity."""

    @property
    def machine_uuid(self) -> Literal["required", "optional"]:
        """Whether a node can read its own DMI uuid."""

    @property
    def cannot(self) -> Mapping[str, str]:
        """The templates of lab/scenarios.py that its nodes cannot be cloned from, by name, with the reason."""

    def boot(self, spec: NodeSpec) -> LiveNode:
        """Start a node; returns when its SSH server answers.

        A vmid that was booted before keeps its disk. May be called from several threads.

        Raises:
            OtherSide: it did not start, or not in time; nothing of it is left running.
        """

    def destroy(self, vmid: int) -> None:
        """Forget the disk of a node, which is stopped first; an unknown vmid is nothing to do."""

    def close(self) -> None:
        """Stop every node; the backend starts none afterwards."""


def choose(state_dir: Path, *, wanted: str | None = None, trial_address: str = TRIAL_ADDRESS) -> Backend:
    """The best backend that really starts a node here: `namespaces`, then `directory`; `qemu` only by its name.

    Each candidate boots a trial node on `trial_address` (so pass one of the lab's own claimed prefix), logs in
    over SSH with a key, finds python3, openssl and the rights of an administrator there, and is stopped again.
    A VM, whose boot takes a minute, is believed when it says on its console that it has all that.

    Args:
        state_dir: where the nodes' disks lie; made (0700) if it is not there.
        wanted: the name of the only backend to try.
        trial_address: a free address of 127.0.0.0/8.

    Raises:
        BadInput: there is no backend called `wanted`.
        OtherSide: none starts; why each did not is told.
    """
    if wanted not in (None, *BACKENDS):
        raise BadInput(
            f"there is no backend '{wanted}'",
            why="the lab's nodes are made by one of: " + ", ".join(BACKENDS),
            next_step="name one of them, or none to get the best that starts",
        )
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    failures = []
    for name, candidates in _MAKERS.items():
        if wanted != name and (wanted is not None or name in _BY_NAME_ONLY):
            continue
        for attempt in _attempts(candidates, state_dir, trial_address):
            if not isinstance(attempt, str):
                return attempt
            failures.append(f"{name}: {attempt}")
    raise OtherSide(
        "no node of the lab starts on this machine",
        why="\n".join(dict.fromkeys(failures)),
        next_step="add what is missing, or use another backend"
        if wanted in _BY_NAME_ONLY
        else "as root with util-linux and openssl everything is there; without root install bubblewrap",
    )


def interfaces_of(spec: NodeSpec) -> list[dict[str, Any]]:
    """The answer to `network-get-interfaces` for a node with this spec."""
    found = [_interface("lo", "00:00:00:00:00:00", "127.0.0.1", 8)]
    for number, mac in enumerate(spec.macs):
        address = spec.address if number == 0 else None
        found.append(_interface(f"eth{number}", mac.lower(), address, 24))
    return found


def osinfo_of(os_release: str) -> dict[str, str]:
    """The answer to `get-osinfo`, from the text of /etc/os-release and the kernel that runs."""
    fields = _assignments(os_release)
    wanted = {
        "id": "ID",
        "name": "NAME",
        "pretty-name": "PRETTY_NAME",
        "version": "VERSION",
        "version-id": "VERSION_ID",
    }
    kernel = platform.uname()
    return {
        **{key: fields[source] for key, source in wanted.items() if source in fields},
        "kernel-release": kernel.release,
        "kernel-version": kernel.version,
        "machine": kernel.machine,
    }


def _interface(name: str, mac: str, address: str | None, prefix: int) -> dict[str, Any]:
    counters = ("bytes", "packets", "errs", "dropped")
    found: dict[str, Any] = {
        "name": name,
        "hardware-address": mac,
        "statistics": {f"{way}-{counter}": 0 for way in ("rx", "tx") for counter in counters},
    }
    if address is not None:
        found["ip-addresses"] = [{"ip-address": address, "ip-address-type": "ipv4", "prefix": prefix}]
    return found


def _assignments(os_release: str) -> dict[str, str]:
    """The assignments of an os-release(5) file."""
    pairs = (line.strip().partition("=") for line in os_release.splitlines())
    return {key: value.strip("\"'") for key, equals, value in pairs if equals and not key.startswith("#")}


def _attempts(
    candidates: Callable[[Path, str], Iterator[Callable[[], Backend]]], state_dir: Path, trial_address: str
) -> Iterator[Backend | str]:
    """One candidate after the other: the backend, tried out, or why it is none."""
    from lab.trial import try_out

    for make in candidates(state_dir, trial_address):
        try:
            backend = make()
        except _FORESEEN as error:
            yield _why(error)
            continue
        try:
            if backend.name not in _TRIED_WHEN_MADE:
                try_out(backend, trial_address)
        except BaseException as error:
            backend.close()
            if not isinstance(error, _FORESEEN):
                raise
            yield _why(error)
        else:
            yield backend


def _why(error: BaseException) -> str:
    return f"{error.what}: {error.why}" if isinstance(error, MusterError) else str(error)


def _namespaces(state_dir: Path, trial_address: str) -> Iterator[Callable[[], Backend]]:
    from lab.namespaces import candidates

    return candidates(state_dir, trial_address)


def _directory(state_dir: Path, trial_address: str) -> Iterator[Callable[[], Backend]]:
    from lab.directory import candidates

    return candidates(state_dir, trial_address)


def _qemu(state_dir: Path, trial_address: str) -> Iterator[Callable[[], Backend]]:
    from lab.qemu import candidates

    return candidates(state_dir, trial_address)


_MAKERS = {"namespaces": _namespaces, "directory": _directory, "qemu": _qemu}
_BY_NAME_ONLY = _TRIED_WHEN_MADE = frozenset({"qemu"})
BACKENDS = tuple(_MAKERS)
