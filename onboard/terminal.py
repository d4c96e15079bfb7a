"""The holder's word, asked on the terminal itself, so that stdin stays free for a passphrase."""

import contextlib
import termios
from pathlib import Path

from inventory.errors import BadInput, Refused

TERMINAL = Path("/dev/tty")


def agreement(
    name: str,
    *,
    yes: bool,
    unattended: bool,
    no_input: bool,
    terminal: Path = TERMINAL,
    to: str = "give it an identity",
    done: str = "onboarded",
) -> None:
    """Return if the holder types the node's name, or if `yes` may stand for it.

    to: what is agreed to. done: the same, as what was not done.

    Raises:
        Refused: another word was typed, or --yes is not allowed by the policy.
        BadInput: there is no terminal to ask on.
    """
    _agreed(
        name,
        f"type the node's name to {to} [{name}]: ",
        (f"{name} was not {done}", "its name"),
        yes=yes,
        unattended=unattended,
        no_input=no_input,
        terminal=terminal,
    )


def agreement_on_many(
    count: int,
    *,
    yes: bool,
    unattended: bool,
    no_input: bool,
    terminal: Path = TERMINAL,
    to: str = "give them an identity",
) -> None:
    """Return if the holder types how many nodes they agree to, or if `yes` may stand for it.

    The number is on the screen only after every node, so that whoever types it has seen how many there are.

    Raises:
        Refused, BadInput: as `agreement`.
    """
    _agreed(
        str(count),
        f"type the number of nodes that can go on, to {to} [{count}]: ",
        ("nothing was begun", "that number"),
        yes=yes,
        unattended=unattended,
        no_input=no_input,
        terminal=terminal,
    )


def _agreed(
    word: str,
    question: str,
    not_done: tuple[str, str],
    *,
    yes: bool,
    unattended: bool,
    no_input: bool,
    terminal: Path,
) -> None:
    what, meant = not_done
    if yes and unattended:
        return
    if yes:
        raise Refused(
            what,
            why="--yes needs a policy with `unattended: true`; this one wants a person's word",
            next_step="run it on a terminal without --yes, or have the policy changed",
        )
    if no_input:
        raise _no_terminal(what, meant, "--no-input forbids to ask")
    try:
        with terminal.open("r+b", buffering=0) as tty:
            # What was typed, or pasted, before the screen was there is no answer to it.
            with contextlib.suppress(termios.error):
                termios.tcflush(tty.fileno(), termios.TCIFLUSH)
            tty.write(question.encode())
            line = tty.readline(256)
            if not line.endswith(b"\n"):
                tty.write(b"\n")
            typed = line.decode("utf-8", "replace").strip()
    except OSError:
        raise _no_terminal(what, meant, "there is no terminal to ask on") from None
    if typed != word:
        raise Refused(
            what,
            why=f"{typed!r} is not {meant}" if typed else f"{meant} was not typed",
            next_step="run the command again when you are sure",
        )


def _no_terminal(what: str, meant: str, why: str) -> BadInput:
    return BadInput(
        what,
        why=f"the holder must type {meant}, and {why}",
        next_step="run it on a terminal, or with --yes where the policy has `unattended: true`",
    )
