"""Tasks, by a hypervisor of a few lines: only what Proxmox calls success is success."""

import io
from typing import Any, cast

import pytest

from inventory.console import Console
from inventory.errors import OtherSide
from provision.hypervisor import Hypervisor, TaskStatus, Unreachable
from provision.tasks import TaskFailed, Tools, follow

UPID = "UPID:pve1:0000028F:00019CA4:6B0D3BBA:qmclone:9000:muster@pve!t:"


class Answers:
    """A hypervisor that knows one task; each poll gets the next answer, the last one for ever."""

    def __init__(self, *answers: str | Exception | None, log: tuple[str, ...] = ()) -> None:
        self._answers = list(answers)
        self._log = log
        self.polls = 0

    def task(self, _upid: str) -> TaskStatus | None:
        self.polls += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return TaskStatus(None if answer == "running" else answer) if answer else None

    def task_log(self, _upid: str) -> tuple[str, ...]:
        return self._log

    def task_lines(self, _upid: str, *, start: int) -> tuple[str, ...]:
        return self._log[start:]


def unreachable() -> Unreachable:
    return Unreachable("x", why="Proxmox said 599 Too many redirections", next_step="y")


def tools(answers: Answers, stderr: io.StringIO | None = None) -> Tools:
    """Time that passes only by sleeping."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    console = Console(stderr=stderr or io.StringIO(), environ={})
    return Tools(cast("Hypervisor", answers), console, clock=lambda: now, sleep=sleep)


def outcome(*answers: Any, log: tuple[str, ...] = (), timeout_s: float = 60) -> tuple[str, ...]:
    return follow(tools(Answers(*answers, log=log)), UPID, "the clone", timeout_s=timeout_s)


def test_ok_is_success_without_warnings() -> None:
    assert outcome("running", "running", "OK") == ()


def test_warnings_are_success_and_are_told() -> None:
    log = (
        "generating cloud-init ISO",
        "WARN: no efidisk configured! Using temporary efivars disk.",
        "TASK WARNINGS: 1",
    )

    assert outcome("WARNINGS: 1", log=log) == ("no efidisk configured! Using temporary efivars disk.",)
    assert "WARNINGS: 3" in outcome("WARNINGS: 3", log=())[0]


@pytest.mark.parametrize(
    "end",
    [
        "clone failed: unable to activate storage 'tiny' - directory is expected to be a mount point",
        "unexpected status",
        "WARNINGS: many",
        "ok",
        "MAX 2 vcpus allowed per VM on this node",
    ],
)
def test_anything_else_is_failure_with_the_log(end: str) -> None:
    with pytest.raises(TaskFailed) as caught:
        outcome("running", end, log=("transferred 1.0 GiB", f"TASK ERROR: {end}"))

    assert caught.value.outcome == end
    assert caught.value.why.splitlines() == [
        end,
        "log: transferred 1.0 GiB",
        f"log: TASK ERROR: {end}",
        f"task: {UPID}",
    ]


def test_a_failed_task_is_noticed_at_once() -> None:
    answers = Answers("boom")

    with pytest.raises(TaskFailed):
        follow(tools(answers), UPID, "the clone", timeout_s=3600)
    assert answers.polls == 1


def test_polls_that_do_not_get_through_are_survived() -> None:
    assert outcome(unreachable(), unreachable(), "OK") == ()


def test_a_task_that_does_not_end_says_what_was_seen_last() -> None:
    with pytest.raises(OtherSide, match="did not end in 60 s") as caught:
        outcome("running", unreachable())
    assert "599 Too many redirections" in caught.value.why
    with pytest.raises(OtherSide, match=f"its task {UPID} goes on"):
        outcome("running")


def test_polls_grow_rarer() -> None:
    answers = Answers("running")

    with pytest.raises(OtherSide):
        follow(tools(answers), UPID, "the clone", timeout_s=600)
    assert 300 <= answers.polls <= 320


def test_an_unknown_task_is_no_success() -> None:
    with pytest.raises(OtherSide, match="does not know its task"):
        outcome(None)


def test_it_says_what_it_waits_for_before_it_waits() -> None:
    stderr = io.StringIO()

    follow(tools(Answers("OK"), stderr), UPID, "the clone of template 9000", timeout_s=7200)

    assert stderr.getvalue() == "waiting for the clone of template 9000 (at most 7200 s)\n"


def test_who_interrupts_the_wait_is_told_that_the_task_goes_on() -> None:
    class Interrupted(Answers):
        def task(self, _upid: str) -> TaskStatus | None:
            raise KeyboardInterrupt

    stderr = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        follow(tools(Interrupted("OK"), stderr), UPID, "the clone", timeout_s=60)
    assert f"the clone keeps running on pve1 without us (task {UPID})" in stderr.getvalue()


def test_a_log_that_cannot_be_read_does_not_hide_the_failure() -> None:
    class NoLog(Answers):
        def task_log(self, _upid: str) -> tuple[str, ...]:
            raise unreachable()

    with pytest.raises(TaskFailed, match="boom"):
        follow(tools(NoLog("boom")), UPID, "the clone", timeout_s=60)


def test_a_wait_of_no_time_still_looks_once() -> None:
    assert len(list(tools(Answers("OK")).tries(0.0))) == 1
