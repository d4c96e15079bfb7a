"""A lab that cannot be had, or that another is starting: said in a person's words, and never as a bug."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inventory.errors import OtherSide, Refused
from lab import no_lab, running, world
from lab.places import Places
from tests.require import need_command

ROOT = Path(__file__).parents[2]


def starting(*words: str, state: Path, cwd: Path = ROOT) -> "subprocess.Popen[str]":
    """The command, started as one that is installed: nothing comes from the current directory."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "lab.cli", *words],
        env={**os.environ, "XDG_STATE_HOME": str(state)},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state directory; whatever runs in it at the end is stopped."""
    need_command("ssh-keygen")
    (tmp_path / "state").mkdir()
    yield tmp_path / "state"
    running.stop(Places(tmp_path / "state/muster/lab"))


def test_of_two_who_start_a_lab_at_once_both_have_it(state: Path) -> None:
    both = [starting("up", "--json", state=state) for _ in range(2)]
    told = [process.communicate(timeout=600) for process in both]

    assert [process.returncode for process in both] == [0, 0], told
    assert told[0][0] == told[1][0]
    assert sum("it was up already" in stderr for _, stderr in told) == 1


def test_what_lies_in_the_current_directory_is_not_taken_for_the_labs_own(
    state: Path, tmp_path: Path
) -> None:
    (tmp_path / "lab").mkdir()
    for name in ("lab/__init__.py", "json.py", "fakepve.py"):
        (tmp_path / name).write_text("raise SystemExit('a stranger')\n")
    with starting("up", "--json", state=state, cwd=tmp_path) as up:
        stdout, stderr = up.communicate(timeout=600)

    assert (up.returncode, "a stranger" in stderr) == (0, False), stderr
    assert json.loads(stdout)["running"] is True


@pytest.mark.parametrize("verb", ["up", "status", "env", "down"])
def test_a_state_directory_that_cannot_be_is_a_fault_of_the_caller(verb: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with starting(verb, state=tmp_path / "file") as process:
        stdout, stderr = process.communicate(timeout=600)

    assert (process.returncode, stdout) == (2, ""), stderr
    assert "error: the lab has no place" in stderr
    assert f"why: {tmp_path / 'file'}" in stderr
    assert "XDG_STATE_HOME" in stderr


def test_a_lab_of_another_version_is_not_used_and_can_be_taken_down(tmp_path: Path) -> None:
    need_command("ssh-keygen")
    places = Places(tmp_path / "lab")
    lab, server = running.start(places, tied=True, ephemeral=True, authority=False)
    places.ready.write_text(json.dumps({"schema": 1, "pid": lab.pid}))
    with pytest.raises(Refused, match="cannot be used") as refused:
        running.find(places)
    stopped = running.stop(places)
    running.end(server)

    assert "another version" in refused.value.why
    assert (stopped, places.root.exists()) == (True, False)


def test_what_a_dead_lab_says_of_itself_is_not_believed_of_the_one_that_starts(tmp_path: Path) -> None:
    need_command("ssh-keygen")
    places = Places(tmp_path / "lab")
    lab, server = running.start(places, tied=True, ephemeral=True, authority=False)
    said = json.loads(places.ready.read_text())
    places.ready.write_text(json.dumps({**said, "pid": lab.pid + 1}))
    found = running.find(places)
    running.end(server)

    assert found is None


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("import os; os.kill(os.getpid(), 9)", "its server was killed by SIGKILL before it was ready"),
        ("raise SystemExit(7)", "its server ended with 7 before it was ready"),
    ],
)
def test_a_server_that_ended_is_not_told_as_one_that_was_silent(body: str, how: str, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", body])
    process.wait(60)
    told = no_lab.silent(process, tmp_path / "server.log", 90.0)

    assert told.why == how


def test_a_key_that_could_not_be_written_is_no_reason_to_install_anything(tmp_path: Path) -> None:
    need_command("ssh-keygen")
    with pytest.raises(OtherSide, match="no SSH keys") as told:
        world.new_key(tmp_path / "absent/id", "somebody")

    assert "No such file" in told.value.why
    assert "install" not in told.value.next_step


def test_a_traceback_that_a_command_of_the_demo_wrote_outlives_the_demo(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    for folder in (inside, tmp_path / "outside"):
        folder.mkdir()
    trace = inside / "muster-bug-1.txt"
    trace.write_text("lines")
    script = """if True:
        import sys
        from pathlib import Path
        from inventory.console import Console
        from lab import demo
        folder, trace = map(Path, sys.argv[1:])
        print(demo.keep_tracebacks(Console(quiet=True), folder, f"bug: KeyError; report it with {trace}"))
    """
    done = subprocess.run(
        [sys.executable, "-c", script, str(inside), str(trace)],
        env={**os.environ, "TMPDIR": str(tmp_path / "outside")},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    kept = Path(done.stdout.strip().rpartition(" ")[2])

    assert not trace.exists()
    assert kept.is_relative_to(tmp_path / "outside")
    assert kept.read_text() == "lines"
