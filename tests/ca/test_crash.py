"""Crashes, crowds and the network: what really happens in other processes."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ca.audit import audit
from ca.authority import Authority
from tests.ca.killed import ACTIONS, differs
from tests.ca.material import OTHER_UUID, UUID, issue, new_authority, reopened
from tests.require import need, need_command

ROOT = Path(__file__).parents[2]
EACH = 50
KILLS = os.environ.get("MUSTER_TEST_KILLS", "16")  # read at once: the tests' environment is scrubbed

_WITHOUT_SOCKETS = """
import sys
from pathlib import Path

touched = []

def refuse(event, arguments):
    if event.startswith("socket."):
        touched.append(event)
        raise PermissionError(event)

sys.addaudithook(refuse)
from tests.ca.killed import ACTIONS, differs
from tests.ca.material import issue, new_authority, reopened, NOW
authority = new_authority(Path(sys.argv[1]))
issued = issue(reopened(authority))
authority.warnings(NOW)
heavy = {"paramiko", "requests", "proxmoxer", "sqlalchemy", "inventory.reach"} & set(sys.modules)
print(issued.serial, touched, sorted(heavy))
"""


def python(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def output(process: subprocess.Popen[str]) -> str:
    text, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    return text


KNOWN = {"unknown or unreadable": [], "open": 0, "breaks": [], "index differs": False, "notes": []}
ABANDONED = "abandoned: the process ended between intent and issue"


def kills_of(folder: Path, how: str) -> list[dict[str, Any]]:
    kills: list[dict[str, Any]] = json.loads(output(python("-m", "tests.ca.killed", str(folder), how)))
    assert [kill for kill in kills if {key: kill[key] for key in KNOWN} != KNOWN] == []
    assert {why for kill in kills for why in kill["whys"]} <= {ABANDONED}
    assert all(kill["warned"] is (kill["abandoned"] > 0) for kill in kills)
    return kills


def test_a_kill_at_any_call_leaves_an_authority_that_knows_what_could_have_left(tmp_path: Path) -> None:
    kills = kills_of(tmp_path, "exhaustive")

    counts = Counter(kill["action"] for kill in kills)
    # the lock, each line and its sync, and, where there are some, certificates and their folder
    assert counts["issue"] >= 20
    assert counts["issue many"] >= 24
    assert min(counts["install"], counts["revoke"]) >= 8
    assert {kill["abandoned"] for kill in kills if kill["action"] == "issue"} == {0, 1}
    assert {kill["abandoned"] for kill in kills if kill["action"] == "issue many"} == {0, 3}


def test_a_kill_between_any_two_lines_of_ours_leaves_such_an_authority_too(tmp_path: Path) -> None:
    assert len(kills_of(tmp_path, KILLS)) >= 8


def test_a_full_disk_leaves_everything_as_it_was_and_the_next_issue_works(tmp_path: Path) -> None:
    alone = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    need_command("unshare")
    made = subprocess.run([*alone, "true"], capture_output=True, check=False)
    need(
        made.returncode == 0,
        "a mount namespace",
        "run the tests as root, in a machine that allows unshare(1)",
    )
    command = [*alone, sys.executable, "-m", "tests.ca.full_disk", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout)

    assert [end for end in ends if end["wrong"] or end["breaks"] or end["index differs"]] == []
    assert {end["ended"] for end in ends} == {"6", "done"}
    by_action = {action: [end for end in ends if end["action"] == action] for action in ACTIONS}
    assert all(tries[0]["ended"] == "6" and tries[-1]["ended"] == "done" for tries in by_action.values())
    assert all(tries[0]["lines"] == 0 for tries in by_action.values())
    assert not any(end["left over"] for end in ends)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


def test_two_processes_at_once_issue_without_a_repeated_number_or_a_torn_line(authority: Authority) -> None:
    folder = str(authority.layout.folder)
    crowd = [
        python("-m", "tests.ca.many", folder, node, uuid, str(EACH))
        for node, uuid in (("gpu-01", UUID), ("gpu-02", OTHER_UUID))
    ]
    serials = [line for process in crowd for line in output(process).splitlines()]

    after = reopened(authority)
    assert len(set(serials)) == 2 * EACH
    assert {record.serial for record in after.records()} == set(serials)
    assert {record.state(record.at) for record in after.records()} == {"issued"}
    assert after.entries == 1 + 2 * 2 * EACH
    assert all(after.load_issued(serial).serial == serial for serial in serials)
    assert issue(after).serial not in serials
    assert audit(after.layout).ok
    assert not differs(after.layout.folder)
    assert {file.suffix for file in after.layout.issued.iterdir()} == {".pem"}


def test_no_socket_is_ever_opened(tmp_path: Path) -> None:
    said = output(python("-c", _WITHOUT_SOCKETS, str(tmp_path)))

    assert said.split(maxsplit=1)[1].strip() == "[] []"
