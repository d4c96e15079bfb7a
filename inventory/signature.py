"""Signed texts: one JSON line and an SSH signature over it, by `ssh-keygen -Y` (ssh-keygen(1)).

The text is the canonical JSON (sorted keys, no spaces, one line) and, after it, the armoured SSHSIG. Whoever
wants to check one by hand cuts it after the first line; the line's newline is part of what was signed.
"""

import hashlib
import re
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from inventory.errors import BadInput, OtherSide, Refused

MAX_BYTES = 64 * 1024
_TIMEOUT_S = 60.0
_BEGIN = "-----BEGIN SSH SIGNATURE-----"
_ARMOUR = re.compile(rf"{_BEGIN}\n(?:[A-Za-z0-9+/=]{{1,76}}\n){{1,200}}-----END SSH SIGNATURE-----\n?")
_KEY = re.compile(r"signature with (\S+ key SHA256:\S+)")
_PERSON = re.compile(r"[!-~]{1,255}")


@dataclass(frozen=True, slots=True)
class Signed:
    """A text whose signature holds.

    line: the JSON line, without its newline. principals: whose key signed it, by the allowed signers' line.
    """

    line: str
    principals: tuple[str, ...]

    @property
    def principal(self) -> str:
        """The first of them, who is shown where nothing else is told."""
        return self.principals[0]


def fingerprint(text: str) -> str:
    """A short fingerprint of a signed text that two people can compare: sixteen hex digits in fours."""
    digest = hashlib.sha256(text.partition("\n")[0].encode()).hexdigest()[:16]
    return "-".join(digest[i : i + 4] for i in range(0, 16, 4))


def sign(line: str, *, key_file: Path, namespace: str) -> str:
    """The signed text for one JSON line.

    key_file: an OpenSSH private key, or its .pub whose private half an agent holds.

    Raises:
        BadInput: ssh-keygen is absent, or refuses the key.
    """
    message = line + "\n"
    return message + detached(message, key_file=key_file, namespace=namespace)


def detached(message: str, *, key_file: Path, namespace: str) -> str:
    """The armoured signature over a message alone; `key_file` and errors as for `sign`."""
    done = _ssh_keygen(["-Y", "sign", "-q", "-f", str(key_file), "-n", namespace], message)
    if done.returncode != 0 or _BEGIN not in done.stdout:
        raise BadInput(
            f"{key_file} did not sign",
            why=_last_line(done.stderr) or "ssh-keygen gave no signature",
            next_step=f"{key_file} must be an OpenSSH private key, mode 0600, or the .pub of one in an agent",
        )
    return done.stdout


def check(
    text: str,
    *,
    signers: Path,
    namespace: str,
    what: str,
    revoked: Path | None = None,
    now: datetime | None = None,
) -> Signed:
    """The signed text, once its signature holds for a key in `signers` (an OpenSSH ALLOWED SIGNERS file).

    revoked: keys that count no more: a KRL, or public keys one a line (ssh-keygen(1), KEY REVOCATION LISTS).
    now: when the signer's valid-after and valid-before are judged; None: by this host's clock.

    Raises:
        Refused: it was not signed, was changed, or its signer is not allowed, not any more, or not yet.
        BadInput: the signers file, or the file of revoked keys, is absent.
    """
    line, armour = _parted(text, what)
    principals = check_detached(
        line, armour, signers=signers, namespace=namespace, what=what, revoked=revoked, now=now
    )
    return Signed(line=line[:-1], principals=principals)


def check_detached(
    message: str,
    armour: str,
    *,
    signers: Path,
    namespace: str,
    what: str,
    revoked: Path | None = None,
    now: datetime | None = None,
) -> tuple[str, ...]:
    """Whose key signed a message, once the armoured signature holds; arguments and errors as for `check`."""
    _need_file(signers, what, "allowed signers", "put the signers' public keys into it (ssh-keygen(1))")
    if revoked is not None:
        _need_file(revoked, what, "revoked keys", "an empty file will do while no key is revoked")
    at = [] if now is None else [f"-Overify-time={now.astimezone(UTC):%Y%m%d%H%M%SZ}"]
    with tempfile.TemporaryDirectory(prefix="muster-sig-") as folder:
        file = Path(folder) / "signature"
        file.write_text(armour)
        found = _ssh_keygen(["-Y", "find-principals", "-s", str(file), "-f", str(signers), *at], message)
        principals = tuple(found.stdout.splitlines()) if found.returncode == 0 else ()
        if not principals:
            raise _refused(what, f"its signer is not in {signers}: {_words(found.stderr)}")
        for principal in principals:
            if not _PERSON.fullmatch(principal) or set(principal) & set("*?!"):
                raise _refused(what, f"{signers} gives its key a pattern for a name, {principal[:80]!a}")
        judge = [
            "-Y",
            "verify",
            "-f",
            str(signers),
            "-I",
            principals[0],
            "-n",
            namespace,
            "-s",
            str(file),
            *at,
        ]
        held = _ssh_keygen([*judge, *([] if revoked is None else ["-r", str(revoked)])], message)
        if held.returncode != 0 and revoked is not None and _ssh_keygen(judge, message).returncode == 0:
            raise _refused(what, f"the key of {principals[0]} is revoked ({revoked})")
    if held.returncode != 0:
        raise _refused(
            what, f"the signature of {principals[0]} does not hold: {_words(held.stderr + held.stdout)}"
        )
    return principals


