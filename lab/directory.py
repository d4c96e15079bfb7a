"""Nodes that need no root: a private directory behind an SSH server, inside bubblewrap where that starts."""

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from inventory.errors import OtherSide
from lab import personalise, plain
from lab.bubblewrap import BubblewrapRoot, hidden_of
from lab.nodes import Install, LiveNode, NodeSpec, interfaces_of, osinfo_of
from lab.spawner import find_program, free_port, wait_for_banner
from lab.ssh_server import Door, Listener, Program, SshService, new_host_keys

_BANNER_TIMEOUT_S = 20.0
_PLAIN_LINK = "plain"


class Root(Protocol):
    """A node's directory as a machine."""

    def personalise(self, work: str, files: Sequence[personalise.NodeFile]) -> None:
        """Do what cloud-init would do; `work` is `first`, `again` or empty."""

    def program(self, command: str | None) -> Program:
        """How a session's command is run there."""

    def read(self, path: str) -> bytes:
        """A file as the node sees it."""

    def authorized_keys(self) -> bytes:
        """The login's authorized_keys."""


def candidates(state_dir: Path, trial_address: str) -> Iterator[Callable[[], "DirectoryBackend"]]:
    """Makers of backends, best first: inside bubblewrap if it is there, then without."""
    bwrap = find_program("bwrap")
    for walls in dict.fromkeys((bwrap, None)):
        yield lambda walls=walls: DirectoryBackend(  # type: ignore[misc] # a lambda has no types
            state_dir, bwrap=walls, trial_address=trial_address
        )


