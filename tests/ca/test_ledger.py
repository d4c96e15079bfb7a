"""The audit: hash-chained lines, verified whenever they are read, mended only where a crash tore the last one."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ca.ledger import NO_HASH, Ledger
from inventory.errors import Damaged, Refused
from tests.ca.material import NOW

_ON_A_FULL_DISK = """
import resource, sys
from datetime import UTC, datetime
from pathlib import Path
from ca.ledger import Ledger
from inventory.errors import Damaged
path = Path(sys.argv[1])
ledger = Ledger(path)
ledger.recover(now=datetime.now(UTC))
limit = path.stat().st_size + 20
before = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
try:
    ledger.append("intent", now=datetime.now(UTC), actor="me", body={"serial": "1"})
except Damaged as error:
    print(error.why)
    sys.exit(int(error.exit_code))
finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
"""


def written(path: Path, lines: int = 3) -> Ledger:
    ledger = Ledger.create(path)
    for number in range(lines):
        ledger.append("failed", now=NOW, actor="tester", body={"serial": f"{number:x}", "why": "tëst"})
    return ledger


def read(path: Path) -> Ledger:
    ledger = Ledger(path)
    ledger.refresh()
    return ledger


def test_lines_come_back_as_they_were_written(tmp_path: Path) -> None:
    ledger = written(tmp_path / "audit.jsonl")

    again = read(tmp_path / "audit.jsonl")

    assert again.entries == ledger.entries
    assert [entry.seq for entry in again.entries] == [1, 2, 3]
    assert again.entries[1].body == {"serial": "1", "why": "tëst"}
    assert json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[0])["prev"] == NO_HASH
    assert (
        json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[2])["prev"] == ledger.entries[1].sha256
    )


def test_the_file_is_private_and_never_made_twice(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "audit.jsonl")

    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        Ledger.create(tmp_path / "audit.jsonl")


def test_lines_of_another_process_are_taken_up(tmp_path: Path) -> None:
    here = written(tmp_path / "audit.jsonl")
    there = read(tmp_path / "audit.jsonl")
    there.append("failed", now=NOW, actor="other", body={})

    here.append("failed", now=NOW, actor="tester", body={})

    assert [entry.actor for entry in read(tmp_path / "audit.jsonl").entries[-2:]] == ["other", "tester"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)
@given(data=st.data())
def test_a_change_of_any_byte_is_noticed(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "audit.jsonl"
    path.unlink(missing_ok=True)
    head = written(path).head
    text = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] = data.draw(st.integers(0, 255).filter(lambda value: value != text[at]))
    path.write_bytes(text)

    try:
        ledger = Ledger(path)
        rest = ledger.refresh()
    except Damaged:
        return
    # Where the last line was changed only whoever kept the head can notice; where its newline was, `rest` says so.
    assert ledger.head != head or rest


CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "the first taken out": lambda lines: lines[1:],
    "one taken out": lambda lines: [lines[0], lines[2]],
    "two swapped": lambda lines: [lines[1], lines[0], lines[2]],
    "one repeated": lambda lines: [lines[0], lines[0], *lines[1:]],
    "an empty one put in": lambda lines: [lines[0], b"", *lines[1:]],
    "a word changed": lambda lines: [lines[0], lines[1].replace(b'"1"', b'"7"'), lines[2]],
    "a deep one": lambda lines: [lines[0], b"[" * 100_000, lines[2]],
    "an empty object": lambda lines: [lines[0], b"{}", lines[2]],
    "one added": lambda lines: [*lines, b"more"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_lines_taken_out_put_in_or_swapped_are_noticed(tmp_path: Path, change: str) -> None:
    path = tmp_path / "audit.jsonl"
    written(path)
    lines = CHANGES[change](path.read_bytes().splitlines())
    path.write_bytes(b"".join(line + b"\n" for line in lines))

    with pytest.raises(Damaged, match="cannot be relied on"):
        read(path)


def test_an_audit_that_became_shorter_is_noticed(tmp_path: Path) -> None:
    ledger = written(tmp_path / "audit.jsonl")
    lines = (tmp_path / "audit.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "audit.jsonl").write_bytes(b"".join(lines[:-1]))

    with pytest.raises(Damaged, match="shorter"):
        ledger.refresh()


def test_a_missing_audit_is_damage(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="No such file"):
        read(tmp_path / "audit.jsonl")


def test_every_torn_last_line_is_mended_and_nothing_before_it_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, lines=3)
    whole = path.read_bytes()
    start = whole[:-1].rindex(b"\n") + 1
    for end in (*range(start + 1, start + 12), *range(start + 12, len(whole) - 1, 9), len(whole) - 2):
        path.write_bytes(whole[:end])
        ledger = Ledger(path)

        ledger.recover(now=NOW)

        assert [entry.kind for entry in read(path).entries] == ["failed", "failed", "recovered"]
        assert ledger.entries[-1].body == {"cut_bytes": end - start}


def test_a_whole_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    head = written(path).head
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])

    Ledger(path).recover(now=NOW)

    assert path.read_bytes() == whole
    assert read(path).head == head


@pytest.mark.parametrize("tail", [b"\0\0\0\0", b"rm -rf", b'{"seq":9,"prev":"0"}', b'{"Seq":4'])
def test_anything_else_after_the_last_line_is_damage(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "audit.jsonl"
    written(path)
    with path.open("ab") as file:
        file.write(tail)

    with pytest.raises(Damaged):
        Ledger(path).recover(now=NOW)
    assert path.read_bytes().endswith(tail)


def test_reading_alone_never_changes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path)
    with path.open("ab") as file:
        file.write(b'{"seq":4,"pre')
    before = path.read_bytes()

    assert Ledger(path).refresh() == b'{"seq":4,"pre'
    assert path.read_bytes() == before


def test_nothing_is_appended_to_a_torn_line(tmp_path: Path) -> None:
    ledger = written(tmp_path / "audit.jsonl")
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(b'{"seq":4')

    with pytest.raises(ValueError, match="recover"):
        ledger.append("failed", now=NOW, actor="tester", body={})


def test_a_clock_well_before_the_last_line_is_refused(tmp_path: Path) -> None:
    ledger = written(tmp_path / "audit.jsonl")

    ledger.append("failed", now=NOW - timedelta(minutes=5), actor="tester", body={})
    with pytest.raises(Refused, match="clock"):
        ledger.append("failed", now=NOW - timedelta(hours=1), actor="tester", body={})


def test_a_line_of_a_later_version_stops_an_earlier_one(tmp_path: Path) -> None:
    line = b'{"seq":1,"prev":"%s","at":"2026-11-30T12:00:00Z","kind":"rumour","actor":"a","body":{}}\n'
    (tmp_path / "audit.jsonl").write_bytes(line % NO_HASH.encode())

    with pytest.raises(Damaged, match="this version does not know"):
        read(tmp_path / "audit.jsonl")


def test_an_unknown_kind_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a kind"):
        written(tmp_path / "audit.jsonl").append("rumour", now=NOW, actor="tester", body={})


def test_a_full_disk_leaves_the_audit_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path)
    before = path.read_bytes()

    done = subprocess.run(
        [sys.executable, "-c", _ON_A_FULL_DISK, str(path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert (done.returncode, done.stderr) == (6, "")
    assert "could not be written" in done.stdout
    assert path.read_bytes() == before


def test_an_audit_that_cannot_be_opened_for_writing_stops_everything(tmp_path: Path) -> None:
    ledger = written(tmp_path / "audit.jsonl")
    (tmp_path / "audit.jsonl").rename(tmp_path / "away")
    (tmp_path / "audit.jsonl").mkdir()

    with pytest.raises(Damaged):
        ledger.append("failed", now=NOW, actor="tester", body={})
    assert list((tmp_path / "audit.jsonl").iterdir()) == []
