"""Servers that an SSH client must survive: raw ones that speak no SSH, and real ones whose sessions misbehave."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from inventory.model import HostKey

ADDRESS = "127.0.0.1"
MANY = 10 * 1024 * 1024
HOLDS_S = 120.0  # for so long a session that stands still would hold whoever has no deadline of their own


@contextmanager
def raw(talk: Callable[[socket.socket, threading.Event], None]) -> Iterator[int]:
    """A TCP server on loopback whose every connection gets `talk`; gives its port. The event is set at the end."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def serve() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=one, args=(connection,)))
                threads[-1].start()

    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(0.2)
            talk(connection, over)

    with socket.create_server((ADDRESS, 0)) as listener:
        listener.settimeout(0.1)
        server = threading.Thread(target=serve)
        server.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            server.join(timeout=600)
            for thread in threads:
                thread.join(timeout=600)


@dataclass(frozen=True, slots=True)
class Hostile:
    """A real SSH server that lets everybody in. stalled: its loop stands still until this is set."""

    port: int
    host_key: HostKey
    release: threading.Event


@contextmanager
def hostile(host_key: Path, *, stalled: bool = False) -> Iterator[Hostile]:
    """Serve until the block ends; what a session does is named by its command, see `_handle`.

    stalled: it stands still when a command has begun, or at the command `never-answered` before that.
    """
    release, ready = threading.Event(), threading.Event()
    loop = asyncio.new_event_loop()
    ports: list[int] = []

    class Server(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:  # noqa: ARG002 - asyncssh's own
            return False

    class Stalled(Server):
        def session_requested(self) -> asyncssh.SSHServerSession[bytes]:
            return StalledSession()

    class StalledSession(asyncssh.SSHServerSession[bytes]):
        def exec_requested(self, command: str) -> bool:
            if command == "never-answered":
                release.wait(HOLDS_S)
            return True

        def session_started(self) -> None:
            release.wait(HOLDS_S)

    async def serve() -> None:
        server = await asyncssh.create_server(
            Stalled if stalled else Server,
            ADDRESS,
            0,
            process_factory=None if stalled else _handle,
            server_host_keys=[str(host_key)],
            encoding=None,
            window=2**31 - 1,
        )
        ports.append(server.get_port())
        ready.set()
        while not over.is_set():
            await asyncio.sleep(0.05)
        server.close()

    over = threading.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield Hostile(ports[0], HostKey.from_line(host_key.with_suffix(".pub").read_text()), release)
    finally:
        release.set()
        over.set()
        thread.join(timeout=600)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()


async def _handle(process: "asyncssh.SSHServerProcess[bytes]") -> None:
    with contextlib.suppress(asyncssh.Error, BrokenPipeError, ConnectionError):
        match process.command:
            case "no-status":
                process.stdout.write(b"said\n")
                process.stdout.write_eof()
                process.stderr.write_eof()
                await asyncio.sleep(HOLDS_S)
            case "closes":
                process.stdout.write(b"said\n")
                process.close()
            case "stderr-flood":
                for _ in range(MANY // 65536):
                    process.stderr.write(b"e" * 65536)
                    await process.stderr.drain()
                process.exit(0)
            case "drip":
                while True:
                    process.stdout.write(b".")
                    await asyncio.sleep(0.02)
            case "escapes":
                process.stderr.write("fine\n\x1b]0;owned\x07\x1b[2J\u202egnp.exe".encode())
                process.exit(3)
