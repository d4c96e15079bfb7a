"""SSH servers that enter nodes which have none of their own; the only module that imports asyncssh.

Public keys only, one user per server, no terminal, no forwarding. What a session started ends with its channel.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import asyncssh

from inventory.errors import OtherSide
from lab.personalise import NodeFile

# What goes wrong in a session reaches its client; the log would print it beside the lab's own talk.
logging.getLogger("asyncssh").setLevel(logging.CRITICAL + 1)

_KEY_TYPES = {"ssh-ed25519": "ed25519", "ecdsa-sha2-nistp256": "ecdsa"}
_CHUNK = 65536
_END_TIMEOUT_S = 10.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Program:
    """What a session runs: the command line that enters the node.

    kept: it is run by lab/keeper.py, which ends all that it left behind when it gets SIGTERM.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str = "/"
    kept: bool = False


# From the command that the client asked for, or None for a shell, to what is run.
Enter = Callable[[str | None], Program]


@dataclass(frozen=True, slots=True)
class Door:
    """One node's SSH server, as it is asked for.

    authorized_keys: the text of the login's authorized_keys, read anew for each login.
    host_keys: private keys in OpenSSH's format.
    """

    address: str
    port: int
    user: str
    host_keys: tuple[bytes, ...]
    authorized_keys: Callable[[], bytes]
    enter: Enter


def new_host_keys(name: str) -> tuple[NodeFile, ...]:
    """Fresh host keys for a node, as files of its /etc/ssh."""
    made = []
    for algorithm, word in _KEY_TYPES.items():
        key = asyncssh.generate_private_key(algorithm, comment=f"root@{name}")
        path = f"etc/ssh/ssh_host_{word}_key"
        made.append(NodeFile(path, key.export_private_key(), 0o600))
        made.append(NodeFile(f"{path}.pub", key.export_public_key(), 0o644))
    return tuple(made)


def new_login_key() -> tuple[bytes, str]:
    """A key for logging in once: private in OpenSSH's format, and the public line."""
    key = asyncssh.generate_private_key("ssh-ed25519", comment="muster-lab-trial")
    return key.export_private_key(), key.export_public_key().decode().strip()


class SshService:
    """The SSH servers of one backend, on one event loop in a thread that lasts as long as the service."""

    def __init__(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lab-ssh", daemon=True)
        self._thread.start()

    def open(self, door: Door) -> "Listener":
        """Listen for one node.

        Raises:
            OSError: the address cannot be bound.
        """
        listener = Listener(self, door)
        self.call(listener.start(), timeout_s=_END_TIMEOUT_S)
        return listener

    def call(self, work: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """Run a coroutine on the service's loop, from another thread."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def run(
        self, door: Door, command: str, *, key: bytes, host_key_lines: Sequence[bytes], timeout_s: float
    ) -> tuple[int, str]:
        """Log in as a client and run one command: its exit status, and both of its streams.

        Raises:
            OtherSide: no session came about, or the command did not end in time.
        """
        client = _run_as_client(door, command, key, host_key_lines)
        try:
            return self.call(client, timeout_s=timeout_s)
        except (asyncssh.Error, OSError, TimeoutError) as error:
            raise OtherSide(
                f"no command could be run at {door.address}:{door.port}",
                why=str(error) or f"no answer within {timeout_s:.0f} s",
                next_step="look at the node's log in the lab's state directory",
            ) from error

    def close(self) -> None:
        """End the loop and its thread; the listeners are closed by their owners before."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_END_TIMEOUT_S)
            self._loop.close()


@dataclass(slots=True)
class Listener:
    """One node's SSH server."""

    service: SshService
    door: Door
    _acceptor: asyncssh.SSHAcceptor | None = None
    _connections: set[asyncssh.SSHServerConnection] = field(default_factory=set)
    _sessions: set["asyncio.Task[Any]"] = field(default_factory=set)

    def close(self) -> None:
        """Stop listening, cut every connection; when this returns, what they started is gone."""
        if self._acceptor is not None:
            self.service.call(self._close(), timeout_s=_END_TIMEOUT_S)

    async def start(self) -> None:
        """Begin to listen; on the service's loop."""
        self._acceptor = await asyncssh.create_server(
            lambda: _Gatekeeper(self.door, self._connections),
            self.door.address,
            self.door.port,
            server_host_keys=[asyncssh.import_private_key(key) for key in self.door.host_keys],
            process_factory=self._serve,
            encoding=None,
            allow_pty=False,
            agent_forwarding=False,
            x11_forwarding=False,
            gss_host=None,
            config=None,
            reuse_address=True,
        )

    async def _close(self) -> None:
        assert self._acceptor is not None  # noqa: S101 - close() has looked
        self._acceptor.close()
        for connection in list(self._connections):
            connection.abort()
        if self._sessions:
            await asyncio.wait(list(self._sessions), timeout=_END_TIMEOUT_S / 2)
        await self._acceptor.wait_closed()
        self._acceptor = None

    async def _serve(self, session: "asyncssh.SSHServerProcess[bytes]") -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs is in a task
        self._sessions.add(task)
        try:
            await _run_program(session, self.door.enter(session.command))
        except OSError as error:
            session.stderr.write(f"{error}\n".encode())
            session.exit(127)
        finally:
            self._sessions.discard(task)


class _Gatekeeper(asyncssh.SSHServer):
    """Lets in one user, with the keys that the node's authorized_keys names at that moment."""

    def __init__(self, door: Door, connections: set[asyncssh.SSHServerConnection]) -> None:
        self._door = door
        self._connections = connections
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncssh's signature
        if self._connection is not None:
            self._connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        if self._connection is not None and username == self._door.user:
            # Without a usable line there is no key to match, and nobody comes in.
            with contextlib.suppress(OSError, ValueError):
                lines = self._door.authorized_keys().decode()
                self._connection.set_authorized_keys(asyncssh.import_authorized_keys(lines))
        return True

    def public_key_auth_supported(self) -> bool:
        return True


async def _run_program(session: "asyncssh.SSHServerProcess[bytes]", program: Program) -> None:
    """Run it with the session's streams; a session that is closed ends the whole process group."""
    process = await asyncio.create_subprocess_exec(
        *program.argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(program.env),
        cwd=program.cwd,
        start_new_session=True,
    )
    feeding = asyncio.ensure_future(_feed(session, process))
    running = asyncio.ensure_future(_drain(session, process))
    closed = asyncio.ensure_future(session.channel.wait_closed())
    try:
        await asyncio.wait({running, closed}, return_when=asyncio.FIRST_COMPLETED)
        if running.done() and not running.exception():
            _say_goodbye(session, running.result())
    finally:
        feeding.cancel()
        closed.cancel()
        if program.kept:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        else:
            _kill_group(process)
        await asyncio.wait({running, feeding, closed}, timeout=_END_TIMEOUT_S / 2)
        running.cancel()
        _kill_group(process)


def _say_goodbye(session: "asyncssh.SSHServerProcess[bytes]", status: int) -> None:
    if status >= 0:
        session.exit(status)
    else:
        session.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))


