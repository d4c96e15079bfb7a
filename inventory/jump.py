"""A host on the way to the nodes, pinned as they are."""

import re
from dataclasses import dataclass
from pathlib import Path

from inventory import claims
from inventory.errors import BadInput
from inventory.model import HostKey

_MAX_BYTES = 64 * 1024
_PLACE = re.compile(
    r"(?:(?P<user>[a-z_][a-z0-9_-]{0,31})@)?"
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]{2,45})\]|(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?))"
    r"(?::(?P<port>[0-9]{1,5}))?"
)


@dataclass(frozen=True, slots=True)
class Jump:
    """A host that passes connections on. host_keys: one of them must be its own."""

    host: str
    port: int
    user: str
    host_keys: tuple[HostKey, ...]


def parse_jump(text: str | None, host_key_file: Path | None, *, user: str) -> Jump | None:
    """The jump host of `[USER@]HOST[:PORT]`, an IPv6 address in brackets; None where none was named.

    host_key_file: its public host keys, as in a .pub file, one a line. user: where none is given.

    Raises:
        BadInput: it is no such text, or its host key is not given or not worth a pin.
    """
    if text is None and host_key_file is None:
        return None
    if text is None or host_key_file is None:
        missing = "--jump [USER@]HOST[:PORT]" if text is None else "--jump-host-key FILE"
        raise BadInput(
            "the jump host is not known",
            why=f"{missing} is missing beside the other",
            next_step=f"add {missing}",
        )
    found = _PLACE.fullmatch(text)
    port = int(found["port"] or 22) if found else 0
    if found is None or not 1 <= port <= 65535:
        raise BadInput(
            f"{text[:80]!a} is no jump host",
            why="it is not of the form [USER@]HOST[:PORT]",
            next_step="--jump holder@bastion.example:22, an IPv6 address in brackets",
        )
    return Jump(found["ipv6"] or found["host"], port, found["user"] or user, _pins(host_key_file))


def _pins(file: Path) -> tuple[HostKey, ...]:
    try:
        with file.open("rb") as source:
            lines = source.read(_MAX_BYTES).decode("utf-8", "replace").splitlines()
        keys = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
        return claims.host_keys(tuple(HostKey.from_line(line) for line in keys))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{file} holds no host key of the jump host",
            why=(error.strerror if isinstance(error, OSError) else None) or str(error),
            next_step="fetch /etc/ssh/ssh_host_ed25519_key.pub from it over a way that you trust",
        ) from None
