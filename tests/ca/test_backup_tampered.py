"""A backup that somebody changed, or made to do harm: nothing of it is restored."""

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ca.backup import MANIFEST, MAX_FILE, back_up
from ca.restore import restore
from inventory.errors import BadInput, Damaged, MusterError, Refused
from tests.ca.material import NOW, issue, new_authority

Member = tuple[tarfile.TarInfo, bytes]


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with a right backup in it, and its members."""

    folder: Path
    backup: Path
    head: str

    def members(self) -> list[Member]:
        with tarfile.open(self.backup) as tar:
            return [(member, content(tar, member)) for member in tar]

    def packed(self, members: list[Member]) -> Path:
        file = self.folder / "changed.tar"
        with tarfile.open(file, "w") as tar:
            for member, data in members:
                tar.addfile(member, io.BytesIO(data))
        return file

    def restored(self, file: Path, expect: str | None = None) -> None:
        try:
            restore(file, self.folder / "again", expect=expect, now=NOW, actor="tester")
        finally:
            assert {path.name for path in self.folder.iterdir()} <= {
                "ca",
                "ca.tar",
                "changed.tar",
                "policy.yaml",
            }


def content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    source = tar.extractfile(member)
    assert source is not None
    return source.read()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("tampered")
    authority = new_authority(folder)
    issue(authority)
    made = back_up(authority.layout, folder / "ca.tar", now=NOW, actor="tester")
    return Place(folder, made.file, made.head)


def plain(name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = "") -> Member:
    member = tarfile.TarInfo(name)
    member.size = len(data) if kind == tarfile.REGTYPE else 0
    member.type = kind
    member.linkname = link
    return member, data if kind == tarfile.REGTYPE else b""


HOSTILE: dict[str, Member] = {
    "up and out": plain("../escaped"),
    "up in the middle": plain("issued/../../escaped"),
    "absolute": plain("/tmp/escaped"),
    "a dot": plain("./root.pem"),
    "nothing between": plain("issued//x.pem"),
    "hidden": plain("issued/.x.pem"),
    "a backslash": plain("issued\\x.pem"),
    "a newline": plain("issued/x\n.pem"),
    "a link": plain("issued/x.pem", kind=tarfile.SYMTYPE, link="/etc/passwd"),
    "a hard link": plain("issued/x.pem", kind=tarfile.LNKTYPE, link="root.pem"),
    "a link to a folder": plain("receipts", kind=tarfile.SYMTYPE, link="/tmp"),
    "a device": plain("issued/x.pem", kind=tarfile.CHRTYPE),
    "a disk": plain("issued/x.pem", kind=tarfile.BLKTYPE),
    "a pipe": plain("issued/x.pem", kind=tarfile.FIFOTYPE),
    "a folder": plain("issued", kind=tarfile.DIRTYPE),
    "the root key": plain("root-take-away/root-key.json"),
    "a lock": plain("lock"),
    "an index": plain("index.db-wal"),
    "twice": plain("root.pem"),
}


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_a_member_that_no_backup_has_stops_everything(place: Place, hostile: str, first: bool) -> None:  # noqa: FBT001
    members = place.members()
    members.insert(0 if first else len(members), HOSTILE[hostile])

    with pytest.raises(BadInput) as caught:
        place.restored(place.packed(members))

    assert caught.value.what == "nothing was restored"
    assert not (place.folder.parent / "escaped").exists()
    assert not Path("/tmp/escaped").exists()


def header_of(place: Place, size: int) -> Path:
    """A file that begins with the header of a member of this size, of which little follows."""
    member = tarfile.TarInfo("policy.yaml")
    member.size = size
    file = place.folder / "changed.tar"
    file.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    return file


@pytest.mark.parametrize("size", [MAX_FILE + 1, 1 << 62, -1, -512, MAX_FILE])
def test_a_member_of_an_absurd_size_is_not_even_begun(place: Place, size: int) -> None:
    with pytest.raises(BadInput):
        place.restored(header_of(place, size))


def test_a_sparse_member_cannot_unfold(place: Place) -> None:
    member = tarfile.TarInfo("policy.yaml")
    member.size = 512
    member.pax_headers = {
        "GNU.sparse.map": "0,1",
        "GNU.sparse.size": "4096",
        "GNU.sparse.name": "policy.yaml",
    }

    with pytest.raises(BadInput):
        place.restored(place.packed([(member, bytes(512))]))


@pytest.mark.parametrize("compressed", ["gz", "bz2", "xz"])
def test_a_compressed_file_is_no_backup_so_it_cannot_unfold(place: Place, compressed: str) -> None:
    file = place.folder / "changed.tar"
    with tarfile.open(file, f"w:{compressed}") as tar:  # type: ignore[call-overload]  # one of three
        tar.addfile(*next((member, io.BytesIO(data)) for member, data in place.members()))

    with pytest.raises(BadInput, match="not a tar file"):
        place.restored(file)


def dropped(name: str) -> Callable[[list[Member]], list[Member]]:
    return lambda members: [item for item in members if not item[0].name.startswith(name)]


def changed(name: str, old: bytes, new: bytes) -> Callable[[list[Member]], list[Member]]:
    def change(members: list[Member]) -> list[Member]:
        done = []
        for member, data in members:
            text = data.replace(old, new) if member.name == name else data
            member.size = len(text)
            done.append((member, text))
        return done

    return change


def with_policy_and_manifest(members: list[Member]) -> list[Member]:
    """A wider policy, its new hash in the manifest: only the audit's own line can tell."""
    import hashlib

    wider = b"trust_domain: lab.example\nnames: ['{node}.nodes.lab.example']\nlifetime_days: 366\n"
    policy = next(data for member, data in members if member.name == "policy.yaml")
    before, after = (hashlib.sha256(text).hexdigest().encode() for text in (policy, wider))
    return changed(MANIFEST, before, after)(changed("policy.yaml", policy, wider)(members))


