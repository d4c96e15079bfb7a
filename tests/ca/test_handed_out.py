"""Receipts that others keep tell an older copy of the authority."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ca import handed_out
from ca.authority import Authority
from inventory.errors import BadInput, Damaged, Refused
from inventory.ticket import sign_receipt
from tests.ca.material import issue, new_authority
from tests.inventory.kit import keygen, receipt
from tests.require import need_command


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


def handed(authority: Authority, folder: Path, name: str, *, head: str | None = "now") -> Path:
    need_command("ssh-keygen")
    key = folder / "holder"
    if not key.exists():
        keygen(folder, "holder")
    seen = replace(receipt(), node=name, audit_head=authority.head if head == "now" else head)
    file = folder / "receipts" / f"{name}.receipt"
    file.parent.mkdir(exist_ok=True)
    file.write_text(sign_receipt(seen, key_file=key))
    return file


def test_an_older_copy_does_not_know_what_a_receipt_saw(authority: Authority, tmp_path: Path) -> None:
    issue(authority)
    first = handed(authority, tmp_path, "gpu-01")
    older = tmp_path / "older.jsonl"
    shutil.copy(authority.layout.audit, older)
    issue(authority)
    second = handed(authority, tmp_path, "gpu-02")
    handed(authority, tmp_path, "gpu-03", head=None)  # one that says nothing of it

    heads = handed_out.heads([tmp_path / "receipts"])
    assert set(heads.values()) == {str(first), str(second)}
    assert handed_out.unknown(authority.layout, heads) == []
    handed_out.refuse(authority.layout.folder, [])

    shutil.copy(older, authority.layout.audit)
    missing = handed_out.unknown(authority.layout, heads)
    assert missing == [str(second)]
    with pytest.raises(Damaged, match="older copy"):
        handed_out.refuse(authority.layout.folder, missing)


def test_what_cannot_be_compared_is_said_so(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BadInput, match="no NAME"):
        handed_out.heads([empty])
    with pytest.raises(BadInput, match="cannot be read"):
        handed_out.heads([tmp_path / "none.receipt"])
    (empty / "gpu-01.receipt").write_text("{}\n")
    with pytest.raises(Refused):
        handed_out.heads([empty])
