"""The index: quick answers from the audit, never believed against it, and made anew whenever it does not fit."""

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from ca.authority import Authority
from ca.index import Index, Which
from ca.index_file import writing
from ca.ledger import Ledger
from inventory.errors import Damaged
from tests.ca.filled import fill
from tests.ca.killed import differs
from tests.ca.material import NOW, OTHER_UUID, UUID, host_key, issue, new_authority, reopened
from tests.require import need, need_root

ROOT = Path(__file__).parents[2]
_AS_A_READER = """
import sys
from pathlib import Path
from ca.authority import Authority
from tests.ca.material import CHEAP, NOW
authority = Authority.open(Path(sys.argv[1]), now=NOW, kdf_floor=CHEAP)
print(len(authority.records()), authority.entries, [text for text in authority.warnings(NOW) if "index" in text])
"""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


def index_notes(authority: Authority) -> list[str]:
    return [text for text in authority.warnings(NOW) if "index.db" in text]


def test_the_index_is_private_and_lies_in_the_authoritys_folder(authority: Authority) -> None:
    assert authority.layout.index.stat().st_mode & 0o777 == 0o600
    authority.close()
    authority.layout.index.chmod(0o644)

    reopened(authority)

    assert authority.layout.index.stat().st_mode & 0o777 == 0o600


def test_an_index_that_was_deleted_is_made_anew_without_a_word(authority: Authority) -> None:
    first, second = issue(authority), issue(authority, node="gpu-02", vm_uuid=OTHER_UUID)
    authority.revoke(first.serial, reason="superseded", now=NOW, actor="tester")
    before = authority.records()
    authority.close()
    authority.layout.index.unlink()

    again = reopened(authority)

    assert again.records() == before
    assert [record.serial for record in before] == [first.serial, second.serial]
    assert index_notes(again) == []


def spoilt_text(file: Path) -> None:
    file.write_bytes(b"this is no database, whatever its name says" * 200)


def spoilt_middle(file: Path) -> None:
    with file.open("r+b") as out:
        out.seek(4096)
        out.write(b"\xff" * 8 * 4096)


def spoilt_version(file: Path) -> None:
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()


def spoilt_tables(file: Path) -> None:
    with sqlite3.connect(file) as db:
        db.execute("DROP TABLE host_keys")
        db.execute("DROP TABLE place")
    db.close()


def spoilt_place(file: Path) -> None:
    with sqlite3.connect(file) as db:
        db.execute("UPDATE place SET at = 'yesterday'")
    db.close()


def ahead(file: Path) -> None:
    with sqlite3.connect(file) as db:
        db.execute("UPDATE place SET seq = seq + 1, start = end, end = end + 100")
    db.close()


@pytest.mark.parametrize(
    "spoil", [spoilt_text, spoilt_middle, spoilt_version, spoilt_tables, spoilt_place, ahead]
)
def test_a_broken_or_foreign_index_is_made_anew_with_a_word(
    authority: Authority, spoil: Callable[[Path], None]
) -> None:
    serial = issue(authority).serial
    authority.close()
    spoil(authority.layout.index)

    again = reopened(authority)

    assert [record.serial for record in again.records()] == [serial]
    assert len(index_notes(again)) == 1
    assert "made anew" in index_notes(again)[0]
    assert issue(again).serial != serial
    again.close()
    assert index_notes(reopened(again)) == []
    assert not differs(again.layout.folder)


def test_an_index_of_another_authority_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    here, there = new_authority(tmp_path / "a"), new_authority(tmp_path / "b")
    serial = issue(here).serial
    for number in range(3):
        issue(there, node=f"gpu-1{number}", vm_uuid=None)
    for each in (here, there):
        each.close()
    shutil.copy(there.layout.index, here.layout.index)

    again = reopened(here)

    assert [record.serial for record in again.records()] == [serial]
    assert "is not the one that was last read" in index_notes(again)[0] or "shorter" in index_notes(again)[0]


