"""Starts the lab's processes so that none outlives it, and waits for what they say."""

import contextlib
import os
import selectors
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Inside a node nothing depends on who started the lab.
SANE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SANE_ENV: Mapping[str, str] = {"PATH": SANE_PATH, "LANG": "C.UTF-8"}


def find_program(name: str) -> str | None:
    """Where a program is on the path that nodes have; None if it is not there."""
    for folder in SANE_PATH.split(":"):
        candidate = Path(folder, name)
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    return None


class Spawner:
    """Starts processes from one thread that lasts until `close`.

    PR_SET_PDEATHSIG fires when the *thread* that forked ends (prctl(2)), so a node that was started from a short
    thread would die with it.
    """

    def __init__(self) -> None:
        """The thread starts with the first process."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lab-spawner")

    def start(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
        """Start a process in a session of its own, with pipes to its stdin and stdout, and stderr in `log`.

        Args:
            argv: the command line.
            env: its whole environment.
            log: a file that is made anew (0600).
        """
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as stderr:
            return self._thread.submit(
                subprocess.Popen,
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=dict(env),
                start_new_session=True,
            ).result()

    def close(self) -> None:
        """End the thread, and with it whatever was tied to it."""
        self._thread.shutdown()


def end(process: "subprocess.Popen[bytes]", *, wait_s: float = 0.0) -> None:
    """End a process that a spawner started, and take back its pipes; it has `wait_s` seconds to end by itself."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(wait_s)
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def wait_for_word(process: "subprocess.Popen[bytes]", word: bytes, *, timeout_s: float) -> bool:
    """Whether the process says `word` as its first line in time."""
    assert process.stdout is not None  # noqa: S101 - it was asked for
    deadline = time.monotonic() + timeout_s
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while b"\n" not in said:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return False
            chunk = os.read(process.stdout.fileno(), 1024)
            if not chunk:
                return False
            said += chunk
    return said.split(b"\n", 1)[0] == word


def wait_for_banner(
    address: str, port: int, *, alive: Callable[[], bool], timeout_s: float, pause_s: float = 0.01
) -> bool:
    """Whether an SSH server greets there in time, while `alive` holds."""
    deadline = time.monotonic() + timeout_s
    while alive() and time.monotonic() < deadline:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((address, port), timeout=deadline - time.monotonic()) as connection,
        ):
            if connection.recv(8).startswith(b"SSH-2.0-"):
                return True
        time.sleep(pause_s)
    return False


def free_port(address: str, wanted: Sequence[int] = (22, 2222, 22022)) -> int | None:
    """The first of the ports that can be bound there; None if none can.

    A server that listens on 0.0.0.0:22 takes port 22 of every loopback address.
    """
    for port in wanted:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((address, port))
                probe.listen(1)
                return port
    return None


def last_words(log: Path, *, lines: int = 3) -> str:
    """The end of a log, for an error's `why`."""
    with contextlib.suppress(OSError):
        found = log.read_text(errors="replace").strip().splitlines()[-lines:]
        if found:
            return "; ".join(found)
    return "it said nothing"
