"""node-inventory check as a person types it: what is shown, what is said, how it ends, and that it only reads."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from inventory.command import ca_folder
from inventory.model import State
from inventory.store import Store
from inventory.ticket import Ticket
from tests.inventory.check_kit import as_text, node, typed
from tests.inventory.kit import receipt, ticket
from tests.require import need


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """One sound node, and gpu-02 whose ticket has expired."""
    file, now = tmp_path / "record.db", datetime.now(UTC).replace(microsecond=0)
    sound = replace(receipt(), made_at=now, not_after=now + timedelta(days=30))
    store = Store.open(f"sqlite:///{file}")
    store.add(node(State.IN_SERVICE, receipt=as_text(sound)), why="a test says so")
    late: Ticket = replace(
        ticket(),
        node="gpu-02",
        vm_uuid="0e1a2b3c-0000-4000-8000-000000000002",
        made_at=now - timedelta(days=4),
        expires=now - timedelta(days=1),
    )
    other = node(
        State.AWAITING_IDENTITY,
        name=late.node,
        uuid=late.vm_uuid,
        vmid=5001,
        address=None,
        host_keys=(replace(late.host_keys[0], base64=OTHER_KEY),),
        machine_id=None,
        ticket=as_text(late),
    )
    store.add(other, why="a test says so")
    return file


OTHER_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


def in_a_process(record: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("node-inventory")
    return subprocess.run(
        [program, "check", *arguments, "--inventory", f"sqlite:///{record}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(autouse=True)
def _no_authority_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relative paths below begin here; root's usual authority is outside of every home."""
    need(
        not os.path.lexists(ca_folder(None)), "no authority of this machine's own", "run them as another user"
    )
    monkeypatch.chdir(tmp_path)


def check(record: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return typed(*arguments, "--inventory", f"sqlite:///{record}")


def test_what_is_wrong_is_one_row_with_its_mend_and_the_run_ends_with_3(record: Path) -> None:
    before = record.read_bytes()

    done = in_a_process(record, "--only", "record")

    titles, row = done.stdout.splitlines()
    assert done.returncode == 3
    assert titles == "NODE\tSOURCE\tABOUT\tSEVERITY\tFOUND\tRECORDED\tMEND"
    assert row.split("\t")[:4] == ["gpu-02", "record", "ticket-expired", "wrong"]
    assert row.endswith("\tprovision-node gpu-02 --reissue-ticket")
    assert done.stderr == "1 wrong, 0 to be seen to: compared with record\n"
    assert record.read_bytes() == before


def test_where_all_agree_there_is_no_row_and_the_run_ends_with_0(record: Path) -> None:
    done = check(record, "gpu-01")

    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == (
        "all agree: compared with record; not with ledger, nodes, proxmox"
    )


def test_what_cannot_be_looked_at_is_told_also_to_the_quiet(record: Path) -> None:
    told = check(record, "gpu-01", "--quiet").stderr.splitlines()

    assert [line.partition(": ")[2].partition(":")[0] for line in told] == ["not checked"] * 3
    assert [line.split(": ")[2] for line in told] == ["ledger", "nodes", "proxmox"]
    assert "to have it: give --site FILE" in told[2]
    assert "run it on the CA host, or give --ca-dir DIR" in told[0]
    assert "give --ssh-key FILE" in told[1]


def test_the_json_is_one_document_with_everything(record: Path) -> None:
    done = check(record, "--json")

    document = json.loads(done.stdout)
    assert done.returncode == 3
    assert (document["schema"], document["ok"], document["checked"]) == (1, False, ["record"])
    assert [each["source"] for each in document["not_checked"]] == ["ledger", "nodes", "proxmox"]
    assert document["disagreements"][0] | {"found": ""} == {
        "node": "gpu-02",
        "about": "ticket-expired",
        "severity": "wrong",
        "found": "",
        "recorded": "awaiting-identity",
        "mend": "provision-node gpu-02 --reissue-ticket",
        "source": "record",
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gpu-[01-09]"], "not on record: gpu-03, gpu-04"),
        (["gpu-["], "is not a node set"),
        (["--only", "prxmox"], "there are record, ledger, nodes, proxmox"),
        (["--jump", "somewhere"], "--jump-host-key FILE"),
    ],
    ids=["unknown-node", "no-node-set", "unknown-source", "jump-without-key"],
)
def test_what_cannot_be_meant_is_wrong_usage(record: Path, arguments: list[str], words: str) -> None:
    done = check(record, *arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--only", "proxmox"], 2),
        (["--only", "nodes"], 2),
        (["--only", "ledger"], 2),
        (["--site", "faulty.yaml"], 2),
        (["--site", "absent.yaml"], 2),
        (["--ca-dir", "nowhere"], 2),
        (["--ca-dir", "."], 2),
    ],
    ids=lambda value: "-".join(value).strip("-") if isinstance(value, list) else str(value),
)
def test_a_source_that_was_asked_for_and_is_not_to_be_had_counts(
    record: Path, arguments: list[str], code: int
) -> None:
    (record.parent / "faulty.yaml").write_text("proxmox: {url: 7}\n")

    done = check(record, "gpu-01", *arguments)

    assert done.returncode == code, done.stderr
    assert "not checked: " in done.stderr
    assert "Traceback" not in done.stderr


def test_an_absent_extra_is_told_with_the_line_that_installs_it(record: Path) -> None:
    (record.parent / "ca").mkdir()
    without = "import sys; sys.modules.update(cryptography=None, proxmoxer=None)"
    arguments = [
        "check",
        "gpu-01",
        "--site",
        "x.yaml",
        "--ca-dir",
        "ca",
        "--inventory",
        f"sqlite:///{record}",
    ]

    done = subprocess.run(
        [sys.executable, "-c", f"{without}; from inventory.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        stdin=subprocess.DEVNULL,
    )

    told = [line for line in done.stderr.splitlines() if "passmuster[" in line]
    assert done.returncode == 2
    assert "cryptography is not installed" in told[0]
    assert "proxmoxer is not installed" in told[-1]
    assert "Traceback" not in done.stderr


def test_a_damaged_record_ends_with_6(tmp_path: Path) -> None:
    (tmp_path / "record.db").write_bytes(b"no database of ours, but long enough to be taken for one" * 20)

    done = check(tmp_path / "record.db")

    assert done.returncode == 6
    assert done.stdout == ""


def test_what_others_wrote_steers_no_terminal_and_breaks_no_line(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'record.db'}")
    store.add(node(State.IN_SERVICE, receipt="{\x1b[31m\t\n"), why="a test says so")

    done = check(tmp_path / "record.db", "--only", "record")

    assert len(done.stdout.splitlines()) == 2
    assert "\x1b" not in done.stdout