async def _feed(session: "asyncssh.SSHServerProcess[bytes]", process: asyncio.subprocess.Process) -> None:
    """stdin, until the client ends it or the program does not take any more."""
    assert process.stdin is not None  # noqa: S101 - it was asked for
    with contextlib.suppress(BrokenPipeError, ConnectionError):
        while True:
            try:
                chunk = await session.stdin.read(_CHUNK)
            except asyncssh.SignalReceived as received:
                _kill_group(process, getattr(signal, f"SIG{received.signal}", signal.SIGTERM))
                continue
            except (asyncssh.BreakReceived, asyncssh.TerminalSizeChanged):
                continue
            except asyncssh.Error:
                break
            if not chunk:
                break
            process.stdin.write(chunk)
            await process.stdin.drain()
    process.stdin.close()


async def _drain(session: "asyncssh.SSHServerProcess[bytes]", process: asyncio.subprocess.Process) -> int:
    """Both streams to their end, then the exit status."""
    assert process.stdout is not None  # noqa: S101 - they were asked for
    assert process.stderr is not None  # noqa: S101
    await asyncio.gather(_copy(process.stdout, session.stdout), _copy(process.stderr, session.stderr))
    return await process.wait()


async def _copy(source: asyncio.StreamReader, sink: "asyncssh.SSHWriter[bytes]") -> None:
    while chunk := await source.read(_CHUNK):
        # A client that went away must not keep the program from being read to its end.
        with contextlib.suppress(OSError, asyncssh.Error):
            sink.write(chunk)
            await sink.drain()


def _kill_group(process: asyncio.subprocess.Process, sign: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, sign)


async def _run_as_client(
    door: Door, command: str, key: bytes, host_key_lines: Sequence[bytes]
) -> tuple[int, str]:
    trusted = [asyncssh.import_public_key(line) for line in host_key_lines]
    async with asyncssh.connect(
        door.address,
        door.port,
        username=door.user,
        client_keys=[asyncssh.import_private_key(key)],
        known_hosts=(trusted, [], []),
        agent_path=None,
        config=None,
        gss_host=None,
    ) as connection:
        ended = await connection.run(command, encoding=None)
    said = b"".join(part for part in (ended.stdout, ended.stderr) if isinstance(part, bytes))
    status = ended.exit_status if ended.exit_status is not None else 255
    return status, said.decode(errors="replace").strip()
