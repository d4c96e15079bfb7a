"""node-ca backup and restore as a person types them."""

import json
import os
import shutil
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.ca.material import issue, new_authority


def node_ca(*arguments: str | Path, ca_dir: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("node-ca"), *arguments],
        env={**os.environ, "MUSTER_CA_DIR": str(ca_dir), "PYTHONWARNINGS": "error"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture
def ca_dir(tmp_path: Path) -> Path:
    now = datetime.now(UTC)
    authority = new_authority(tmp_path, now=now)
    issue(authority, now=now)
    return authority.layout.folder


def test_an_authority_that_burnt_comes_back_from_its_backup(ca_dir: Path, tmp_path: Path) -> None:
    usb = tmp_path / "usb"
    usb.mkdir()

    rehearsed = node_ca("backup", "--out", usb, "-n", ca_dir=ca_dir)
    made = node_ca("backup", "--out", usb / "ca.tar", "--json", ca_dir=ca_dir)
    again = node_ca("backup", "--out", usb / "ca.tar", ca_dir=ca_dir)

    assert (rehearsed.returncode, "nothing was changed" in rehearsed.stderr) == (0, True)
    assert made.returncode == 0, made.stderr
    assert (again.returncode, again.stdout) == (3, "")
    assert [path.name for path in usb.iterdir()] == ["ca.tar"]
    assert stat.S_IMODE((usb / "ca.tar").stat().st_mode) == 0o600
    told = json.loads(made.stdout)
    assert (told["schema"], told["entries"], told["files"]) == (1, 4, 5)
    before = node_ca("list", "--json", ca_dir=ca_dir).stdout

    shutil.rmtree(ca_dir)
    checked = node_ca("restore", usb / "ca.tar", "--dry-run", ca_dir=ca_dir)
    assert (checked.returncode, ca_dir.exists()) == (0, False)
    wrong = node_ca("restore", usb / "ca.tar", "--expect", "0" * 64, ca_dir=ca_dir)
    assert (wrong.returncode, ca_dir.exists()) == (3, False)
    assert "it is older than that" in wrong.stderr
    restored = node_ca("restore", usb / "ca.tar", "--expect", told["head"], ca_dir=ca_dir)

    assert restored.returncode == 0, restored.stderr
    assert f"backup head\t{told['head']}\n" in restored.stdout
    assert "since expected\t0\n" in restored.stdout
    assert "is not known here, cannot be revoked" in restored.stderr
    assert node_ca("list", "--json", ca_dir=ca_dir).stdout == before


def test_what_is_no_backup_ends_with_two_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "ca.tar").write_bytes(b"no tar file\n" * 100)

    told = node_ca("restore", tmp_path / "ca.tar", ca_dir=tmp_path / "ca")

    assert (told.returncode, told.stdout) == (2, "")
    assert "next: name a file that node-ca backup made" in told.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["ca.tar"]
