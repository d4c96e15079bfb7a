"""Nodes that need no root: a private directory behind an SSH server, inside walls where those stand."""

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from inventory.errors import OtherSide
from lab import own_sshd, personalise, plain, user_namespace, walled
from lab.bubblewrap import Bubblewrap
from lab.hidden import hidden_directories
from lab.nodes import Install, LiveNode, NodeSpec, interfaces_of, osinfo_of
from lab.spawner import Spawner, find_program, free_port, wait_for_banner
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

    @property
    def authorized_keys_file(self) -> Path:
        """Where this machine has it."""


def candidates(state_dir: Path, trial_address: str) -> Iterator[Callable[[], "DirectoryBackend"]]:
    """Makers of backends, best first: behind walls, then without; each with OpenSSH's server if it is there."""
    bwrap = find_program("bwrap")
    kinds: list[walled.Walls | None] = [Bubblewrap(bwrap)] if bwrap else []
    if all(map(find_program, user_namespace.TOOLS)):
        kinds.append(user_namespace.UserNamespace())
    for walls in (*kinds, None):
        for sshd in dict.fromkeys((find_program("sshd"), None)):
            yield lambda walls=walls, sshd=sshd: DirectoryBackend(  # type: ignore[misc] # a lambda has no types
                state_dir, walls=walls, sshd=sshd, trial_address=trial_address
            )


class DirectoryBackend:
    """Makes directory nodes.

    Args:
        state_dir: where the directories lie, one per vmid under `nodes`.
        walls: what shuts a node's commands in, then kept as `walls`; None does without.
        sshd: OpenSSH's server to run as the lab's user; None lets asyncssh serve the nodes.
        trial_address: where it is tried which port an SSH server can have.
    """

    name = "directory"

    def __init__(
        self, state_dir: Path, *, walls: walled.Walls | None, sshd: str | None = None, trial_address: str
    ) -> None:
        """Find a port.

        Raises:
            OtherSide: no port can be bound, or a tool is missing.
        """
        needed = ("tar",) if walls else ()
        if missing := [tool for tool in needed if find_program(tool) is None]:
            raise _unable(f"this machine has no {', no '.join(missing)}")
        port = free_port(trial_address)
        if port is None:
            raise _unable(f"no port for SSH is free on {trial_address}")
        self.ssh_port = port
        self.walls = walls
        self._sshd = sshd
        self._state = state_dir.resolve()
        self._places = self._state / "nodes"
        self._places.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._hidden = hidden_directories(self._state)
        self._nodes: dict[int, DirectoryNode] = {}
        self._closed = False
        self._lock = threading.Lock()
        self._ssh = SshService()
        self._spawner = Spawner()

    @property
    def login_user(self) -> str:
        """Root behind walls, but the user of the lab without, and where sshd, which can let in no other, asks."""
        return "root" if self.walls and not self._sshd else plain.login_user()

    @property
    def install(self) -> Install:
        """Behind walls as on a real machine; else a link that leads to the node that runs."""
        if self.walls:
            return walled.install_of(self.login_user)
        return plain.install_of(self._state / _PLAIN_LINK)

    @property
    def machine_uuid(self) -> Literal["required", "optional"]:
        """Without walls a node sees this machine's DMI."""
        return "required" if self.walls else "optional"

    @property
    def not_real(self) -> tuple[str, ...]:
        """What its nodes are not."""
        server = "sshd, run by the lab's user" if self._sshd else "asyncssh"
        told = [
            f"no firmware, kernel or systemd of its own: it is a directory behind an SSH server ({server})",
            *(walled.not_real(self.walls) if self.walls else plain.PlainRoot.not_real),
            "it shares this machine's network: the address is one of loopback, and eth0 is told by the API only",
            "cores, memory and disk size are told and not enforced",
            "cloud-init and the guest agent are imitated: of user-data, only the login user and the keys are taken",
        ]
        if self.ssh_port != 22:
            told.append(f"SSH listens on port {self.ssh_port}: port 22 cannot be bound here")
        return tuple(told)

    @property
    def cannot(self) -> Mapping[str, str]:
        """Templates that its nodes cannot be cloned from."""
        return walled.cannot() if self.walls else plain.PlainRoot.cannot

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
        if self.walls:
            root = walled.WalledRoot(self.walls, place, spec, login=self.login_user, hidden=self._hidden)
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
        self._spawner.close()
        self._ssh.close()

    def _start(self, node: "DirectoryNode", place: Path) -> None:
        spec = node.spec
        marker = place / "instance-id"
        last = marker.read_text() if marker.exists() else None
        work = "first" if last is None else "" if last == spec.instance_id else "again"
        files = [*personalise.every_boot(spec, now=datetime.now(UTC)), *personalise.clock(spec)]
        if work == "first":
            files += personalise.first_boot(spec.image)
        if work:
            files += personalise.new_instance(spec, spec.image.host_keys or new_host_keys(spec.name))
        node.root.personalise(work, files)
        node.server = self._serve(node, place)
        if not wait_for_banner(spec.address, self.ssh_port, alive=node.alive, timeout_s=_BANNER_TIMEOUT_S):
            raise _no_start(spec, _silence(node.server))
        marker.write_text(spec.instance_id)

    def _serve(self, node: "DirectoryNode", place: Path) -> Listener | own_sshd.OwnSshd:
        spec, root = node.spec, node.root
        host_keys = tuple(root.read(f"/etc/ssh/ssh_host_{kind}_key") for kind in ("ed25519", "ecdsa"))
        if self._sshd is not None:
            if free_port(spec.address, (self.ssh_port,)) is None:
                # Else the greeting of whoever listens there would pass for the node's.
                raise _no_start(spec, f"{spec.address}:{self.ssh_port} is taken")
            return own_sshd.start(
                self._sshd,
                self._spawner,
                place / "sshd",
                spec,
                port=self.ssh_port,
                host_keys=host_keys,
                authorized_keys=root.authorized_keys_file,
                enter=root.program,
            )
        return self._ssh.open(
            Door(
                address=spec.address,
                port=self.ssh_port,
                user=spec.user,
                host_keys=host_keys,
                authorized_keys=root.authorized_keys,
                enter=root.program,
            )
        )

    def _point_to(self, place: Path, spec: NodeSpec) -> None:
        """Let the installation directory be this node's; refuse if another node has it."""
        with self._lock:
            others = [node.spec.name for node in self._nodes.values() if node.alive()]
            if others:
                raise _no_start(spec, f"{others[0]} runs, and without walls there is room for one node")
            link = self._state / _PLAIN_LINK
            link.unlink(missing_ok=True)
            link.symlink_to(place / "home")


@dataclass(slots=True)
class DirectoryNode:
    """A running node: its SSH server, and the way to its directory."""

    spec: NodeSpec
    ssh_port: int
    root: Root
    server: Listener | own_sshd.OwnSshd | None = None
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
        """Whether its SSH server runs."""
        server = self.server
        return server.alive() if isinstance(server, own_sshd.OwnSshd) else server is not None

    def stop(self) -> None:
        """End its SSH server, and every command that it runs."""
        with self._stopping:
            if self.server is not None:
                self.server.close()
                self.server = None


def _silence(server: Listener | own_sshd.OwnSshd) -> str:
    if isinstance(server, own_sshd.OwnSshd) and not server.alive():
        return f"its SSH server ended: {server.last_words()}"
    return f"no SSH server answered within {_BANNER_TIMEOUT_S:.0f} s"


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
