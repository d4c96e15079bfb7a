"""node-lab as a person meets it: subprocesses, exit codes, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import BadInput, Refused
from lab import running
from lab.places import Places
from lab.server import empty
from tests.lab.api import Api, banner
from tests.lab.processes import descendants, mounts, still_there, with_text
from tests.require import need_command

ROOT = Path(__file__).parents[2]


def node_lab(
    *arguments: str, state: Path, pythonpath: str = "", timeout_s: float = 120
) -> "subprocess.CompletedProcess[str]":
    """Run the command with a state directory of its own."""
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "PYTHONPATH": pythonpath}
    return subprocess.run(
        [sys.executable, "-m", "lab.cli", *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
        check=False,
    )


def places_in(state: Path) -> Places:
    return Places(state / "muster/lab")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state directory; whatever runs in it at the end is stopped."""
    need_command("ssh-keygen")
    yield tmp_path
    running.stop(places_in(tmp_path))


def test_a_lab_is_up_until_it_is_taken_down(state: Path) -> None:
    places = places_in(state)
    up = node_lab("up", "--json", state=state)
    again = node_lab("up", "--json", state=state)
    other = node_lab("up", "--backend", "paper", state=state)
    status = json.loads(node_lab("status", "--json", state=state).stdout)
    env = node_lab("env", state=state)
    named, modes = _evaluated(env.stdout), _modes(places)
    processes = descendants(running.need_running(places).pid)
    down = node_lab("down", state=state)

    assert up.returncode == 0, up.stderr
    assert json.loads(up.stdout) == json.loads(again.stdout)
    assert "it was up already" in again.stderr
    assert (other.returncode, "is up" in other.stderr) == (3, True)
    assert status["schema"] == 1
    assert status["running"]
    assert status["not_real"]
    assert status["vms"] == [
        {"vmid": 9000, "name": "debian-12-lab", "status": "stopped", "template": True, "node": None}
    ]
    assert named == {
        "MUSTER_SITE": True,
        "MUSTER_INVENTORY": False,  # made by the first command that writes to it
        "MUSTER_CA_DIR": True,
        "MUSTER_PASSPHRASE_FILE": True,
        "MUSTER_SSH_KEY": True,
    }
    assert modes == {0o700, 0o600}
    assert down.returncode == 0, down.stderr
    assert not places.root.exists()
    assert still_there(processes) == []
    assert mounts(state) == []


def _evaluated(lines: str) -> dict[str, bool]:
    """The variables that a shell has after eval, and whether what they name is there."""
    told = subprocess.run(
        ["sh", "-c", 'eval "$1"; env', "sh", lines],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pairs = [line.partition("=") for line in told.splitlines() if line.startswith("MUSTER_")]
    return {name: Path(value).exists() for name, _, value in pairs}


def _modes(places: Places) -> set[int]:
    private = (
        places.root,
        places.token,
        places.passphrase,
        places.infra_key,
        places.holder_key,
        places.authority,
    )
    return {path.stat().st_mode & 0o777 for path in private}


def test_a_lab_that_is_not_up_says_so(state: Path) -> None:
    env = node_lab("env", state=state)
    status = node_lab("status", "--json", state=state)
    down = node_lab("down", state=state)

    assert (env.returncode, env.stdout) == (3, "")
    assert "no lab is up" in env.stderr
    assert json.loads(status.stdout)["running"] is False
    assert down.returncode == 0


def test_a_server_killed_leaves_no_process_and_the_next_lab_starts_anew(state: Path) -> None:
    places = places_in(state)
    lab, server = running.start(places, authority=False)
    api = Api(lab)
    api.boot("doomed", 10)
    port = next(vm["node"]["ssh_port"] for vm in running.vms(lab) if vm["name"] == "doomed")
    processes = descendants(lab.pid)
    server.send_signal(signal.SIGKILL)
    server.wait()
    left, silence = still_there(processes), banner(api.address(10), port)
    stale = json.loads(node_lab("status", "--json", state=state).stdout)
    fresh, second = running.start(places, authority=False)
    vms = running.vms(fresh)
    running.end(second)
    running.end(server)

    assert processes or lab.backend != "namespaces"
    assert (left, silence, mounts(state)) == ([], b"", [])
    assert stale["running"] is False
    assert [vm["vmid"] for vm in vms] == [9000]


def test_two_labs_at_once_have_networks_of_their_own(tmp_path: Path) -> None:
    need_command("ssh-keygen")
    first, one = running.start(Places(tmp_path / "1"), tied=True, ephemeral=True, authority=False)
    second, two = running.start(Places(tmp_path / "2"), tied=True, ephemeral=True, authority=False)
    first_vms = Api(first).boot("same", 10), Api(second).boot("same", 10)
    running.end(one)
    running.end(two)

    assert first.prefix != second.prefix
    assert first_vms[0] == first_vms[1]
    assert not (tmp_path / "1").exists()


def test_a_second_server_of_one_directory_is_refused(tmp_path: Path) -> None:
    need_command("ssh-keygen")
    places = Places(tmp_path / "lab")
    _lab, server = running.start(places, tied=True, ephemeral=True, authority=False)
    with pytest.raises(Refused, match="is locked"):
        running.start(places, authority=False)
    still = running.find(places)
    running.end(server)

    assert still is not None


def test_a_tied_server_ends_with_its_parent(tmp_path: Path) -> None:
    need_command("ssh-keygen")
    script = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from lab import running
        from lab.places import Places
        lab, _ = running.start(Places(Path({str(tmp_path / "lab")!r})), tied=True, ephemeral=True, authority=False)
        print(lab.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    parent = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    server = int(parent.stdout)

    assert parent.returncode == -signal.SIGKILL
    assert still_there(_one(server)) == []
    assert not (tmp_path / "lab").exists()
    assert with_text(str(tmp_path / "lab")) == []


def _one(pid: int) -> dict[int, str]:
    try:
        return {pid: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]}
    except FileNotFoundError:
        return {}


def test_an_unknown_backend_is_refused_with_the_names_of_the_known(state: Path) -> None:
    up = node_lab("up", "--backend", "paper", state=state)

    assert up.returncode == 2
    assert "namespaces, directory" in up.stderr
    assert not running.find(places_in(state))


def test_a_directory_that_no_lab_made_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(BadInput, match="is not touched"):
        running.start(Places(tmp_path), authority=False)

    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_a_lab_without_its_extra_says_how_to_get_it(state: Path) -> None:
    broken = state / "broken"
    broken.mkdir()
    (broken / "fakepve.py").write_text("raise ModuleNotFoundError('x', name='fakepve')\n")
    help_text = node_lab("--help", state=state, pythonpath=str(broken))
    up = node_lab("up", state=state, pythonpath=str(broken))

    assert help_text.returncode == 0
    assert up.returncode == 2
    assert "uv tool install 'passmuster[lab]'" in up.stderr


@pytest.mark.parametrize("command", ["up", "down", "status", "env", "demo", "doctor"])
def test_every_subcommand_has_an_example(command: str, tmp_path: Path) -> None:
    shown: Any = node_lab(command, "-h", state=tmp_path)

    assert shown.returncode == 0
    assert "Example: " in shown.stdout
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())


def test_emptying_keeps_the_lock_and_the_log(tmp_path: Path) -> None:
    places = Places(tmp_path)
    for path in (places.lock, places.log, places.site):
        path.write_text("")
    (places.nodes / "100").mkdir(parents=True)
    places.passphrase.symlink_to("/etc/hostname")
    empty(places)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "server.log"]
    assert Path("/etc/hostname").exists()
