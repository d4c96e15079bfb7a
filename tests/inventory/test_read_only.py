"""A record that may only be read here, as an auditor's copy: it can be looked at, and who writes is told why not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inventory.store import Store
from tests.inventory.records import node
from tests.require import need_command

LOOKS = (
    ("list",),
    ("show", "gpu-01"),
    ("history", "gpu-01"),
    ("check", "--only", "record"),
    ("export", "--format", "csv"),
)


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """What node-inventory answers to whom the file's permissions bind; they do not bind root as it is."""
    command = [str(Path(sys.executable).with_name("node-inventory")), *map(str, words)]
    if os.geteuid() == 0:
        need_command("setpriv")
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "copy" / "inventory.db"
    Store.open(f"sqlite:///{file}").add(node("gpu-01"), why="asked")
    file.chmod(0o444)
    file.parent.chmod(0o555)
    yield file
    file.parent.chmod(0o755)


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: str(look[0]))
def test_a_record_that_may_only_be_read_can_be_looked_at(record: Path, look: tuple[str, ...]) -> None:
    done = run(*look, "--inventory", f"sqlite:///{record}")

    assert done.returncode == 0, done.stderr
    assert look[0] in ("check", "history") or "gpu-01" in done.stdout
    assert [each.name for each in record.parent.iterdir()] == ["inventory.db"]


def test_a_page_is_made_of_it(record: Path, tmp_path: Path) -> None:
    done = run("report", "--html", tmp_path / "fleet.html", "--inventory", f"sqlite:///{record}")

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("bound", ["file", "folder"])
def test_who_writes_into_it_is_told_why_not(record: Path, tmp_path: Path, bound: str) -> None:
    (record if bound == "folder" else record.parent).chmod(0o755)
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(
        "nodes: [{name: gpu-02, uuid: 0e1a2b3c-0000-4000-8000-0000000000aa, address: 10.0.0.9}]\n"
    )
    done = run("import", nodes, "--inventory", f"sqlite:///{record}")

    assert done.returncode == 3, done.stderr
    assert f"the record {record} is not written to" in done.stderr
    assert "may only be read here" in done.stderr


def test_a_record_that_may_not_even_be_read_says_so(record: Path) -> None:
    record.chmod(0)
    done = run("list", "--inventory", f"sqlite:///{record}")

    assert done.returncode == 2
    assert "cannot be opened" in done.stderr
    assert "Permission denied" in done.stderr
