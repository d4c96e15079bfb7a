"""A real ssh-agent for tests, which holds the keys that are put into it."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.require import need_command


@contextmanager
def agent(folder: Path, *keys: Path) -> Iterator[Path]:
    """Run until the block ends; gives its socket. The keys' files are taken away: they live in the agent alone."""
    need_command("ssh-agent", "ssh-add")
    place = folder / "agent"
    running = subprocess.Popen(["ssh-agent", "-D", "-a", str(place)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not place.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for key in keys:
            environment = {**os.environ, "SSH_AUTH_SOCK": str(place)}
            subprocess.run(["ssh-add", "-q", str(key)], env=environment, check=True, timeout=30)
            key.unlink()
        yield place
    finally:
        running.terminate()
        running.wait(timeout=10)