def torn(members: list[Member]) -> list[Member]:
    return [
        (member, data) if member.name != "audit.jsonl" else plain("audit.jsonl", data[:-9])
        for member, data in members
    ]


TAMPERED: dict[str, tuple[Callable[[list[Member]], list[Member]], str]] = {
    "no manifest": (dropped(MANIFEST), "manifest.json is missing"),
    "no audit": (dropped("audit"), "audit.jsonl"),
    "no key": (dropped("issuing-key"), "'issuing-key.json' is missing"),
    "a certificate less": (dropped("issued"), "is missing"),
    "a file more": (lambda members: [*members, plain("crls/x.crl")], "'crls/x.crl' is not in"),
    "another policy": (changed("policy.yaml", b"lab.", b"lub."), "is not the file that"),
    "another policy and manifest": (with_policy_and_manifest, "does not end with the line"),
    "another manifest": (changed(MANIFEST, b'"schema":1', b'"schema":2'), "not one of this version"),
    "a manifest in another form": (
        changed(MANIFEST, b'"schema":1', b'"schema": 1'),
        "not one of this version",
    ),
    "a list for a manifest": (changed(MANIFEST, b"{", b"["), "not one of this version"),
    "a folder outside": (changed(MANIFEST, b'"receipts"', b'"../escape"'), "names the folder"),
    "a changed line": (changed("audit.jsonl", b"tester", b"jester"), "line 2"),
    "a torn line": (torn, "is not whole"),
    "an older audit": (
        lambda members: [
            (item, data)
            if item.name != "audit.jsonl"
            else plain("audit.jsonl", b"".join(data.splitlines(keepends=True)[:3]))
            for item, data in members
        ],
        "does not end with the line",
    ),
    "an empty audit": (
        lambda members: [
            item if item[0].name != "audit.jsonl" else plain("audit.jsonl", b"") for item in members
        ],
        "is not whole",
    ),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_changed_backup_is_damage_and_says_where(place: Place, what: str) -> None:
    change, said = TAMPERED[what]

    with pytest.raises(Damaged) as caught:
        place.restored(place.packed(change(place.members())))

    assert said in caught.value.why
    assert "/.again." not in caught.value.why


def test_a_backup_of_another_authority_does_not_know_the_head(place: Place, tmp_path: Path) -> None:
    other = new_authority(tmp_path)
    made = back_up(other.layout, tmp_path / "ca.tar", now=NOW, actor="tester")

    with pytest.raises(Refused, match="of another authority"):
        restore(made.file, tmp_path / "again", expect=place.head, now=NOW, actor="tester")


def test_a_key_file_that_comes_readable_for_all_is_refused(place: Place) -> None:
    members = place.members()
    for member, _ in members:
        member.mode = 0o6777

    with pytest.raises(Refused, match="others may reach it"):
        place.restored(place.packed(members))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_no_bytes_whatsoever_end_in_a_traceback_or_in_another_authority(
    place: Place, data: st.DataObject
) -> None:
    whole = bytearray(place.backup.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        # headers are a small part of a tar file and the most of what can go wrong
        block = data.draw(st.integers(0, len(whole) // 512 - 1)) * 512
        at = block + data.draw(st.integers(0, 511))
        whole[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))
    file = place.folder / "changed.tar"
    file.write_bytes(whole[:cut])

    try:
        told = restore(
            file, place.folder / "again", expect=place.head, now=NOW, actor="tester", rehearse=True
        )
    except MusterError as error:
        assert error.what == "nothing was restored"  # noqa: PT017 - both ends are right
    else:
        assert json.loads(json.dumps(told.to_json()))["backup_head"] == place.head
