"""A private directory as a machine's root: each command is shut in, with /usr of this machine below."""

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inventory.errors import OtherSide
from lab.nodes import Install, NodeSpec
from lab.personalise import AUTHORIZED_KEYS, DATE, NodeFile, pack
from lab.spawner import SANE_ENV
from lab.ssh_server import Program

# What programs need of /etc and what holds no secret; the rest of this machine's /etc stays out of sight.
_ETC = """
alternatives bash.bashrc crypto-policies debian_version gai.conf host.conf inputrc ld.so.cache ld.so.conf
ld.so.conf.d localtime login.defs mime.types nsswitch.conf os-release pki/tls/openssl.cnf profile profile.d protocols
python3 resolv.conf services shells ssl/openssl.cnf timezone
"""
_PROGRAMS = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/gnu/store",
)
_FOLDERS = "dev etc home media mnt proc run srv sys tmp usr var var/lib var/log var/tmp"
_TIMEOUT_S = 30.0
_READ_LIMIT = 16 * 1024 * 1024
_ABSENT, _FOLDER, _SPECIAL = 44, 45, 46
_BEFORE = Path("/", DATE).parent

_PERSONALISE = f"""
set -eu
umask 022
rm -rf /run/* /run/.[!.]*
[ -z "$1" ] || rm -f /etc/ssh/ssh_host_*
tar -x -f - -C / --no-same-owner
if [ -n "$1" ]; then
    mkdir -p -m 0700 /root/.ssh
    keys=/root/.ssh/authorized_keys
    [ -f "$keys" ] || (umask 0177 && : >"$keys")
    while read -r key; do
        grep -qxF -e "$key" "$keys" || printf '%s\\n' "$key" >>"$keys"
    done </{AUTHORIZED_KEYS}
fi
rm -f /{AUTHORIZED_KEYS}
"""
_READ = f"""
[ -e "$1" ] || exit {_ABSENT}
[ ! -d "$1" ] || exit {_FOLDER}
[ -f "$1" ] || exit {_SPECIAL}
exec cat -- "$1"
"""


@dataclass(frozen=True, slots=True)
class View:
    """What a command in the node is to see.

    disk: becomes its root directory. uuid: the file that it finds as product_uuid.
    programs: directories of this machine that lie in it, read-only. masked: directories in them that are empty there.
    devices: this machine's network devices, as links of /sys/class/net and the directories they lead to.
    before: the node's own programs, which take the place of /usr/local/sbin; None: it has none.
    """

    disk: Path
    hostname: str
    uuid: Path
    programs: tuple[Path, ...]
    masked: tuple[Path, ...]
    devices: tuple[tuple[Path, Path], ...]
    before: Path | None

    @property
    def before_at(self) -> Path:
        """Where `before` is seen."""
        return _BEFORE


class Walls(Protocol):
    """One way to shut a command in."""

    @property
    def name(self) -> str:
        """What it is called in a sentence."""

    def around(self, view: View) -> Sequence[str]:
        """The beginning of the command line that runs a command as uid 0 in that view, in /root.

        The command ends with whoever started it, and whatever it started ends with the command.
        """


