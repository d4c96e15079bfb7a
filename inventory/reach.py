"""One pinned SSH session to one node; the only module that imports paramiko.

The host key must be one of the keys handed in; no known_hosts file is read or written, no agent is asked,
nothing is forwarded, no terminal is allocated, and every call ends by its deadline.
"""

import base64
import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import paramiko

from inventory.errors import BadInput, OtherSide
from inventory.model import HostKey

# Its errors reach our callers as exceptions; its log would print tracebacks beside them.
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)

_UnknownKeyType: type[Exception] = paramiko.UnknownKeyType  # type: ignore[attr-defined]  # the stubs lack it

MAX_OUTPUT = 1024 * 1024
_MAX_LINE = 256 * 1024
_CHUNK = 32768
_POLL_S = 0.005
_KEEPALIVE_S = 15


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended; each stream is cut at 1 MiB."""

    exit_status: int
    stdout: bytes
    stderr: bytes


class Remote:
    """One running command on the node, its stdin open."""

    def __init__(self, channel: paramiko.Channel, *, command: str) -> None:
        """Made by `Session.start`."""
        self._channel = channel
        self._command = command
        self._pending = bytearray()
        self._stderr = bytearray()

    def send(self, data: bytes, *, timeout_s: float = 60.0) -> None:
        """Write to the command's stdin.

        Raises:
            OtherSide: it takes no more, or not within `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        view = memoryview(data)
        while view:
            # Draining first keeps a command that talks while we send from blocking on a full window.
            self._drain()
            self._channel.settimeout(max(0.01, min(1.0, deadline - time.monotonic())))
            try:
                view = view[self._channel.send(bytes(view[:_CHUNK])) :]
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise self._late(timeout_s) from None
            except OSError as error:
                raise self._lost(str(error) or "the session was closed") from error

    def close_stdin(self) -> None:
        """Tell the command that its input has ended."""
        self._channel.shutdown_write()

    def lines(self, *, timeout_s: float) -> Iterator[bytes]:
        """The lines of stdout, without their newline, until it ends.

        Raises:
            OtherSide: it has not ended after `timeout_s` seconds, or a line is longer than 256 KiB.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self._drain()
            while (cut := self._pending.find(b"\n")) >= 0:
                line = bytes(self._pending[:cut])
                del self._pending[: cut + 1]
                yield line
            if len(self._pending) > _MAX_LINE:
                raise self._lost(f"it sent a line longer than {_MAX_LINE} bytes")
            if ended:
                if self._pending:
                    yield bytes(self._pending)
                    self._pending.clear()
                return
            if time.monotonic() >= deadline:
                raise self._late(timeout_s)
            self._wait(deadline)

    def finish(self, *, timeout_s: float) -> Result:
        """Wait for the end: the exit status, and what was not read yet.

        `recv_exit_status` of paramiko knows no deadline, so this watches for it instead.

        Raises:
            OtherSide: it has not ended after `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while not (self._drain(cap=True) and self._channel.exit_status_ready()):
            if self._channel.closed and not self._channel.exit_status_ready():
                raise self._lost("the session was cut")
            if time.monotonic() >= deadline:
                raise self._late(timeout_s)
            self._wait(deadline)
        status = self._channel.recv_exit_status()
        self._drain(cap=True)
        self._channel.close()
        if status < 0:
            raise self._lost("the command was ended by a signal, or the session was cut")
        return Result(status, bytes(self._pending[:MAX_OUTPUT]), bytes(self._stderr[:MAX_OUTPUT]))

    def kill(self) -> None:
        """Close the channel: the command sees the end of its stdin, and OpenSSH leaves it to act on that."""
        self._channel.close()

    def _drain(self, *, cap: bool = False) -> bool:
        """Take what has arrived on both streams; True when both have ended."""
        while self._channel.recv_stderr_ready():
            self._stderr += self._channel.recv_stderr(_CHUNK)
            del self._stderr[MAX_OUTPUT:]
        while self._channel.recv_ready():
            self._pending += self._channel.recv(_CHUNK)
            if cap:
                del self._pending[MAX_OUTPUT:]
            elif len(self._pending) > _MAX_LINE:
                break
        ended = bool(self._channel.eof_received or self._channel.closed)
        return ended and not (self._channel.recv_ready() or self._channel.recv_stderr_ready())

    def _wait(self, deadline: float) -> None:
        time.sleep(max(0.0, min(_POLL_S, deadline - time.monotonic())))

    def _late(self, timeout_s: float) -> OtherSide:
        self.kill()
        return OtherSide(
            "a command on the node did not end",
            why=f"no end within {timeout_s:.0f} s: {self._command[:120]}",
            next_step="look at the node's load, then run the command again",
        )

    def _lost(self, why: str) -> OtherSide:
        self.kill()
        return OtherSide(
            "a command on the node was lost",
            why=f"{why}: {self._command[:120]}",
            next_step="run the command again",
        )


