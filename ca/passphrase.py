"""Where a passphrase comes from: a file, standard input or a terminal; never argv, never the environment."""

import getpass
import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from inventory.errors import BadInput, Refused

MAX_BYTES = 1024
ENOUGH = 16
"""Characters below which a new passphrase is called short; a key file can be copied, and tried for years."""
TERMINAL = Path("/dev/tty")


def read_passphrase(
    file: Path | None,
    *,
    what: str,
    twice: bool = False,
    no_input: bool = False,
    option: str = "--passphrase-file",
    stdin: BinaryIO | None = None,
    terminal: Path = TERMINAL,
) -> bytes:
    """The passphrase of `what`: from `file` (`-` is standard input), else asked for on the terminal, hidden.

    `twice` asks for it again, where a new one is chosen; `no_input` never asks. A descriptor that a parent
    has opened is the file /dev/fd/N. `option` is what names such a file.

    Raises:
        BadInput: there is none, it is empty or too long, the two do not agree, or there is no terminal.
        Refused: others can read the file.
    """
    if file is not None:
        return _checked(_from_file(file, stdin or sys.stdin.buffer), what)
    if no_input or not _can_ask(terminal):
        raise BadInput(
            f"the passphrase of {what} is not known",
            why="there is no terminal to ask for it on"
            if not no_input
            else "--no-input forbids to ask for it",
            next_step=f"pass {option} FILE (or - for standard input)",
        )
    first = _checked(getpass.getpass(f"passphrase of {what}: ").encode(), what)
    if twice and getpass.getpass("the same again: ").encode() != first:
        raise BadInput(
            f"the passphrase of {what} was not taken",
            why="the two entries differ",
            next_step="run the command again",
        )
    return first


def weakness(secret: bytes, *, what: str) -> str | None:
    """What is to be said of a new passphrase that is easily guessed; None: nothing."""
    characters = secret.decode("utf-8", "replace")
    if len(characters) < ENOUGH:
        return (
            f"the passphrase of {what} has {len(characters)} characters; "
            f"whoever copies the key file can try them all: take six random words, or at least {ENOUGH} characters"
        )
    if len(set(characters)) < ENOUGH // 3:
        return f"the passphrase of {what} repeats {len(set(characters))} characters; take six random words"
    return None


def _from_file(file: Path, stdin: BinaryIO) -> bytes:
    if str(file) == "-":
        return stdin.read(MAX_BYTES + 3)
    try:
        with file.open("rb") as source:
            mode = os.fstat(source.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & 0o077:
                raise Refused(
                    f"{file} is not used",
                    why=f"others may reach this passphrase (mode {mode & 0o777:04o})",
                    next_step=f"chmod 600 {file}",
                )
            return source.read(MAX_BYTES + 3)
    except OSError as error:
        raise BadInput(
            f"{file} cannot be read",
            why=error.strerror or str(error),
            next_step="name the file that holds the passphrase",
        ) from error


def _checked(raw: bytes, what: str) -> bytes:
    """Without its one trailing newline, which editors and echo add."""
    secret = raw.removesuffix(b"\r\n") if raw.endswith(b"\r\n") else raw.removesuffix(b"\n")
    if not secret or len(secret) > MAX_BYTES:
        raise BadInput(
            f"the passphrase of {what} was not taken",
            why=f"it is longer than {MAX_BYTES} bytes" if secret else "it is empty",
            next_step="give a passphrase, best six or more random words",
        )
    return secret


def _can_ask(terminal: Path) -> bool:
    """Whether there is a terminal; without this check getpass would read standard input, echoing."""
    try:
        with terminal.open("rb"):
            return True
    except OSError:
        return False
