"""Enrols in a process of its own that is killed at a landmark: after a write to the ledger, a file, the record ...

Run as a program it reads pickled orders from stdin and forks for each, so that the libraries load once. The
landmarks are seen by a profiling hook (sys.setprofile): the code that runs is the code that ships.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any

from onboard.service import onboard
from tests.onboard.kit import Bench

_AFTER = {
    "Ledger.write": "audit written",
    "Store.add": "record added",
    "Store.save": "record moved",
    "write_whole": "file written",
    "store": "certificate stored",
    "open_session": "logged in",
    "Session.run": "command run",
    "Session.start": "command sent",
}


def landmarks(folder: Path, kill_at: int) -> Any:
    """A hook that writes down each landmark that is passed, and ends the process at one of them (0: at none)."""
    passed = 0

    def hook(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal passed
        name = _AFTER.get(frame.f_code.co_qualname)
        if event != "return" or name is None:
            return
        passed += 1
        with (folder / "landmarks").open("a") as out:
            out.write(f"{name}\n")
        if passed == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


class Killing:
    """The program, running."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        """Made by `killing`."""
        self._process = process

    def enrol(self, holder: Bench, text: str, *, kill_at: int) -> tuple[int, list[str]]:
        """The exit status (-9: killed), and the landmarks that were passed."""
        log = holder.folder / "landmarks"
        log.unlink(missing_ok=True)
        stdin, stdout = _streams(self._process)
        pickle.dump((holder, text, kill_at), stdin)
        stdin.flush()
        status = int(stdout.readline())
        return status, log.read_text().splitlines() if log.exists() else []


@contextmanager
def killing() -> Iterator[Killing]:
    """The program, until the block ends."""
    command = [sys.executable, "-m", "tests.onboard.killing"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Killing(process)
        finally:
            process.stdin and process.stdin.close()


def _streams(process: "subprocess.Popen[bytes]") -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _serve() -> None:
    while True:
        try:
            holder, text, kill_at = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own test
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            sys.setprofile(landmarks(holder.folder, kill_at))
            try:
                onboard(text, holder.desk())
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test shall see it
                sys.setprofile(None)
                sys.stderr.write(f"{error!r}\n")
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
