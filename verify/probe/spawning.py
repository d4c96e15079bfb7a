"""A rank in an interpreter of its own: what it is started with goes through memory, and no file is written."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from .rank import Start

_MEMORY = "/proc/self/fd/"
_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from {package}.spawning import spawned; spawned()"


def execute(rank: int, orders: socket.socket, start: Start, listener: socket.socket | None) -> NoReturn:
    """Become a new interpreter, which is that rank; the environment is empty."""
    memory = os.memfd_create("muster-rank")
    os.write(memory, _packed(rank, orders, start, listener))
    root = _root()
    needed = [memory, orders.fileno(), *([listener.fileno()] if listener else [])]
    for path in [root, *(file for file in start.loaded.identity if file)]:
        if path.startswith(_MEMORY):
            needed.append(int(path[len(_MEMORY) :].partition("/")[0]))
    for descriptor in needed:
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - its only form
    code = _CODE.format(package=__package__)
    os.execve(
        sys.executable, [sys.executable, "-I", "-S", "-c", code, root, str(memory)], {"LC_ALL": "C.UTF-8"}
    )


def spawned() -> NoReturn:
    """What the new interpreter does."""
    from .member import Address
    from .rank import BROKEN, Parts, Start, run_rank
    from .seats import Plan, Seat
    from .tls import Identity, load

    status = BROKEN
    try:
        with open(f"{_MEMORY}{sys.argv[2]}", "rb") as file:
            said: dict[str, Any] = json.load(file)
        seats = tuple(Seat(*seat) for seat in said["seats"])
        plan = Plan(bytes.fromhex(said["run_id"]), seats, *said["limits"])
        address = None if said["address"] is None else Address(*said["address"])
        start = Start(plan, load(Identity(*said["identity"])), address, said["port"], said["host"])
        listener = None if said["listener"] is None else socket.socket(fileno=said["listener"])
        orders = socket.socket(fileno=said["orders"])
        status = run_rank(said["rank"], orders, start, Parts(), listener)
    finally:
        os._exit(status)


def _packed(rank: int, orders: socket.socket, start: Start, listener: socket.socket | None) -> bytes:
    run_id, seats, *limits = start.plan
    said = {
        "rank": rank,
        "run_id": run_id.hex(),
        "seats": seats,
        "limits": limits,
        "identity": start.loaded.identity,
        "address": start.address,
        "port": start.port,
        "host": start.host,
        "orders": orders.fileno(),
        "listener": listener.fileno() if listener else None,
    }
    return json.dumps(said).encode()


def _root() -> str:
    """The folder, or the zip in memory, that the package is imported from."""
    root = os.path.abspath(__file__)
    for _ in range((__package__ or "").count(".") + 2):
        root = os.path.dirname(root)
    return root
