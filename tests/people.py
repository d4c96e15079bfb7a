"""Two people on one machine: Unix users in mount namespaces of the tests' own; nothing of the host changes.

OpenSSH and Python want their user in the list of users, so each namespace has a list that has them.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.require import need, need_command, need_root

ROOT = Path(__file__).parents[1]
_TIMEOUT_S = 300.0
_NEEDED = (Path(sys.base_prefix), Path(sys.prefix), ROOT)


@dataclass(frozen=True, slots=True)
class Person:
    """A user with a folder that is closed to everybody else."""

    name: str
    uid: int
    folder: Path
    passwd: Path
    environ: Mapping[str, str]

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """What a command does as this person; no capability and no group of root's is left."""
        become = (
            f"setpriv --reuid {self.uid} --regid {self.uid} --clear-groups --no-new-privs --bounding-set=-all"
        )
        script = (
            f'mount --bind {self.passwd} /etc/passwd && {_open_ways(self.folder.parent)} exec {become} "$@"'
        )
        return subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh", *map(str, words)],
            env=dict(self.environ),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )

    def command(self, name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """What one of our commands does as this person."""
        return self.run(Path(sys.executable).with_name(name), *words)

    def takes(self, *files: Path) -> None:
        """Have copies of files, as one who was given them."""
        for file in files:
            copy = self.folder / file.name
            copy.write_bytes(file.read_bytes())
            copy.chmod(0o600)
            os.chown(copy, self.uid, self.uid)


def people(folder: Path, *names: str) -> tuple[Person, ...]:
    """Users with these names; each has a folder of that name in `folder`, which everybody may enter.

    Skips where they cannot be had.
    """
    need_root()
    need_command("unshare", "setpriv", "mount", "grep")
    found = []
    for number, name in enumerate(names):
        uid = 61_101 + number
        own = folder / name
        own.mkdir(mode=0o700)
        os.chown(own, uid, uid)
        passwd = folder / f"passwd-{name}"
        passwd.write_text(
            Path("/etc/passwd").read_text() + f"{name}-role:x:{uid}:{uid}::{own}:/bin/sh\n", encoding="utf-8"
        )
        passwd.chmod(0o644)
        environ = {
            "HOME": str(own),
            "USER": f"{name}-role",
            "LOGNAME": f"{name}-role",
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "XDG_STATE_HOME": str(own / "state"),
            "TMPDIR": str(own),
        }
        found.append(Person(name, uid, own, passwd, environ))
    works = found[0].run("true")
    need(
        works.returncode == 0,
        f"mount namespaces ({works.stderr.strip()})",
        "run the tests where unshare -m works",
    )
    return tuple(found)


def _open_ways(folder: Path) -> str:
    """Shell words that open ways to Python and to us which root keeps shut, such as root's own home.

    What is needed is put on an empty folder in the place of the one that is shut.
    """
    shut = {way for path in _NEEDED if (way := _shut(path)) is not None}
    inside: list[Path] = []
    for path in _NEEDED:
        if path in shut:  # its own mode would go along with it: what lies in it is put on the empty folder
            inside += (each for each in sorted(path.iterdir()) if not each.is_symlink())
        elif any(path.is_relative_to(way) for way in shut):
            inside.append(path)
    inside = list(dict.fromkeys(inside))
    lines = []
    for number, path in enumerate(inside):
        hold = folder / f"hold-{number}"
        if path.is_dir():
            hold.mkdir(exist_ok=True)
        else:
            hold.touch()
        lines.append(f"mount --bind {shlex.quote(str(path))} {hold}")
    lines += [f"mount -t tmpfs -o mode=0755 tmpfs {shlex.quote(str(way))}" for way in sorted(shut)]
    for number, path in enumerate(inside):
        make = "mkdir -p" if path.is_dir() else "touch"
        lines.append(f"{make} {shlex.quote(str(path))}")
        lines.append(f"mount --bind {folder / f'hold-{number}'} {shlex.quote(str(path))}")
        lines.append(f"umount {folder / f'hold-{number}'}")
    return "".join(f"{line} && " for line in lines)


def _shut(path: Path) -> Path | None:
    """The topmost folder on the way to `path` that others may not enter."""
    for way in reversed((path, *path.parents)):
        if not way.stat().st_mode & 0o001:
            return way
    return None
