"""What giving nodes their identity costs the client, 20 ms away: connections, commands, and wall time.

The human and the unlocking of the authority's key are apart.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from bench.row import Contest

MANY = (10, 50)
COMMANDS = 3


def contests() -> list[Contest]:
    """One node against the floor, many nodes against one; connections and commands against what is allowed."""
    one = figure("ours", 1, "wall_s")
    floor = "one connection, two commands, by hand with paramiko"
    return [
        Contest("connections a node", counted("connections"), always(1), "1", "connections"),
        Contest("commands a node", counted("execs"), always(COMMANDS), "3 at most", "commands"),
        Contest("1 node", one, figure("floor", 1, "wall_s"), f"{floor} (1.5 at most)", "s"),
        *(
            Contest(f"{count} nodes", figure("ours", count, "wall_s"), one, f"1 node ({most} at most)", "s")
            for count, most in zip(MANY, ("2.5", "6"), strict=True)
        ),
    ]


def figure(which: str, count: int, name: str) -> Callable[[], float]:
    """One figure of a run of its own."""

    def run() -> float:
        return float(asked(which, count)[name])

    return run


def counted(name: str) -> Callable[[], float]:
    """A count of one run; it is the same in every round."""

    def run() -> float:
        return float(_counts()[name])

    return run


@functools.cache
def _counts() -> dict[str, Any]:
    return asked("ours", MANY[0])


def asked(which: str, count: int) -> dict[str, Any]:
    """The figures of one run in the world."""
    world = the_world()
    if world.stdin is None or world.stdout is None:
        raise ValueError("the world has no pipes")
    world.stdin.write(f"{which} {count}\n")
    world.stdin.flush()
    line = world.stdout.readline()
    if not line:
        raise SystemExit("bench: the world of the enrolments ended; it says above why")
    found: dict[str, Any] = json.loads(line)
    return found


@functools.cache
def the_world() -> "subprocess.Popen[str]":
    """The process in its network namespace; it ends with this one."""
    if os.geteuid() != 0:
        raise SystemExit("bench: enrolment needs root, for network and mount namespaces")
    world = subprocess.Popen(
        ["unshare", "--net", sys.executable, "-m", "bench.enrolment_world"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_end, world)
    if world.stdout is None or not (line := world.stdout.readline()):
        raise SystemExit("bench: the world of the enrolments did not start; it says above why")
    sys.stderr.write(f"bench: enrolment, 10 ms each way by {json.loads(line)['delay']}\n")
    return world


def _end(world: "subprocess.Popen[str]") -> None:
    if world.stdin is not None:
        world.stdin.close()
    world.wait(timeout=60)


def always(number: float) -> Callable[[], float]:
    """A bound, not run."""

    def run() -> float:
        return float(number)

    return run
