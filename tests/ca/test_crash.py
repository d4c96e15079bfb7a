"""Crashes, crowds and the network: what really happens in other processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ca.authority import Authority
from tests.ca.material import OTHER_UUID, UUID, issue, new_authority, reopened

ROOT = Path(__file__).parents[2]

_WITHOUT_SOCKETS = """
import sys
from pathlib import Path

touched = []

def refuse(event, arguments):
    if event.startswith("socket."):
        touched.append(event)
        raise PermissionError(event)

sys.addaudithook(refuse)
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
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return text


def test_a_kill_at_any_step_leaves_an_authority_that_knows_what_could_have_left(tmp_path: Path) -> None:
    kills = json.loads(output(python("-m", "tests.ca.killed", str(tmp_path))))

    assert len(kills) >= 8  # intent, certificate, its folder, issued: each before and after
    assert [kill for kill in kills if kill["stored but unknown"] or kill["open"]] == []
    abandoned = [kill for kill in kills if kill["before"] == "open"]
    assert abandoned
    assert all(kill["warned"] and kill["after"] == "failed" for kill in abandoned)
    assert {kill["why"] for kill in abandoned} == {"abandoned: the process ended between intent and issue"}
    assert {kill["before"] for kill in kills} >= {"open", "issued"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


def test_two_processes_at_once_issue_without_a_repeated_number_or_a_torn_line(authority: Authority) -> None:
    folder = str(authority.layout.folder)
    crowd = [
        python("-m", "tests.ca.many", folder, node, uuid, "8")
        for node, uuid in (("gpu-01", UUID), ("gpu-02", OTHER_UUID))
    ]
    serials = [line for process in crowd for line in output(process).splitlines()]

    after = reopened(authority)
    assert len(set(serials)) == 16
    assert {record.serial for record in after.records()} == set(serials)
    assert {record.state(record.at) for record in after.records()} == {"issued"}
    assert after.entries == 1 + 2 * 16
    assert all(after.load_issued(serial).serial == serial for serial in serials)
    assert issue(after).serial not in serials


def test_no_socket_is_ever_opened(tmp_path: Path) -> None:
    said = output(python("-c", _WITHOUT_SOCKETS, str(tmp_path)))

    assert said.split(maxsplit=1)[1].strip() == "[] []"
