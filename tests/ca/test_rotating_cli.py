"""Rotation as a person meets it, with the real key protection; and what is signed by a root kept elsewhere."""

import hashlib
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from ca.audit import audit
from ca.authority import Authority
from ca.backup import back_up
from ca.custody import OnToken
from ca.keystore import KDF_FLOOR
from ca.layout import ROOT_KEY
from ca.profile import fingerprint
from ca.restore import restore
from ca.rotation import Stage
from inventory.errors import BadInput, Refused
from tests.ca import outside_root
from tests.ca.fleet import deaf, onboarded, refused_by
from tests.ca.material import CHEAP, NOW, PASSPHRASE, issue, new_authority, policy_text, reopened
from tests.ca.outside_root import OutsideRoot
from tests.ca.test_cli import SECRET, Done, node_cas
from tests.ca.test_external import completed, waiting
from tests.ca.test_rotating import activated, prepared


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with an authority, its root's key in usb/, a passphrase file, and one node in service."""
    now = datetime.now(UTC)
    (tmp_path / "policy.yaml").write_text(policy_text())
    (tmp_path / "passphrase").write_text(f"{SECRET}\n")
    (tmp_path / "passphrase").chmod(0o600)
    authority = Authority.create(
        tmp_path / "ca",
        policy_file=tmp_path / "policy.yaml",
        passphrase=SECRET.encode(),
        root_out=tmp_path / "usb",
        kdf=KDF_FLOOR,  # the least that the command takes, for the sake of time
        now=now,
    )
    issued = issue(authority, signer=authority.unlock(SECRET.encode()), now=now)
    authority.installed(issued.serial, now=now, actor="tester")
    authority.close()
    return tmp_path


def rotate(place: Path, *calls: str) -> list[Done]:
    """Each call of `node-ca rotate`, written as one line."""
    secret = [
        "--passphrase-file",
        str(place / "passphrase"),
        "--root-passphrase-file",
        str(place / "passphrase"),
    ]
    return node_cas(*(["rotate", *call.split(), *secret] for call in calls), folder=place)


