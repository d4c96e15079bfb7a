"""Why there is no lab that could be used, in a person's words."""

import signal
import subprocess
from pathlib import Path

from inventory.errors import BadInput, OtherSide, Refused

_LOG_LINES = 8
_END_TIMEOUT_S = 2.0


def no_place(root: Path, error: OSError) -> BadInput:
    """Its directory cannot be made or read."""
    return BadInput(
        "the lab has no place",
        why=f"{error.filename or root}: {error.strerror}",
        next_step="set XDG_STATE_HOME to a directory that you can write to",
    )


def other_version(ready: Path) -> Refused:
    """What it says of itself is not what we would have it say."""
    return Refused(
        "the lab that is up cannot be used",
        why=f"another version of node-lab started it: {ready} lacks what this one looks for",
        next_step="node-lab down, then node-lab up",
    )


def silent(process: "subprocess.Popen[bytes]", log: Path, timeout_s: float) -> OtherSide:
    """Its server gave no report: its last words, and how it ended."""
    try:
        code = process.wait(_END_TIMEOUT_S)  # where it closed its side, it ends
    except subprocess.TimeoutExpired:
        how, remedy = (
            f"its server said nothing in {timeout_s:.0f} s",
            "try again when this machine is less busy",
        )
    else:
        end = f"was killed by {_signal(-code)}" if code < 0 else f"ended with {code}"
        how, remedy = f"its server {end} before it was ready", "run the command again"
    return OtherSide(
        "the lab did not start",
        why="\n".join([*_tail(log), how]),
        next_step=f"{remedy}; if it stays so, report it with these lines",
    )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def _tail(log: Path) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        return []
