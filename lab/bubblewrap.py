"""A private directory as a machine's root: each command is shut in by bubblewrap, with /usr of this machine below."""

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from inventory.errors import OtherSide
from lab.hidden import hidden_directories
from lab.nodes import Install, NodeSpec
from lab.personalise import AUTHORIZED_KEYS, NodeFile, pack
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


class BubblewrapRoot:
    """One node's root directory, and the way into it.

    Args:
        bwrap: bubblewrap's program.
        place: the node's directory; `place/disk` becomes its root.
        hidden: directories that the node must not see even where programs are.
    """

    install = Install("/etc/muster", "root", "root")
    not_real: tuple[str, ...] = (
        "its root is the user who runs the lab: it cannot give a file to another user",
        "its /usr is this machine's, read-only; each command is shut in by bubblewrap, and leaves files, not processes",
    )

    def __init__(self, bwrap: str, place: Path, spec: NodeSpec, *, hidden: Sequence[Path] = ()) -> None:
        """Nothing is made yet."""
        self._bwrap = bwrap
        self._disk = place / "disk"
        self._uuid = place / "product_uuid"
        self._spec = spec
        self._hidden = hidden

    def personalise(self, work: str, files: Sequence[NodeFile]) -> None:
        """Make the disk if `work` is `first`, and lay the files there; from inside, where no symlink leads out.

        Raises:
            OtherSide: bubblewrap does not start, or a file cannot be written.
        """
        if work == "first":
            shutil.rmtree(self._disk, ignore_errors=True)
            _make_disk(self._disk)
        self._uuid.unlink(missing_ok=True)
        self._uuid.touch(0o600)
        self._uuid.write_text(f"{self._spec.uuid}\n")
        self._uuid.chmod(0o400)
        done = self._run(["/bin/sh", "-c", _PERSONALISE, "sh", work], pack(files))
        if done.returncode != 0:
            raise OtherSide(
                f"VM {self._spec.vmid} ({self._spec.name}) did not start",
                why=done.stderr.decode(errors="replace").strip() or f"status {done.returncode}",
                next_step="let bubblewrap make user namespaces, or run the lab as root",
            )

    def program(self, command: str | None) -> Program:
        """A command of a session, in the node."""
        shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
        inner = [shell, "-l"] if command is None else [shell, "-c", command]
        return Program((*self._walls(), *inner), self._env())

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
        return {**SANE_ENV, "HOME": "/root", "USER": "root", "LOGNAME": "root", "SHELL": "/bin/sh"}

    def _run(self, command: Sequence[str], given: bytes) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [*self._walls(), *command],
            input=given,
            env=self._env(),
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )

    def _walls(self) -> list[str]:
        """The command line that shuts a command in."""
        programs = [path for path in map(Path, _PROGRAMS) if path.is_dir() and not path.is_symlink()]
        walls = [
            *(
                self._bwrap,
                "--die-with-parent",
                "--unshare-user",
                "--uid",
                "0",
                "--gid",
                "0",
                "--cap-drop",
                "ALL",
            ),
            *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--hostname", self._spec.name),
            *("--bind", str(self._disk), "/"),
        ]
        for path in programs:
            walls += ["--ro-bind", str(path), str(path)]
        for path in self._hidden:
            inside = any(path.is_relative_to(program) for program in programs)
            if inside and os.path.isdir(path):  # noqa: PTH112 - False, too, where this user may not look
                walls += ["--tmpfs", str(path)]
        walls += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/sys"]  # noqa: S108
        walls += ["--ro-bind", str(self._uuid), "/sys/class/dmi/id/product_uuid"]
        for device in sorted(_listed(Path("/sys/class/net"))):
            if (real := device.resolve()).is_dir():
                walls += ["--ro-bind", str(real), str(real), "--symlink", str(real), str(device)]
        return [*walls, "--chdir", "/root", "--"]


def hidden_of(state_dir: Path) -> tuple[Path, ...]:
    """What even the read-only parts must not show."""
    return hidden_directories(state_dir)


def _make_disk(disk: Path) -> None:
    disk.mkdir(mode=0o755)
    for folder in _FOLDERS.split():
        (disk / folder).mkdir(mode=0o755)
    (disk / "root").mkdir(mode=0o700)
    (disk / "var/tmp").chmod(0o1777)
    for program in map(Path, _PROGRAMS):
        if program.is_symlink():
            (disk / program.relative_to("/")).symlink_to(program.readlink())
    for name in _ETC.split():
        source, copy = Path("/etc", name), disk / "etc" / name
        # What this user may not read is not needed either.
        with contextlib.suppress(OSError, shutil.Error):
            copy.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, copy, symlinks=True)
            else:
                shutil.copyfile(source, copy)
    (disk / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
    (disk / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (disk / "etc/ssh").mkdir(mode=0o755)


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
