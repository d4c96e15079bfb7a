"""Which TCP ports a process listens on, read from /proc; nothing is guessed."""

from __future__ import annotations

import os

_LISTEN = "0A"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def ports(pids: list[int]) -> dict[int, set[int]]:
    """The ports that each of these processes listens on.

    Raises:
        OSError: /proc does not tell, so nothing is known.
    """
    known = _listening()
    return {pid: {known[inode] for inode in _sockets(pid) if inode in known} for pid in pids}


def _listening() -> dict[str, int]:
    """Inode to port, of every listening TCP socket of this network namespace."""
    found = {}
    for table in _TABLES:
        try:
            with open(table, encoding="ascii") as lines:
                rows = [line.split() for line in lines][1:]
        except FileNotFoundError:
            if table.endswith("6"):
                continue
            raise
        # columns of proc_net_tcp.rst: 1 local address:port in hex, 3 state, 9 inode
        found.update({row[9]: int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _LISTEN})
    return found


def _sockets(pid: int) -> set[str]:
    folder = f"/proc/{pid}/fd"
    found = set()
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found
