"""Certificates as the `openssl` command reads and judges them, where the authority's libraries are absent."""

import re
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from inventory.passport.leaf import Leaf, Listed

_TIMEOUT_S = 20.0
_LIST = re.compile(r"-----BEGIN X509 CRL-----\n[A-Za-z0-9+/=\n]+-----END X509 CRL-----\n?")
_TIME = re.compile(r"^(lastUpdate|nextUpdate)=(.+)$", re.MULTILINE)
_ENTRY = re.compile(r"^ *Serial Number: ([0-9A-F]+)\n *Revocation Date: (.+)$", re.MULTILINE)
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
            addresses=tuple(str(ip_address(text)) for kind, _, text in names if kind == "IP Address"),
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


def listed(chain: tuple[str, str, str], lists: str) -> Listed:
    """What the newest list of the leaf's issuer says of it.

    Raises:
        ValueError: no list in the text was signed by that issuer.
    """
    serial, found = leaf(chain[0]).serial, []
    with tempfile.TemporaryDirectory(prefix="muster-list-") as name:
        folder = Path(name)
        (folder / "issuer.pem").write_text(chain[1], encoding="ascii", errors="replace")
        for text in _LIST.findall(lists.replace("\r\n", "\n")):
            command = ["crl", "-noout", "-text", "-lastupdate", "-nextupdate", "-verify"]
            command += ["-CAfile", "issuer.pem", "-no-CApath", "-no-CAstore"]
            done = _openssl(command, text, folder)
            times = dict(_TIME.findall(done.stdout))
            # Its verdict is a word alone: the exit status is 0 in either case. An extension that must be
            # understood is called critical in the text, and no list of an authority of ours has one.
            if "verify OK" in done.stderr and "critical" not in done.stdout and len(times) == 2:
                revoked = {f"{int(number, 16):x}": at for number, at in _ENTRY.findall(done.stdout)}
                at = revoked.get(serial)
                found.append(
                    Listed(
                        _moment(times["lastUpdate"]),
                        _moment(times["nextUpdate"]),
                        None if at is None else _moment(at),
                    )
                )
    return newest(found)


def newest(lists: list[Listed]) -> Listed:
    """The one that was made last.

    Raises:
        ValueError: there is none.
    """
    if not lists:
        raise ValueError("the file has no list that the certificate's issuing authority signed")
    return max(lists, key=lambda each: each.made_at)


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
