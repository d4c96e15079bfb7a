"""Clears a throw-away PostgreSQL cluster away once whoever started it closes the pipe, or dies.

Run as a script, `postgres_keeper.py FOLDER` waits for the end of its standard input: no process of the cluster,
no shared memory and no folder outlive the one at the other end, however that ended.
"""

import ctypes
import os
import shutil
import signal
import sys
import time
from pathlib import Path

_PROGRAMS = {b"initdb", b"postgres"}
_IPC_RMID = 0  # shmctl(2), linux/ipc.h


def processes(folder: Path) -> list[int]:
    """The cluster's processes, the postmaster first; zombies have no command line and have ended.

    A child of the postmaster carries the setting cluster_name in its title: that is readable for everyone,
    where /proc/PID/cwd of another user's process needs CAP_SYS_PTRACE, which root in a container may lack.
    """
    title = b"postgres: %s: " % folder.name.encode()
    data = bytes(folder / "data")
    postmasters, children = [], []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        arguments = line.split(b"\0")
        if line.startswith(title):
            children.append(int(entry.name))
        elif data in arguments and arguments[0].rpartition(b"/")[2] in _PROGRAMS:
            postmasters.append(int(entry.name))
    return postmasters + children


def kill(folder: Path, *, within_s: float = 60) -> None:
    """Kill every process of the cluster, and wait until none is left; a stopped one ends too."""
    until = time.monotonic() + within_s
    while found := processes(folder):
        if time.monotonic() > until:
            sys.exit(f"processes {found} of {folder} did not end")
        send(found, signal.SIGKILL)
        time.sleep(0.01)


def send(pids: list[int], sign: signal.Signals) -> None:
    """Send `sign` to each that is still there."""
    for pid in pids:
        try:
            os.kill(pid, sign)
        except ProcessLookupError:
            continue


def clear(folder: Path) -> None:
    """Kill what runs, then remove the shared memory and the folder."""
    kill(folder)
    _remove_shared_memory(folder / "data/postmaster.pid")
    for _ in range(5):  # the last child of a killed initdb may still write
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
    sys.exit(f"{folder} could not be removed")


def _remove_shared_memory(lock: Path) -> None:
    """Remove the System V segment that a killed postmaster leaves: line 7 of its lock file has key and id."""
    try:
        key, segment = lock.read_text().splitlines()[6].split()
        rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    except (OSError, IndexError, ValueError):  # it ended as it should, or never began
        return
    # The lock file has the key unsigned, the kernel's table signed.
    if any(int(row.split()[0]) % 2**32 == int(key) % 2**32 and row.split()[1] == segment for row in rows):
        ctypes.CDLL(None).shmctl(int(segment), _IPC_RMID, None)


def main() -> None:
    """Wait for the end of the pipe, then clear; only that ends the waiting."""
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, signal.SIG_IGN)
    sys.stdin.buffer.read()
    clear(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