def signed_with(text: str, *, namespace: str, what: str) -> str:
    """The key that a text was signed with, whoever's it is: `ED25519 key SHA256:...`.

    Raises:
        Refused: it was not signed in this namespace, or was changed.
    """
    return detached_with(*_parted(text, what), namespace=namespace, what=what)


def detached_with(message: str, armour: str, *, namespace: str, what: str) -> str:
    """The key that a message was signed with, as `signed_with` tells it; errors as there."""
    with tempfile.TemporaryDirectory(prefix="muster-sig-") as folder:
        file = Path(folder) / "signature"
        file.write_text(armour)
        held = _ssh_keygen(["-Y", "check-novalidate", "-n", namespace, "-s", str(file)], message)
    found = _KEY.search(held.stdout)
    if held.returncode != 0 or found is None:
        raise _refused(what, f"its signature does not hold: {_words(held.stderr + held.stdout)}")
    return found[1]


def public_key_line(key_file: Path) -> str:
    """The public key of a private key file: its .pub beside it, else what ssh-keygen -y tells.

    Raises:
        BadInput: there is neither.
    """
    beside = key_file if key_file.suffix == ".pub" else key_file.with_name(key_file.name + ".pub")
    if beside.is_file():
        return beside.read_text().strip()
    done = _ssh_keygen(["-y", "-P", "", "-f", str(key_file)], "")
    if done.returncode != 0:
        raise BadInput(
            f"the public key of {key_file} is unknown",
            why=_last_line(done.stderr) or "ssh-keygen cannot read it",
            next_step=f"make it: ssh-keygen -y -f {key_file} > {beside}",
        )
    return done.stdout.strip()


def is_revocation_file(file: Path) -> bool:
    """Whether ssh-keygen can look keys up in a file; by one that it cannot read every key is revoked.

    Raises:
        BadInput: ssh-keygen is absent.
    """
    try:
        data = file.read_bytes()
    except OSError:
        return False
    if data.startswith(b"SSHKRL\n"):
        return _ssh_keygen(["-Q", "-l", "-f", str(file)], "").returncode == 0
    lines = [line for line in data.splitlines() if line.strip() and not line.lstrip().startswith(b"#")]
    return not lines or _ssh_keygen(["-l", "-f", str(file)], "").stdout.count("\n") == len(lines)


def _parted(text: str, what: str) -> tuple[str, str]:
    """The line that was signed, with its newline, and the one signature under it."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise _refused(what, f"it is larger than {MAX_BYTES} bytes")
    line, newline, armour = text.partition("\n")
    if not newline or not armour.startswith(_BEGIN):
        raise _refused(what, "it is not one line of JSON with an SSH signature under it")
    if not _ARMOUR.fullmatch(armour):
        count = armour.count(_BEGIN)
        fault = (
            f"it has {count} signatures"
            if count > 1
            else "the signature is not whole, or something follows it"
        )
        raise _refused(what, f"{fault}; one line of JSON and one signature are taken")
    return line + newline, armour


def _need_file(file: Path, what: str, of: str, next_step: str) -> None:
    if not file.is_file():
        raise BadInput(
            f"{what} cannot be checked", why=f"the list of {of}, {file}, is not there", next_step=next_step
        )


def _refused(what: str, why: str) -> Refused:
    return Refused(f"{what} is not believed", why=why, next_step="ask whoever sent it for a new one")


def _ssh_keygen(arguments: list[str], message: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["ssh-keygen", *arguments],
            input=message,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise BadInput(
            "signatures can be neither made nor checked",
            why="ssh-keygen is not on PATH",
            next_step="install the OpenSSH client (Debian: apt install openssh-client)",
        ) from None
    except subprocess.TimeoutExpired:
        raise OtherSide(
            "ssh-keygen did not end",
            why=f"no answer within {_TIMEOUT_S:.0f} s; perhaps an agent waits for a touch or a passphrase",
            next_step="run the command again and answer it",
        ) from None


def _words(text: str) -> str:
    return "; ".join(line.strip() for line in text.strip().splitlines())[:600]


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
