"""One pinned SSH session to one node; the only module that imports paramiko.

The host key must be one of the keys handed in; no known_hosts file is read or written, nothing is forwarded,
no terminal is allocated, and every call ends by its deadline. One key logs in: a file, or the one that a .pub
file names in an agent, which is asked for no other.
"""

import base64
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import paramiko
from paramiko.agent import AgentSSH

from inventory.console import printable
from inventory.errors import BadInput, OtherSide
from inventory.jump import Jump
from inventory.model import HostKey
from inventory.remote import MAX_OUTPUT, Remote, Result, alarm

__all__ = ["MAX_OUTPUT", "Remote", "Result", "Session", "WrongMachine", "open_session"]

# Its errors reach our callers as exceptions; its log would print tracebacks beside them.
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)

_UnknownKeyType: type[Exception] = paramiko.UnknownKeyType  # type: ignore[attr-defined]  # the stubs lack it

_START_S = 20.0
_GRACE_S = 2.0
_ANOTHER = "if the VM was rebuilt, ask infra for a new ticket; otherwise somebody is in between"
_KEEPALIVE_S = 15
_MAX_UNTRUSTED = 256 * 1024
"""What a server may send before it has shown its key and let us in; a real one needs a twentieth of it."""


@dataclass(frozen=True, slots=True)
class _There:
    """Where a login goes, and what must be found there."""

    host: str
    port: int
    user: str
    host_keys: Sequence[HostKey]
    timeout_s: float


class WrongMachine(OtherSide):
    """Who answers has none of the pinned host keys.

    there: host and port. found: what was shown instead.
    """

    def __init__(self, what: str, *, why: str, next_step: str, there: tuple[str, int], found: str) -> None:
        """As every error of ours, with the facts apart for whoever compares."""
        super().__init__(what, why=why, next_step=next_step)
        self.there = there
        self.found = found


class Session:
    """An open session; use it as a context manager."""

    def __init__(
        self, client: paramiko.SSHClient, *, host: str, user: str, through: "Session | None" = None
    ) -> None:
        """Made by `open_session`; `through` is the session to the jump host, which ends with this one."""
        self._client = client
        self._through = through
        self.host = host
        self.user = user

    def start(self, command: str, *, timeout_s: float = _START_S) -> Remote:
        """Start a command (the node's login shell reads it) and leave its stdin open.

        Raises:
            OtherSide: the node opens no channel, or not within `timeout_s` seconds.
        """
        try:
            # paramiko waits for the answer to `exec` for ever: only the end of the session wakes it.
            with alarm(timeout_s, self._client.close):
                channel = self._transport().open_session(timeout=timeout_s)
                channel.exec_command(command)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise OtherSide(
                f"{self.host} runs no command",
                why=str(error) or f"no answer within {timeout_s:.0f} s, or the session was cut",
                next_step="look at the node's SSH server, then run the command again",
            ) from error
        return Remote(channel, command=command, cut=self._client.close)

    def run(self, command: str, *, stdin: bytes = b"", timeout_s: float = 30.0) -> Result:
        """Run a command to its end, whatever its exit status.

        Raises:
            OtherSide: it did not end within `timeout_s` seconds, or the session was cut.
        """
        deadline = time.monotonic() + timeout_s
        remote = self.start(command, timeout_s=min(timeout_s, _START_S))
        if stdin:
            remote.send(stdin, timeout_s=timeout_s)
        remote.close_stdin()
        return remote.finish(timeout_s=max(0.1, deadline - time.monotonic()))

    def onward(self, host: str, port: int, *, timeout_s: float) -> paramiko.Channel:
        """A connection that this host makes for us (RFC 4254, section 7.2).

        Raises:
            OtherSide: it makes none.
        """
        try:
            with alarm(timeout_s + _GRACE_S, self._client.close):
                return self._transport().open_channel(
                    "direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=timeout_s
                )
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise OtherSide(
                f"{self.host} does not lead to {host} port {port}",
                why=str(error) or f"no answer within {timeout_s:.0f} s",
                next_step=f"see that the jump host reaches {host}, and allows it (AllowTcpForwarding, PermitOpen)",
            ) from error

    def close(self) -> None:
        """End the session, and the one that it goes through."""
        self._client.close()
        if self._through is not None:
            self._through.close()

    def _transport(self) -> paramiko.Transport:
        transport = self._client.get_transport()
        if transport is None:
            raise paramiko.SSHException("the session is closed")
        return transport

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_session(
    *,
    host: str,
    port: int,
    user: str,
    host_keys: Sequence[HostKey],
    key_file: Path,
    timeout_s: float = 20.0,
    jump: Jump | None = None,
) -> Session:
    """Log in to a node whose host key is one of `host_keys`, with the key in `key_file` and nothing else.

    key_file: an OpenSSH private key, or the .pub of one in the agent at SSH_AUTH_SOCK.
    timeout_s: for each login. jump: a host to go through; the same key logs in there.

    Raises:
        BadInput: the key file cannot be used.
        OtherSide: the node is out of reach, has another host key, or refuses the login.
    """
    there = _There(host, port, user, host_keys, timeout_s)
    with _login_key(key_file, timeout_s=timeout_s) as key:
        if jump is None:
            return _log_in(there, _dial(there), key, key_file)
        step = _There(jump.host, jump.port, jump.user, jump.host_keys, timeout_s)
        through = _log_in(step, _dial(step), key, key_file)
        try:
            return _log_in(there, through.onward(host, port, timeout_s=timeout_s), key, key_file, through)
        except BaseException:
            through.close()
            raise


