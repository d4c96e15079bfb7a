"""Processes and mounts of this machine, to see that a lab leaves none behind."""

import time
from collections.abc import Iterable
from pathlib import Path

_GRACE_S = 60.0


def descendants(pid: int) -> dict[int, str]:
    """The processes below one, with their start times, which tell a pid from the same number used again."""
    parents: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if (found := _stat(int(folder.name))) is not None:
            parents[int(folder.name)] = (int(found[1]), found[19])
    below: dict[int, str] = {}
    fresh = {pid}
    while fresh:
        fresh = {child for child, (parent, _) in parents.items() if parent in fresh} - set(below)
        below |= {child: parents[child][1] for child in fresh}
    return below


def still_there(processes: dict[int, str]) -> list[int]:
    """Which of them still run after a moment; a zombie has ended."""
    deadline = time.monotonic() + _GRACE_S
    while (left := [pid for pid, began in processes.items() if _runs(pid, began)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    return left


def mounts(folder: Path) -> list[str]:
    """What this process sees mounted from or at a folder; other programs of the machine mount what they like."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return sorted(line for line in lines if str(folder) in line)


def with_text(text: str, *, but: Iterable[int] = ()) -> list[int]:
    """The processes with a text in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in line and int(folder.name) not in but:
            found.append(int(folder.name))
    return found


def _runs(pid: int, began: str) -> bool:
    found = _stat(pid)
    return found is not None and found[0] != "Z" and found[19] == began


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on (proc(5)): 0 state, 1 parent, 19 start time."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
