"""The audit where its file misbehaves: gone between two looks, or a disk that takes a line in two parts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ca.ledger import Ledger, Place, moment
from inventory.errors import Damaged
from tests.ca.material import NOW


def written(path: Path) -> Ledger:
    ledger = Ledger.create(path)
    ledger.append("failed", now=NOW, actor="tester", body={"serial": "1", "why": "x"})
    return ledger


def test_a_place_in_an_audit_that_is_gone_is_damage(tmp_path: Path) -> None:
    ledger = written(tmp_path / "audit.jsonl")
    place = ledger.place

    assert ledger.holds(place)
    assert ledger.holds(Place())
    (tmp_path / "audit.jsonl").unlink()
    with pytest.raises(Damaged, match="No such file"):
        ledger.holds(place)


@pytest.mark.parametrize(
    "text", ["2026-11-30T12:00:00", "2026-11-30T12:00:00+01:00", "2026-11-30", "20261130T120000Z"]
)
def test_a_time_in_another_form_is_none_of_ours(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        moment(text)
    assert moment("2026-11-30T12:00:00Z") == NOW


_WITHOUT_ROOM = """
import resource, sys
from pathlib import Path
from ca.ledger import Ledger
from inventory.errors import Damaged
from tests.ca.material import NOW
path = Path(sys.argv[1])
before = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, before[1]))
try:
    Ledger(path).recover(now=NOW)
except Damaged as error:
    print(error.why)
finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
"""


def test_a_line_that_cannot_be_ended_for_want_of_room_is_kept_and_ended_later(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    whole = written(path).path.read_bytes()
    path.write_bytes(whole[:-1])

    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_ROOM, str(path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )

    assert "could not be written: File too large" in done.stdout
    assert path.read_bytes() == whole[:-1]
    Ledger(path).recover(now=NOW)
    assert path.read_bytes() == whole


def test_the_size_of_an_audit_that_is_gone_is_told_as_damage(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="cannot be relied on"):
        Ledger(tmp_path / "audit.jsonl").size()
