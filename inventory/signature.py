"""Signed texts: one JSON line and an SSH signature over it, by `ssh-keygen -Y` (ssh-keygen(1)).

The text is the canonical JSON (sorted keys, no spaces, one line) and, after it, the armoured SSHSIG. Whoever
wants to check one by hand cuts it after the first line; the line's newline is part of what was signed.
"""

import hashlib
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inventory.errors import BadInput, OtherSide, Refused

MAX_BYTES = 64 * 1024
_TIMEOUT_S = 60.0
_BEGIN = "-----BEGIN SSH SIGNATURE-----"


@dataclass(frozen=True, slots=True)
class Signed:
    """A text whose signature holds.

    line: the JSON line, newline included. principal: whose key signed it, by the allowed signers.
    """

    line: str
    principal: str


def canonical(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """The one JSON text of a value: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def fingerprint(text: str) -> str:
    """A short fingerprint of a signed text that two people can compare: sixteen hex digits in fours."""
    digest = hashlib.sha256(text.splitlines()[0].encode()).hexdigest()[:16]
    return "-".join(digest[i : i + 4] for i in range(0, 16, 4))


def sign(line: str, *, key_file: Path, namespace: str) -> str:
    """The signed text for one JSON line.

    key_file: an OpenSSH private key, or its .pub whose private half an agent holds.

    Raises:
        BadInput: ssh-keygen is absent, or refuses the key.
    """
    message = line + "\n"
    done = _ssh_keygen(["-Y", "sign", "-q", "-f", str(key_file), "-n", namespace], message)
    if done.returncode != 0 or _BEGIN not in done.stdout:
        raise BadInput(
            f"{key_file} did not sign",
            why=_last_line(done.stderr) or "ssh-keygen gave no signature",
            next_step=f"{key_file} must be an OpenSSH private key, mode 0600, or the .pub of one in an agent",
        )
    return message + done.stdout


def check(text: str, *, signers: Path, namespace: str, what: str) -> Signed:
    """The signed text, once its signature holds for a key in `signers` (an OpenSSH ALLOWED SIGNERS file).

    Raises:
        Refused: it was not signed, was changed, or its signer is not allowed.
        BadInput: the signers file is absent.
    """
    if len(text.encode()) > MAX_BYTES:
        raise _refused(what, f"it is larger than {MAX_BYTES} bytes")
    line, newline, signature = text.partition("\n")
    if not newline or not signature.startswith(_BEGIN):
        raise _refused(what, "it is not one line of JSON with an SSH signature under it")
    if not signers.is_file():
        raise BadInput(
            f"{what} cannot be checked",
            why=f"the list of allowed signers, {signers}, is not there",
            next_step=f"put the signers' public keys into {signers} (ssh-keygen(1), ALLOWED SIGNERS)",
        )
    with tempfile.TemporaryDirectory(prefix="muster-sig-") as folder:
        file = Path(folder) / "signature"
        file.write_text(signature)
        found = _ssh_keygen(
            ["-Y", "find-principals", "-s", str(file), "-f", str(signers), "-n", namespace], line + newline
        )
        principal = found.stdout.splitlines()[0].strip() if found.returncode == 0 and found.stdout else ""
        if not principal:
            raise _refused(what, f"its signer is not in {signers}: {_last_line(found.stderr)}")
        held = _ssh_keygen(
            ["-Y", "verify", "-f", str(signers), "-I", principal, "-n", namespace, "-s", str(file)],
            line + newline,
        )
    if held.returncode != 0:
        reason = _last_line(held.stdout) or _last_line(held.stderr)
        raise _refused(what, f"the signature of {principal} does not hold: {reason}")
    return Signed(line=line + newline, principal=principal)


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


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