class WalledRoot:
    """One node's root directory, and the way into it.

    Args:
        walls: what shuts its commands in.
        place: the node's directory; `place/disk` becomes its root.
        login: whom uid 0 is called in the node.
        hidden: directories that the node must not see even where programs are.
    """

    def __init__(
        self, walls: Walls, place: Path, spec: NodeSpec, *, login: str, hidden: Sequence[Path] = ()
    ) -> None:
        """Nothing is made yet."""
        self._walls = walls
        self._disk = place / "disk"
        self._uuid = place / "product_uuid"
        self._before = place / "before"
        self._spec = spec
        self._login = login
        self._hidden = hidden

    @property
    def authorized_keys_file(self) -> Path:
        """The login's authorized_keys, as this machine calls it."""
        return self._disk / "root/.ssh/authorized_keys"

    def personalise(self, work: str, files: Sequence[NodeFile]) -> None:
        """Make the disk if `work` is `first`, and lay the files there; from inside, where no symlink leads out.

        Raises:
            OtherSide: the walls do not stand, or a file cannot be written.
        """
        if work == "first":
            shutil.rmtree(self._disk, ignore_errors=True)
            _make_disk(self._disk, self._login)
        self._uuid.unlink(missing_ok=True)
        self._uuid.touch(0o600)
        self._uuid.write_text(f"{self._spec.uuid}\n")
        self._uuid.chmod(0o400)
        shutil.rmtree(self._before, ignore_errors=True)
        for file in files:
            if file.path == DATE:
                self._before.mkdir(mode=0o755)
                (self._before / "date").write_bytes(file.content or b"")
                (self._before / "date").chmod(file.mode)
        done = self._run(
            ["/bin/sh", "-c", _PERSONALISE, "sh", work], pack([file for file in files if file.path != DATE])
        )
        if done.returncode != 0:
            raise OtherSide(
                f"VM {self._spec.vmid} ({self._spec.name}) did not start",
                why=done.stderr.decode(errors="replace").strip() or f"status {done.returncode}",
                next_step=f"let {self._walls.name} make user namespaces, or run the lab as root",
            )

    def program(self, command: str | None) -> Program:
        """A command of a session, in the node."""
        shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
        inner = [shell, "-l"] if command is None else [shell, "-c", command]
        return Program((*self._walls.around(self._view()), *inner), self._env())

    def read(self, path: str) -> bytes:
        """A file as the node sees it.

        Raises:
            OSError: the error that open(2) gives there.
        """
        done = self._run(["/bin/sh", "-c", _READ, "sh", os.path.join("/", path)], b"")  # noqa: PTH118 - ".." stays
        codes = {0: 0, _ABSENT: errno.ENOENT, _FOLDER: errno.EISDIR, _SPECIAL: errno.EINVAL}
        if code := codes.get(done.returncode, errno.EACCES):
            raise OSError(code, os.strerror(code), path)
        if len(done.stdout) > _READ_LIMIT:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return done.stdout

    def authorized_keys(self) -> bytes:
        """Whose keys may log in now."""
        return self.read("/root/.ssh/authorized_keys")

    def _env(self) -> dict[str, str]:
        return {**SANE_ENV, "HOME": "/root", "USER": self._login, "LOGNAME": self._login, "SHELL": "/bin/sh"}

    def _run(self, command: Sequence[str], given: bytes) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [*self._walls.around(self._view()), *command],
            input=given,
            env=self._env(),
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )

    def _view(self) -> View:
        programs = tuple(path for path in map(Path, _PROGRAMS) if path.is_dir() and not path.is_symlink())
        masked = [
            path
            for path in self._hidden
            if any(path.is_relative_to(program) for program in programs)
            # False, too, where this user may not look
            if os.path.isdir(path)  # noqa: PTH112
        ]
        devices = [(link, link.resolve()) for link in sorted(_listed(Path("/sys/class/net")))]
        return View(
            disk=self._disk,
            hostname=self._spec.name,
            uuid=self._uuid,
            programs=programs,
            masked=tuple(masked),
            devices=tuple((link, real) for link, real in devices if real.is_dir()),
            before=self._before if self._before.is_dir() else None,
        )


def install_of(login: str) -> Install:
    """Where onboarding can put an identity: as on a real machine."""
    return Install("/etc/muster", login, login)


def not_real(walls: Walls) -> tuple[str, ...]:
    """What nodes behind walls are not."""
    return (
        "its root is the user who runs the lab: it cannot give a file to another user",
        f"its /usr is this machine's, read-only; {walls.name} shuts each command in, which leaves files, not processes",
        "it has this machine's clock: where a template's is off, only date(1) tells so",
    )


def cannot() -> Mapping[str, str]:
    """The templates that nodes behind walls cannot be cloned from."""
    told = {"sudo-asks": "the login of its nodes is their root"}
    if not _BEFORE.is_dir():
        told |= dict.fromkeys(("clock-off", "clock-1970"), f"this machine has no {_BEFORE}")
    return told


def _make_disk(disk: Path, login: str) -> None:
    disk.mkdir(mode=0o755)
    for folder in _FOLDERS.split():
        (disk / folder).mkdir(mode=0o755)
    (disk / "root").mkdir(mode=0o700)
    (disk / "var/tmp").chmod(0o1777)
    for program in map(Path, _PROGRAMS):
        if program.is_symlink():
            (disk / program.relative_to("/")).symlink_to(program.readlink())
        elif program.is_dir():
            (disk / program.relative_to("/")).mkdir(mode=0o755, parents=True, exist_ok=True)
    for name in _ETC.split():
        source, copy = Path("/etc", name), disk / "etc" / name
        # What this user may not read is not needed either.
        with contextlib.suppress(OSError, shutil.Error):
            copy.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, copy, symlinks=True)
            else:
                shutil.copyfile(source, copy)
    names = dict.fromkeys((login, "root"))  # the first one is what uid 0 is called
    (disk / "etc/passwd").write_text(
        "".join(f"{name}:x:0:0:root:/root:/bin/sh\n" for name in names)
        + "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
    (disk / "etc/group").write_text("".join(f"{name}:x:0:\n" for name in names) + "nogroup:x:65534:\n")
    (disk / "etc/ssh").mkdir(mode=0o755)


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
