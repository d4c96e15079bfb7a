"""The probe as one file: it needs its node's Python and nothing else, and takes nothing over from who starts it."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.require import need_root
from verify.artefact import alone, artefact
from verify.probe.tls import Identity
from verify.scenarios import NAMES

from .identities import Authority, authority, identity
from .probing import order
from .test_artefact import oldest_python
from .test_cli import agent_yaml, verify_node

POISON = {
    "PYTHONPATH": "/nonexistent",
    "PYTHONHOME": "",
    "OPENSSL_CONF": "/nonexistent",
    "NCCL_DEBUG": "INFO",
}


def emitted(folder: Path, files: Identity, *scenarios: str, **other: Any) -> Path:
    file = folder / "verify-me"
    file.write_bytes(alone(order(files, *scenarios, run_id="", **other).settings()))
    file.chmod(0o755)
    return file


def ran(*words: str | Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run as a timer does: nothing on stdin, hardly an environment, nowhere to write."""
    return subprocess.run(
        [str(word) for word in words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd="/",
        env={"PATH": os.environ["PATH"], **environment},
    )


def test_the_command_writes_a_file_that_passes_every_scenario_by_itself(
    good: Identity, tmp_path: Path
) -> None:
    file = tmp_path / "verify-gpu-01"
    wrote = verify_node(
        "--emit-probe", file, "--config", agent_yaml(tmp_path, good), "--ranks", "4", "--json"
    )
    assert wrote.status == 0, wrote.err
    done = ran(file, **POISON)
    found = json.loads(done.stdout)

    assert (done.returncode, done.stderr) == (0, "")
    assert file.stat().st_mode & 0o777 == 0o755
    assert [(row["name"], row["ok"]) for row in found["scenarios"]] == [(name, True) for name in NAMES]
    assert found["probe_sha256"] == artefact().sha256
    assert found["node"] == "gpu-01"


def test_the_file_runs_alone_and_each_run_has_an_id_of_its_own(good: Identity, tmp_path: Path) -> None:
    file = emitted(tmp_path, good, "assemble", ranks=2)
    first, second = (json.loads(ran(file).stdout) for _ in range(2))

    assert first["ok"]
    assert len({first["run_id"], second["run_id"], "", "0" * 32}) == 4


@pytest.mark.parametrize("spawn", ["fork", "exec"])
def test_the_oldest_python_there_is_runs_the_file_isolated(
    good: Identity, tmp_path: Path, spawn: str
) -> None:
    file = emitted(tmp_path, good, "assemble", "missing-rank", ranks=2, spawn=spawn)
    done = ran(oldest_python(), "-I", "-S", file)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"]


def test_a_node_that_does_not_pass_exits_5_and_says_what_to_do(lab: Authority, tmp_path: Path) -> None:
    files = identity(tmp_path / "id", by=lab, trusts=authority("other"))
    done = ran(emitted(tmp_path, files, "assemble"))
    found = json.loads(done.stdout)

    assert done.returncode == 5
    assert found["ok"] is False
    assert "the chain does not hold" in found["scenarios"][0]["found"]
    assert found["scenarios"][0]["next"]


def test_what_cannot_be_judged_exits_4_and_prints_no_document(good: Identity, tmp_path: Path) -> None:
    settings = order(good, "assemble").settings()
    settings["identity"] = {"nonsense": "x", **settings["identity"]}
    file = tmp_path / "verify-me"
    file.write_bytes(alone(settings))
    done = ran(sys.executable, file)

    assert (done.returncode, done.stdout) == (4, "")
    assert "could not be verified" in done.stderr


def test_started_by_root_the_ranks_are_the_owner_of_the_key(lab: Authority, tmp_path: Path) -> None:
    need_root()
    files = identity(tmp_path / "id", by=lab)
    nobody = pwd.getpwnam("nobody")
    for path in (tmp_path, *tmp_path.parents[:1]):
        path.chmod(0o755)
    shutil.chown(tmp_path / "id", "nobody")
    for file in (tmp_path / "id").iterdir():
        shutil.chown(file, nobody.pw_uid)
    for folder in tmp_path.parents:
        if folder.stat().st_mode & 0o005 != 0o005 and folder.is_relative_to("/tmp"):
            folder.chmod(0o755)
    done = ran(emitted(tmp_path, files, "assemble", ranks=2))
    (key,) = [check for check in json.loads(done.stdout)["checks"] if "owner" in check["found"]][:1]

    assert done.returncode == 0, done.stderr
    assert "nobody" in key["found"]
    here = verify_node("--local", "--config", agent_yaml(tmp_path, files), "--ranks", "2", "--json")
    assert here.document["nodes"][0]["identity"]["key_owner"] == "nobody"
    assert not any("the probe runs as" in note for note in here.document["nodes"][0]["identity"]["notes"])


def test_a_file_that_is_terminated_leaves_no_rank(good: Identity, tmp_path: Path) -> None:
    file = emitted(tmp_path, good, "missing-rank", ranks=4)
    with subprocess.Popen(
        [file], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        time.sleep(1.0)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        from .probing import left_of

        assert left_of(process.pid) == []


def test_the_documents_agree_on_what_later_checks_rely_on(good: Identity, tmp_path: Path) -> None:
    words = ("--ranks", "2", "--scenario", "assemble", "--scenario", "missing-rank", "--json")
    here = verify_node("--local", "--config", agent_yaml(tmp_path, good), *words)
    for found in (
        here.document,
        json.loads(ran(emitted(tmp_path, good, "assemble", "missing-rank", ranks=2)).stdout),
    ):
        assert found["schema"] == 1
        assert found["ok"] is True
        assert (found["node"], found["ranks"]) == ("gpu-01", 2)
        assert len(bytes.fromhex(found["run_id"])) == 16
        assert len(bytes.fromhex(found["probe_sha256"])) == 32
        assert 0 < found["seconds"] < 60
        assert {"name", "ms"} <= set(found["phases"][0])
        assert {"listen", "first_join", "last_join", "go", "drills", "teardown"} <= {
            phase["name"] for phase in found["phases"]
        }
        assert [row["name"] for row in found["scenarios"]] == ["assemble", "missing-rank"]
        assert [row["kind"] for row in found["scenarios"]] == ["positive", "negative"]
        for row in found["scenarios"]:
            assert {"name", "kind", "ok", "seconds", "expected", "found", "next"} <= set(row)
            assert (row["ok"], row["next"]) == (True, None)
        assert found["scenarios"][1]["found"].endswith("named rank 1")
        for check in found["checks"]:
            assert {"name", "verdict", "expected", "found", "next"} <= set(check)
            assert check["verdict"] in {"pass", "info", "warning", "critical", "unknown"}
        assert found["not_checked"]
        assert all(isinstance(item, str) for item in found["not_checked"])


@pytest.mark.parametrize(("words", "disturbs"), [((), False), (("--disruptive",), True)])
def test_what_would_disturb_a_serving_node_is_asked_for_or_not_done(
    good: Identity,
    tmp_path: Path,
    words: tuple[str, ...],
    disturbs: bool,  # noqa: FBT001 - a table's column
) -> None:
    file = tmp_path / "verify-gpu-01"
    done = verify_node("--emit-probe", file, "--config", agent_yaml(tmp_path, good), *words)
    import zipfile

    with zipfile.ZipFile(file) as archive:
        settings = json.loads(archive.read("settings.json"))

    assert done.status == 0, done.err
    assert settings["disruptive"] is disturbs


@pytest.mark.parametrize(
    "words",
    [
        ("--emit-probe", "f"),
        ("--emit-probe", "f", "gpu-01", "--config", "a"),
        ("--local", "--spawn", "thread"),
    ],
)
def test_a_probe_that_cannot_be_written_is_told_with_advice(words: tuple[str, ...]) -> None:
    done = verify_node(*words)

    assert (done.status, done.out) == (2, "")
    assert "next:" in done.err
