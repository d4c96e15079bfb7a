"""The API token: read from its file, shown by its id only."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from inventory.errors import BadInput

_TOKEN = re.compile(r"(?P<user>[^\s@!=]+@[^\s@!=]+)!(?P<name>[^\s@!=]+)=(?P<secret>\S+)")


@dataclass(frozen=True, slots=True)
class Token:
    """An API token; its secret shows in no text."""

    user: str
    name: str
    secret: str = field(repr=False)

    @property
    def id(self) -> str:
        """user@realm!name, as Proxmox shows it."""
        return f"{self.user}!{self.name}"


def read_token(file: Path) -> tuple[Token, list[str]]:
    """The token in a file of one line, and a warning if others may read it too.

    Raises:
        BadInput: it cannot be read, or holds something else.
    """
    try:
        text = file.read_text(encoding="utf-8").strip()
        mode = file.stat().st_mode & 0o777
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"the API token cannot be read from {file}",
            why=getattr(error, "strerror", None) or "it is not UTF-8",
            next_step="put one line there, user@realm!name=secret, mode 0600, or mend token_file",
        ) from None
    found = _TOKEN.fullmatch(text)
    if not found:
        raise BadInput(
            f"{file} holds no API token",
            why="it should be one line of the form user@realm!name=secret",
            next_step="write the token there as Proxmox showed it when it was made",
        )
    warnings = [f"{file} has mode {mode:04o}: others can read the token (chmod 600 {file})"]
    return Token(found["user"], found["name"], found["secret"]), warnings if mode & 0o077 else []
