"""A backup: whole or not at all, private, and of one instant; and what comes back from it."""

import errno
import hashlib
import json
import os
import stat
import subprocess
import sys
import tarfile
import threading
from datetime import timedelta
from pathlib import Path

import pytest

import ca.backup
from ca.authority import Authority
from ca.backup import MANIFEST, Backup, back_up
from ca.record import Standing
from ca.restore import Restored, restore
from inventory.errors import BadInput, Refused
from inventory.files import lock
from tests.ca.material import NOW, OTHER_UUID, UUID, issue, kinds, new_authority, reopened

ROOT = Path(__file__).parents[2]
LATER = NOW + timedelta(days=3)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = new_authority(tmp_path)
    issue(made)
    return made


def backup(authority: Authority, out: Path) -> Backup:
    return back_up(authority.layout, out, now=NOW, actor="tester")


def bring_back(made: Backup, ca_dir: Path, expect: str | None = None) -> Restored:
    return restore(made.file, ca_dir, expect=expect, now=LATER, actor="tester")


def names_in(file: Path) -> list[str]:
    with tarfile.open(file) as tar:
        return tar.getnames()


def test_a_backup_holds_everything_but_the_root_key_and_what_is_made_anew(
    authority: Authority, tmp_path: Path
) -> None:
    folder = authority.layout.folder
    (authority.layout.receipts / "gpu-01.receipt").write_text("signed")
    (folder / ".issuing.pem.0123").write_text("torn")
    assert all((folder / name).exists() for name in ("root-take-away/root-key.json", "index.db", "lock"))

    made = backup(authority, tmp_path / "ca.tar")

    serial = authority.records()[0].serial
    assert sorted(names_in(made.file)) == sorted(
        [
            *("audit.jsonl", "issuing-key.json", "issuing.pem", "manifest.json", "policy.yaml", "root.pem"),
            *("receipts/gpu-01.receipt", f"issued/{serial}.pem"),
        ]
    )
    assert made.files == 6
    assert made.size == made.file.stat().st_size


def test_the_audit_tells_of_a_backup_and_the_backup_holds_that_very_line(
    authority: Authority, tmp_path: Path
) -> None:
    made = backup(authority, tmp_path / "ca.tar")

    last = authority.layout.audit.read_bytes().splitlines()[-1]
    with tarfile.open(made.file) as tar:
        audit, manifest = (tar.extractfile(name) for name in ("audit.jsonl", MANIFEST))
        assert audit is not None
        assert manifest is not None
        assert audit.read() == authority.layout.audit.read_bytes()
        told = json.loads(last)
        assert told["body"] == {
            "file": str(tmp_path / "ca.tar"),
            "manifest_sha256": hashlib.sha256(manifest.read()).hexdigest(),
        }
    assert (told["kind"], told["actor"], told["at"]) == ("backup", "tester", "2026-11-30T12:00:00Z")
    assert made.head == hashlib.sha256(last).hexdigest() == reopened(authority).head
    assert made.entries == 4


