"""Runs the probe on this very machine: for the node's own timer, and for tests."""

import os
import pwd
import selectors
import shlex
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inventory.errors import OtherSide

_CHUNK = 65536
_MAX_STDERR = 65536
_MAX_LINE = 256 * 1024
_END_S = 3.0


@dataclass(frozen=True, slots=True)
class LocalResult:
    """How a command ended."""

    exit_status: int
    stderr: bytes


class LocalProcess:
    """One running child, its stdin open."""

    def __init__(self, argv: list[str], *, user: "User | None" = None) -> None:
        self._argv = argv
        changed: dict[str, Any] = {}
        if user is not None:
            changed = {"user": user.uid, "group": user.gid, "extra_groups": user.groups, "cwd": "/"}
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            **changed,
        )
        self._stdin, self._stdout, self._stderr = (
            pipe.fileno()
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr)
            if pipe is not None
        )
        os.set_blocking(self._stdin, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._selector.register(self._stderr, selectors.EVENT_READ)
        self._pending = bytearray()
        self._said = bytearray()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def send(self, data: bytes, *, timeout_s: float = 60.0) -> None:
        """Write to its stdin, taking in what it says meanwhile.

        Raises:
            OtherSide: it takes no more, or not in time.
        """
        deadline = time.monotonic() + timeout_s
        view = memoryview(data)
        self._selector.register(self._stdin, selectors.EVENT_WRITE)
        try:
            while view:
                self._take(deadline)
                try:
                    view = view[os.write(self._stdin, view[:_CHUNK]) :]
                except BlockingIOError:
                    continue
        except BrokenPipeError:
            raise self._failed("it ended before it had read everything") from None
        finally:
            self._selector.unregister(self._stdin)

    def close_stdin(self) -> None:
        """Tell it that its input has ended."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def lines(self, *, timeout_s: float) -> Iterator[bytes]:
        """Its lines of stdout until they end.

        Raises:
            OtherSide: they have not ended in time, or a line is longer than 256 KiB.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            while (cut := self._pending.find(b"\n")) >= 0:
                line = bytes(self._pending[:cut])
                del self._pending[: cut + 1]
                yield line
            if len(self._pending) > _MAX_LINE:
                raise self._failed(f"it wrote a line longer than {_MAX_LINE} bytes")
            if self._stdout not in self._selector.get_map():
                return
            self._take(deadline)

    def finish(self, *, timeout_s: float) -> LocalResult:
        """Wait for its end.

        Raises:
            OtherSide: it has not ended in time; it is killed then.
        """
        deadline = time.monotonic() + timeout_s
        while self._selector.get_map():
            self._take(deadline)
            self._pending.clear()
        try:
            status = self._process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self._failed(f"no end within {timeout_s:.0f} s") from None
        self._close()
        return LocalResult(status, bytes(self._said))

    def kill(self) -> None:
        """End it: the end of its pipes lets it clean up first."""
        self._close()
        try:
            self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _take(self, deadline: float) -> None:
        """Wait for one of the pipes, at most until `deadline`, and take what has come."""
        left = deadline - time.monotonic()
        ready = self._selector.select(max(0.0, left))
        if not ready and left <= 0:
            raise self._failed("no end within its deadline")
        for key, _ in ready:
            if key.fd == self._stdin:
                continue
            data = os.read(key.fd, _CHUNK)
            if not data:
                self._selector.unregister(key.fd)
            elif key.fd == self._stdout:
                self._pending += data
            else:
                self._said += data
                del self._said[_MAX_STDERR:]

    def _close(self) -> None:
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _failed(self, why: str) -> OtherSide:
        return OtherSide(
            "a command on this machine failed",
            why=f"{why}: {self._argv[0]}",
            next_step="look at the machine's load, then run the command again",
        )


@dataclass(frozen=True, slots=True)
class User:
    """Whom a command is run as, instead of as root."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def owner_of(file: Path) -> User | None:
    """The file's owner, where this process is root and the owner is not; None leaves all as it is."""
    try:
        about = file.stat()
    except OSError:
        return None  # the probe says what is wrong with it
    if os.geteuid() != 0 or about.st_uid == 0:
        return None
    try:
        entry = pwd.getpwuid(about.st_uid)
    except KeyError:
        return User(about.st_uid, about.st_gid, ())
    return User(entry.pw_uid, entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


class LocalExec:
    """This machine, as a place to run the probe.

    Args:
        as_owner_of: root runs it as this file's owner: a rank needs to read the key, and need not be root.
    """

    def __init__(self, *, as_owner_of: Path | None = None) -> None:
        self._user = None if as_owner_of is None else owner_of(as_owner_of)

    @property
    def other_user(self) -> bool:
        """Is it run as somebody else?"""
        return self._user is not None

    def start(self, command: str) -> LocalProcess:
        """Start a command without a shell; the leading `exec` is the shell's word, not ours.

        Raises:
            OtherSide: it cannot be started.
        """
        argv = shlex.split(command.removeprefix("exec "))
        try:
            return LocalProcess(argv, user=self._user)
        except OSError as error:
            raise OtherSide(
                "a command on this machine failed",
                why=f"{argv[0]}: {error.strerror}",
                next_step=f"install {argv[0]}",
            ) from error
