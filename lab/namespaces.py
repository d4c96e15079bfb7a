"""Nodes made of namespaces: own files, names, processes and SSH server, on this machine's kernel and network."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from inventory.errors import OtherSide
from lab import personalise
from lab.hidden import hidden_directories
from lab.inside import read_inside
from lab.nodes import Install, LiveNode, NodeSpec, interfaces_of, osinfo_of
from lab.overlay import Disks
from lab.spawner import (
    SANE_ENV,
    Spawner,
    end,
    find_program,
    free_port,
    last_words,
    wait_for_banner,
    wait_for_word,
)
from lab.ssh_server import Door, Listener, Program, SshService, new_host_keys

_INIT = Path(__file__).with_name("namespace_init.sh")
_UNSHARE = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--uts", "--ipc", "--pid", "--propagation", "private"),
    *("--fork", "--kill-child=KILL"),
)
TOOLS = ("unshare", "nsenter", "setpriv", "mount", "pivot_root", "tar", "openssl", "python3")
_LOGIN = "muster"
# root in a node is root on this machine, so what could change the machine, or look behind a mask, is taken away.
_DROPPED = ",".join(
    f"-{capability}"
    for capability in (
        "sys_admin",
        "sys_module",
        "sys_rawio",
        "sys_time",
        "sys_ptrace",
        "mknod",
        "net_admin",
        "dac_read_search",
        "syslog",
    )
)
_OWN = ("/home", "/root", "/tmp", "/var/tmp", "/srv", "/mnt", "/media")  # noqa: S108 - namespace_init.sh's list
_BOOT_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0


def candidates(state_dir: Path, trial_address: str) -> Iterator[Callable[[], "NamespacesBackend"]]:
    """Makers of backends, best first: with the machine's own sshd and sudo, then without one or both."""
    sshd = find_program("sshd")
    for server in dict.fromkeys((sshd, None)):
        for login in (_LOGIN, "root") if find_program("sudo") else ("root",):
            yield lambda server=server, login=login: NamespacesBackend(  # type: ignore[misc] # a lambda has no types
                state_dir, sshd=server, login_user=login, trial_address=trial_address
            )


