"""The whole audit, read from the disk: where it breaks, and whether it is an older copy."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ca.audit import audit, unknown_heads
from ca.authority import Authority
from ca.ledger import NO_HASH
from inventory.errors import BadInput, Damaged
from tests.ca.material import NOW, OTHER_UUID, issue, new_authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = new_authority(tmp_path)
    issue(made)
    issue(made, node="gpu-02", vm_uuid=OTHER_UUID)
    return made


def test_a_whole_audit_is_found_so(authority: Authority) -> None:
    found = audit(authority.layout)

    assert (found.ok, found.head, found.entries) == (True, authority.head, 5)
    assert found.to_json() == {"ok": True, "head": authority.head, "entries": 5}
    found.refuse(authority.layout.folder)


Change = Callable[[list[bytes]], list[bytes]]
CHANGES: dict[str, tuple[Change, int]] = {
    "a word changed": (lambda lines: [lines[0], lines[1].replace(b"tester", b"nobody"), *lines[2:]], 3),
    "one taken out": (lambda lines: [*lines[:2], *lines[3:]], 3),
    "two swapped": (lambda lines: [*lines[:3], lines[4], lines[3]], 4),
    "no line at all": (lambda lines: [*lines[:2], b"hello", *lines[3:]], 3),
    "the first taken out": (lambda lines: lines[1:], 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_told_with_its_line_though_the_index_is_up_to_date(
    authority: Authority, change: str
) -> None:
    make, line = CHANGES[change]
    lines = make(authority.layout.audit.read_bytes().splitlines())
    authority.layout.audit.write_bytes(b"".join(each + b"\n" for each in lines))

    found = audit(authority.layout)

    assert (found.ok, found.entries) == (False, line - 1)
    assert found.to_json()["line"] == line
    with pytest.raises(Damaged, match=f"line {line} "):
        found.refuse(authority.layout.folder)


def test_a_missing_or_another_certificate_is_told_with_the_line_that_recorded_it(
    authority: Authority,
) -> None:
    first, second = authority.records()
    (authority.layout.issued / f"{first.serial}.pem").write_bytes(authority.issuing_pem)
    (authority.layout.issued / f"{second.serial}.pem").unlink()

    found = audit(authority.layout)

    assert [(each.line, each.why.split(".pem ")[1]) for each in found.breaks] == [
        (3, "is not the certificate that was recorded"),
        (5, "is missing, or no certificate"),
    ]
    assert found.head == authority.head


def test_another_root_is_told(authority: Authority) -> None:
    authority.layout.root.write_bytes(authority.issuing_pem)

    assert audit(authority.layout).to_json()["line"] == 1


def test_a_line_that_makes_no_sense_is_told(authority: Authority) -> None:
    authority._ledger.write([("revoked", {"serial": "ff", "why": ""})], now=NOW, actor="tester")  # noqa: SLF001 - as a faulty program would

    assert audit(authority.layout).to_json()["line"] == 6


def test_an_empty_or_missing_audit_is_told(authority: Authority) -> None:
    authority.layout.audit.write_bytes(b"")
    assert not audit(authority.layout).ok
    authority.layout.audit.unlink()
    assert audit(authority.layout).to_json()["line"] == 1


def test_an_unfinished_last_line_is_no_break(authority: Authority) -> None:
    with authority.layout.audit.open("ab") as file:
        file.write(b'{"seq":6,"pre')

    found = audit(authority.layout)

    assert (found.ok, found.unfinished) == (True, 13)


def test_every_head_that_was_ever_told_is_known_and_an_older_copy_knows_fewer(authority: Authority) -> None:
    head = authority.head
    older = authority.layout.audit.read_bytes()
    newer = issue(authority).audit_head
    assert newer == authority.head

    assert audit(authority.layout, expect=head.upper()).since == 2
    assert audit(authority.layout, expect=newer).since == 0
    assert audit(authority.layout, expect=NO_HASH).since == 7
    authority.layout.audit.write_bytes(older)
    found = audit(authority.layout, expect=newer)
    assert (found.ok, found.since, found.to_json()["line"]) == (False, None, None)
    with pytest.raises(Damaged, match="an older copy was put in its place"):
        found.refuse(authority.layout.folder)
    assert authority.check_heads([head, newer, head]) == (newer,)
    assert authority.check_heads([NO_HASH]) == ()


@pytest.mark.parametrize("head", ["", "00ff", "z" * 64])
def test_what_is_no_head_is_said_so(authority: Authority, head: str) -> None:
    with pytest.raises(BadInput, match="64 hex digits"):
        audit(authority.layout, expect=head)


def test_heads_of_an_audit_that_is_gone_are_not_called_unknown(tmp_path: Path) -> None:
    with pytest.raises(Damaged):
        unknown_heads(tmp_path / "audit.jsonl", ["00" * 31 + "11"])
