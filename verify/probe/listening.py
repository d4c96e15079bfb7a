"""Which TCP ports a process listens on, and who holds a port, read from /proc; nothing is guessed."""

from __future__ import annotations

import errno
import os
import socket
import sys

_LISTEN = "0A"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LOOKS = 3


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
        raise PortTaken(f"{at(host, port)} is taken by {holder(host, port)}") from error
    return sock


def at(host: str, port: int) -> str:
    """Host and port, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def holder(host: str, port: int) -> str:
    """Who listens where `host` and `port` could be bound, as pid and name.

    A socket is its maker's and that of every process forked since, this one perhaps; it is the maker that is named.
    """
    try:
        inodes = _who_listens(host, port)
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError as error:
        return f"somebody (/proc does not tell: {error.strerror})"
    # pid to its parent and its name; pids start over at pid_max, so the lowest need not be the maker
    having: dict[int, tuple[int, str]] = {}
    for pid in pids:
        try:
            if inodes & _sockets(pid):
                having[pid] = _parent_and_name(pid)
        except OSError:
            # it has ended meanwhile, or is another user's
            continue
    makers = [pid for pid, (parent, _) in having.items() if parent not in having]
    for pid in sorted(makers, key=lambda pid: pid == os.getpid()):
        return f"pid {pid} ({having[pid][1]})"
    return "a process that this user may not see" if inodes else "a socket that does not listen"


def ports(pids: list[int]) -> dict[int, set[int]]:
    """The ports that each of these processes listens on.

    Raises:
        OSError: /proc does not tell, so nothing is known.
    """
    known = _listening()
    return {pid: {known[inode][1] for inode in _sockets(pid) if inode in known} for pid in pids}


def _who_listens(host: str, port: int) -> set[str]:
    """The inodes of the sockets that keep others from binding there."""
    wanted = {_in_hex(host), "0" * 8, "0" * 32}
    inodes: set[str] = set()
    # the table is read in pieces, and a row may slip between two of them while others come and go
    for _ in range(_LOOKS):
        on_port = {inode: address for inode, (address, number) in _listening().items() if number == port}
        # by its address, for another address' listener on the same port is in nobody's way
        inodes = {inode for inode, address in on_port.items() if address in wanted} or set(on_port)
        if inodes:
            break
    return inodes


def _in_hex(host: str) -> str:
    """An address as /proc/net/tcp has it: words of 32 bits in the machine's own order."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = [int.from_bytes(packed[begin : begin + 4], sys.byteorder) for begin in range(0, len(packed), 4)]
    return "".join(f"{word:08X}" for word in words)


def _parent_and_name(pid: int) -> tuple[int, str]:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        # proc(5): pid, (name), state, parent; a name may hold brackets and blanks itself
        begin, _, rest = stat.read().rpartition(")")
    return int(rest.split()[1]), begin.partition("(")[2]


def _listening() -> dict[str, tuple[str, int]]:
    """Inode to address in hex and port, of every listening TCP socket of this network namespace."""
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
        for row in rows:
            if row[3] == _LISTEN:
                address, _, number = row[1].rpartition(":")
                found[row[9]] = (address, int(number, 16))
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
