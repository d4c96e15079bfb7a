"""The walk in docs/authority.md is run as it stands, and names every command that node-ca has."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.require import need_command

PAGE = (Path(__file__).parents[1] / "docs/authority.md").read_text(encoding="utf-8")


def test_the_walk_goes_as_the_page_says(tmp_path: Path) -> None:
    need_command("openssl")
    (walk,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    passphrase = tmp_path / "passphrase"
    passphrase.touch(mode=0o600)
    passphrase.write_text("six quiet otters count blue stones\n")
    done = subprocess.run(
        ["/bin/sh", "-eu", "-c", walk],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )

    assert done.returncode == 0, done.stderr
    assert "cert.pem: OK" in done.stdout
    for name in ("crl.pem", "crl-2.pem"):
        assert "BEGIN X509 CRL" in (tmp_path / name).read_text()
    assert "gpu-01" in (tmp_path / "certificates.csv").read_text()
    assert (tmp_path / "elsewhere/audit.jsonl").exists()


def test_the_page_speaks_of_every_command() -> None:
    listed = subprocess.run(
        [Path(sys.executable).parent / "node-ca", "--help"], capture_output=True, text=True, check=True
    ).stdout.partition("Commands:")[2]
    commands = re.findall(r"(?m)^  ([a-z-]+) ", listed)

    assert {"init", "rotate"} <= set(commands)
    assert [command for command in commands if not re.search(rf"\b{command}\b", PAGE)] == []
