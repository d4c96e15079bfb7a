"""What making VMs costs Proxmox: requests of one run, against the fewest that any client can do with."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.row import Contest

COUNTS = (1, 10, 50)
FLOOR = 9
PLAN = 7
LEAST = "nextid, 4 writes, 3 task statuses, 1 agent call a VM"
_CASE = Path(__file__).parents[1] / "tests/provision/counted_run.py"


def contests() -> list[Contest]:
    """A plan, which asks per node and template; a run that makes VMs; the same again, with nothing left to do."""
    return [
        contest
        for count in COUNTS
        for contest in (
            Contest(
                f"plan {count} VMs", counted(count, "plan"), always(PLAN), "one plan of one VM", "requests"
            ),
            Contest(f"make {count} VMs", counted(count, "make"), always(FLOOR * count), LEAST, "requests"),
            Contest(
                f"{count} VMs again", counted(count, "again"), always(count), "1 look at each VM", "requests"
            ),
        )
    ]


def counted(count: int, which: str) -> Callable[[], float]:
    """The requests for `count` VMs: `plan`, `make` of the run that makes them, `again` of the next."""

    def run() -> float:
        return counts_of(count)[which]

    return run


@functools.cache
def counts_of(count: int) -> dict[str, float]:
    """Both counts of one pair of runs; they are the same in every round, so one is enough."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "counts.json"
        environ = {**os.environ, "BENCH_NODES": str(count), "BENCH_OUT": str(out)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(_CASE)]
        subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True, timeout=300)
        counts: dict[str, float] = json.loads(out.read_text())
        return counts


def always(number: int) -> Callable[[], float]:
    """A floor that is counted, not run."""

    def run() -> float:
        return float(number)

    return run
