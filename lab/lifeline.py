"""Ties a process to its parent, so that nothing of the lab outlives the one who started it.

Run as a script, `lifeline.py PID COMMAND...` ties itself to its parent PID and becomes COMMAND.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # prctl(2), linux/prctl.h


class ParentGone(Exception):
    """The parent had ended before the tie was made."""


def tie(parent_pid: int, sign: signal.Signals) -> None:
    """Have the kernel send `sign` to this process when its parent ends, however that ends.

    The tie survives execve(2), and is not inherited by children (prctl(2)).

    Raises:
        ParentGone: the parent is not `parent_pid` any more.
        OSError: the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(sign), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # A parent that ended before prctl sends no signal: only its pid tells.
    if os.getppid() != parent_pid:
        raise ParentGone


def tied(command: Sequence[str]) -> list[str]:
    """`command` as a command line that is killed when the thread that starts it ends (prctl(2))."""
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(os.getpid()), *command]


def main() -> None:
    """Tie, then become the command."""
    parent_pid, command = int(sys.argv[1]), sys.argv[2:]
    try:
        tie(parent_pid, signal.SIGKILL)
    except ParentGone:
        sys.exit(128 + signal.SIGKILL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - becoming the command is the purpose
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