class NamespacesBackend:
    """Makes namespaces nodes; needs root.

    Args:
        state_dir: where the disks lie, one directory per vmid under `nodes`.
        sshd: OpenSSH's server to run in the nodes; None lets asyncssh serve them from outside.
        login_user: the user that profiles must name.
        trial_address: where it is tried which port an SSH server can have.
        hidden: further directories that no node may see.
    """

    name = "namespaces"
    machine_uuid: Literal["required", "optional"] = "required"

    def __init__(
        self,
        state_dir: Path,
        *,
        sshd: str | None,
        login_user: str,
        trial_address: str,
        hidden: tuple[Path, ...] = (),
    ) -> None:
        """Find out where disks can lie.

        Raises:
            OtherSide: this machine cannot hold such a node.
        """
        if os.geteuid() != 0:
            raise _unable("it needs root")
        if missing := [tool for tool in TOOLS if find_program(tool) is None]:
            raise _unable(f"this machine has no {', no '.join(missing)}")
        port = free_port(trial_address)
        if port is None:
            raise _unable(f"no port for SSH is free on {trial_address}")
        self.ssh_port = port
        self.login_user = login_user
        # The login user owns the identity, as on a node of one's own: it then needs no sudo to look after it.
        self.install = Install("/etc/muster", login_user, login_user)
        self._sshd = sshd
        self._hidden = tuple(
            path
            for path in (*hidden_directories(state_dir), *hidden)
            # There the node has its own files: namespace_init.sh.
            if not any(path.is_relative_to(Path(own).resolve()) for own in _OWN)
        )
        self._nodes: dict[int, NamespacesNode] = {}
        self._closed = False
        self._lock = threading.Lock()
        self._ssh = SshService()
        self._spawner = Spawner()
        try:
            self._disks = Disks(state_dir.resolve() / "nodes", self._spawner)
        except (OSError, subprocess.SubprocessError) as error:
            self._ssh.close()
            self._spawner.close()
            raise _unable(str(error)) from error

    @property
    def not_real(self) -> tuple[str, ...]:
        """What its nodes are not."""
        told = [
            "no firmware, kernel or systemd of its own: it runs on this machine's kernel",
            "it shares this machine's network: the address is one of loopback, and eth0 is told by the API only",
            "its disk is this machine's root directory, copied on write, without homes and the lab's own directories",
            "cores, memory and disk size are told and not enforced",
            "cloud-init and the guest agent are imitated: of user-data, only the login user and the keys are taken",
            "it has this machine's clock: where a template's is off, only date(1) tells so",
        ]
        if self._disks.in_memory:
            told.append("its disk lies in memory and is lost when the lab ends")
        if self._sshd is None:
            told.append("its SSH server is asyncssh, outside the node; commands enter it")
        if self.login_user == "root":
            told.append("the login is root: this machine has no sudo that works in a node")
        if self.ssh_port != 22:
            told.append(f"SSH listens on port {self.ssh_port}: port 22 is taken on this machine")
        return tuple(told)

    @property
    def cannot(self) -> Mapping[str, str]:
        """Templates that its nodes cannot be cloned from."""
        return {"sudo-asks": "the login of its nodes is root"} if self.login_user == "root" else {}

    def boot(self, spec: NodeSpec) -> "LiveNode":
        """Start a node; see `lab.nodes.Backend`."""
        personalise.check(spec)
        with self._lock:
            former = self._nodes.get(spec.vmid)
        if former is not None:
            former.stop()
        node = self._start(spec)
        with self._lock:
            if not self._closed:
                self._nodes[spec.vmid] = node
                return node
        node.stop()
        raise _no_start(spec, "the lab ends")

    def destroy(self, vmid: int) -> None:
        """Stop a node and forget its disk."""
        with self._lock:
            node = self._nodes.pop(vmid, None)
        if node is not None:
            node.stop()
        shutil.rmtree(self._disks.seen(self._disks.place(vmid)), ignore_errors=True)
        self._disks.log(vmid).unlink(missing_ok=True)

    def close(self) -> None:
        """Stop every node."""
        with self._lock:
            self._closed = True
            nodes = list(self._nodes.values())
            self._nodes.clear()
        for node in nodes:
            node.stop()
        self._disks.close()
        self._spawner.close()
        self._ssh.close()

    def _start(self, spec: NodeSpec) -> "NamespacesNode":
        if free_port(spec.address, (self.ssh_port,)) is None:
            # Else the greeting of whoever listens there would pass for the node's.
            raise _no_start(spec, f"{spec.address}:{self.ssh_port} is taken")
        disk = self._disks.place(spec.vmid)
        seen = self._disks.seen(disk)
        seen.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = self._disks.log(spec.vmid)
        marker = seen / "instance-id"
        last = marker.read_text() if marker.exists() else None
        work = "first" if last is None else "" if last == spec.instance_id else "again"
        if work == "first":
            # A first boot that was cut short left half a disk.
            shutil.rmtree(seen / "upper", ignore_errors=True)
            shutil.rmtree(seen / "own", ignore_errors=True)
        tar = seen / "seed.tar"
        tar.touch(0o600)
        tar.write_bytes(personalise.pack(_seed(spec, work)))
        env = {
            **SANE_ENV,
            "disk": str(disk),
            "hidden": "\n".join(map(str, self._hidden)),
            "name": spec.name,
            "user": spec.user,
            "address": spec.address,
            "port": str(self.ssh_port),
            "uuid": spec.uuid,
            "personalise": work,
            "nopasswd": "" if spec.image.sudo_asks else "NOPASSWD:",
            "dropped": _DROPPED,
            "sshd": self._sshd or "",
        }
        process = self._spawner.start(
            [*self._disks.entry, *_UNSHARE, "/bin/sh", str(_INIT)], env=env, log=log
        )
        node = NamespacesNode(spec, self.ssh_port, process)
        try:
            if not wait_for_word(process, b"ready", timeout_s=_BOOT_TIMEOUT_S):
                raise _no_start(spec, last_words(log))
            tar.unlink()
            node.pid = _only_child(process.pid)
            if self._sshd is None:
                node.listener = self._ssh.open(_door(node))
            if not wait_for_banner(spec.address, self.ssh_port, alive=node.alive, timeout_s=_BOOT_TIMEOUT_S):
                raise _no_start(spec, f"no SSH server answered; {last_words(log)}")
        except BaseException as error:
            node.stop()
            if isinstance(error, OSError):
                raise _no_start(spec, str(error)) from error
            raise
        marker.write_text(spec.instance_id)
        return node