class Session:
    """An open session; use it as a context manager."""

    def __init__(self, client: paramiko.SSHClient, *, host: str, user: str) -> None:
        """Made by `open_session`."""
        self._client = client
        self.host = host
        self.user = user

    def start(self, command: str) -> Remote:
        """Start a command (the node's login shell reads it) and leave its stdin open.

        Raises:
            OtherSide: the node opens no channel.
        """
        transport = self._client.get_transport()
        try:
            if transport is None:
                raise paramiko.SSHException("the session is closed")
            channel = transport.open_session(timeout=20)
            channel.exec_command(command)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise OtherSide(
                f"{self.host} runs no command",
                why=str(error) or type(error).__name__,
                next_step="look at the node's SSH server, then run the command again",
            ) from error
        return Remote(channel, command=command)

    def run(self, command: str, *, stdin: bytes = b"", timeout_s: float = 30.0) -> Result:
        """Run a command to its end, whatever its exit status.

        Raises:
            OtherSide: it did not end within `timeout_s` seconds, or the session was cut.
        """
        deadline = time.monotonic() + timeout_s
        remote = self.start(command)
        if stdin:
            remote.send(stdin, timeout_s=timeout_s)
        remote.close_stdin()
        return remote.finish(timeout_s=max(0.1, deadline - time.monotonic()))

    def close(self) -> None:
        """End the session."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_session(
    *, host: str, port: int, user: str, host_keys: Sequence[HostKey], key_file: Path, timeout_s: float = 20.0
) -> Session:
    """Log in to a node whose host key is one of `host_keys`, with the key in `key_file` and nothing else.

    Raises:
        BadInput: the key file cannot be used.
        OtherSide: the node is out of reach, has another host key, or refuses the login.
    """
    key = _login_key(key_file)
    client = paramiko.SSHClient()
    name = host if port == 22 else f"[{host}]:{port}"
    for pin in host_keys:
        client.get_host_keys().add(name, pin.type, _public(pin))
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    try:
        client.connect(
            host,
            port=port,
            username=user,
            pkey=key,
            timeout=timeout_s,
            banner_timeout=timeout_s,
            auth_timeout=timeout_s,
            channel_timeout=timeout_s,
            allow_agent=False,
            look_for_keys=False,
            transport_factory=_only_pinned(host_keys),
        )
    except paramiko.BadHostKeyException as error:
        client.close()
        raise _wrong_key(host, host_keys, error.key) from None
    except paramiko.AuthenticationException:
        client.close()
        raise OtherSide(
            f"{host} refused the login as {user}",
            why=f"the key {key_file} is not allowed there",
            next_step=f"put {key_file}.pub into the profile's ssh_keys_file, or give another --ssh-key",
        ) from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        client.close()
        raise _no_session(host, port, host_keys, error, timeout_s) from error
    transport = client.get_transport()
    if transport is None:
        raise _no_session(host, port, host_keys, EOFError("the session ended at once"), timeout_s)
    server = transport.get_remote_server_key()
    if HostKey(server.get_name(), server.get_base64()) not in host_keys:
        client.close()
        raise _wrong_key(host, host_keys, server)
    transport.set_keepalive(_KEEPALIVE_S)
    return Session(client, host=host, user=user)


def _only_pinned(pins: Sequence[HostKey]) -> Callable[..., paramiko.Transport]:
    """Makes transports that ask only for the pinned types, so that no other key can be offered."""
    wanted = {pin.type for pin in pins}
    if "ssh-rsa" in wanted:
        wanted |= {"rsa-sha2-256", "rsa-sha2-512"}

    def transport(sock: socket.socket, **options: Any) -> paramiko.Transport:  # noqa: ANN401 - paramiko's own
        made = paramiko.Transport(sock, **options)
        security = made.get_security_options()
        security.key_types = tuple(kind for kind in security.key_types if kind in wanted)
        return made

    return transport


def _public(pin: HostKey) -> paramiko.PKey:
    try:
        return paramiko.PKey.from_type_string(pin.type, base64.b64decode(pin.base64))
    except (paramiko.SSHException, _UnknownKeyType, ValueError) as error:
        raise BadInput(
            "a pinned host key cannot be used",
            why=f"{pin.type}: {error}",
            next_step="ask infra for a new ticket",
        ) from None


def _login_key(file: Path) -> paramiko.PKey:
    try:
        return paramiko.PKey.from_path(file)
    except FileNotFoundError:
        why = "there is no such file"
    except (paramiko.PasswordRequiredException, TypeError):
        # cryptography raises TypeError for a key that wants a passphrase and got none.
        why = "it is locked with a passphrase"
    except (paramiko.SSHException, _UnknownKeyType, OSError, ValueError) as error:
        why = str(error) or type(error).__name__
    raise BadInput(
        f"the SSH key {file} cannot be used",
        why=why,
        next_step="name a readable OpenSSH private key with --ssh-key or MUSTER_SSH_KEY",
    )


def _wrong_key(host: str, pins: Sequence[HostKey], found: paramiko.PKey) -> OtherSide:
    shown = HostKey(found.get_name(), found.get_base64())
    return OtherSide(
        f"{host} is not the machine it should be",
        why=f"its host key is {shown.fingerprint}, pinned is {', '.join(pin.fingerprint for pin in pins)}",
        next_step="if the VM was rebuilt, ask infra for a new ticket; otherwise somebody is in between",
    )


def _no_session(
    host: str, port: int, pins: Sequence[HostKey], error: BaseException, timeout_s: float
) -> OtherSide:
    text = str(error) or type(error).__name__
    if "host key" in text.lower():
        why = f"it offers no host key of the pinned type ({', '.join(pin.type for pin in pins)})"
    elif isinstance(error, TimeoutError | socket.timeout):
        why = f"no answer within {timeout_s:.0f} s"
    else:
        why = text
    return OtherSide(
        f"no SSH session to {host} port {port}",
        why=why,
        next_step=f"check that the node runs and that {host} port {port} is reachable from here; if its address"
        " has changed, ask infra for a new ticket (provision-node NAME --reissue-ticket)",
    )
