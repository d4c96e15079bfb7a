"""A client of qemu-guest-agent (docs/interop/qemu-ga.rst of QEMU): one question at a time, each with a deadline."""

import base64
import contextlib
import errno
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lab.qemu_socket import dial

_CHUNK = 1 << 20
_MAX_LINE = 64 << 20  # guest-file-read gives at most 48 MB, in base64
_STRERRORS = {os.strerror(code): code for code in errno.errorcode}


class AgentSilent(TimeoutError):
    """The agent gave no answer in time: it does not run, or the guest is busy."""


class AgentRefused(Exception):
    """The agent answered with an error, in its own words."""


class GuestAgent:
    """The agent behind a socket of QEMU's, which serves one client at a time.

    Args:
        socket: a path; QEMU listens there.
    """

    def __init__(self, socket: Path) -> None:
        """Nobody is asked yet."""
        self._socket = socket
        self._lock = threading.Lock()

    def ask(self, command: str, arguments: Mapping[str, object] | None = None, *, timeout_s: float) -> Any:  # noqa: ANN401 - JSON
        """What one command returns.

        Raises:
            AgentSilent: no answer came in time.
            AgentRefused: it refused.
        """
        with self._conversation(timeout_s) as line:
            return line.ask(command, arguments or {})

    def read_file(self, path: str, *, limit: int, timeout_s: float) -> bytes:
        """A whole file of the guest.

        Raises:
            AgentSilent: no answer came in time.
            OSError: what the guest's kernel said; EFBIG above `limit` bytes.
        """
        with self._conversation(timeout_s) as line:
            try:
                handle = line.ask("guest-file-open", {"path": path, "mode": "r"})
                try:
                    return _read(line, handle, path, limit)
                finally:
                    line.ask("guest-file-close", {"handle": handle})
            except AgentRefused as error:
                raise _os_error(error, path) from error

    @contextlib.contextmanager
    def _conversation(self, timeout_s: float) -> "Iterator[_Line]":
        until = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise AgentSilent("another question is being answered")
        try:
            line = _Line(self._socket, until)
            try:
                line.synchronise()
                yield line
            except (TimeoutError, ConnectionError) as error:
                raise AgentSilent(str(error) or "no answer came in time") from error
            finally:
                line.close()
        finally:
            self._lock.release()


class _Line:
    """One connection. An answer to a question that was given up still comes: it is told by what it answers to."""

    def __init__(self, socket: Path, until: float) -> None:
        self._until = until
        self._rest = b""
        try:
            self._connection = dial(socket, timeout_s=self._left())
        except OSError as error:
            raise AgentSilent(f"{socket.name}: {error}") from error

    def synchronise(self) -> None:
        """Throw away what is left of earlier conversations, on either side."""
        mark = secrets.randbits(31)
        # 0xFF is never part of JSON: it ends whatever the agent was reading, and begins its answer.
        self._send(b"\xff" + _as_json("guest-sync-delimited", {"id": mark}))
        while True:
            _, delimiter, answer = self._line().rpartition(b"\xff")
            if delimiter and json.loads(answer).get("return") == mark:
                return

    def ask(self, command: str, arguments: Mapping[str, object]) -> Any:  # noqa: ANN401 - JSON
        """What a command returns."""
        self._send(_as_json(command, arguments))
        answer = json.loads(self._line())
        if "error" in answer:
            raise AgentRefused(str(answer["error"].get("desc", answer["error"])))
        return answer["return"]

    def close(self) -> None:
        """Let the next client in."""
        self._connection.close()

    def _send(self, data: bytes) -> None:
        self._connection.settimeout(self._left())
        self._connection.sendall(data)

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            self._connection.settimeout(self._left())
            part = self._connection.recv(1 << 16)
            if not part:
                raise ConnectionResetError("QEMU closed the connection")
            self._rest += part
            if len(self._rest) > _MAX_LINE:
                raise AgentRefused("its answer has no end")
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise AgentSilent("no answer came in time")
        return left


def _as_json(command: str, arguments: Mapping[str, object]) -> bytes:
    return json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n"


def _read(line: _Line, handle: int, path: str, limit: int) -> bytes:
    content = b""
    while True:
        part = line.ask("guest-file-read", {"handle": handle, "count": _CHUNK})
        content += base64.b64decode(part["buf-b64"])
        if len(content) > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        if part["eof"] or not part["count"]:
            return content


def _os_error(error: AgentRefused, path: str) -> OSError:
    """The error that the guest's kernel gave, which the agent passes on as text."""
    text = str(error)
    said = next((words for words in _STRERRORS if text.endswith(words)), None)
    code = _STRERRORS[said] if said is not None else errno.EIO
    return OSError(code, said or text, path)