class _Metered:
    """A socket that gives up a server which says much before it is trusted; else it is the socket."""

    def __init__(self, sock: socket.socket | paramiko.Channel) -> None:
        self._sock = sock
        self._left = _MAX_UNTRUSTED
        self.trusted = False

    def recv(self, size: int) -> bytes:
        data: bytes = self._sock.recv(size)
        if not self.trusted:
            self._left -= len(data)
            if self._left < 0:
                raise OSError(f"the server said more than {_MAX_UNTRUSTED} bytes before the login")
        return data

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever paramiko wants of a socket
        return getattr(self._sock, name)


def _dial(there: _There) -> socket.socket:
    try:
        return socket.create_connection((there.host, there.port), timeout=there.timeout_s)
    except OSError as error:
        why = (
            TimeoutError()
            if isinstance(error, TimeoutError)
            else OSError(f"unable to connect: {error.strerror or error}")
        )
        raise _no_session(there, why) from error


def _log_in(
    there: _There,
    sock: socket.socket | paramiko.Channel,
    key: paramiko.PKey,
    key_file: Path,
    through: Session | None = None,
) -> Session:
    host, host_keys = there.host, there.host_keys
    metered, client, deadline = _Metered(sock), paramiko.SSHClient(), time.monotonic() + there.timeout_s
    name = host if there.port == 22 else f"[{host}]:{there.port}"
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    try:
        for pin in host_keys:
            client.get_host_keys().add(name, pin.type, _public(pin))
        with alarm(there.timeout_s + _GRACE_S, sock.close):
            client.connect(
                host,
                port=there.port,
                username=there.user,
                pkey=key,
                sock=metered,  # type: ignore[arg-type]  # it has all that a socket has
                timeout=there.timeout_s,
                banner_timeout=there.timeout_s,
                auth_timeout=there.timeout_s,
                channel_timeout=there.timeout_s,
                allow_agent=False,
                look_for_keys=False,
                transport_factory=_only_pinned(host_keys),
            )
        transport = client.get_transport()
        if transport is None:
            raise EOFError("the session ended at once")
        server = transport.get_remote_server_key()
    except paramiko.BadHostKeyException as error:
        _leave(client, sock)
        raise _wrong_key(there, error.key) from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        late = time.monotonic() >= deadline or "timeout" in str(error).lower()
        lost = "EOF" in str(error)
        _leave(client, sock)
        if isinstance(error, paramiko.AuthenticationException) and not late and not lost:
            raise _refused(there, key_file) from None
        raise _no_session(there, TimeoutError() if late else error) from error
    except BaseException:
        _leave(client, sock)
        raise
    if HostKey(server.get_name(), server.get_base64()) not in host_keys:
        _leave(client, sock)
        raise _wrong_key(there, server)
    metered.trusted = True
    transport.set_keepalive(_KEEPALIVE_S)
    return Session(client, host=host, user=there.user, through=through)