def contents(folder: Path) -> dict[str, str]:
    """Every file but the index and the lock, by its hash."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file() and not file.name.startswith(("index.db", "lock"))
    }


def test_nothing_is_changed_unless_a_phase_is_named_with_do(place: Path) -> None:
    before = contents(place)

    shown, looked, dry, undone, bare, moved = rotate(
        place,
        "--json",
        "prepare --json",
        "prepare --do --dry-run --json",
        "--undo --json",
        "--do",
        f"prepare --do --root-key {place}/nowhere.json",
    )

    assert contents(place) == before
    for done in (shown, looked, dry, undone):
        assert done.code == 0, done.err
        assert (done.document["stage"], done.document["next_phase"], done.document["done"]) == (
            "none",
            "prepare",
            None,
        )
        assert "nothing was changed" in done.err
    assert (bare.code, moved.code) == (2, 2)
    assert "--do needs the phase" in bare.err
    assert "bring it back for this, and pass --root-key FILE" in " ".join(moved.err.split())


def test_a_new_issuing_authority_phase_by_phase(place: Path) -> None:
    key = f"--root-key {place}/usb/{ROOT_KEY}"
    before = (place / "ca" / "issuing.pem").read_bytes()

    made, nothing, early, active, late, shown = rotate(
        place,
        f"prepare --do --json {key}",
        "distribute --do --json",
        "retire --do",
        "activate --do --json",
        "retire --do --json",
        "",
    )

    assert (made.code, made.document["stage"], made.document["done"]) == (0, "prepared", "prepare")
    assert (nothing.code, nothing.document["done"]) == (0, None)
    assert "nothing was changed" in nothing.err
    assert early.code == 3
    assert (active.code, active.document["stage"], active.document["changes_root"]) == (0, "activated", False)
    assert (late.code, late.out) == (3, "")
    assert "1 node with a live certificate of the former authority: gpu-01" in " ".join(late.err.split())
    assert "blocked" in shown.out
    authority = Authority.open(place / "ca", now=datetime.now(UTC))
    assert authority.issuing_pem != before
    assert authority.unlock(SECRET.encode()).public_key == authority.issuing.public_key()


def test_a_new_root_phase_by_phase(place: Path) -> None:
    out, away = place / "bundle.pem", place / "new-usb"

    made, spread, refused, carried, active, status = [
        *rotate(
            place,
            f"prepare --new-root --root-out {away} --do --json",
            f"distribute --do --json --out {out}",
            "activate --do",
            "distribute --carried gpu-01 --do --json",
            "activate --do --json",
        ),
        *node_cas(["status", "--json"], folder=place),
    ]

    assert (made.code, made.document["stage"]) == (0, "prepared"), made.err
    assert (away / ROOT_KEY).exists()
    assert spread.document["stage"] == "distributed"
    assert len(x509.load_pem_x509_certificates(out.read_bytes())) == 2
    assert spread.document["bundle_sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert refused.code == 3
    assert "gpu-01" in refused.err
    assert "--carried gpu-01" in " ".join(refused.err.split())
    assert (carried.code, carried.document["holding_older_bundle"]) == (0, [])
    assert (active.code, active.document["stage"]) == (0, "activated")
    checks: list[dict[str, Any]] = json.loads(status.out)["checks"]
    told = {check["name"]: check for check in checks}
    assert "root and issuing authority is under way: activated" in told["rotation"]["text"]
    assert told["bundle-nodes"]["severity"] == "ok"
    assert told["chain"]["severity"] == told["key"]["severity"] == "ok"
    assert "gpu-01" in told["rotation-blocked"]["text"]


def test_a_wrong_passphrase_leaves_the_old_one_issuing(place: Path) -> None:
    (place / "wrong").write_text("wrong\n")
    (place / "wrong").chmod(0o600)
    call = ["rotate", "prepare", "--do", "--passphrase-file", str(place / "passphrase")]
    before = contents(place)

    (done,) = node_cas([*call, "--root-passphrase-file", str(place / "wrong")], folder=place)

    assert done.code == 2
    assert "stays locked" in done.err
    assert contents(place) == before


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> OutsideRoot:
    return outside_root.made(tmp_path_factory.mktemp("company") / "root")


def test_a_root_kept_elsewhere_signs_the_successor(tmp_path: Path, top: OutsideRoot) -> None:
    waiting(tmp_path)
    authority = completed(tmp_path, top.signs(tmp_path / "ask.csr"), top.certificate)
    old = onboarded(authority, tmp_path / "nodes", "old", NOW)
    asked = tmp_path / "next.csr"
    authority.request_successor(asked, secret=PASSPHRASE, now=NOW, actor="tester", kdf=CHEAP)
    assert reopened(authority).rotation.stage is Stage.WAITING

    again, wrong = reopened(authority), top.signs(tmp_path / "ask.csr")
    with pytest.raises(Refused, match="not taken") as caught:
        again.take_successor(wrong, None, secret=PASSPHRASE, now=NOW, actor="tester", kdf=CHEAP)
    assert "its key is not the one that was asked for" in caught.value.why
    signed = top.signs(asked)
    # As a kill before the line that says it is prepared would leave it.
    half = again.layout.successors / fingerprint(x509.load_pem_x509_certificate(signed.read_bytes()))[:16]
    half.mkdir()
    (half / "root.pem").write_text("half")
    again.take_successor(signed, None, secret=PASSPHRASE, now=NOW, actor="tester", kdf=CHEAP)
    activated(again)

    new = onboarded(again, tmp_path / "nodes", "new", NOW)
    assert [
        refused_by(a, b.chain.read_bytes(), tmp_path / "j", at=NOW) for a in (old, new) for b in (old, new)
    ] == [
        [],
        [],
        [],
        [],
    ]
    assert reopened(again).root_is_elsewhere
    assert [path.name for path in again.layout.successors.iterdir()] == [again.rotation.current.id]


def test_another_root_kept_elsewhere_takes_the_place_of_the_first(tmp_path: Path, top: OutsideRoot) -> None:
    now = datetime.now(UTC)
    authority = new_authority(tmp_path, now=now)
    old = onboarded(authority, tmp_path / "nodes", "old", now)
    asked = tmp_path / "next.csr"
    authority.request_successor(asked, secret=PASSPHRASE, now=now, actor="tester", kdf=CHEAP)
    signed = top.signs(asked)
    authority.take_successor(signed, top.certificate, secret=PASSPHRASE, now=now, actor="tester", kdf=CHEAP)
    authority.distribute(now=now, actor="tester")
    with pytest.raises(Refused, match="activate would leave"):
        activated(authority, now=now)
    old.refresh(authority, now)

    activated(authority, now=now)

    new = onboarded(authority, tmp_path / "nodes", "new", now)
    assert deaf([old, new]) == []
    assert authority.root_is_elsewhere


def test_a_request_is_written_over_no_file_and_can_be_taken_back(tmp_path: Path) -> None:
    authority = new_authority(tmp_path)
    asked = tmp_path / "next.csr"
    asked.write_text("mine")
    with pytest.raises(Refused, match="nothing was prepared"):
        authority.request_successor(asked, secret=PASSPHRASE, now=NOW, actor="tester", kdf=CHEAP)
    with pytest.raises(Refused, match="nothing was prepared"):
        authority.take_successor(asked, None, secret=PASSPHRASE, now=NOW, actor="tester", kdf=CHEAP)
    asked.unlink()
    for _ in range(2):  # asked anew, the first key is forgotten
        authority.request_successor(asked, secret=PASSPHRASE, now=NOW, actor="tester", kdf=CHEAP)
        shutil.move(asked, tmp_path / "sent.csr")

    authority.undo_rotation(now=NOW, actor="tester")

    assert [*authority.layout.successors.iterdir()] == []
    assert prepared(reopened(authority)).rotation.stage is Stage.PREPARED


def test_a_key_in_a_token_is_not_rotated(tmp_path: Path) -> None:
    authority = new_authority(tmp_path)
    OnToken(authority.unlock(PASSPHRASE), "pkcs11:token=t;object=o").keep(authority.layout, authority.issuing)
    authority.layout.issuing_key.unlink()

    with pytest.raises(Refused, match="nothing was prepared") as caught:
        prepared(reopened(authority))

    assert "in a token" in caught.value.why


def test_a_backup_holds_both_authorities_and_no_key_of_a_root(tmp_path: Path) -> None:
    authority = new_authority(tmp_path)
    shutil.move(authority.layout.take_away, tmp_path / "away")
    authority.prepare(
        secret=PASSPHRASE,
        root_key=tmp_path / "away" / ROOT_KEY,
        root_secret=PASSPHRASE,
        new_root=True,
        now=NOW,
        actor="tester",
        kdf=CHEAP,
    )
    assert (authority.layout.take_away / ROOT_KEY).exists()
    authority.distribute(now=NOW, actor="tester")
    activated(authority)

    made = back_up(authority.layout, tmp_path / "backup.tar", now=NOW, actor="tester")
    restore(made.file, tmp_path / "again", expect=made.head, now=NOW, actor="tester")

    found = Authority.open(tmp_path / "again", now=NOW, kdf_floor=CHEAP)
    assert found.bundle_pem == authority.bundle_pem
    assert issue(found).chain_pem.endswith(authority.issuing_pem)
    assert [*(tmp_path / "again").rglob(ROOT_KEY)] == []
    assert audit(found.layout).ok


def test_bundles_are_recorded_for_nodes_that_exist_and_hashes_that_can_be(tmp_path: Path) -> None:
    authority = new_authority(tmp_path)
    issue(authority)
    for node, sha256 in (("gpu-01", "abc"), ("gpu-99", "0" * 64)):
        with pytest.raises(BadInput, match="no bundle is recorded"):
            authority.bundle_installed(node, sha256, now=NOW, actor="tester")
    assert authority.holding_older_bundle(NOW) == ()

    authority.bundle_installed("gpu-01", "0" * 64, now=NOW, actor="tester")
    entries = authority.entries
    authority.bundle_installed("gpu-01", "0" * 64, now=NOW, actor="tester")

    assert authority.entries == entries
    assert [(each.node, each.sha256) for each in authority.holding_older_bundle(NOW)] == [
        ("gpu-01", "0" * 64)
    ]
