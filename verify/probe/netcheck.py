"""The declared fabrics against what the kernel has, and which ports are taken on their addresses."""

from __future__ import annotations

import re
from typing import Any, Mapping

from .machine import Machine
from .verdicts import CRITICAL, INFO, PASS, UNKNOWN, WARNING, check

_NET = "/sys/class/net"
_LISTEN = "0A"
_MOST_PORTS = 40
_NAME = re.compile(r"[^/\s]{1,15}")


def checks(about: Mapping[str, Any], machine: Machine) -> list[dict[str, Any]]:
    """Every fabric of agent.yaml, and the ports that something listens on."""
    found: list[dict[str, Any]] = []
    for fabric in about.get("fabrics") or ():
        found += fabric_checks(fabric, machine)
    found.append(_ports(machine))
    return found


def fabric_checks(fabric: Mapping[str, Any], machine: Machine) -> list[dict[str, Any]]:
    """Interface, link, speed and MTU of one declared fabric; speed and MTU only where they are declared."""
    name, interface = str(fabric["name"]), str(fabric["interface"])
    place = f"{_NET}/{interface}"
    if not _NAME.fullmatch(interface) or interface in (".", "..") or not machine.exists(place):
        listed = machine.names(_NET)
        return [
            check(
                f"fabric {name} interface",
                CRITICAL if listed else UNKNOWN,
                expected=f"an interface called {interface}",
                found=f"there are {', '.join(listed)}" if listed else f"{_NET} cannot be read",
                why="engines are told to use it, and end or take another, slower network",
                advice="correct agent.yaml (reissue the ticket), or add the network device in the site file",
                essential=True,
            )
        ]
    told = [_link(name, interface, machine)]
    if fabric.get("rate_gbps") is not None:
        told.append(_speed(name, interface, float(fabric["rate_gbps"]), machine))
    if fabric.get("mtu") is not None:
        told.append(_mtu(name, interface, int(fabric["mtu"]), machine))
    return told


def _link(name: str, interface: str, machine: Machine) -> dict[str, Any]:
    state = machine.word(f"{_NET}/{interface}/operstate")
    # IPoIB, tunnels and loopback say "unknown" while they work (RFC 2863, ifOperStatus; the kernel's operstates.rst)
    verdict = UNKNOWN if state is None else {"up": PASS, "unknown": WARNING}.get(state, CRITICAL)
    return check(
        f"fabric {name} link",
        verdict,
        expected=f"{interface} is up",
        found="its operstate cannot be read" if state is None else f"{interface} is {state}",
        why="a replica across nodes cannot assemble over a link that is down",
        advice=f"ip link show {interface}; look at the cable, the switch port and the bridge",
        essential=True,
    )


def _speed(name: str, interface: str, gbps: float, machine: Machine) -> dict[str, Any]:
    text = machine.word(f"{_NET}/{interface}/speed") or ""
    mbits = int(text) if text.lstrip("-").isdigit() else -1
    found = f"{interface} runs at {mbits / 1000:g} Gbit/s"
    if mbits <= 0 or mbits == 0xFFFFFFFF:
        verdict, found = (
            UNKNOWN,
            f"the driver of {interface} does not tell its speed (virtual devices do not)",
        )
    else:
        verdict = PASS if mbits >= gbps * 1000 else CRITICAL
    return check(
        f"fabric {name} speed",
        verdict,
        expected=f"at least {gbps:g} Gbit/s (rate_gbps)",
        found=found,
        why="every collective waits for the slowest link",
        advice=f"ethtool {interface}; look at the cable, the port's mode and the device's PCIe lanes",
    )


def _mtu(name: str, interface: str, mtu: int, machine: Machine) -> dict[str, Any]:
    text = machine.word(f"{_NET}/{interface}/mtu") or ""
    has = int(text) if text.isdigit() else None
    verdict = UNKNOWN if has is None else PASS if has == mtu else CRITICAL if has < mtu else WARNING
    return check(
        f"fabric {name} MTU",
        verdict,
        expected=f"MTU {mtu}",
        found="its MTU cannot be read" if has is None else f"{interface} has MTU {has}",
        why="packets of the declared size are dropped without a word where one end or a switch takes less",
        advice=f"ip link set {interface} mtu {mtu}, and set it in the node's network configuration",
        essential=True,
    )


def _ports(machine: Machine) -> dict[str, Any]:
    """Information: which ports an engine cannot have, on any address but loopback."""
    taken: set[int] = set()
    seen = False
    for table in ("tcp", "tcp6"):
        rows = (machine.word(f"/proc/net/{table}") or "").splitlines()
        seen = seen or bool(rows)
        for row in (line.split() for line in rows[1:]):
            if len(row) > 3 and row[3] == _LISTEN and not _loopback(row[1].partition(":")[0]):
                taken.add(int(row[1].rpartition(":")[2], 16))
    listed = ", ".join(str(port) for port in sorted(taken)[:_MOST_PORTS]) or "none"
    return check(
        "listening-ports",
        INFO if seen else UNKNOWN,
        expected="the ports that engines are given are free on the rendezvous address",
        found=f"taken: {listed}" if seen else "/proc/net/tcp cannot be read",
        why="a rank 0 whose port is taken leaves every other rank waiting",
        advice="give engines ports that are not among these",
    )


def _loopback(address: str) -> bool:
    # hex in the kernel's byte order: 127.0.0.0/8, ::1
    return (address.endswith("7F") and len(address) == 8) or address == "0" * 24 + "01000000"


def hardware(about: Mapping[str, Any]) -> str | None:
    """What `not checked` says of the fabrics."""
    return None if about.get("fabrics") else "fabrics (agent.yaml declares none)"
