"""Certificates as the `openssl` command reads and judges them, where the authority's libraries are absent."""

import re
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from inventory.passport.leaf import Leaf

_TIMEOUT_S = 20.0
_FIELD = re.compile(r"^(serial|notBefore|notAfter)=(.+)$", re.MULTILINE)


def is_here() -> bool:
    """Whether the command is on PATH."""
    return shutil.which("openssl") is not None


def leaf(pem: str) -> Leaf:
    """What a certificate says.

    Raises:
        ValueError: openssl cannot read it.
    """
    fields = ["-serial", "-startdate", "-enddate", "-ext", "subjectAltName"]
    done = _openssl(["x509", "-noout", *fields], pem, Path.cwd())
    told = dict(_FIELD.findall(done.stdout))
    try:
        names = [part.strip().partition(":") for part in done.stdout.splitlines()[-1].split(",")]
        return Leaf(
            serial=f"{int(told['serial'], 16):x}",
            uris=tuple(text for kind, _, text in names if kind == "URI"),
            names=tuple(text for kind, _, text in names if kind == "DNS"),
            not_before=_moment(told["notBefore"]),
            not_after=_moment(told["notAfter"]),
        )
    except (KeyError, ValueError, IndexError):
        raise ValueError(f"openssl cannot read the certificate: {_words(done)}") from None


def faults(chain: tuple[str, str, str], *, roots: str, at: datetime) -> tuple[str, ...]:
    """What `openssl verify` has against a chain, as a server's and as a client's."""
    found = []
    with tempfile.TemporaryDirectory(prefix="muster-chain-") as name:
        folder = Path(name)
        for part, text in (("leaf", chain[0]), ("between", chain[1]), ("roots", roots)):
            (folder / f"{part}.pem").write_text(text, encoding="ascii", errors="replace")
        for purpose in ("sslserver", "sslclient"):
            command = ["verify", "-x509_strict", "-no-CApath", "-no-CAstore", "-purpose", purpose]
            command += ["-attime", str(int(at.timestamp())), "-CAfile", "roots.pem"]
            done = _openssl([*command, "-untrusted", "between.pem", "leaf.pem"], "", folder)
            if done.returncode != 0:
                found.append(f"openssl verify -purpose {purpose} refuses it: {_words(done)}")
    return tuple(found)


def _openssl(arguments: list[str], text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["openssl", *arguments]
    try:
        return subprocess.run(
            command,
            input=text,
            cwd=folder,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", f"openssl gave no answer: {error}")


def _moment(text: str) -> datetime:
    """`Nov 30 12:00:00 2026 GMT`, whatever the locale's month names are."""
    month, day, clock, year, _ = text.split()
    number = "JanFebMarAprMayJunJulAugSepOctNovDec".index(month) // 3 + 1
    hour, minute, second = map(int, clock.split(":"))
    return datetime(int(year), number, int(day), hour, minute, second, tzinfo=UTC)


def _words(done: "subprocess.CompletedProcess[str]") -> str:
    return " ".join((done.stderr + done.stdout).split())[:400]
