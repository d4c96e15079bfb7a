"""Runs one command and ends everything it left behind, when it ends, on SIGTERM, or when its parent ends.

Run as a script, `keeper.py COMMAND...`, for commands that no PID namespace holds together. Imports nothing of ours.
"""

import ctypes
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2), linux/prctl.h
_NO_SUCH_COMMAND = 127


class _Stop(Exception):
    """Time to end."""


def main() -> NoReturn:
    """Run the command; exit as it did."""
    parent = os.getppid()
    signal.signal(signal.SIGTERM, _stop)
    libc = ctypes.CDLL(None)
    # As a subreaper this process inherits the command's orphans, also those in sessions of their own.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    status = 128 + signal.SIGTERM
    try:
        if os.getppid() == parent:
            status = _run(sys.argv[1:])
    except _Stop:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_children()
    os._exit(status)


def _run(command: list[str]) -> int:
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            os.execvp(command[0], command)  # noqa: S606 - becoming the command is the purpose
        finally:
            os._exit(_NO_SUCH_COMMAND)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end_children() -> None:
    while True:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _children() -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - start-up time
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:  # noqa: PTH123 - start-up time
                fields = stat.read().rpartition(")")[2].split()
        except OSError:
            continue
        # A zombie needs no signal, only the wait.
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.append(int(name))
    return found


def _stop(_sign: int, _frame: FrameType | None) -> NoReturn:
    raise _Stop


if __name__ == "__main__":
    main()
