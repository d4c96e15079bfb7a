"""Other people's tools, side by side, each with its own deadline: one that hangs or babbles holds nobody."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Any, Mapping, NamedTuple, Sequence

from .loop import READ, Loop

_MOST = 1 << 18
_REAP_S = 0.2


class Tool(NamedTuple):
    """One command to run: its words, the path first, and for how long."""

    words: Sequence[str]
    timeout_s: float
    stdin: bytes = b""


class Answer(NamedTuple):
    """What a tool said.

    trouble: why there is no answer; empty where there is one.
    status: its exit status, -1 where it did not end.
    """

    trouble: str
    status: int = -1
    out: str = ""
    err: str = ""

    @property
    def last(self) -> str:
        """The last line that it said, on stderr or else on stdout."""
        lines = (self.err.strip() or self.out.strip() or "no word").splitlines()
        return lines[-1].strip()[:300]


def run_all(tools: Mapping[str, Tool], loop: Loop) -> dict[str, Answer]:
    """Run them all at once; every one has an answer, or a reason why not, by its deadline.

    The loop is served meanwhile, so that a session that is cut is noticed; no tool outlives this call, except one
    that the kernel itself does not let go of.
    """
    running = {name: _Running(name, tool, loop) for name, tool in tools.items()}
    try:
        longest = max((tool.timeout_s for tool in tools.values()), default=0.0)
        loop.run(lambda: all(each.answer is not None for each in running.values()), longest + 1.0)
        return {name: each.answer or Answer(f"{name} was not waited for") for name, each in running.items()}
    finally:
        for each in running.values():
            each.kill()


class _Running:
    """One tool at work, in a process group of its own."""

    def __init__(self, name: str, tool: Tool, loop: Loop) -> None:
        self._name, self._tool, self._loop = name, tool, loop
        self.answer: Answer | None = None
        self._out, self._err = bytearray(), bytearray()
        self._open: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = self._started()
        except OSError as error:
            self.answer = Answer(f"{name} could not be started: {error.strerror}")
            return
        self._listen(self._process.stdout, self._out)
        self._listen(self._process.stderr, self._err)
        loop.call_in(tool.timeout_s, self._late)

    def kill(self) -> None:
        """End it and whatever it started; one that cannot be killed is left to the kernel."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                self._loop.drop(pipe.fileno())
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_S)

    def _started(self) -> subprocess.Popen[bytes]:
        stdin: Any = subprocess.DEVNULL
        if self._tool.stdin:
            # a file in memory: a tool that does not read cannot block us
            stdin = os.memfd_create("muster-stdin")
            os.write(stdin, self._tool.stdin)
            os.lseek(stdin, 0, os.SEEK_SET)
        try:
            return subprocess.Popen(
                list(self._tool.words),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
                cwd="/",
            )
        finally:
            if stdin != subprocess.DEVNULL:
                os.close(stdin)

    def _listen(self, pipe: Any, said: bytearray) -> None:  # noqa: ANN401 - a stream of Popen
        descriptor = pipe.fileno()

        def ready(_events: int) -> None:
            data = os.read(descriptor, 65536)
            said.extend(data)
            if len(said) > _MOST:
                self._over(f"{self._name} said more than {_MOST // 1024} KiB")
            elif not data:
                self._loop.drop(descriptor)
                self._open.discard(descriptor)
                if not self._open:
                    self._ended()

        self._open.add(descriptor)
        self._loop.add(descriptor, READ, ready)

    def _ended(self) -> None:
        """Both streams have ended; the process itself must end soon, too."""
        if self._process is None or self.answer is not None:
            return
        status = self._process.poll()
        if status is None:
            self._loop.call_in(0.01, self._ended)
            return
        self.answer = Answer(
            "", status, self._out.decode("utf-8", "replace"), self._err.decode("utf-8", "replace")
        )
        self.kill()

    def _late(self) -> None:
        self._over(f"{self._name} did not answer in {self._tool.timeout_s:g} s")

    def _over(self, trouble: str) -> None:
        if self.answer is None:
            self.answer = Answer(trouble)
            self.kill()
