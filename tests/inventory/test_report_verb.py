"""`node-inventory report` as a user meets it, over a real record."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from inventory.errors import ExitCode
from inventory.model import Node, State
from inventory.report import gather
from inventory.store import Store

from . import fleets
from .exports import run
from .fleets import NOW
from .test_report_page import seen


class Clock:
    """A clock that stands where it was put."""

    def __init__(self) -> None:
        self.now = NOW - timedelta(days=9)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A record of three nodes: gpu-01 serves and passed, gpu-02 failed, gpu-03 waits."""
    url, clock = f"sqlite:///{tmp_path / 'record.db'}", Clock()
    store = Store.open(url, clock=clock)
    for name, goal in (
        ("gpu-01", State.IN_SERVICE),
        ("gpu-02", State.VERIFY_FAILED),
        ("gpu-03", State.AWAITING_IDENTITY),
    ):
        road = [state for state in fleets.ROADS[goal] if state is not State.IN_SERVICE or goal is state]
        node = store.add(Node(name, State.PLANNED), why="<b>asked for</b>")
        for state in road[1:]:
            clock.now += timedelta(hours=3)
            node = store.save(replace(node, state=state, reason=fleets.REASONS.get(state)), why="so")
        if goal is not State.AWAITING_IDENTITY:
            passed = goal is State.IN_SERVICE
            store.keep_report(name, fleets.report(name, clock.now, passed=passed).document, passed=passed)
    return url


def test_the_page_is_written_and_its_file_is_the_data(url: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.html"
    done = run("report", "--html", str(file), "--title", "Hall 2 & 3", url=url)

    assert (done.returncode, done.stdout) == (0, f"{file}\n"), done.stderr
    assert "3 nodes, 3 of them with a section" in done.stderr
    text = file.read_text()
    found = seen(text.encode())
    assert {"node-gpu-01", "node-gpu-02", "node-gpu-03"} <= set(found.ids)
    assert "<h1>Hall 2 &amp; 3</h1>" in text
    assert "&lt;b&gt;asked for&lt;/b&gt;" in text
    assert "rank 5 noticed after 412 ms" in text


def test_named_nodes_get_their_sections_and_the_fleet_stays_whole(url: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.html"
    done = run("report", "--html", str(file), "gpu-[02-03]", "--json", url=url)

    told = json.loads(done.stdout)
    assert told == {
        "schema": 1,
        "ok": True,
        "file": str(file),
        "bytes": file.stat().st_size,
        "nodes": 3,
        "sections": ["gpu-02", "gpu-03"],
    }
    text = file.read_text()
    assert 'id="node-gpu-01"' not in text
    assert "gpu-01" in text
    assert "2 nodes of 3 have a section" in text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("gpu-[03-05]",), "not on record: gpu-04, gpu-05"),
        (("gpu-[5",), "is not a node set"),
    ],
)
def test_names_that_are_wrong_are_refused_before_anything_is_written(
    url: str, tmp_path: Path, arguments: tuple[str, ...], why: str
) -> None:
    file = tmp_path / "fleet.html"
    done = run("report", "--html", str(file), *arguments, url=url)

    assert done.returncode == ExitCode.USAGE
    assert why in done.stderr
    assert not file.exists()


def test_a_place_that_cannot_be_written_is_named(url: str, tmp_path: Path) -> None:
    done = run("report", "--html", str(tmp_path / "none" / "fleet.html"), url=url)

    assert done.returncode == ExitCode.USAGE
    assert "none/fleet.html was not written" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_record_is_read_as_it_is(url: str) -> None:
    store = Store.open(url)
    rows = {row.summary.name: row for row in gather.rows(store)}

    assert list(rows) == ["gpu-01", "gpu-02", "gpu-03"]
    for name, row in rows.items():
        assert row.since == store.history(name)[-1].at
    assert rows["gpu-01"].last is not None
    assert rows["gpu-01"].last.passed
    assert rows["gpu-02"].last is not None
    assert rows["gpu-02"].last.failed == ("killed-leader", "fabric ib0 MTU")
    assert rows["gpu-03"].last is None
    (whole,) = gather.wholes(store, ["gpu-02"])
    assert whole.events == store.history("gpu-02")
    assert len(whole.reports) == 1