def _leave(client: paramiko.SSHClient, sock: socket.socket | paramiko.Channel) -> None:
    if (transport := client.get_transport()) is not None:
        transport.packetizer.complete_handshake()  # ends a timer that would keep this process for 15 s
    client.close()
    sock.close()


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


class _Agent(AgentSSH):
    """The agent at a socket, which has a deadline; paramiko's own would wait for ever."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._connect(sock)  # type: ignore[attr-defined]  # the stubs lack it


@contextlib.contextmanager
def _login_key(file: Path, *, timeout_s: float) -> Iterator[paramiko.PKey]:
    if file.suffix != ".pub":
        yield _key_in_file(file)
        return
    try:
        blob = base64.b64decode(HostKey.from_line(file.read_text()).base64)
    except (OSError, ValueError) as error:
        raise _unusable(file, str(error), "name the .pub of a key in an agent with --ssh-key") from None
    next_step = f"start an agent and put the key into it: ssh-add {file.with_suffix('')}"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(timeout_s)
        try:
            place = os.environ.get("SSH_AUTH_SOCK", "")
            if not place:
                raise _unusable(
                    file, "its private half is in an agent, and SSH_AUTH_SOCK names none", next_step
                )
            sock.connect(place)
            keys = _Agent(sock).get_keys()
        except (paramiko.SSHException, OSError) as error:
            why = f"the agent at SSH_AUTH_SOCK does not answer: {str(error) or type(error).__name__}"
            raise _unusable(file, why, next_step) from None
        found = next((key for key in keys if key.blob == blob), None)
        if found is None:
            raise _unusable(file, f"the agent has {len(keys)} keys, and this is none of them", next_step)
        yield found


def _key_in_file(file: Path) -> paramiko.PKey:
    next_step = "name a readable OpenSSH private key with --ssh-key or MUSTER_SSH_KEY"
    try:
        return paramiko.PKey.from_path(file)
    except FileNotFoundError:
        why = "there is no such file"
    except (paramiko.PasswordRequiredException, TypeError):
        # cryptography raises TypeError for a key that wants a passphrase and got none.
        why = "it is locked with a passphrase"
        next_step = f"unlock it into an agent (ssh-add {file}), and name {file}.pub with --ssh-key"
    except (paramiko.SSHException, _UnknownKeyType, OSError, ValueError) as error:
        why = str(error) or type(error).__name__
    raise _unusable(file, why, next_step)


def _unusable(file: Path, why: str, next_step: str) -> BadInput:
    return BadInput(f"the SSH key {file} cannot be used", why=why, next_step=next_step)


def _refused(there: _There, key_file: Path) -> OtherSide:
    public = key_file if key_file.suffix == ".pub" else f"{key_file}.pub"
    return OtherSide(
        f"{there.host} refused the login as {there.user}",
        why=f"the key {key_file} is not allowed there",
        next_step=f"put {public} into the profile's ssh_keys_file, or give another --ssh-key",
    )


def _wrong_key(there: _There, found: paramiko.PKey) -> WrongMachine:
    shown, pins = HostKey(found.get_name(), found.get_base64()), there.host_keys
    return WrongMachine(
        f"{there.host} is not the machine it should be",
        why=f"its host key is {shown.fingerprint}, pinned is {', '.join(pin.fingerprint for pin in pins)}",
        next_step=_ANOTHER,
        there=(there.host, there.port),
        found=f"host key {shown.fingerprint}",
    )


def _no_session(there: _There, error: BaseException) -> OtherSide:
    host, port = there.host, there.port
    text = printable(str(error) or type(error).__name__)[:400]
    if "host key" in text.lower():
        found = f"no host key of the pinned type ({', '.join(pin.type for pin in there.host_keys)})"
        return WrongMachine(
            f"no SSH session to {host} port {port}",
            why=f"it offers {found}",
            next_step=_ANOTHER,
            there=(host, port),
            found=found,
        )
    why = f"no answer within {there.timeout_s:.0f} s" if isinstance(error, TimeoutError) else text
    return OtherSide(
        f"no SSH session to {host} port {port}",
        why=why,
        next_step=f"check that the node runs and that {host} port {port} is reachable from here; if its address"
        " has changed, ask infra for a new ticket (provision-node NAME --reissue-ticket)",
    )
