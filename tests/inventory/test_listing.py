"""node-inventory list and history: which nodes, in which order, and in bounded memory."""

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from inventory.model import State
from inventory.store import Store
from inventory.ticket import sign_receipt
from tests.inventory.kit import keygen, receipt, ticket
from tests.inventory.records import moved, node


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """What node-inventory answers."""
    program = Path(sys.executable).with_name("node-inventory")
    return subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> str:
    """gpu-01 to gpu-12: four to be made, four that wait for the holder, four in service for three days to come."""
    record = Store.open(url)
    holder = keygen(tmp_path, "holder")
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
    for number in range(1, 13):
        made = record.add(
            node(f"gpu-{number:02}", uuid=f"{number:08}-0000-4000-8000-000000000000"), why="asked"
        )
        if number > 4:
            made = moved(record, replace(made, ticket="t"), State.AWAITING_IDENTITY)
        if number > 8:
            text = sign_receipt(
                replace(receipt(), node=made.name, vm_uuid=str(made.uuid), not_after=soon), key_file=holder
            )
            made = moved(record, made, State.ONBOARDING)
            made = moved(record, replace(made, receipt=text), State.AWAITING_VERIFICATION)
            moved(record, made, State.VERIFYING, State.IN_SERVICE)
    return url


def names(url: str, *words: str) -> list[str]:
    """The names that `list` gives, by JSON and by lines the same."""
    told = run("list", *words, "--inventory", url, "--json")
    assert told.returncode == 0, told.stderr
    found: list[dict[str, Any]] = json.loads(told.stdout)["nodes"]
    lines = run("list", *words, "--inventory", url).stdout.splitlines()
    assert [line.split("\t")[0] for line in lines[1:]] == [each["name"] for each in found]
    return [each["name"] for each in found]


def numbered(*numbers: int) -> list[str]:
    return [f"gpu-{number:02}" for number in numbers]


def test_nodes_are_listed_by_name_state_turn_and_what_ends_soon(fleet: str) -> None:
    assert names(fleet) == numbered(*range(1, 13))
    assert names(fleet, "gpu-[03-05]", "gpu-99") == numbered(3, 4, 5)
    assert names(fleet, "--state", "in-service", "--state", "provisioning") == numbered(
        1, 2, 3, 4, 9, 10, 11, 12
    )
    assert names(fleet, "--next", "security") == numbered(5, 6, 7, 8)
    assert names(fleet, "--next", "nobody", "gpu-[01-09]") == numbered(9)
    assert names(fleet, "--expiring", "4d") == numbered(9, 10, 11, 12)
    assert names(fleet, "--expiring", "2d") == []


def test_a_list_tells_whose_move_it_is_and_when_certificates_end(fleet: str) -> None:
    (waiting, serving) = json.loads(run("list", "gpu-08", "gpu-09", "--inventory", fleet, "--json").stdout)[
        "nodes"
    ]

    assert (waiting["next"], waiting["command"]) == ("security", "onboard-node gpu-08")
    assert (waiting["not_after"], serving["next"], serving["command"]) == (None, "nobody", None)
    assert serving["not_after"].endswith("Z")


@pytest.mark.parametrize(
    "words", [["--expiring", "soon"], ["gpu-[9-1]"], ["--state", "lost"], ["--next", "me"]]
)
def test_what_is_not_understood_is_wrong_usage(fleet: str, words: list[str]) -> None:
    done = run("list", *words, "--inventory", fleet)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_empty_record_is_an_empty_document_and_a_word(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"

    assert json.loads(run("list", "--inventory", url, "--json").stdout) == {"schema": 1, "nodes": []}
    assert "no node is on record" in run("list", "--inventory", url).stderr


def test_a_name_in_bytes_that_are_no_text_is_not_on_record(fleet: str) -> None:
    program = Path(sys.executable).with_name("node-inventory")
    done = subprocess.run(
        [program, "show", b"gpu-\xff", "--inventory", fleet], capture_output=True, check=False, timeout=600
    )

    assert done.returncode == 2
    assert b"is not on record" in done.stderr


def test_pages_of_a_large_record_come_whole_and_in_order(url: str) -> None:
    record = Store.open(url)
    with record._database.begin() as connection:  # noqa: SLF001 - a thousand saves would take long
        from inventory.store import rows, tables

        all_of_them = [
            replace(node(f"n{number:05}", uuid=f"u{number}"), version=1, ticket=ticket().id)
            for number in range(1201)
        ]
        connection.execute(tables.nodes.insert(), [rows.row_of(each) for each in all_of_them])
        connection.execute(
            tables.events.insert(),
            [
                {"node": each.name, "at": "2026-11-30T12:00:00+00:00", "actor": "a", "host": "h", "why": "w"}
                | {"before": None, "after": each.state}
                for each in all_of_them
            ],
        )

    wanted = [f"n{number:05}" for number in range(1201)]
    assert [each.name for each in record.summaries()] == wanted
    assert [each.name for each in record.each(names=reversed(wanted))] == wanted
    assert [name for name, _ in record.events()] == wanted
    assert [each.name for each in record.summaries(states=[State.PROVISIONING])] == wanted


def test_everything_that_was_typed_wrongly_is_told_at_once_with_what_was_meant(fleet: str) -> None:
    done = run(
        *("list", "gpu-[", "--state", "in-servic", "--state", "xyzzy", "--next", "infr"),
        *("--expiring", "3x", "--inventory", fleet),
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no state 'in-servic' (did you mean in-service?)" in done.stderr
    assert "there is no state 'xyzzy'; there are planned, " in done.stderr
    assert "there is no turn 'infr' (did you mean infra?)" in done.stderr
    assert "'3x' is not a span of time" in done.stderr
    assert "'gpu-[' is not a node set" in done.stderr


def test_a_name_that_is_not_on_record_is_told_and_one_that_another_filter_took_is_not(fleet: str) -> None:
    done = run("list", "gpu-01", "gpu-[77-99]", "--state", "in-service", "--inventory", fleet)

    assert done.returncode == 0
    assert done.stdout == ""
    assert "warning: not on record: gpu-77, gpu-78, " in done.stderr
    assert "and 15 more" in done.stderr
    assert "gpu-01" not in done.stderr


def test_an_empty_record_is_named_so_that_a_mistyped_place_shows(tmp_path: Path) -> None:
    done = run("list", "--inventory", f"sqlite:///{tmp_path}/inventroy.db")

    assert (done.returncode, done.stdout) == (0, "")
    assert f"no node is on record in {tmp_path}/inventroy.db" in done.stderr
