"""Renews or refreshes in a process of its own that is killed at a landmark; as `killing` does for enrolment."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from onboard.refresh import refresh
from onboard.renewal import renew
from tests.onboard.killing import landmarks
from tests.onboard.kit import Bench

DEEDS = {"renew": renew, "refresh": refresh}


class Killing:
    """The program, running."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        """Made by `killing_upkeep`."""
        self._process = process

    def do(self, deed: str, holder: Bench, *, kill_at: int) -> tuple[int, list[str]]:
        """The exit status (-9: killed), and the landmarks that were passed."""
        log = holder.folder / "landmarks"
        log.unlink(missing_ok=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((deed, holder, kill_at), self._process.stdin)
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        return status, log.read_text().splitlines() if log.exists() else []


@contextmanager
def killing_upkeep() -> Iterator[Killing]:
    """The program, until the block ends."""
    command = [sys.executable, "-m", "tests.onboard.killing_upkeep"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Killing(process)
        finally:
            process.stdin and process.stdin.close()


def _serve() -> None:
    while True:
        try:
            deed, holder, kill_at = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own test
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            sys.setprofile(landmarks(holder.folder, kill_at))
            try:
                DEEDS[deed]("gpu-01", holder.desk())
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
