"""Declared fabrics against a kernel's own interfaces, in a network namespace that the test makes."""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from tests.require import need, need_command

from .probing import ROOT

# a network of its own, where sysfs shows that network's interfaces
OWN = ["unshare", "--map-root-user", "--net", "--mount"]
LOOK = f"""\
import json, sys
sys.path.insert(0, {str(ROOT)!r})
from verify.probe.machine import Machine
from verify.probe.netcheck import fabric_checks
print(json.dumps(fabric_checks(json.loads(sys.argv[1]), Machine())))
"""
PAIR = "ip link add fab0 type veth peer name far0"


@dataclass(frozen=True, slots=True)
class Link:
    """How the test sets the interface up."""

    setting: str = "ip link set far0 up; ip link set fab0 mtu 9000 up"
    interface: str = "fab0"
    rate_gbps: float | None = 10.0
    mtu: int | None = 9000

    def look(self) -> dict[str, dict[str, Any]]:
        fabric = {
            "name": "f0",
            "interface": self.interface,
            "rate_gbps": self.rate_gbps,
            "mtu": self.mtu,
        }
        script = f'set -e; mount -t sysfs none /sys; {PAIR}; {self.setting}; exec "$@"'
        words = [sys.executable, "-c", LOOK, json.dumps(fabric)]
        done = subprocess.run(
            [*OWN, "sh", "-c", script, "sh", *words], capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr
        return {each["name"].removeprefix("fabric f0 "): each for each in json.loads(done.stdout)}


@pytest.fixture(autouse=True)
def namespaces() -> None:
    need_command("ip", "unshare")
    tried = subprocess.run([*OWN, "true"], capture_output=True, timeout=30, check=False)
    need(tried.returncode == 0, "network namespaces", "allow unprivileged user namespaces, or run as root")


def test_a_fabric_that_is_as_declared_passes() -> None:
    seen = Link().look()

    assert {name: each["verdict"] for name, each in seen.items()} == {
        "link": "pass",
        "speed": "pass",
        "MTU": "pass",
    }
    assert seen["speed"]["found"] == "fab0 runs at 10 Gbit/s"


@pytest.mark.parametrize(
    ("link", "name", "verdict", "found"),
    [
        (Link("ip link set far0 up; ip link set fab0 up"), "MTU", "critical", "fab0 has MTU 1500"),
        (Link(mtu=1500), "MTU", "warning", "fab0 has MTU 9000"),
        (Link(rate_gbps=400.0), "speed", "critical", "fab0 runs at 10 Gbit/s"),
        (Link("true"), "link", "critical", "fab0 is down"),
        (Link("ip link set fab0 up"), "link", "critical", "fab0 is lowerlayerdown"),
        (Link("ip link set lo up", "lo"), "link", "warning", "lo is unknown"),
        (Link("ip link set lo up", "lo"), "speed", "unknown", "the driver of lo does not tell its speed"),
        (Link(interface="eth7"), "interface", "critical", "there are fab0, far0, lo"),
        (Link(interface="../net/lo"[:10]), "interface", "critical", "there are fab0, far0, lo"),
    ],
    ids=["small MTU", "large MTU", "slow", "down", "no carrier", "unknown", "no speed", "absent", "a path"],
)
def test_a_fabric_that_is_not_as_declared_is_told(link: Link, name: str, verdict: str, found: str) -> None:
    check = link.look()[name]

    assert (check["verdict"], check["found"][: len(found)]) == (verdict, found)
    assert check["next"]


def test_what_a_fabric_does_not_declare_is_not_judged() -> None:
    assert set(Link(rate_gbps=None, mtu=None).look()) == {"link"}
