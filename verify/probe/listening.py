"""Which TCP ports a process listens on, and who holds a port, read from /proc; nothing is guessed."""

from __future__ import annotations

import errno
import os
import socket

_LISTEN = "0A"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


class PortTaken(OSError):
    """Somebody else has the port; the text says where and, as far as /proc tells, who."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound to exactly this address and does not listen yet; port 0 is the kernel's choice.

    Raises:
        PortTaken: the port is in use.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise PortTaken(f"{at(host, port)} is taken by {holder(port)}") from error
    return sock


def at(host: str, port: int) -> str:
    """Host and port, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def holder(port: int) -> str:
    """Who listens on a port, as pid and name."""
    try:
        inodes = {inode for inode, number in _listening().items() if number == port}
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError as error:
        return f"somebody (/proc does not tell: {error.strerror})"
    for pid in pids:
        try:
            if inodes & _sockets(pid):
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
                    return f"pid {pid} ({comm.read().strip()})"
        except OSError:
            # it has ended meanwhile, or is another user's
            continue
    return "a process that this user may not see" if inodes else "a socket that does not listen"


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
