"""How far a task is: the words made of its log, in the forms that Proxmox writes."""

import io
from collections.abc import Iterator

import pytest

from inventory.errors import OtherSide
from provision.hypervisor import TaskStatus
from provision.progress import Meter
from provision.tasks import follow
from tests.provision.test_tasks import UPID, Answers, tools, unreachable

CLONE_LOG = (
    "create full clone of drive scsi0 (local:9000/base-9000-disk-0.qcow2)",
    "Formatting '/var/lib/vz/images/201/vm-201-disk-0.qcow2', fmt=qcow2 size=1503238553",
    "transferred 0.0 B of 1.4 GiB (0.00%)",
    "transferred 14.3 MiB of 1.4 GiB (1.02%)",
    "transferred 716.8 MiB of 1.4 GiB (50.00%)",
)


def test_a_clone_tells_disk_bytes_percent_and_what_is_left() -> None:
    meter = Meter()

    assert meter.take(CLONE_LOG[:3], now=100) == "scsi0: 0.0 B of 1.4 GiB, 0 %"
    assert meter.take(CLONE_LOG[3:], now=130) == "scsi0: 716.8 MiB of 1.4 GiB, 50 %, about 30 s left"
    assert meter.line == len(CLONE_LOG)


def test_the_next_disk_begins_anew() -> None:
    meter = Meter()
    meter.take([*CLONE_LOG, "transferred 1.4 GiB of 1.4 GiB (100.00%)"], now=10)

    words = meter.take(
        ["create full clone of drive scsi1 (a:b)", "transferred 0.0 B of 8.0 GiB (0.00%)"], now=20
    )

    assert words == "scsi1: 0.0 B of 8.0 GiB, 0 %"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("drive-scsi0: transferred 1.0 GiB of 4.0 GiB (25.00%) in 9s", "scsi0: 1.0 GiB of 4.0 GiB, 25 %"),
        (
            "mirror-virtio1: transferred 1.0 GiB of 4.0 GiB (25.00%) in 9s",
            "virtio1: 1.0 GiB of 4.0 GiB, 25 %",
        ),
        (" 65536K ........ ........ ........ ........ 12% 45.6M 3m20s", "64 MiB, 12 %"),
        ("trying to acquire lock...", ""),
        ("transferred nothing", ""),
    ],
)
def test_the_forms_of_mirror_and_download_are_read_and_others_passed_over(line: str, words: str) -> None:
    assert Meter().take([line], now=0) == words


def test_an_empty_log_counts_no_line() -> None:
    meter = Meter()

    assert meter.take(["no content"], now=0) == ""
    assert meter.line == 0


def test_long_waits_are_told_in_minutes_and_hours() -> None:
    meter = Meter()
    meter.take(["transferred 0.0 B of 1.0 TiB (0.00%)"], now=0)

    assert meter.take(["transferred 1.0 GiB of 1.0 TiB (10.00%)"], now=100).endswith("about 15 min left")
    assert meter.take(["transferred 2.0 GiB of 1.0 TiB (11.00%)"], now=10_000).endswith("about 22.5 h left")


class Logging(Answers):
    """A task whose log grows by a line for each page that is asked for."""

    def __init__(self, *answers: str) -> None:
        super().__init__(*answers)
        self.starts: list[int] = []
        self._pages: Iterator[str] = iter(CLONE_LOG)

    def task_lines(self, _upid: str, *, start: int) -> tuple[str, ...]:
        self.starts.append(start)
        line = next(self._pages, None)
        return () if line is None else (line,)


def test_the_log_is_read_from_the_last_line_on() -> None:
    answers = Logging(*["running"] * 40, "OK")

    follow(tools(answers), UPID, "the clone", timeout_s=600)

    assert answers.starts[:6] == [0, 1, 2, 3, 4, 5]


def test_what_is_seen_is_shown_every_ten_seconds_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr = io.StringIO()
    patient = tools(Logging(*["running"] * 40, "OK"), stderr)
    # The console has a clock of its own, which here is the one that passes.
    monkeypatch.setattr("inventory.console._PLAIN_PROGRESS_EVERY_S", 0.0)

    follow(patient, UPID, "the clone", timeout_s=600)

    assert "still waiting for the clone (at most 600 s): the task runs: scsi0: " in stderr.getvalue()


def test_a_short_task_is_not_asked_for_its_log() -> None:
    answers = Logging("running", "running", "OK")

    follow(tools(answers), UPID, "the clone", timeout_s=600)

    assert answers.starts == []


def test_a_task_that_does_not_end_tells_how_far_it_was() -> None:
    with pytest.raises(OtherSide) as caught:
        follow(tools(Logging("running")), UPID, "the clone", timeout_s=60)

    assert "scsi0: 716.8 MiB of 1.4 GiB, 50 %" in caught.value.why


def test_a_log_that_cannot_be_read_does_not_end_the_wait() -> None:
    class NoLog(Answers):
        def task(self, _upid: str) -> TaskStatus | None:
            self.polls += 1
            return TaskStatus("OK" if self.polls > 20 else None)

        def task_lines(self, _upid: str, *, start: int) -> tuple[str, ...]:
            assert start == 0
            raise unreachable()

    assert follow(tools(NoLog("running")), UPID, "the clone", timeout_s=600) == ()
