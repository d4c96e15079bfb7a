"""The whole road: the demo's document, its end however it comes, and nothing left behind."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from inventory.console import Console
from lab import demo
from lab.places import Places
from lab.running import Lab
from tests.lab.processes import descendants, mounts, still_there, with_text
from tests.postgres import Server
from tests.require import need_command
from verify import scenarios

ROOT = Path(__file__).parents[2]
SCENARIOS = {scenario.name: scenario.kind for scenario in scenarios.SCENARIOS}


def start(folder: Path, *arguments: str, **environ: str) -> "subprocess.Popen[str]":
    """The demo, with temporary files in a folder of its own."""
    need_command("ssh-keygen", "openssl")
    return subprocess.Popen(
        [sys.executable, "-m", "lab.cli", "demo", "--json", *arguments],
        env={**os.environ, "TMPDIR": str(folder), **environ},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupted(folder: Path, sign: signal.Signals, *, during: str) -> tuple[int, list[int]]:
    """A demo that got a signal while a command ran: its exit code, and what it left running."""
    with start(folder) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(f"$ {during}"):
                break
        time.sleep(0.5)  # the command has begun
        temporary = _temporary_of(during, process.pid)
        below = descendants(process.pid)
        process.send_signal(sign)
        process.wait(60)
    assert below
    assert f"{folder}/muster-demo-" in temporary
    return process.returncode, still_there(below) + with_text(str(folder))


def _temporary_of(command: str, demo_pid: int) -> str:
    """Where the command that a demo runs puts its temporary files; waits until it runs."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for pid in descendants(demo_pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if command.encode() in words and b"lifeline" not in words:
                    places = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                    return next(place.decode() for place in places if place.startswith(b"TMPDIR="))
        time.sleep(0.05)
    return ""


def test_over_a_persons_own_server_the_demo_leaves_no_schema_and_touches_none(
    tmp_path: Path, postgres: Server
) -> None:
    database = postgres.fresh_database()
    postgres.psql(
        "CREATE SCHEMA muster; CREATE TABLE muster.nodes (name text)", database=database, user="muster"
    )
    with start(tmp_path, MUSTER_INVENTORY=postgres.url(database, user="muster")) as process:
        stdout, stderr = process.communicate(timeout=600)

    assert process.returncode == 0, stderr
    assert json.loads(stdout)["node"]["state"] == "in-service"
    assert "the record is on your server, in a schema of its own: postgresql://" in stderr
    schemas = "SELECT nspname FROM pg_namespace WHERE nspname ~ '^muster' ORDER BY 1"
    assert postgres.psql(schemas, database=database) == "muster"
    assert postgres.psql("SELECT count(*) FROM muster.nodes", database=database) == "0"


def test_the_demo_walks_the_whole_road_and_leaves_nothing(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        stdout, stderr = process.communicate(timeout=600)
    found: dict[str, Any] = json.loads(stdout)

    assert process.returncode == 0, stderr
    assert list(found) == ["schema", "ok", "lab", "node", "steps", "identity", "verification"]
    assert (found["schema"], found["ok"]) == (1, True)
    assert found["lab"]["backend"] in {"namespaces", "directory"}
    assert found["lab"]["not_real"]
    assert found["node"]["name"] == "gpu-01"
    assert found["node"]["vmid"] == 100
    assert re.fullmatch(r"127\.20\.\d+\.10", found["node"]["address"])
    assert found["node"]["state"] == "in-service"
    assert [(step["name"], step["ok"]) for step in found["steps"]] == [
        ("provision", True),
        ("onboard", True),
        ("verify", True),
    ]
    assert found["identity"]["spiffe_id"] == "spiffe://lab.example/node/gpu-01"
    assert re.fullmatch(r"[0-9a-f]{64}", found["identity"]["fingerprint_sha256"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found["identity"]["not_after"])
    assert found["verification"]["ranks"] == 8
    assert found["verification"]["not_checked"]
    assert {row["name"]: row["kind"] for row in found["verification"]["scenarios"]} == SCENARIOS
    assert all(row["ok"] for row in found["verification"]["scenarios"])
    assert [line for line in stderr.splitlines() if line.startswith("$ ")] == [
        "$ provision-node gpu-01 --profile small --yes --json",
        "$ onboard-node gpu-01 --yes --no-verify --json",
        "$ verify-node gpu-01 --json",
    ]
    assert (list(tmp_path.glob("muster-demo-*")), with_text(str(tmp_path)), mounts(tmp_path)) == ([], [], [])


def test_a_demo_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    code, left = interrupted(tmp_path, signal.SIGKILL, during="onboard-node")

    assert code == -signal.SIGKILL
    assert (left, list(tmp_path.iterdir()), mounts(tmp_path)) == ([], [], [])


def test_a_demo_that_is_interrupted_leaves_nothing_and_says_so_by_its_exit_code(tmp_path: Path) -> None:
    code, left = interrupted(tmp_path, signal.SIGINT, during="provision-node")

    assert code == 130
    assert (left, list(tmp_path.glob("muster-demo-*")), mounts(tmp_path)) == ([], [], [])


def test_a_demo_that_is_terminated_leaves_no_temporary_file_of_the_command_that_ran(tmp_path: Path) -> None:
    code, left = interrupted(tmp_path, signal.SIGTERM, during="verify-node")

    assert code == 143
    assert (left, list(tmp_path.iterdir()), mounts(tmp_path)) == ([], [], [])


def test_a_step_that_fails_is_the_last_and_gives_the_demo_its_exit_code(tmp_path: Path) -> None:
    nowhere = Lab(Places(tmp_path), pid=0, url="", prefix="", backend="directory", not_real=())
    outcome = demo.walk(Console(quiet=True), nowhere)
    document = outcome.document()

    assert outcome.code == 2
    assert document["ok"] is False
    assert [(step["name"], step["ok"]) for step in document["steps"]] == [("provision", False)]
    assert "site.yaml" in document["error"]
    assert document["identity"] == dict.fromkeys(("serial", "spiffe_id", "not_after", "fingerprint_sha256"))
    assert demo.summary(outcome)[0] == "gpu-01 has not passed muster: provision failed"
