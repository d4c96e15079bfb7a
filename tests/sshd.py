"""A real OpenSSH server for tests, as the user who runs them, on a loopback address and a free port."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from inventory.model import HostKey
from tests.ports import free_port
from tests.require import need_command

ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Sshd:
    """One running server: its port, its host key, the key that may log in, and the file of allowed keys."""

    port: int
    host_key: HostKey
    login_key: Path
    authorized_keys: Path
    user: str


def keygen(file: Path, *, kind: str = "ed25519", comment: str = "test@lab") -> Path:
    """A new key pair without a passphrase."""
    command = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", comment, "-f", str(file)]
    subprocess.run(command, check=True, timeout=600)
    return file


@contextmanager
def sshd(folder: Path, *, kind: str = "ed25519", options: str = "") -> Iterator[Sshd]:
    """Serve until the block ends; `options` are lines of sshd_config(5)."""
    need_command("sshd", "ssh-keygen")
    folder.mkdir(mode=0o700, exist_ok=True)
    host, login = keygen(folder / "host", kind=kind), keygen(folder / "login")
    allowed = folder / "authorized_keys"
    allowed.write_text(login.with_suffix(".pub").read_text())
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    port = free_port(ADDRESS)
    config = folder / "sshd_config"
    config.write_text(
        f"ListenAddress {ADDRESS}:{port}\nHostKey {host}\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"PasswordAuthentication no\nKbdInteractiveAuthentication no\nAuthorizedKeysFile {allowed}\n{options}\n"
    )
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    assert program is not None
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [program, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stderr=log
        )
    try:
        _until_it_answers(port, server)
        key = HostKey.from_line(host.with_suffix(".pub").read_text())
        yield Sshd(port, key, login, allowed, getpass.getuser())
    finally:
        server.terminate()
        server.wait(timeout=600)


def _until_it_answers(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with socket.create_connection((ADDRESS, port), timeout=600) as probe:
                if probe.recv(4) == b"SSH-":
                    return
        except OSError:
            time.sleep(0.02)
    raise AssertionError("sshd did not start")
