"""node-inventory passport as its two readers type it: the holder who makes one, the auditor who checks it."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from inventory.errors import BadInput
from inventory.passport import desk, making
from inventory.store import Store
from tests.inventory.kit import keygen
from tests.inventory.passports import NAME, World, world
from tests.require import need_command


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> World:
    return world(tmp_path_factory.mktemp("command"), now=datetime.now(UTC).replace(microsecond=0))


def run(*arguments: object, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("node-inventory")
    return subprocess.run(
        [program, "passport", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, **environ},
    )


def make(gpu: World, *more: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return run(NAME, "--inventory", gpu.url, "--ssh-key", gpu.holder, *more, **environ)


def check(gpu: World, file: object, *more: object, **given: str) -> subprocess.CompletedProcess[str]:
    return run("--verify", file, "--signers", gpu.signers, *more, **given)


@pytest.fixture(scope="module")
def made(gpu: World) -> Path:
    file = gpu.folder / "gpu-01.passport.json"
    done = make(gpu, "--ca-dir", gpu.ca_dir, "-o", file)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert f"the passport of gpu-01, signed with {gpu.maker.key}, is in {file}" in done.stderr
    return file


def test_the_holder_makes_one_and_the_auditor_finds_that_it_holds(gpu: World, made: Path) -> None:
    done = check(gpu, made, "--ticket-signers", gpu.ticket_signers, "--ca", gpu.root)

    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert rows[0] == ["VERDICT", "WHAT"]
    assert {row[0] for row in rows[1:]} == {"holds", "not checked"}
    assert f"{made} holds: gpu-01 was in-service when it was made" in done.stderr


def test_an_earlier_passport_is_held_against_a_later_one(gpu: World, made: Path, tmp_path: Path) -> None:
    ahead = tmp_path / "ahead.json"
    passport = gpu.passport()
    ahead.write_text(gpu.signed(replace(passport, made_at=passport.made_at + timedelta(minutes=2))))
    whom = ("--ticket-signers", gpu.ticket_signers, "--ca", gpu.root)

    held = check(gpu, ahead, "--earlier", made, *whom)
    assert held.returncode == 0, held.stderr
    assert "all that the passport of" in held.stdout
    turned = check(gpu, made, "--earlier", ahead, *whom)
    assert turned.returncode == 3
    assert "BROKEN\tthe earlier passport is the later one" in turned.stdout
    twice = check(gpu, "-", "--earlier", "-", *whom)
    assert twice.returncode == 2
    assert "stdin holds one passport" in twice.stderr
    alone = make(gpu, "--earlier", made)
    assert alone.returncode == 2
    assert "--earlier goes with --verify" in alone.stderr


def test_it_goes_through_a_pipe_and_into_a_document(gpu: World) -> None:
    piped = make(gpu, "--ca-dir", gpu.ca_dir)
    document = json.loads(make(gpu, "--ca-dir", gpu.ca_dir, "--json").stdout)

    assert piped.stdout.count("\n") == 1
    assert (document["schema"], document["node"], document["missing"]) == (1, NAME, [])
    for text in (piped.stdout, document["passport"]):
        verdict = json.loads(check(gpu, "-", "--ca", gpu.root, "--json", stdin=text).stdout)
        assert (verdict["ok"], verdict["signers"], verdict["broken"]) == (True, ["holder@lab"], [])


def test_a_changed_one_ends_with_3_and_says_why(gpu: World, made: Path, tmp_path: Path) -> None:
    text = made.read_text()
    changed = tmp_path / "changed.json"
    changed.write_text(text.replace("A", "B", 1))
    done = check(gpu, changed)
    assert (done.returncode, done.stdout) == (3, "")
    assert "error: the passport is not believed\n  why: the signature does not hold" in done.stderr.replace(
        "its signature", "the signature"
    )

    contradicts = tmp_path / "contradicts.json"
    contradicts.write_text(gpu.signed_anew(lambda statement: statement["predicate"]["events"].pop(3)))
    done = check(gpu, contradicts, "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["ok"] is False
    assert "the history is no road: event 4 leaves onboarding" in done.stderr


def test_the_passport_of_another_node_is_refused_by_name(gpu: World, made: Path) -> None:
    done = run("gpu-02", "--verify", made, "--signers", gpu.signers)

    assert (done.returncode, done.stdout) == (3, "")
    assert "is not the passport of gpu-02" in done.stderr


def test_where_no_authority_is_the_passport_says_that_it_lacks_the_certificate(gpu: World) -> None:
    done = make(gpu)

    assert done.returncode == 0, done.stderr
    assert "missing in it: certificate: there is no authority on the host" in done.stderr
    verdict = check(gpu, "-", stdin=done.stdout)
    assert verdict.returncode == 0, verdict.stderr
    assert "missing\tcertificate: there is no authority" in verdict.stdout


def test_without_the_authoritys_libraries_openssl_judges_or_nobody_does(
    gpu: World, made: Path, tmp_path: Path
) -> None:
    need_command("openssl")
    (tmp_path / "cryptography.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'cryptography'\", name='cryptography')\n"
    )
    bare = {"PYTHONPATH": str(tmp_path)}
    done = check(gpu, made, "--ca", gpu.root, **bare)
    assert done.returncode == 0, done.stderr
    assert "holds\tthe certificate's chain" in done.stdout

    keygen_alone = tmp_path / "bin"
    keygen_alone.mkdir()
    (keygen_alone / "ssh-keygen").symlink_to(shutil.which("ssh-keygen") or "")
    done = check(gpu, made, "--ca", gpu.root, **bare, PATH=str(keygen_alone))
    assert done.returncode == 0, done.stderr
    assert "not checked\tthe certificate: there is no openssl here, and cryptography is not" in done.stdout

    without = make(gpu, "--ca-dir", gpu.ca_dir, **bare)
    assert "the authority's ledger was not read: cryptography is not installed" in without.stderr


def test_wrong_usage_ends_with_2_and_names_what_is_missing(gpu: World, made: Path, tmp_path: Path) -> None:
    for done, words in (
        (run(), "no node was named"),
        (run("--verify", made, "-o", tmp_path / "x"), "--output goes without --verify"),
        (make(gpu, "-o", tmp_path / "no" / "x"), "was not written"),
    ):
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert words in done.stderr


def test_each_file_that_is_absent_or_not_named_is_named(gpu: World, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    (tmp_path / "key.pub").write_text("no key at all\n")
    (tmp_path / "utf-8").write_text("Zoë")

    with pytest.raises(BadInput, match="none was named"):
        desk.need_key(None)
    with pytest.raises(BadInput, match="cannot be read: 'no' is not a type of SSH key"):
        desk.maker(tmp_path / "key", now=gpu.now)
    for file in (absent, tmp_path, tmp_path / "utf-8"):
        with pytest.raises(BadInput, match="is no passport"):
            desk.read(file)
    for signers, key, ca, words in (
        (None, None, None, "nobody is named whose passports count"),
        (gpu.signers, None, absent, "absent: No such file"),
        (None, absent, None, "public key of"),
    ):
        with (
            pytest.raises(BadInput, match=words),
            desk.trust(desk.Given(signers, key, ca=ca), now=gpu.now),
        ):
            pass
    with pytest.raises(BadInput, match="there is no authority"):
        desk.certificate(gpu.known(), tmp_path, now=gpu.now)
    with pytest.raises(BadInput, match="gpu-99 is not on record"):
        making.known(Store.open(gpu.url), "gpu-99")


def test_one_that_would_not_be_believed_is_not_made(gpu: World, tmp_path: Path) -> None:
    other = keygen(tmp_path, "other")
    out = tmp_path / "out.json"
    done = run(NAME, "--inventory", gpu.url, "--ssh-key", other, "-o", out)

    assert done.returncode == 3
    assert "no passport of gpu-01 was made" in done.stderr
    assert "name the holders' keys with --signers FILE" in done.stderr
    assert not out.exists()
