"""Where the disks of namespaces nodes lie: in the state directory, or in memory where that cannot hold them."""

import subprocess
from pathlib import Path

from lab.spawner import SANE_ENV, Spawner, end, last_words, wait_for_word

_TIMEOUT_S = 30.0
_TRY = """
mkdir -p "$1/upper" "$1/work" "$1/root" && cd "$1" &&
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root &&
echo x >root/etc/muster-probe && mv root/etc/muster-probe root/etc/muster-probed
"""
_HOLD = """mount -t tmpfs -o mode=0700 tmpfs "$1" && echo ready && read -r _"""


class Disks:
    """One directory per vmid, each able to hold the upper directory of an overlay on `/`.

    An overlay's upper directory cannot lie on another overlay, as in most containers (overlayfs.rst). There a
    file system in memory takes the disks; it is mounted in a mount namespace that one process holds and that ends
    with the lab, so that nothing stays mounted on this machine.

    entry: the command line's beginning that leads to where the disks are mounted.
    in_memory: whether the disks are lost when the lab ends.
    """

    def __init__(self, folder: Path, spawner: Spawner) -> None:
        """Try it; `folder` is made (0700).

        Raises:
            OSError: this machine makes no overlay on `/`, wherever the disk lies.
        """
        self._folder = folder
        self._holder: subprocess.Popen[bytes] | None = None
        self.entry: tuple[str, ...] = ()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._fault() is None:
            return
        log = folder.parent / "memory.log"
        unshare = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private")
        self._holder = spawner.start(
            [*unshare, "/bin/sh", "-c", _HOLD, "sh", str(folder)], env=SANE_ENV, log=log
        )
        self.entry = ("nsenter", "-t", str(self._holder.pid), "-m")
        held = wait_for_word(self._holder, b"ready", timeout_s=_TIMEOUT_S)
        why = self._fault() if held else last_words(log)
        if why is not None:
            self.close()
            raise OSError(why)

    @property
    def in_memory(self) -> bool:
        """Whether the disks end with the lab."""
        return self._holder is not None

    def place(self, vmid: int) -> Path:
        """A node's directory, as it is called where the disks are mounted."""
        return self._folder / str(vmid)

    def seen(self, place: Path) -> Path:
        """The same directory, as this process can reach it."""
        return place if self._holder is None else Path(f"/proc/{self._holder.pid}/root{place}")

    def log(self, vmid: int) -> Path:
        """Where the node's first process complains."""
        return self._folder / f"{vmid}.log"

    def close(self) -> None:
        """Let go of the memory."""
        if self._holder is not None:
            end(self._holder)

    def _fault(self) -> str | None:
        """Try an overlay whose upper directory lies there: None, or why it cannot be."""
        probe = str(self._folder / "probe")
        unshare = ("unshare", "--mount", "--propagation", "private")
        done = subprocess.run(
            [*self.entry, *unshare, "/bin/sh", "-c", _TRY, "sh", probe],
            env=dict(SANE_ENV),
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        subprocess.run(
            [*self.entry, "rm", "-rf", "--", probe], env=dict(SANE_ENV), timeout=_TIMEOUT_S, check=False
        )
        return (
            None if done.returncode == 0 else done.stderr.decode(errors="replace").strip() or "mount failed"
        )
