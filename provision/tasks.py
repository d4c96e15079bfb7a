"""Proxmox tasks, followed to their real end: only OK and WARNINGS are success."""

import contextlib
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from inventory.console import Console
from inventory.errors import OtherSide
from provision.causes import next_step
from provision.hypervisor import Hypervisor, Unanswered, Unreachable
from provision.progress import TELLING, Meter
from provision.upid import host_of, kind_of

_WARNINGS = re.compile(r"WARNINGS: \d+")  # pve-common UPID.pm, upid_status_is_error
_FIRST_PAUSE_S = 0.1
_GROWTH = 1.5
_LOCK_TURNS = 5
# Locks that others hold for a moment: 10 s are waited for them, and 1 s for the source of a clone
# (qemu-server API2/Qemu.pm clone_vm; pve-storage Plugin.pm; pve-cluster Cluster.pm). A VM that is being cloned or
# created has the last; a backup's or a migration's lock stays too long to wait for.
_LOCK_HELD = re.compile(
    r"can't lock file '[^']*' - got timeout|got lock request timeout|VM is locked \((?:clone|create)\)"
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each wait may last, in seconds, and how often a VM id is drawn."""

    clone_s: float = 7200
    resize_s: float = 600
    start_margin_s: float = 60
    lost_answer_s: float = 30
    agent_s: float = 900
    cloud_init_s: float = 1800
    no_cloud_init_s: float = 5
    host_keys_s: float = 60
    longest_pause_s: float = 2
    log_s: float = 2
    lock_pause_s: float = 2
    stop_s: float = 300
    destroy_s: float = 600
    draws: int = 32


@dataclass(frozen=True, slots=True)
class Tools:
    """What every step works with; time is passed in."""

    hypervisor: Hypervisor
    console: Console
    patience: Patience = field(default_factory=Patience)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def tries(self, timeout_s: float) -> Iterator[None]:
        """Turns of a poll, with growing pauses between them, until the time is over; at least one."""
        deadline = self.clock() + timeout_s
        pause = _FIRST_PAUSE_S
        yield
        while self.clock() < deadline:
            self.sleep(min(pause, max(0.0, deadline - self.clock())))
            pause = min(pause * _GROWTH, self.patience.longest_pause_s)
            yield

    def turns_of_a_lock(self) -> Iterator[bool]:
        """Turns of a write that needs a lock others may hold, with growing pauses; whether it is the last turn.

        The pauses are drawn at random, so that those who wait for one lock do not come back together.
        """
        pause = self.patience.lock_pause_s
        for turn in range(_LOCK_TURNS):
            yield turn == _LOCK_TURNS - 1
            self.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
            pause *= 2


def is_lock(error: OtherSide) -> bool:
    """Whether it failed, before it did anything, at a lock that others hold for a moment."""
    return not isinstance(error, Unanswered) and _LOCK_HELD.search(error.why) is not None


def past_locks(tools: Tools, what: str, act: Callable[[], T]) -> T:
    """What `act` answers; where it meets a lock that others hold for a moment, it is tried again, some times.

    Raises:
        OtherSide: it failed otherwise, or the lock stays.
    """
    for last in tools.turns_of_a_lock():
        try:
            return act()
        except OtherSide as error:
            if last or not is_lock(error):
                raise
            tell_of_lock(tools, what, error)
    raise AssertionError("the last turn either answers or raises")


def tell_of_lock(tools: Tools, what: str, error: OtherSide) -> None:
    """Say that a lock is waited for."""
    found = _LOCK_HELD.search(error.why)
    held = found[0] if found else error.why
    tools.console.say(f"{what} waits for a lock of somebody else's ({held}); it is tried again")


class TaskFailed(OtherSide):
    """A task ended with an error. outcome: Proxmox's own words."""

    def __init__(self, what: str, *, why: str, next_step: str, outcome: str = "") -> None:
        """The three parts, and the task's exit status."""
        super().__init__(what, why=why, next_step=next_step)
        self.outcome = outcome


def follow(tools: Tools, upid: str, what: str, *, timeout_s: float) -> tuple[str, ...]:
    """Wait until a task has ended; its warnings.

    A poll that does not get through is tried again, for a host that starts a large VM may not answer.

    Raises:
        TaskFailed: it ended with an error; the end of its log is told.
        OtherSide: it did not end in time, or Proxmox does not know it.
    """
    state = "not asked yet"
    progress = _Progress(tools, upid)
    with (
        _told_that_it_goes_on(tools, upid, what),
        tools.console.waiting(what, timeout_s=timeout_s) as waiting,
    ):
        for _ in tools.tries(timeout_s):
            try:
                status = tools.hypervisor.task(upid)
            except Unreachable as error:
                state = error.why
                waiting.update(state)
                continue
            if status is None:
                raise OtherSide(
                    f"how {what} ended is not known",
                    why=f"Proxmox does not know its task {upid}",
                    next_step="run the command again: it looks at the VM itself",
                )
            if status.outcome is not None:
                return _ended(tools, upid, what, status.outcome)
            state = "the task runs" + progress.seen()
            waiting.update(state)
    raise OtherSide(
        f"{what} did not end in {timeout_s:.0f} s",
        why=f"{state}; its task {upid} goes on",
        next_step="look at the task in Proxmox; run the command again when it has ended",
    )


@contextlib.contextmanager
def _told_that_it_goes_on(tools: Tools, upid: str, what: str) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        tools.console.trouble(
            f"{what} keeps running on {host_of(upid)} without us (task {upid});"
            " the same command looks for it and goes on from there"
        )
        raise


class _Progress:
    """What the log tells while the task runs; asked seldom, and only where it tells something."""

    def __init__(self, tools: Tools, upid: str) -> None:
        self._tools = tools
        self._upid = upid
        self._meter = Meter()
        # A task that is over before that is never asked for its log.
        self._next = tools.clock() + tools.patience.log_s if kind_of(upid) in TELLING else float("inf")

    def seen(self) -> str:
        now = self._tools.clock()
        lines: tuple[str, ...] = ()
        if now >= self._next:
            self._next = now + self._tools.patience.log_s
            with contextlib.suppress(OtherSide):  # the log is a comfort, no more
                lines = self._tools.hypervisor.task_lines(self._upid, start=self._meter.line)
        words = self._meter.take(lines, now=now)
        return f": {words}" if words else ""


def _ended(tools: Tools, upid: str, what: str, outcome: str) -> tuple[str, ...]:
    if outcome == "OK":
        return ()
    log = _log(tools, upid)
    if _WARNINGS.fullmatch(outcome):
        told = tuple(line.removeprefix("WARN:").strip() for line in log if line.startswith("WARN:"))
        return told or (f"{what} ended with {outcome}; its task is {upid}",)
    raise TaskFailed(
        f"{what} failed",
        why="\n".join([outcome, *(f"log: {line}" for line in log), f"task: {upid}"]),
        next_step=next_step(outcome),
        outcome=outcome,
    )


def _log(tools: Tools, upid: str) -> tuple[str, ...]:
    try:
        return tools.hypervisor.task_log(upid)
    except OtherSide as error:
        return (f"(the log could not be read: {error.why})",)
