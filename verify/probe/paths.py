"""Do packets of a network's full size get from node to node and back, unfragmented? UDP with DF set, no privilege."""

from __future__ import annotations

import errno
import os
import socket
from typing import NamedTuple

from .loop import READ, Loop
from .member import Address

# linux/in.h, linux/in6.h: the socket module has no names for them before 3.13 or at all
_MTU_DISCOVER = {socket.AF_INET: (socket.IPPROTO_IP, 10), socket.AF_INET6: (socket.IPPROTO_IPV6, 23)}
_DO = 2
_HEADERS = {socket.AF_INET: 20 + 8, socket.AF_INET6: 40 + 8}
_SMALL = 64
_WAIT_S = 0.25
_TRIES = 3


class Path(NamedTuple):
    """What came of it.

    reached: a small packet came back. full: one of the whole MTU did.
    sent: the size of the full packet, headers included. why: what went wrong, empty where nothing did.
    """

    reached: bool
    full: bool
    sent: int
    why: str


class Echo:
    """Sends every packet back to where it came from, with DF set."""

    def __init__(self, loop: Loop, host: str) -> None:
        self._loop, self._sock = loop, _socket(host)
        self.port = int(self._sock.getsockname()[1])
        loop.add(self._sock, READ, self._ready)

    def close(self) -> None:
        """No more."""
        self._loop.drop(self._sock)
        self._sock.close()

    def _ready(self, _events: int) -> None:
        try:
            data, place = self._sock.recvfrom(65536)
            self._sock.sendto(data, place)
        except OSError:
            # what cannot be sent back in one piece is not sent back: the other side counts it as lost
            return


def try_path(loop: Loop, host: str, there: Address, mtu: int) -> Path:
    """A small packet, then one of the whole MTU, from `host` to an echo and back."""
    try:
        sock = _socket(host)
    except OSError as error:
        why = f"{host} is no address of this node: {os.strerror(error.errno or 0).lower()}"
        return Path(reached=False, full=False, sent=mtu, why=why)
    with sock:
        small = _there_and_back(loop, sock, there, _SMALL)
        if small:
            return Path(reached=False, full=False, sent=mtu, why=small)
        full = _there_and_back(loop, sock, there, mtu - _HEADERS[socket.AddressFamily(sock.family)])
        return Path(reached=True, full=not full, sent=mtu, why=full)


def _socket(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(*_MTU_DISCOVER[family], _DO)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        sock.bind((host, 0))
        sock.settimeout(0)
    except BaseException:
        sock.close()
        raise
    return sock


def _there_and_back(loop: Loop, sock: socket.socket, there: Address, length: int) -> str:
    """Empty when it came back whole; a lost packet is no proof, three are taken for one."""
    data = os.urandom(16) + bytes(length - 16)
    came: list[bytes] = []
    faults: list[str] = []

    def ready(_events: int) -> None:
        try:
            came.append(sock.recv(65536))
        except BlockingIOError:
            return
        except OSError as error:
            faults.append(_said(error, length))

    loop.add(sock, READ, ready)
    try:
        for _ in range(_TRIES):
            try:
                sock.sendto(data, there)
            except OSError as error:
                faults.append(_said(error, length))
            if loop.run(lambda: data in came, _WAIT_S):
                return ""
    finally:
        loop.drop(sock)
    if faults:
        return faults[-1]
    what = "small" if length == _SMALL else "full-size"
    return f"no {what} packet came back, {_TRIES} were sent"


def _said(error: OSError, length: int) -> str:
    if error.errno == errno.EMSGSIZE:
        return f"a packet of {length} bytes of data does not fit: an interface or a router has a smaller MTU"
    return os.strerror(error.errno or 0).lower()
