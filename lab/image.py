"""The image that the lab's VMs start from: built once from the machine's own apt sources, then kept."""

import os
import platform
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inventory.errors import OtherSide
from inventory.files import lock
from lab.image_recipe import MACHINE, Recipe, bootstrap, pack_command, partition_table, recipe
from lab.spawner import SANE_ENV, find_program, last_words

BUILD_TIMEOUT_S = 900.0
PACKAGES = {  # Debian's, by the program that is needed of each
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "unshare": "util-linux",
}
_ROOM = "room"
_KEEPER = Path(__file__).with_name("keeper.py")
_END_TIMEOUT_S = 20.0
_APT_TIMEOUT_S = 20.0
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@dataclass(frozen=True, slots=True)
class VmImage:
    """A finished image: `folder` holds its disk, and its kernel and initramfs for a boot without a boot loader."""

    folder: Path

    @property
    def disk(self) -> Path:
        """A raw disk, never written to."""
        return self.folder / "disk.raw"

    @property
    def kernel(self) -> Path:
        """Its kernel."""
        return self.folder / "kernel"

    @property
    def initrd(self) -> Path:
        """Its initramfs."""
        return self.folder / "initrd"


def images_home(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CACHE_HOME/muster/images` (XDG Base Directory 0.8: a relative value is ignored)."""
    named = environ.get("XDG_CACHE_HOME", "")
    cache = Path(named) if Path(named).is_absolute() else Path(environ.get("HOME") or Path.home()) / ".cache"
    return cache / "muster" / "images"


def find(home: Path) -> VmImage | None:
    """The image for this machine, if it was built before."""
    try:
        folder = home / recipe(_suite()).name
    except OtherSide:
        return None
    return VmImage(folder) if folder.is_dir() else None


def obtain(home: Path) -> VmImage:
    """The image for this machine; built, which takes minutes, if it is not there yet.

    Two that want it at once get the same one. Call it from a thread that lasts as long as the build: with that
    thread the build ends, however it ends (prctl(2), PR_SET_PDEATHSIG).

    Args:
        home: where images are kept; made (0700) if it is not there.

    Raises:
        OtherSide: this machine lacks something, or the build failed.
        Refused: another process builds it for longer than BUILD_TIMEOUT_S.
    """
    made = recipe(_suite())
    folder = home / made.name
    if folder.is_dir():
        return VmImage(folder)
    _check_machine()
    for part in (home.parent, home):
        part.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock(home / "lock", timeout_s=BUILD_TIMEOUT_S):
        if not folder.is_dir():
            _build(made, home, folder)
    return VmImage(folder)


def _suite() -> str:
    """The code name of this machine's Debian.

    Raises:
        OtherSide: it runs something else.
    """
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {}
    suite = system.get("VERSION_CODENAME", "")
    if system.get("ID") != "debian" or not suite.isalnum():
        raise _unable(
            "the image is made of Debian's packages, and this machine's own apt sources name another system's",
            "use another backend here",
        )
    return suite


def has_subids(user: str, subuid: Path = Path("/etc/subuid")) -> bool:
    """Whether a user may have a user namespace with more than one user in it (subuid(5))."""
    try:
        lines = subuid.read_text().splitlines()
    except OSError:
        return False
    names = (user, str(os.geteuid()))
    return any(line.partition(":")[0] in names for line in lines)


def missing_packages(home: Path) -> dict[str, str]:
    """The programs that building the image needs and this machine lacks, with their packages; none once it is built."""
    if find(home) is not None:
        return {}
    wanted = PACKAGES if os.geteuid() == 0 else {**PACKAGES, "newuidmap": "uidmap"}
    return {program: package for program, package in wanted.items() if find_program(program) is None}


def _check_machine() -> None:
    if platform.machine() != MACHINE:
        raise _unable(
            f"its kernel is {MACHINE}'s, and this machine is {platform.machine()}", "use another backend"
        )
    user = pwd.getpwuid(os.geteuid()).pw_name
    if os.geteuid() != 0 and not has_subids(user):
        raise _unable(
            f"without root it needs numbers of further users, and /etc/subuid has none for {user}",
            f"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}",
        )


def _build(made: Recipe, home: Path, folder: Path) -> None:
    """Build an image in a folder beside its own, and move it there when it is whole; the lock is held."""
    log = home / "build.log"
    log.touch(0o600)
    log.write_text("")
    for former in home.glob("*.part"):  # of builds that were killed
        _remove(former, log)
    part = folder.with_name(f"{folder.name}.part")
    part.mkdir(mode=0o700)
    until = time.monotonic() + BUILD_TIMEOUT_S
    try:
        options = part / "apt.conf"
        options.write_text(_apt_options())
        root = os.geteuid() == 0
        command = bootstrap(
            made,
            mode="root" if root else "unshare",
            target=part / "root.tar",
            sources=_sources(),
            apt_options=options,
        )
        # As root it mounts: where nobody sees it, and where it ends with the last process.
        unseen = ("unshare", "--mount", "--propagation", "private") if root else ()
        room = {"TMPDIR": str(part if root else _elsewhere(part))}
        _run([*unseen, *command], log=log, folder=part, environment=room, until=until)
        _run([*_as_root(), *pack_command(made)], log=log, folder=part, environment={}, until=until)
        with (part / "disk.raw").open("r+b") as disk:
            for offset, text in partition_table(made).items():
                disk.seek(offset)
                disk.write(text)
        options.unlink()
        _remove_elsewhere(part, log)
        part.rename(folder)
    finally:
        if part.exists():
            _remove(part, log)


def _as_root() -> list[str]:
    """Before a command that keeps the owners of files: a user namespace, where this is not root."""
    if os.geteuid() == 0:
        return []
    return ["unshare", "--user", "--map-root-user", "--map-auto"]


def _elsewhere(part: Path) -> Path:
    """Room that mmdebstrap's user namespace can reach, which it cannot below a home; `part` knows where."""
    room = Path(tempfile.mkdtemp(prefix="muster-image-"))
    (part / _ROOM).symlink_to(room)
    room.chmod(0o711)
    return room


def _remove_elsewhere(part: Path, log: Path) -> None:
    room = part / _ROOM
    if room.is_symlink():
        _remove_all(room.readlink(), log)
        room.unlink()


def _remove(part: Path, log: Path) -> None:
    _remove_elsewhere(part, log)
    _remove_all(part, log)


def _remove_all(folder: Path, log: Path) -> None:
    """Remove a folder with files of other owners."""
    until = time.monotonic() + _END_TIMEOUT_S
    if os.geteuid() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        command = [*_as_root(), "rm", "-rf", str(folder)]
        _run(command, log=log, folder=folder.parent, environment={}, until=until)


def _run(
    command: Sequence[str], *, log: Path, folder: Path, environment: Mapping[str, str], until: float
) -> None:
    """Run a command to its end, and end all that it started if this thread is stopped.

    Raises:
        OtherSide: it failed, or took too long.
    """
    env = {**SANE_ENV, **{name: os.environ[name] for name in _PROXIES if name in os.environ}, **environment}
    with log.open("ab") as told:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_KEEPER), *command],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=told,
            start_new_session=True,
        )
        try:
            status = process.wait(max(0.0, until - time.monotonic()))
        except BaseException as stopped:
            # Only the keeper knows what the command has started, so it must not be killed.
            process.terminate()
            process.wait(_END_TIMEOUT_S)
            if isinstance(stopped, subprocess.TimeoutExpired):
                raise _failed(f"it was not ready after {BUILD_TIMEOUT_S:.0f} s", log) from stopped
            raise
    if status != 0:
        raise _failed(last_words(log), log)


def _sources() -> list[Path]:
    """Debian's own among this machine's apt sources.

    Raises:
        OtherSide: there are none where Debian puts them.
    """
    apt = Path("/etc/apt")
    known = (apt / "sources.list", apt / "sources.list.d/debian.sources", apt / "sources.list.d/debian.list")
    found = [path for path in known if path.is_file() and path.read_text().strip()]
    if not found:
        raise _unable("this machine's apt has no Debian sources", "add them to /etc/apt/sources.list")
    return found


def _apt_options() -> str:
    """How this machine's apt fetches: its proxies, say."""
    try:
        told = subprocess.run(
            ["apt-config", "dump"],
            check=True,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_APT_TIMEOUT_S,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise _unable(f"apt-config: {error}", "run the lab on Debian") from error
    return "".join(f"{line}\n" for line in told.splitlines() if line.startswith("Acquire::"))


def _unable(why: str, next_step: str) -> OtherSide:
    return OtherSide("no image for VMs can be built here", why=why, next_step=next_step)


def _failed(why: str, log: Path) -> OtherSide:
    return OtherSide(
        "the image for VMs was not built", why=why, next_step=f"see {log}, mend it, then start the lab again"
    )