def test_an_older_audit_in_its_place_is_told_and_its_records_are_what_it_says(authority: Authority) -> None:
    first = issue(authority)
    older = authority.layout.audit.read_bytes()
    second = issue(authority, node="gpu-02", vm_uuid=OTHER_UUID)
    authority.close()
    authority.layout.audit.write_bytes(older)

    again = reopened(authority)

    assert [record.serial for record in again.records()] == [first.serial]
    assert "the audit is shorter than when it was last read" in index_notes(again)[0]
    assert "--expect HEAD" in index_notes(again)[0]
    assert again.check_heads([first.audit_head or "", second.audit_head or ""]) == (second.audit_head,)


def test_a_swapped_audit_of_the_same_length_is_noticed(authority: Authority) -> None:
    issue(authority)
    older = authority.layout.audit.read_bytes()
    issue(authority)
    newer = authority.layout.audit.stat().st_size
    authority.close()
    shutil.copy(authority.layout.index, authority.layout.folder / "kept.db")
    authority.layout.audit.write_bytes(older)
    serial = issue(reopened(authority)).serial
    while authority.layout.audit.stat().st_size != newer:  # a serial number may have fewer digits
        authority.layout.audit.write_bytes(older)
        serial = issue(reopened(authority)).serial
    shutil.copy(authority.layout.folder / "kept.db", authority.layout.index)

    again = reopened(authority)

    assert serial in {record.serial for record in again.records()}
    assert "is not the one that was last read" in index_notes(again)[0]


def test_a_line_of_another_process_is_taken_up(authority: Authority) -> None:
    other = reopened(authority)
    serial = issue(other).serial

    assert issue(authority).serial != serial
    assert serial in {record.serial for record in authority.records()}
    other.installed(serial, now=NOW, actor="tester")
    assert authority.installed(serial, now=NOW, actor="tester").installed_at == NOW


def test_a_line_that_makes_no_sense_leaves_the_index_as_it_was(authority: Authority) -> None:
    issue(authority)
    size = authority.layout.audit.stat().st_size
    ledger = Ledger(authority.layout.audit)
    ledger.recover(now=NOW)
    ledger.append("installed", now=NOW, actor="tester", body={"serial": {"a": "list"}})

    with pytest.raises(Damaged, match="makes no sense"):
        reopened(authority)
    os.truncate(authority.layout.audit, size)
    assert index_notes(reopened(authority)) == []


def test_a_reader_is_stopped_by_nobody_and_stops_nobody(authority: Authority) -> None:
    serial = issue(authority).serial
    writer = Index(authority.layout.index, Ledger(authority.layout.audit))
    done = threading.Event()

    def write() -> None:
        with writing(writer._db):  # noqa: SLF001 - as another process would, in the midst of a change
            done.wait(120)

    thread = threading.Thread(target=write)
    thread.start()
    began = time.monotonic()
    records = reopened(authority).records()
    took = time.monotonic() - began
    done.set()
    thread.join()
    writer.close()

    assert [record.serial for record in records] == [serial]
    assert took < 60  # and so before the writer was done


