"""OpenSSH's own server for a directory node, run as the user of the lab: whoever logs in enters the node."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.nodes import NodeSpec
from lab.spawner import SANE_ENV, Spawner, end, last_words
from lab.ssh_server import Program

_KEEPER = Path(__file__).with_name("keeper.py")
_COMMAND = "the client's command"  # stands for it while its command line is made
_END_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class OwnSshd:
    """One node's SSH server: `process` is the keeper that ends it with all that came in through it."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    def last_words(self) -> str:
        """What it said last."""
        return last_words(self.log)

    def close(self) -> None:
        """End it, and every session."""
        self.process.terminate()
        end(self.process, wait_s=_END_TIMEOUT_S)


def start(
    sshd: str,
    spawner: Spawner,
    folder: Path,
    spec: NodeSpec,
    *,
    port: int,
    host_keys: Iterable[bytes],
    authorized_keys: Path,
    enter: Callable[[str | None], Program],
) -> OwnSshd:
    """Start the server; it ends with the spawner, however that ends.

    Args:
        sshd: the program; it must be named by its whole path, with which it starts itself anew.
        spawner: from which it is started.
        folder: where its files lie; made anew (0700).
        spec: tells the address and the user, who must be the one who runs the lab: sshd cannot become another.
        port: where it listens.
        host_keys: private keys in OpenSSH's format.
        authorized_keys: the file that it reads at each login.
        enter: from a session's command, or None for a shell, to what is run.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    keys = []
    for number, key in enumerate(host_keys):
        file = folder / f"host_key_{number}"
        file.touch(0o600)
        file.write_bytes(key)
        keys.append(file)
    door = folder / "enter.sh"
    door.write_text(_door(enter))
    lines = [
        *(f"HostKey {_word(key)}" for key in keys),
        f"AuthorizedKeysFile {_word(authorized_keys)}",
        f"AllowUsers {spec.user}",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "StrictModes no",  # the directories above are the lab's
        "UsePAM no",
        "UseDNS no",
        "PidFile none",
        "PrintMotd no",
        "PermitTTY no",
        "PermitUserRC no",
        "DisableForwarding yes",
        "MaxStartups 100",
        f"ForceCommand exec /bin/sh {shlex.quote(str(door))}",
    ]
    config = folder / "sshd_config"
    config.write_text("".join(f"{line}\n" for line in lines))
    log = folder / "log"
    keeper = (sys.executable, "-I", "-S", str(_KEEPER))
    listen = ("-p", str(port), "-o", f"ListenAddress={spec.address}")
    process = spawner.start([*keeper, sshd, "-D", "-e", "-f", str(config), *listen], env=SANE_ENV, log=log)
    return OwnSshd(process, log)


def _door(enter: Callable[[str | None], Program]) -> str:
    """The script that sshd runs in place of what the client asked for."""
    program, shell = enter(_COMMAND), enter(None)
    env = shlex.join(["env", "-i", *(f"{name}={value}" for name, value in program.env.items())])
    command = " ".join(
        '"$SSH_ORIGINAL_COMMAND"' if word == _COMMAND else shlex.quote(word) for word in program.argv
    )
    return f"""\
cd {shlex.quote(program.cwd)} || exit 1
if [ -n "${{SSH_ORIGINAL_COMMAND+set}}" ]; then
    exec {env} {command}
fi
exec {env} {shlex.join(shell.argv)}
"""


def _word(path: Path) -> str:
    """A path as a word of sshd_config(5), in which `%` begins a token."""
    return '"' + str(path).replace("%", "%%") + '"'
