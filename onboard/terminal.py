"""The holder's word, asked on the terminal itself, so that stdin stays free for a passphrase."""

from pathlib import Path

from inventory.errors import BadInput, Refused

TERMINAL = Path("/dev/tty")


def agreement(name: str, *, yes: bool, unattended: bool, no_input: bool, terminal: Path = TERMINAL) -> None:
    """Return if the holder types the node's name, or if `yes` may stand for it.

    Raises:
        Refused: another word was typed, or --yes is not allowed by the policy.
        BadInput: there is no terminal to ask on.
    """
    if yes and unattended:
        return
    if yes:
        raise Refused(
            f"{name} was not onboarded",
            why="--yes needs a policy with `unattended: true`; this one wants a person's word",
            next_step="run it on a terminal without --yes, or have the policy changed",
        )
    if no_input:
        raise _no_terminal(name, "--no-input forbids to ask")
    try:
        with terminal.open("r+b", buffering=0) as tty:
            tty.write(f"type the node's name to give it an identity [{name}]: ".encode())
            typed = tty.readline(256).decode("utf-8", "replace").strip()
    except OSError:
        raise _no_terminal(name, "there is no terminal to ask on") from None
    if typed != name:
        raise Refused(
            f"{name} was not onboarded",
            why=f"{typed!r} is not its name",
            next_step="run the command again when you are sure",
        )


def _no_terminal(name: str, why: str) -> BadInput:
    return BadInput(
        f"{name} was not onboarded",
        why=f"the holder must type its name, and {why}",
        next_step="run it on a terminal, or with --yes where the policy has `unattended: true`",
    )
