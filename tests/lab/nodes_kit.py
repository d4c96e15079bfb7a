"""What the tests of nodes share: a network prefix of their own, backends of each kind, and a login."""

import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from inventory.model import HostKey
from inventory.reach import Session, open_session
from lab.bubblewrap import Bubblewrap
from lab.directory import DirectoryBackend
from lab.namespaces import NamespacesBackend
from lab.nodes import Backend, LiveNode, NodeSpec
from lab.spawner import find_program
from lab.ssh_server import new_login_key
from lab.user_namespace import TOOLS, UserNamespace
from lab.walled import Walls
from tests.require import need, need_command, need_root

REPOSITORY = Path(__file__).resolve().parents[2]
_LAB_PORT = 8006  # who listens on it claims the prefix


@dataclass(frozen=True, slots=True)
class Login:
    """A key that may log in, and one that may not."""

    key_file: Path
    public: str
    stranger: Path


def make_login(folder: Path) -> Login:
    private, public = new_login_key()
    stranger, _ = new_login_key()
    for name, key in (("id", private), ("id_stranger", stranger)):
        (folder / name).touch(0o600)
        (folder / name).write_bytes(key)
    return Login(folder / "id", public, folder / "id_stranger")


@contextmanager
def claimed_prefix() -> Iterator[str]:
    """The first three numbers of a network that no lab uses meanwhile."""
    for number in range(254, 0, -1):
        claim = socket.socket()
        try:
            claim.bind((f"127.20.{number}.1", _LAB_PORT))
            claim.listen(1)
        except OSError:
            claim.close()
            continue
        with claim:
            yield f"127.20.{number}"
        return
    raise OSError("every prefix is taken")


def make_backend(kind: str, state_dir: Path, prefix: str) -> Backend:
    """A backend of one kind; the test is skipped by name where the machine has not what it takes."""
    trial = f"{prefix}.250"
    if kind in {"sshd", "no sshd"}:
        need_root()
        need_command("unshare", "nsenter", "setpriv", "openssl", *(["sshd"] if kind == "sshd" else []))
        login = "muster" if find_program("sudo") else "root"
        sshd = find_program("sshd") if kind == "sshd" else None
        return NamespacesBackend(state_dir, sshd=sshd, login_user=login, trial_address=trial)
    walls, _, server = kind.partition(" with ")
    if server == "sshd":
        need_command("sshd")
        # There its unprivileged part lives; Debian makes it when it starts the machine's own server.
        need(os.geteuid() != 0 or Path("/run/sshd").is_dir(), "/run/sshd", "mkdir -m 0755 /run/sshd")
    need_command(*{"bwrap": ("bwrap",), "unshare": TOOLS}.get(walls, ()))
    made: dict[str, Walls] = {"bwrap": Bubblewrap("bwrap"), "unshare": UserNamespace()}
    return DirectoryBackend(
        state_dir, walls=made.get(walls), sshd=find_program(server) if server else None, trial_address=trial
    )


def node_spec(
    backend: Backend,
    login: Login,
    prefix: str,
    *,
    vmid: int = 100,
    instance_id: str = "first",
    macs: tuple[str, ...] = ("BC:24:11:00:00:01", "BC:24:11:00:00:02"),
) -> NodeSpec:
    return NodeSpec(
        vmid=vmid,
        name=f"gpu-{vmid}",
        address=f"{prefix}.{vmid - 90}",
        uuid=str(uuid.uuid5(uuid.NAMESPACE_OID, str(vmid))),
        macs=macs,
        user=backend.login_user,
        ssh_keys=(login.public,),
        cores=1,
        memory_mib=512,
        instance_id=instance_id,
    )


def host_keys_of(node: LiveNode) -> tuple[HostKey, ...]:
    """The host keys as the guest agent would tell them."""
    lines = (node.read_file(f"/etc/ssh/ssh_host_{kind}_key.pub").decode() for kind in ("ed25519", "ecdsa"))
    return tuple(HostKey.from_line(line) for line in lines)


def machine_id_of(node: LiveNode) -> str:
    """The machine-id as the guest agent would tell it; a machine without one has a plain node without one."""
    try:
        return node.read_file("/etc/machine-id").decode().strip()
    except FileNotFoundError:
        return ""


def log_in(
    node: LiveNode, key_file: Path, *, host_keys: tuple[HostKey, ...] = (), user: str | None = None
) -> Session:
    return open_session(
        host=node.spec.address,
        port=node.ssh_port,
        user=user or node.spec.user,
        host_keys=host_keys or host_keys_of(node),
        key_file=key_file,
        timeout_s=120.0,
    )


def said(session: Session, command: str, *, stdin: bytes = b"") -> str:
    """stdout of a command that must succeed."""
    result = session.run(command, stdin=stdin, timeout_s=120.0)
    assert result.exit_status == 0, (command, result)
    return result.stdout.decode().strip()


def processes_with(word: str) -> list[str]:
    """The command lines that name a word; zombies, which have none, and this process are left out."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line and int(entry.name) != os.getpid():
            found.append(f"{entry.name} {line}")
    return found
