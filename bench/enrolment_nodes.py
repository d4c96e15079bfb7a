"""Nodes for the bench: OpenSSH servers in mount namespaces, each with an installation folder of its own, far away."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inventory.errors import OtherSide
from inventory.model import HostKey

DELAY_MS = 10.0
"""Each way."""
_START_S = 30.0
# As one command's own folder: sshd counts sessions and logins in its log.
_CONFIG = """\
ListenAddress {address}:{port}
HostKey {host_key}
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
AuthorizedKeysFile {allowed}
LogLevel VERBOSE
PermitRootLogin prohibit-password
SetEnv HOME={home}
"""


@dataclass(frozen=True, slots=True)
class BenchNode:
    """One node. address, port: where it is dialled, behind the delay. install: its folder as we see it."""

    address: str
    port: int
    host_key: HostKey
    install: Path
    log: Path

    def forget(self) -> None:
        """As it was before anybody logged in."""
        for path in self.install.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def counted(self) -> tuple[int, int]:
        """Logins and commands since the node began."""
        text = self.log.read_text(errors="replace")
        return text.count("Accepted publickey"), text.count("Starting session: command")


class Nodes:
    """A row of nodes; started as they are asked for, ended together."""

    def __init__(self, folder: Path, *, netem: bool) -> None:
        """The holder's login key is made in `folder`. netem: the kernel delays all of loopback here."""
        self.folder, self.netem = folder, netem
        self.login = keygen(folder / "login")
        self.install_dir = folder / "node"
        self.install_dir.mkdir(mode=0o755)
        (folder / "home").mkdir()
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._nodes: list[BenchNode] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def first(self, count: int) -> Sequence[BenchNode]:
        """So many nodes."""
        missing = range(len(self._nodes), count)
        made = [self._start(number) for number in missing]
        if made and not self.netem:
            ways = [
                f"{node.address}:{node.port}=127.21.0.{number + 1}:22"
                for node, number in zip(made, missing, strict=True)
            ]
            relay = subprocess.Popen(
                [sys.executable, "-m", "bench.relay", str(DELAY_MS), *ways],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            )
            self._processes.append(relay)
            if relay.stdout is None or relay.stdout.readline() != b"ready\n":
                raise self._silent("the relay")
        self._nodes += made
        return self._nodes[:count]

    def close(self) -> None:
        """End all of them."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, number: int) -> BenchNode:
        own = self.folder / f"n{number + 1}"
        install = own / "install"
        install.mkdir(parents=True)
        host_key = keygen(own / "host")
        far = self.netem
        address = f"127.{20 if far else 21}.0.{number + 1}"
        config = own / "sshd_config"
        config.write_text(
            _CONFIG.format(
                address=address,
                port=22,
                host_key=host_key,
                allowed=self.login.with_suffix(".pub"),
                home=self.folder / "home",
            )
        )
        sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if sshd is None:
            raise self._silent("sshd, which is not installed (Debian: apt install openssh-server)")
        script = f"mount --bind {install} {self.install_dir} && exec {sshd} -D -e -f {config}"
        with (own / "log").open("wb") as log:
            command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script]
            self._processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log))
        deadline = time.monotonic() + _START_S
        while b"Server listening" not in (own / "log").read_bytes():
            if time.monotonic() > deadline:
                raise self._silent(f"node {number + 1}")
            time.sleep(0.02)
        key = HostKey.from_line(host_key.with_suffix(".pub").read_text())
        return BenchNode(f"127.20.0.{number + 1}", 22, key, install, own / "log")

    @staticmethod
    def _silent(what: str) -> OtherSide:
        return OtherSide("the bench has no nodes", why=f"no word from {what}", next_step="run it as root")


def keygen(file: Path) -> Path:
    """A new key without a passphrase."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{file.name}@bench", "-f", str(file)],
        check=True,
        timeout=30,
    )
    return file
