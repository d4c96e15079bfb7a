"""Changing a passphrase: the old one is proven, the change recorded, and a crash leaves a key that opens."""

import inspect
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ca.authority import Authority
from ca.keystore import DEFAULT_KDF, Kdf, read_key
from ca.layout import ROOT_KEY
from ca.ledger import Ledger
from inventory.errors import BadInput, Damaged, Refused
from tests.ca.material import CHEAP, NOW, PASSPHRASE, issue, kinds, new_authority, reopened

NEW = b"six other quiet brown otters"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


def change(
    authority: Authority,
    old: bytes = PASSPHRASE,
    new: bytes = NEW,
    *,
    root_key: Path | None = None,
    kdf: Kdf = CHEAP,
) -> None:
    authority.change_passphrase(old, new, root_key=root_key, now=NOW, actor="tester", kdf=kdf)


def test_only_the_new_passphrase_opens_and_the_change_is_recorded(authority: Authority) -> None:
    change(authority)

    again = reopened(authority)
    assert issue(again, signer=again.unlock(NEW)).serial
    with pytest.raises(BadInput, match="passphrase is wrong"):
        again.unlock(PASSPHRASE)
    assert kinds(again) == ["init", "passphrase-changed", "intent", "issued"]
    assert authority.layout.issuing_key.stat().st_mode & 0o777 == 0o600


def test_the_parameters_become_those_of_today(authority: Authority) -> None:
    change(authority, kdf=Kdf(memory_kib=128, iterations=2, lanes=2))

    kdf = json.loads(authority.layout.issuing_key.read_bytes())["kdf"]
    assert (kdf["memory_kib"], kdf["iterations"], kdf["lanes"]) == (128, 2, 2)
    by_default = inspect.signature(Authority.change_passphrase).parameters["kdf"].default
    assert by_default == DEFAULT_KDF


def test_the_roots_passphrase_changes_where_its_key_lies(authority: Authority) -> None:
    file = authority.layout.take_away / ROOT_KEY
    change(authority, root_key=file)

    read_key(file, certificate=authority.root, passphrase=NEW, floor=CHEAP)
    reopened(authority).unlock(PASSPHRASE)
    ledger = Ledger(authority.layout.audit)
    ledger.refresh()
    assert (ledger.entries[-1].kind, ledger.entries[-1].body["key"]) == ("passphrase-changed", "root")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b"wrong", NEW, "passphrase is wrong"),
        (PASSPHRASE, b"", "is empty"),
        (PASSPHRASE, PASSPHRASE, "the old one"),
    ],
)
def test_what_cannot_be_a_change_changes_nothing(
    authority: Authority, old: bytes, new: bytes, why: str
) -> None:
    before = authority.layout.issuing_key.read_bytes()

    with pytest.raises(BadInput) as caught:
        change(authority, old, new)
    assert why in caught.value.why
    assert authority.layout.issuing_key.read_bytes() == before
    assert kinds(authority) == ["init"]


def test_the_key_of_another_certificate_is_not_touched(authority: Authority) -> None:
    with pytest.raises(Damaged, match="key of another certificate"):
        change(authority, root_key=authority.layout.issuing_key)
    assert kinds(authority) == ["init"]


def test_a_root_key_that_others_may_read_is_refused_with_its_mend(authority: Authority) -> None:
    file = authority.layout.take_away / ROOT_KEY
    file.chmod(0o644)

    with pytest.raises(Refused) as caught:
        change(authority, root_key=file)
    assert caught.value.next_step == f"chmod 600 {file}"


def test_a_change_that_cannot_be_recorded_is_not_made(authority: Authority) -> None:
    before = authority.layout.issuing_key.read_bytes()
    authority.layout.audit.rename(authority.layout.audit.with_name("away"))

    with pytest.raises(Damaged):
        change(authority)
    assert authority.layout.issuing_key.read_bytes() == before


def test_a_kill_at_any_step_leaves_a_key_that_one_passphrase_opens(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.ca.killed_keys", "passphrase", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        check=False,
        timeout=600,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    kills = json.loads(done.stdout)
    assert {tuple(kill["opens"]) for kill in kills} == {("old",), ("new",)}
    assert [kill["left"] for kill in kills if kill["left"]] == []


def test_the_command_changes_it_through_a_descriptor(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(PASSPHRASE)
    secret.chmod(0o600)
    program = str(Path(sys.executable).with_name("node-ca"))
    env = {**os.environ, "MUSTER_CA_DIR": str(tmp_path / "ca"), "MUSTER_PASSPHRASE_FILE": str(secret)}
    made = subprocess.run(
        [program, "init", "--trust-domain", "lab.example"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        stdin=subprocess.DEVNULL,
    )
    assert made.returncode == 0, made.stderr
    reading, writing = os.pipe()
    os.write(writing, b"too short\n")
    os.close(writing)

    done = subprocess.run(
        [program, "passphrase", "--new-passphrase-file", f"/dev/fd/{reading}", "--json"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        stdin=subprocess.DEVNULL,
        pass_fds=[reading],
    )
    os.close(reading)

    assert done.returncode == 0, done.stderr
    authority = Authority.open(tmp_path / "ca", now=datetime.now(UTC))
    authority.unlock(b"too short")
    assert json.loads(done.stdout)["audit_head"] == authority.head
    assert "has 9 characters" in done.stderr
    assert "too short" not in done.stdout + done.stderr
