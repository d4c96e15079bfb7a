"""What one command costs its own process: wall, CPU and the most memory it had.

It is started by a small process of its own: a new process counts as its own the memory of the one it was forked from.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

_LAUNCHER = """
import os, sys
pid = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(pid, 0)
told = [os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss]
os.write(int(sys.argv[1]), str(told).encode())
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that ended. peak_mib: MiB of memory at once (ru_maxrss)."""

    code: int
    wall_s: float
    cpu_s: float
    peak_mib: float


def run(
    command: Sequence[str],
    *,
    stdout: IO[bytes] | int = subprocess.DEVNULL,
    stderr: IO[bytes] | int | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
) -> Ran:
    """Run a command, whose first word is a path, to its end; after `timeout_s` it is killed."""
    reading, writing = os.pipe()
    began = time.monotonic()
    with os.fdopen(reading, "rb") as told:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(writing), *command],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=None if environment is None else dict(environment),
            pass_fds=(writing,),
            process_group=0,
        )
        os.close(writing)
        watchdog = threading.Timer(timeout_s, os.killpg, [process.pid, 9])
        watchdog.start()
        try:
            process.wait()
            took = time.monotonic() - began
            code, cpu, peak = json.loads(told.read() or b"[137, 0, 0]")
        except BaseException:
            os.killpg(process.pid, 9)
            process.wait()
            raise
        finally:
            watchdog.cancel()
    return Ran(code, took, cpu, peak / 1024)
