"""A real ssh-agent for tests, which holds the keys that are put into it."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.require import need_command


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder for sockets, whose paths have at most 107 octets (unix(7)); a test's own may be too deep."""
    with tempfile.TemporaryDirectory(prefix="muster-", dir="/tmp") as folder:
        yield Path(folder)


@contextmanager
def agent(*keys: Path) -> Iterator[Path]:
    """Run until the block ends; gives its socket. The keys' files are taken away: they live in the agent alone."""
    with short_folder() as folder:
        yield from _agent(folder / "agent", *keys)


def _agent(place: Path, *keys: Path) -> Iterator[Path]:
    need_command("ssh-agent", "ssh-add")
    running = subprocess.Popen(["ssh-agent", "-D", "-a", str(place)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not place.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for key in keys:
            environment = {**os.environ, "SSH_AUTH_SOCK": str(place)}
            subprocess.run(["ssh-add", "-q", str(key)], env=environment, check=True, timeout=600)
            key.unlink()
        yield place
    finally:
        running.terminate()
        running.wait(timeout=600)
