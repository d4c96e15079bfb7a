"""Two network namespaces with a wire between them, which a test can narrow, cut, or let swallow packets."""

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.require import need_command, need_root

ADDRESSES = ("10.251.7.1", "10.251.7.2")


@dataclass(frozen=True, slots=True)
class Wire:
    """Two namespaces; the interface in each is called `ib0`."""

    names: tuple[str, str]

    def set(self, end: int, *words: str) -> None:
        """Run ip(8) in one of them."""
        _ip("-n", self.names[end], *words)

    def narrow(self, end: int, mtu: int) -> None:
        self.set(end, "link", "set", "ib0", "mtu", str(mtu))

    def cut(self) -> None:
        self.set(1, "link", "set", "ib0", "down")

    def lose(self) -> None:
        """Frames between the two go to a device that is not there: nobody answers, and nobody says so."""
        for end, other in enumerate(reversed(ADDRESSES)):
            nowhere = ("lladdr", "02:00:00:00:00:01", "dev", "ib0", "nud", "permanent")
            self.set(end, "neighbour", "replace", other, *nowhere)

    def bridge(self, end: int, address: str) -> None:
        """A network of containers beside the wire, as docker0 is one, with that address."""
        self.set(end, "link", "add", "docker0", "type", "veth", "peer", "name", "inside")
        self.set(end, "address", "add", address, "dev", "docker0")
        for name in ("docker0", "inside"):
            self.set(end, "link", "set", name, "up")

    def swallow(self) -> None:
        """What the second one sends to the first one is dropped without a word."""
        self.set(1, "route", "add", "blackhole", f"{ADDRESSES[0]}/32")


@contextmanager
def wire(*, mtu: int = 1500) -> Iterator[Wire]:
    """Both ends up, with their addresses; gone afterwards."""
    need_root()
    need_command("ip")
    tag = f"{os.getpid():x}{secrets.token_hex(2)}"
    made = Wire((f"mst-{tag}-a", f"mst-{tag}-b"))
    try:
        for name in made.names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        first = ("link", "add", "ib0", "mtu", str(mtu), "type", "veth")
        made.set(0, *first, "peer", "name", "ib0", "netns", made.names[1], "mtu", str(mtu))
        for end, address in enumerate(ADDRESSES):
            made.set(end, "address", "add", f"{address}/24", "dev", "ib0")
            made.set(end, "link", "set", "ib0", "up")
        yield made
    finally:
        for name in made.names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True, timeout=20)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)