@dataclass(slots=True)
class NamespacesNode:
    """A running node: `process` is its unshare(1), `pid` its PID 1 as this machine counts."""

    spec: NodeSpec
    ssh_port: int
    process: "subprocess.Popen[bytes]"
    pid: int = 0
    listener: Listener | None = None
    _stopping: threading.Lock = field(default_factory=threading.Lock)

    def read_file(self, path: str) -> bytes:
        """A file of the node's own root directory."""
        if not self.alive():
            raise FileNotFoundError(f"{path}: the node is off")
        return read_inside(Path(f"/proc/{self.pid}/root"), path)

    def interfaces(self) -> list[dict[str, Any]]:
        """The spec's network devices."""
        return interfaces_of(self.spec)

    def osinfo(self) -> dict[str, str]:
        """The node's os-release, and this machine's kernel."""
        return osinfo_of(self.read_file("/etc/os-release").decode(errors="replace"))

    def alive(self) -> bool:
        """Whether its PID 1 runs."""
        return self.process.poll() is None

    def stop(self) -> None:
        """Power off."""
        with self._stopping:
            if self.listener is not None:
                self.listener.close()
                self.listener = None
            # With PID 1 the kernel ends the whole namespace before unshare learns of it, so its end is theirs:
            # pid_namespaces(7). unshare itself ignores SIGTERM.
            if self.pid and self.alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            end(self.process, wait_s=_STOP_TIMEOUT_S if self.pid else 0.0)


def _seed(spec: NodeSpec, work: str) -> list[personalise.NodeFile]:
    files: list[personalise.NodeFile] = []
    if work == "first":
        files += personalise.first_boot(spec.image)
    if work:
        keys = spec.image.host_keys or new_host_keys(spec.name)
        files += (*personalise.new_instance(spec, keys), personalise.sshd_config(keys))
    return [*files, *personalise.every_boot(spec, now=datetime.now(UTC)), *personalise.clock(spec)]


def _door(node: NamespacesNode) -> Door:
    """An SSH server outside, whose commands enter the node as its login."""
    spec = node.spec
    accounts = node.read_file("/etc/passwd").decode(errors="replace").splitlines()
    uid, gid, _, home = next(line for line in accounts if line.startswith(f"{spec.user}:")).split(":")[2:6]

    def enter(command: str | None) -> Program:
        shell = ["-l"] if command is None else ["-c", command]
        argv = [
            *("nsenter", "-t", str(node.pid), "-m", "-u", "-i", "-p", "--"),
            *("setpriv", f"--reuid={uid}", f"--regid={gid}", "--init-groups", "--reset-env"),
            *("--bounding-set", _DROPPED, "--inh-caps", "-all"),
            *("/bin/sh", "-c", 'cd; exec "$SHELL" "$@"', "sh", *shell),
        ]
        return Program(tuple(argv), SANE_ENV)

    return Door(
        address=spec.address,
        port=node.ssh_port,
        user=spec.user,
        host_keys=tuple(
            node.read_file(f"/{key}")
            for key in ("etc/ssh/ssh_host_ed25519_key", "etc/ssh/ssh_host_ecdsa_key")
        ),
        authorized_keys=lambda: node.read_file(f"{home}/.ssh/authorized_keys"),
        enter=enter,
    )


def _only_child(pid: int) -> int:
    """The PID 1 that unshare forked, as this machine counts."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                return int(entry.name)
    raise OSError("its first process is gone")


def _unable(why: str) -> OtherSide:
    return OtherSide(
        "no namespaces node starts here",
        why=why,
        next_step="run the lab as root on Linux with util-linux, tar, python3 and openssl, or with --backend directory",
    )


def _no_start(spec: NodeSpec, why: str) -> OtherSide:
    return OtherSide(
        f"VM {spec.vmid} ({spec.name}) did not start",
        why=why,
        next_step="look at its log in the lab's state directory, then start it again",
    )