def test_a_backup_is_private_also_where_the_umask_is_not(authority: Authority, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = backup(authority, tmp_path / "ca.tar")
    finally:
        os.umask(before)

    assert stat.S_IMODE(made.file.stat().st_mode) == 0o600


def test_a_folder_gets_a_file_named_by_the_time_and_nothing_else(
    authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "usb").mkdir()

    made = backup(authority, tmp_path / "usb")

    assert made.file == tmp_path / "usb" / "node-ca-20261130T120000Z.tar"
    assert list((tmp_path / "usb").iterdir()) == [made.file]


def test_a_backup_never_overwrites_and_never_goes_into_the_authority(
    authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    lines = kinds(authority)

    for taken in ("there", "dangling"):
        with pytest.raises(Refused, match="never overwritten"):
            backup(authority, tmp_path / taken)
    for inside in (authority.layout.folder, authority.layout.issued / "a.tar"):
        with pytest.raises(BadInput, match="own folder"):
            backup(authority, inside)
    with pytest.raises(BadInput, match="is not a folder"):
        backup(authority, tmp_path / "absent" / "ca.tar")
    assert kinds(authority) == lines
    assert (tmp_path / "there").read_text() == "mine"


@pytest.mark.parametrize("odd", ["pipe", "link to a folder", "backslash", "huge"])
def test_what_no_restore_would_take_is_told_when_the_backup_is_made(
    authority: Authority, tmp_path: Path, odd: str
) -> None:
    place = authority.layout.folder / ("back\\slash" if odd == "backslash" else "odd")
    if odd == "pipe":
        os.mkfifo(place)
    elif odd == "link to a folder":
        place.symlink_to(tmp_path)
    else:
        with place.open("wb") as file:
            file.truncate(ca.backup.MAX_FILE + 1 if odd == "huge" else 1)

    with pytest.raises(Refused) as caught:
        backup(authority, tmp_path / "ca.tar")

    assert caught.value.what == "no backup was made"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca", "policy.yaml"]
    assert "backup" not in kinds(authority)


def test_a_link_to_a_file_is_kept_as_the_file(authority: Authority, tmp_path: Path) -> None:
    moved = authority.layout.policy.rename(tmp_path / "moved.yaml")
    authority.layout.policy.symlink_to(moved)

    bring_back(backup(authority, tmp_path / "ca.tar"), tmp_path / "again")

    assert (tmp_path / "again" / "policy.yaml").read_bytes() == moved.read_bytes()
    assert not (tmp_path / "again" / "policy.yaml").is_symlink()


def test_a_backup_waits_for_whoever_changes_the_authority(authority: Authority, tmp_path: Path) -> None:
    worker = threading.Thread(target=backup, args=(authority, tmp_path / "ca.tar"))
    with lock(authority.layout.lock, timeout_s=1):
        worker.start()
        worker.join(0.3)
        assert worker.is_alive()
        assert reopened(authority).records()  # who only reads is not stopped
        assert not (tmp_path / "ca.tar").exists()
    worker.join(120)

    assert (tmp_path / "ca.tar").exists()


_WITH_LITTLE_ROOM = """
import resource, sys
from pathlib import Path
from ca.backup import back_up
from ca.layout import Layout
from inventory.errors import MusterError
from tests.ca.material import NOW
before = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), before[1]))
try:
    back_up(Layout(Path(sys.argv[1])), Path(sys.argv[2]), now=NOW, actor="tester")
except MusterError as error:
    print(error.what, "/", error.why)
    sys.exit(int(error.exit_code))
finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
"""


@pytest.mark.parametrize("room", [6_000, 20_000, 40_000], ids=["files", "audit", "margin"])
def test_a_disk_without_room_gets_no_part_of_a_backup_and_the_audit_no_line(
    authority: Authority, tmp_path: Path, room: int
) -> None:
    (tmp_path / "usb").mkdir()

    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _WITH_LITTLE_ROOM,
            str(authority.layout.folder),
            str(tmp_path / "usb"),
            str(room),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith("no backup was made / ")
    assert list((tmp_path / "usb").iterdir()) == []
    assert "backup" not in kinds(authority)
    assert backup(authority, tmp_path / "usb").file.exists()


def test_a_disk_without_links_gets_its_backup_all_the_same(authority: Authority, tmp_path: Path) -> None:
    def unable(_beside: Path, _target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    made = back_up(authority.layout, tmp_path / "ca.tar", now=NOW, actor="tester", link=unable)

    assert bring_back(made, tmp_path / "again", made.head).certificates == 1


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_not_overwritten(
    authority: Authority,
    tmp_path: Path,
    links: bool,  # noqa: FBT001
) -> None:
    def late(beside: Path, target: Path) -> None:
        target.write_text("mine")
        if links:
            os.link(beside, target)
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with pytest.raises(Refused, match="no backup was made"):
        back_up(authority.layout, tmp_path / "ca.tar", now=NOW, actor="tester", link=late)

    assert (tmp_path / "ca.tar").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca", "ca.tar", "policy.yaml"]


# What comes back


def test_a_restored_authority_knows_everything_and_goes_on(authority: Authority, tmp_path: Path) -> None:
    made = backup(authority, tmp_path / "ca.tar")

    told = bring_back(made, tmp_path / "new" / "ca", made.head)

    again = Authority.open(tmp_path / "new" / "ca", now=LATER, kdf_floor=authority._kdf_floor)  # noqa: SLF001
    old = authority.records()[0]
    assert again.records() == authority.records()
    assert again.load_issued(old.serial).chain_pem == authority.load_issued(old.serial).chain_pem
    assert kinds(again) == ["init", "intent", "issued", "backup", "restored"]
    assert told.head == again.head
    assert (told.since_expected, told.certificates, told.entries) == (0, 1, 4)
    assert issue(again, node="gpu-02", vm_uuid=OTHER_UUID, now=LATER).serial
    with pytest.raises(Refused, match="the name is held"):
        issue(again, vm_uuid=OTHER_UUID, now=LATER)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca", "ca.tar", "new", "policy.yaml"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["ca"]


def test_modes_and_empty_folders_come_back(authority: Authority, tmp_path: Path) -> None:
    bring_back(backup(authority, tmp_path / "ca.tar"), tmp_path / "again")

    again = tmp_path / "again"
    modes = {
        str(path.relative_to(again)): stat.S_IMODE(path.stat().st_mode)
        for path in again.rglob("*")
        if not path.name.startswith("index.db")
    }
    serial = authority.records()[0].serial
    assert modes == {
        **dict.fromkeys(["audit.jsonl", "issuing-key.json", "policy.yaml"], 0o600),
        **dict.fromkeys(["root.pem", "issuing.pem", f"issued/{serial}.pem"], 0o644),
        **dict.fromkeys(["issued", "receipts"], 0o700),
    }
    assert stat.S_IMODE(again.stat().st_mode) == 0o700


def test_an_older_backup_is_noticed_by_a_newer_head(authority: Authority, tmp_path: Path) -> None:
    early = reopened(authority).head
    made = backup(authority, tmp_path / "ca.tar")
    lost = issue(reopened(authority))

    with pytest.raises(Refused) as caught:
        bring_back(made, tmp_path / "again", reopened(authority).head)
    assert "older" in caught.value.why
    assert "2026-11-30T12:00:00Z" in caught.value.why
    assert not (tmp_path / "again").exists()

    told = bring_back(made, tmp_path / "again", early)
    assert told.since_expected == 1
    again = Authority.open(tmp_path / "again", now=LATER)
    with pytest.raises(BadInput):
        again.find(lost.serial)
    advice = "\n".join(told.advice(LATER))
    assert "3 days ago" in advice
    assert "valid until 2027-01-02T12:00:00Z" in advice  # thirty days from the restoring, at the latest
    assert "was not checked" not in advice


def test_without_a_head_the_holder_is_told_what_was_not_checked(authority: Authority, tmp_path: Path) -> None:
    told = bring_back(backup(authority, tmp_path / "ca.tar"), tmp_path / "again")

    assert told.since_expected is None
    assert "was not checked" in "\n".join(told.advice(NOW))
    assert "0 hours ago" in "\n".join(told.advice(NOW))


def test_a_rehearsed_restore_checks_everything_and_leaves_nothing(
    authority: Authority, tmp_path: Path
) -> None:
    made = backup(authority, tmp_path / "ca.tar")
    there = sorted(tmp_path.iterdir())

    told = restore(made.file, tmp_path / "again", expect=None, now=NOW, actor="tester", rehearse=True)

    assert told.entries == made.entries
    assert sorted(tmp_path.iterdir()) == there


def test_nothing_is_restored_over_anything_or_by_a_clock_that_is_late(
    authority: Authority, tmp_path: Path
) -> None:
    made = backup(authority, tmp_path / "ca.tar")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")

    for taken in (authority.layout.folder, tmp_path / "dangling"):
        with pytest.raises(Refused, match="ever overwritten"):
            bring_back(made, taken)
    with pytest.raises(BadInput, match="64 hex digits"):
        bring_back(made, tmp_path / "again", "f00")
    with pytest.raises(Refused, match="clock"):
        restore(made.file, tmp_path / "again", expect=None, now=NOW - timedelta(hours=1), actor="tester")
    assert not (tmp_path / "again").exists()


def test_a_disk_that_does_not_take_a_restored_authority_is_told(authority: Authority, tmp_path: Path) -> None:
    made = backup(authority, tmp_path / "ca.tar")
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(Refused, match="File exists"):
        bring_back(made, tmp_path / "file" / "ca")
    with pytest.raises(Refused, match="No such file"):
        restore(tmp_path / "absent.tar", tmp_path / "again", expect=None, now=NOW, actor="tester")
    assert not (tmp_path / "again").exists()


def test_a_restored_authority_still_refuses_a_stolen_name(authority: Authority, tmp_path: Path) -> None:
    serial = authority.records()[0].serial
    authority.revoke(serial, reason="key-compromise", now=NOW, actor="tester")
    bring_back(backup(authority, tmp_path / "ca.tar"), tmp_path / "again")

    again = Authority.open(tmp_path / "again", now=LATER)

    assert again.find(serial).standing is Standing.REVOKED
    assert again.find(serial).vm_uuid == UUID
