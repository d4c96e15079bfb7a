"""What a fleet costs the client: wall time against the critical path, processor time, memory."""

import functools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.row import Contest
from provision.gates import CLONES_AT_ONCE

FLEET = 50
DISK_S, START_S, BOOT_S = 2.0, 1.0, 10.0
"""Seconds that the fake takes: to copy a disk (a clone; a start on slow storage too), to start, to boot."""
CPU_LIMIT_S, MEMORY_LIMIT_MIB = 0.1, 80.0
_CASE = Path(__file__).parents[1] / "tests/provision/timed_fleet.py"


def contests() -> list[Contest]:
    """A fleet's wall time, and what a run of ten and of fifty costs this host."""
    path = f"the critical path: {CLONES_AT_ONCE} clones at a time, then the last VM's start and boot"
    return [
        Contest(
            f"make {FLEET} VMs", figure(FLEET, "wall_s", timed=True), always(critical_path_s()), path, "s"
        ),
        Contest(
            "10 VMs", figure(10, "cpu_s"), always(10 * CPU_LIMIT_S), f"{CPU_LIMIT_S} CPU s a VM", "CPU s"
        ),
        Contest(
            f"{FLEET} VMs",
            figure(FLEET, "peak_mib"),
            always(MEMORY_LIMIT_MIB),
            f"{MEMORY_LIMIT_MIB:.0f} MiB",
            "MiB",
        ),
    ]


def critical_path_s() -> float:
    """No client can be faster that keeps to the same number of clones at a time."""
    return math.ceil(FLEET / CLONES_AT_ONCE) * DISK_S + DISK_S + START_S + BOOT_S


def figure(count: int, name: str, *, timed: bool = False) -> Callable[[], float]:
    """One figure of a run that makes `count` VMs, against tasks that take their time or none."""

    def run() -> float:
        return figures(count, timed=timed)[name]

    return run


@functools.cache
def figures(count: int, *, timed: bool) -> dict[str, float]:
    """The figures of one run; the rounds share it, for it lasts a minute."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        # Bytecode may be kept, as it is where a command is installed.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environ = {**kept, "BENCH_NODES": str(count), "BENCH_OUT": str(out)}
        if timed:
            environ["BENCH_TIMES"] = f"{DISK_S},{START_S},{BOOT_S}"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(_CASE)]
        subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True, timeout=600)
        found: dict[str, float] = json.loads(out.read_text())
        return found


def always(number: float) -> Callable[[], float]:
    """A floor that is reckoned, not run."""

    def run() -> float:
        return number

    return run
