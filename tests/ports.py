"""Ports for those that must be told theirs: where port 0 will do, that is better."""

import random
import socket
from pathlib import Path

_LOWEST = 10_000
_TRIES = 100
_anyone = random.SystemRandom()  # a worker forked from another, or seeded like it, must not draw the same


def free_port(host: str = "127.0.0.1") -> int:
    """A port where nobody listens, below those that the kernel hands out: nobody is given it before it is bound."""
    for _ in range(_TRIES):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
            try:
                free.bind((host, _anyone.randrange(_LOWEST, max(_LOWEST + 1, _handed_out_from()))))
            except OSError:  # somebody has it
                continue
            return int(free.getsockname()[1])
    raise AssertionError(f"{_TRIES} ports of {host} were tried, and none is free")


def _handed_out_from() -> int:
    """The lowest port that the kernel chooses by itself (ip(7))."""
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
