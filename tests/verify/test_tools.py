"""Other people's tools: what they say is taken, and one that hangs, babbles or lies holds nobody."""

import os
import time
from pathlib import Path

import pytest

from verify.probe.loop import READ, Loop
from verify.probe.tools import Answer, Tool, run_all


def tool(folder: Path, name: str, script: str) -> str:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def run(folder: Path, script: str, *, timeout_s: float = 60.0, stdin: bytes = b"") -> Answer:
    words = [tool(folder, "nvidia-smi", script)]
    return run_all({"nvidia-smi": Tool(words, timeout_s, stdin)}, Loop())["nvidia-smi"]


def test_a_tool_that_answers_is_heard_on_both_streams(tmp_path: Path) -> None:
    answer = run(tmp_path, "cat; echo worse >&2; exit 3", stdin=b"GPU 0\n")

    assert answer == Answer("", 3, "GPU 0\n", "worse\n")
    assert answer.last == "worse"


@pytest.mark.parametrize(
    "script",
    [
        "sleep 900",
        "trap '' TERM INT HUP; while :; do sleep 1; done",
        "exec >&- 2>&-; sleep 900",
        "sleep 900 & echo x",
    ],
    ids=["sleeps", "ignores SIGTERM", "closes its streams", "leaves a child behind"],
)
def test_a_tool_that_hangs_is_a_result_of_its_own(tmp_path: Path, script: str) -> None:
    pid = tmp_path / "pid"
    for timeout_s in (1, 10, 60):  # a busy machine may need longer to begin
        began = time.monotonic()
        answer = run(tmp_path, f"echo $$ > {pid}; {script}", timeout_s=timeout_s)

        assert answer.trouble == f"nvidia-smi did not answer in {timeout_s} s"
        assert time.monotonic() - began < 200
        if pid.exists() and pid.read_text():
            break
    assert not _alive(int(pid.read_text()))


def _alive(group: int) -> bool:
    """Does any process of the group still run, zombies aside? A killed one needs a moment."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        left = [
            stat
            for stat in Path("/proc").glob("[0-9]*/stat")
            if (fields := _fields(stat)) and fields[0] != "Z" and int(fields[2]) == group
        ]
        if not left:
            return False
        time.sleep(0.05)
    return True


def _fields(stat: Path) -> list[str]:
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def test_a_tool_that_babbles_is_cut_off(tmp_path: Path) -> None:
    answer = run(tmp_path, "while :; do echo GPU 0: a lie; done")

    assert answer.trouble == "nvidia-smi said more than 256 KiB"


def test_a_tool_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    answer = run_all({"gone": Tool([str(tmp_path / "gone")], 5.0)}, Loop())["gone"]

    assert answer.trouble == "gone could not be started: No such file or directory"


def test_tools_run_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    waits = 'touch here/$$; while [ "$(ls here | wc -l)" -lt 8 ]; do sleep 0.05; done'  # for all the others
    waiting = tool(tmp_path, "waiting", f"cd {tmp_path}; {waits}")
    answers = run_all({f"waiting-{number}": Tool([waiting], 60.0) for number in range(8)}, Loop())

    assert {answer.status for answer in answers.values()} == {0}


class _Cut(Exception):
    """The session is gone."""


def test_a_session_that_is_cut_meanwhile_ends_the_tools(tmp_path: Path) -> None:
    loop = Loop()
    ours, theirs = os.pipe()

    def pulled(_events: int) -> None:
        raise _Cut

    loop.add(ours, READ, pulled)
    os.close(theirs)
    words = [tool(tmp_path, "smi", f"echo $$ > {tmp_path}/pid; sleep 900")]
    try:
        with pytest.raises(_Cut):
            run_all({"smi": Tool(words, 60.0)}, loop)
    finally:
        os.close(ours)

    pid = tmp_path / "pid"
    assert not pid.exists() or not _alive(int(pid.read_text() or 0))
