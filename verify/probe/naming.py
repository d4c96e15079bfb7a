"""Names and addresses: what a name leads to, and a node's own name that leads every other node to itself."""

from __future__ import annotations

import ipaddress
import os
import select
import signal
import socket
import time
from typing import Any, Callable

from .member import Address

_LOOKUPS = 3
_BETWEEN_S = 0.05
_PATIENCE_S = 2.0
_UNKNOWN = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
Lookup = Callable[..., Any]


class NameFault(Exception):
    """The name cannot be dialled; the text says why."""


class UnknownName(NameFault):
    """Nobody knows the name, and another try will not change that."""


def addresses(name: str, port: int, *, elsewhere: bool, lookup: Lookup = socket.getaddrinfo) -> list[Address]:
    """Every address of a name, IPv4 and IPv6, in the resolver's order, each once.

    `elsewhere` says that others dial it from other machines: a loopback address would lead them to themselves.

    Raises:
        UnknownName: it is not known, asked three times.
        NameFault: the resolver fails, or an address is a loopback one and must not be.
    """
    found: list[Address] = []
    for _, _, _, _, place in _asked(name, port, lookup):
        address = Address(str(place[0]), port)
        if address not in found:
            found.append(address)
    loop = [address.host for address in found if ipaddress.ip_address(address.host).is_loopback]
    if elsewhere and loop:
        raise NameFault(
            f"{name} leads to {', '.join(loop)}, a loopback address: every other node would dial itself"
        )
    return found


def _asked(name: str, port: int, lookup: Lookup) -> Any:  # noqa: ANN401 - getaddrinfo's own rows
    for left in range(_LOOKUPS, 0, -1):
        try:
            return lookup(name, port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno in _UNKNOWN:
                if left == 1:
                    raise UnknownName(
                        f"{name} is not known to the resolver, asked {_LOOKUPS} times"
                    ) from error
            elif error.errno != socket.EAI_AGAIN or left == 1:
                raise NameFault(f"the resolver fails for {name}: {error.strerror}") from error
        except UnicodeError as error:
            raise UnknownName(f"{name!r} is no host name") from error
        time.sleep(_BETWEEN_S)
    raise AssertionError("unreachable")


def host_check(*, name: str | None = None, lookup: Lookup = socket.getaddrinfo) -> dict[str, Any]:
    """Does the host's own name lead to an address that others can dial?"""
    name = name or socket.gethostname()
    answer = _bounded(name, lookup)
    verdict, _, found = answer.partition(" ")
    advice = None
    if verdict != "pass":
        advice = (
            "give engines an address, not this name; or map the name to the fabric's address in /etc/hosts"
        )
    return {
        "name": "host-name",
        "verdict": verdict,
        "expected": "the host's own name leads to no loopback address (127.0.1.1)",
        "found": found,
        "next": advice,
    }


def _bounded(name: str, lookup: Lookup) -> str:
    """The verdict and what was found; asked in a process of its own, for a resolver may hang for long."""
    answers, answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(answer, _told(name, lookup).encode()[:1000])
        finally:
            os._exit(0)
    os.close(answer)
    try:
        ready, _, _ = select.select([answers], [], [], _PATIENCE_S)
        said = os.read(answers, 1000) if ready else b""
    finally:
        os.close(answers)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return said.decode() or f"unknown the resolver did not answer for {name} within {_PATIENCE_S:.0f} s"


def _told(name: str, lookup: Lookup) -> str:
    try:
        hosts = ", ".join(address.host for address in addresses(name, 0, elsewhere=True, lookup=lookup))
    except NameFault as fault:
        return f"info {fault}"
    return f"pass {name} leads to {hosts}"
