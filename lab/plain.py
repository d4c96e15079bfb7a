"""A private directory and no walls: commands run as the user of the lab, and see this machine's files."""

import contextlib
import grp
import os
import pwd
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from lab.inside import read_inside
from lab.nodes import Install, NodeSpec
from lab.personalise import AUTHORIZED_KEYS, NodeFile
from lab.spawner import SANE_ENV, SANE_PATH, find_program
from lab.ssh_server import Program

_KEEPER = Path(__file__).with_name("keeper.py")
# What the node has of its own, as its guest agent and its SSH server see it; all else is this machine's.
_OWN = ("etc/ssh/", "run/cloud-init/", "var/lib/cloud/")
_FALLBACK_USER = "muster"


class PlainRoot:
    """One node's directory, which is its login's home."""

    not_real: tuple[str, ...] = (
        "nothing shuts it in: its commands run as the lab's user and see this machine's files, names and machine-id",
        "only one such node runs at a time, since all of them are this machine",
        "what a command leaves running is ended with it",
    )
    cannot: Mapping[str, str] = MappingProxyType(
        {
            "cloned": "only one of its nodes runs at a time",
            "clock-off": "its nodes have this machine's clock",
            "clock-1970": "its nodes have this machine's clock",
            "sudo-asks": "its nodes have this machine's sudo",
        }
    )

    def __init__(self, place: Path, spec: NodeSpec) -> None:
        """Nothing is made yet."""
        self._home = place / "home"
        self._spec = spec

    def personalise(self, work: str, files: Sequence[NodeFile]) -> None:
        """Make the home if `work` is `first`, and lay the node's own files there."""
        if work == "first":
            shutil.rmtree(self._home, ignore_errors=True)
        for folder in ("", ".ssh", *_OWN):
            (self._home / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        if work:
            for old in (self._home / "etc/ssh").glob("ssh_host_*"):
                old.unlink()
        for file in files:
            if file.path == AUTHORIZED_KEYS and work:
                _add_lines(self.authorized_keys_file, file.content or b"")
            elif file.path.startswith(_OWN) and file.path != AUTHORIZED_KEYS:
                _lay(self._home / file.path, file)

    def program(self, command: str | None) -> Program:
        """A command of a session."""
        inner = ["/bin/sh", "-l"] if command is None else ["/bin/sh", "-c", command]
        python = str(Path(sys.base_prefix, "bin", "python3"))
        user = login_user()
        env = {
            **SANE_ENV,
            "PATH": SANE_PATH if find_program("python3") else f"{SANE_PATH}:{Path(python).parent}",
            "HOME": str(self._home),
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/sh",
        }
        keeper = (sys.executable, "-I", "-S", str(_KEEPER))
        return Program((*keeper, *inner), env, cwd=str(self._home), kept=True)

    def read(self, path: str) -> bytes:
        """A file of the node's own if it is one of those, else this machine's, with the rights of its user."""
        relative = os.path.normpath(path).lstrip("/")
        return read_inside(self._home if relative.startswith(_OWN) else Path("/"), relative)

    @property
    def authorized_keys_file(self) -> Path:
        """The login's authorized_keys, as this machine calls it."""
        return self._home / ".ssh/authorized_keys"

    def authorized_keys(self) -> bytes:
        """Whose keys may log in now."""
        return self.authorized_keys_file.read_bytes()


def login_user() -> str:
    """The name of the user who runs the lab."""
    with contextlib.suppress(KeyError):
        name = pwd.getpwuid(os.getuid()).pw_name
        if re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", name):
            return name
    return _FALLBACK_USER


def install_of(home: Path) -> Install:
    """Where onboarding can put an identity: in the node's home, owned by the user of the lab."""
    with contextlib.suppress(KeyError):
        return Install(str(home / "muster"), pwd.getpwuid(os.getuid()).pw_name, _group_name())
    return Install(str(home / "muster"), str(os.getuid()), str(os.getgid()))


def _group_name() -> str:
    try:
        return grp.getgrgid(os.getgid()).gr_name
    except KeyError:
        return str(os.getgid())


def _lay(place: Path, file: NodeFile) -> None:
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    if file.content is None:
        place.symlink_to(file.target)
        return
    place.touch(file.mode | 0o200, exist_ok=False)
    place.write_bytes(file.content)
    place.chmod(file.mode)


def _add_lines(place: Path, lines: bytes) -> None:
    known = place.read_bytes().splitlines() if place.exists() else []
    place.touch(0o600)
    place.write_bytes(b"".join(line + b"\n" for line in dict.fromkeys([*known, *lines.splitlines()])))