def test_a_folder_that_cannot_be_written_is_read_all_the_same(authority: Authority) -> None:
    need_root()
    issue(authority)
    folder = authority.layout.folder
    authority.close()
    authority.layout.index.unlink()
    script = f'mount --bind "{folder}" "{folder}" && mount -o remount,bind,ro "{folder}" && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", _AS_A_READER, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    need(
        "mount:" not in done.stderr and "unshare:" not in done.stderr,
        "a mount namespace",
        "run the tests as root, in a machine that allows unshare(1)",
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 3 [")
    assert "could not be written" in done.stdout
    assert not authority.layout.index.exists()


def test_certificates_are_found_by_all_that_is_known_of_them(authority: Authority) -> None:
    serial = issue(
        authority, ticket_id="t1", host_keys=(host_key(1), host_key(2)), machine_id="aa" * 16
    ).serial
    issue(authority, node="gpu-02", vm_uuid=OTHER_UUID)
    index, record = authority._index, authority.find(serial)  # noqa: SLF001 - its questions are the matter

    assert record.fingerprint_sha256 is not None
    assert authority.find(record.fingerprint_sha256.upper()) == record
    assert [record] == [*index.of_node("gpu-01")] == [*index.of_ticket("t1")] == [*index.of_machine(UUID)]
    assert record.host_keys == (host_key(1), host_key(2))
    assert index.one(serial) == record
    assert index.newest_live("gpu-01") == record
    assert index.live_of("gpu-01", NOW) == (record,)
    assert index.live_of("gpu-01", record.not_after + timedelta(seconds=1)) == ()


def test_certificates_are_chosen_by_node_state_and_end(authority: Authority) -> None:
    serials = [issue(authority, node=f"gpu-0{number}", vm_uuid=None).serial for number in range(1, 5)]
    authority.revoke(serials[0], reason="superseded", now=NOW, actor="tester")
    authority.installed(serials[1], now=NOW, actor="tester")
    late = authority.find(serials[2]).not_after

    def chosen(which: Which, *, days: int = 0) -> list[str]:
        return [record.serial for record in authority.select(which, now=NOW + timedelta(days=days))]

    assert chosen(Which()) == serials
    assert chosen(Which(nodes=("gpu-02", "gpu-04", "gpu-99"))) == [serials[1], serials[3]]
    assert chosen(Which(states=("revoked",))) == serials[:1]
    assert chosen(Which(states=("issued", "installed"))) == serials[1:]
    assert chosen(Which(states=("expired",)), days=40) == serials[1:]
    assert chosen(Which(states=("issued",)), days=40) == []
    assert chosen(Which(ends_by=late)) == serials[1:]
    assert chosen(Which(ends_by=late - timedelta(seconds=1))) == []
    assert chosen(Which(ends_by=late + timedelta(days=99)), days=40) == []
    assert authority.count(NOW) == {"installed": 1, "issued": 2, "revoked": 1}
    assert authority.count(NOW + timedelta(days=40)) == {"expired": 3, "revoked": 1}


def test_no_question_of_a_command_reads_every_record(authority: Authority) -> None:
    fill(authority, 20)
    authority.close()
    again = reopened(authority)
    asked: list[str] = []
    db = again._index._db  # noqa: SLF001 - what it asks SQLite is the matter
    db.set_trace_callback(asked.append)
    issue(again, ticket_id="t1", host_keys=(host_key(1),), machine_id="aa" * 16)
    again.pinned("gpu-01")
    again.look_up("gpu-01")
    again.warnings(NOW)
    again.revoke(again.records("gpu-01")[0].serial, reason="superseded", now=NOW, actor="tester")
    [*again.select(Which(ends_by=NOW + timedelta(days=30)), now=NOW)]
    db.set_trace_callback(None)

    questions = [text for text in asked if text.lstrip().upper().startswith(("SELECT", "UPDATE"))]
    plans = [(row[3], text) for text in questions for row in db.execute(f"EXPLAIN QUERY PLAN {text}")]
    whole = [plan for plan in plans if plan[0].startswith("SCAN") and "place" not in plan[0]]
    assert len(questions) > 8
    assert [plan for plan in whole if "USING" not in plan[0]] == []
    assert [plan for plan in plans if " INDEXED BY " in plan[1] and "TEMP B-TREE" in plan[0]] == []


def test_the_time_to_open_and_to_act_does_not_grow_with_what_was_issued(tmp_path: Path) -> None:
    def took(count: int) -> float:
        (tmp_path / str(count)).mkdir()
        made = new_authority(tmp_path / str(count))
        serials = fill(made, count)
        made.close()
        reopened(made).close()
        times = []
        for serial in serials[:7]:
            began = time.process_time()
            again = reopened(made)
            again.revoke(serial, reason="superseded", now=NOW, actor="tester")
            again.close()
            times.append(time.process_time() - began)
        return sorted(times)[len(times) // 2]

    assert took(5_000) < 2 * took(50)
