"""Commands whose standard streams are closed, or lead to a place that takes nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.require import need

COMMANDS = (("lab", "status"), ("inventory", "list"))


def run(
    package: str, *words: str, redirected: str, state: Path, unbuffered: str = ""
) -> "subprocess.CompletedProcess[str]":
    start = f"from {package}.cli import main; main()"
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-c", start, *words],
        env={**os.environ, "XDG_STATE_HOME": str(state), "PYTHONUNBUFFERED": unbuffered},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(("package", "verb"), COMMANDS)
@pytest.mark.parametrize("redirected", [">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_no_failure(
    package: str, verb: str, redirected: str, tmp_path: Path
) -> None:
    done = run(package, verb, "--json", redirected=redirected, state=tmp_path)

    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "bug:" not in done.stderr


@pytest.mark.parametrize(("package", "verb"), COMMANDS)
def test_data_that_their_place_does_not_take_are_an_error_and_no_bug(
    package: str, verb: str, tmp_path: Path
) -> None:
    need(Path("/dev/full").exists(), "/dev/full", "run on Linux")
    done = run(package, verb, "--json", redirected=">/dev/full", state=tmp_path)

    assert done.returncode == 4
    assert done.stderr.count("error: the output was not written") == 1
    assert "why: standard output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("package", "verb"), COMMANDS)
@pytest.mark.parametrize("unbuffered", ["", "1"])  # what a buffer keeps is tried again at the end
def test_talk_that_its_place_does_not_take_is_lost_and_the_data_are_not(
    package: str, verb: str, unbuffered: str, tmp_path: Path
) -> None:
    need(Path("/dev/full").exists(), "/dev/full", "run on Linux")
    done = run(package, verb, "--json", redirected="2>/dev/full", state=tmp_path, unbuffered=unbuffered)

    assert done.returncode == 0
    assert json.loads(done.stdout)["schema"] == 1


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_a_help_that_its_place_does_not_take_is_an_error_and_no_bug(word: str, tmp_path: Path) -> None:
    need(Path("/dev/full").exists(), "/dev/full", "run on Linux")
    done = run("lab", word, redirected=">/dev/full", state=tmp_path)

    assert done.returncode == 4
    assert done.stderr.count("error: the output was not written") == 1
    assert "bug" not in done.stderr