class DirectoryBackend:
    """Makes directory nodes.

    Args:
        state_dir: where the directories lie, one per vmid under `nodes`.
        bwrap: bubblewrap's program; None does without.
        trial_address: where it is tried which port an SSH server can have.
    """

    name = "directory"

    def __init__(self, state_dir: Path, *, bwrap: str | None, trial_address: str) -> None:
        """Find a port.

        Raises:
            OtherSide: no port can be bound, or a tool is missing.
        """
        needed = ("tar",) if bwrap else ()
        if missing := [tool for tool in needed if find_program(tool) is None]:
            raise _unable(f"this machine has no {', no '.join(missing)}")
        port = free_port(trial_address)
        if port is None:
            raise _unable(f"no port for SSH is free on {trial_address}")
        self.ssh_port = port
        self._bwrap = bwrap
        self._state = state_dir.resolve()
        self._places = self._state / "nodes"
        self._places.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._hidden = hidden_of(self._state)
        self._nodes: dict[int, DirectoryNode] = {}
        self._closed = False
        self._lock = threading.Lock()
        self._ssh = SshService()

    @property
    def login_user(self) -> str:
        """Root behind walls, else the user of the lab."""
        return "root" if self._bwrap else plain.login_user()

    @property
    def install(self) -> Install:
        """Behind walls as on a real machine; else a link that leads to the node that runs."""
        return BubblewrapRoot.install if self._bwrap else plain.install_of(self._state / _PLAIN_LINK)

    @property
    def machine_uuid(self) -> Literal["required", "optional"]:
        """Without walls a node sees this machine's DMI."""
        return "required" if self._bwrap else "optional"

    @property
    def not_real(self) -> tuple[str, ...]:
        """What its nodes are not."""
        told = [
            "no firmware, kernel or systemd of its own: it is a directory behind an SSH server (asyncssh)",
            *(BubblewrapRoot.not_real if self._bwrap else plain.PlainRoot.not_real),
            "it shares this machine's network: the address is one of loopback, and eth0 is told by the API only",
            "cores, memory and disk size are told and not enforced",
            "cloud-init and the guest agent are imitated",
        ]
        if self.ssh_port != 22:
            told.append(f"SSH listens on port {self.ssh_port}: port 22 cannot be bound here")
        return tuple(told)

    def boot(self, spec: NodeSpec) -> "LiveNode":
        """Start a node; see `lab.nodes.Backend`."""
        personalise.check(spec)
        with self._lock:
            former = self._nodes.pop(spec.vmid, None)
        if former is not None:
            former.stop()
        place = self._places / str(spec.vmid)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        root: Root
        if self._bwrap:
            root = BubblewrapRoot(self._bwrap, place, spec, hidden=self._hidden)
        else:
            self._point_to(place, spec)
            root = plain.PlainRoot(place, spec)
        node = DirectoryNode(spec, self.ssh_port, root)
        with self._lock:
            if self._closed:
                raise _no_start(spec, "the lab ends")
            self._nodes[spec.vmid] = node
        try:
            self._start(node, place)
        except BaseException as error:
            node.stop()
            if isinstance(error, OSError | subprocess.SubprocessError):
                raise _no_start(spec, str(error)) from error
            raise
        return node

    def destroy(self, vmid: int) -> None:
        """Stop a node and forget its directory."""
        with self._lock:
            node = self._nodes.pop(vmid, None)
        if node is not None:
            node.stop()
        shutil.rmtree(self._places / str(vmid), ignore_errors=True)

    def close(self) -> None:
        """Stop every node."""
        with self._lock:
            self._closed = True
            nodes = list(self._nodes.values())
            self._nodes.clear()
        for node in nodes:
            node.stop()
        self._ssh.close()

    def _start(self, node: "DirectoryNode", place: Path) -> None:
        spec = node.spec
        marker = place / "instance-id"
        last = marker.read_text() if marker.exists() else None
        work = "first" if last is None else "" if last == spec.instance_id else "again"
        files = list(personalise.every_boot(spec, now=datetime.now(UTC)))
        if work == "first":
            files += personalise.first_boot()
        if work:
            files += personalise.new_instance(spec, new_host_keys(spec.name))
        node.root.personalise(work, files)
        node.listener = self._ssh.open(
            Door(
                address=spec.address,
                port=self.ssh_port,
                user=spec.user,
                host_keys=tuple(
                    node.root.read(f"/etc/ssh/ssh_host_{kind}_key") for kind in ("ed25519", "ecdsa")
                ),
                authorized_keys=node.root.authorized_keys,
                enter=node.root.program,
            )
        )
        if not wait_for_banner(spec.address, self.ssh_port, alive=node.alive, timeout_s=_BANNER_TIMEOUT_S):
            raise _no_start(spec, f"no SSH server answered within {_BANNER_TIMEOUT_S:.0f} s")
        marker.write_text(spec.instance_id)

    def _point_to(self, place: Path, spec: NodeSpec) -> None:
        """Let the installation directory be this node's; refuse if another node has it."""
        with self._lock:
            others = [node.spec.name for node in self._nodes.values() if node.alive()]
            if others:
                raise _no_start(spec, f"{others[0]} runs, and without bubblewrap there is room for one node")
            link = self._state / _PLAIN_LINK
            link.unlink(missing_ok=True)
            link.symlink_to(place / "home")


@dataclass(slots=True)
class DirectoryNode:
    """A running node: its SSH server, and the way to its directory."""

    spec: NodeSpec
    ssh_port: int
    root: Root
    listener: Listener | None = None
    _stopping: threading.Lock = field(default_factory=threading.Lock)

    def read_file(self, path: str) -> bytes:
        """A file as the node's commands see it."""
        if not self.alive():
            raise FileNotFoundError(f"{path}: the node is off")
        return self.root.read(path)

    def interfaces(self) -> list[dict[str, Any]]:
        """The spec's network devices."""
        return interfaces_of(self.spec)

    def osinfo(self) -> dict[str, str]:
        """The os-release that the node sees, and this machine's kernel."""
        return osinfo_of(self.read_file("/etc/os-release").decode(errors="replace"))

    def alive(self) -> bool:
        """Whether its SSH server listens."""
        return self.listener is not None

    def stop(self) -> None:
        """End its SSH server, and every command that it runs."""
        with self._stopping:
            if self.listener is not None:
                self.listener.close()
                self.listener = None


def _unable(why: str) -> OtherSide:
    return OtherSide(
        "no directory node starts here", why=why, next_step="add what is missing, then start the lab again"
    )


def _no_start(spec: NodeSpec, why: str) -> OtherSide:
    return OtherSide(
        f"VM {spec.vmid} ({spec.name}) did not start",
        why=why,
        next_step="free what it needs, then start it again",
    )
