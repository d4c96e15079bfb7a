"""Nodes as ssh_config(5) and known_hosts: their pinned host keys are believed, and no others."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from inventory.export.target import Tally, targets
from inventory.model import Node

HEAD = "# written by node-inventory export: changes are lost with the next one\n"
_SSH_PORT = 22


def write_ssh_config(nodes: Iterable[Node], out: IO[str], *, known_hosts: Path) -> Tally:
    """A Host block for each node that has an address and a pinned host key."""
    tally = Tally()
    out.write(HEAD)
    for _, target in targets(nodes, tally, pinned=True):
        options = [
            ("HostName", target.ip),
            ("Port", str(target.port)),
            *([("User", target.user)] if target.user is not None else []),
            ("UserKnownHostsFile", str(known_hosts)),
            *target.pins,
        ]
        out.write(f"\nHost {target.name}\n")
        out.writelines(f"    {key} {value}\n" for key, value in options)
    return tally


def write_known_hosts(nodes: Iterable[Node], out: IO[str]) -> Tally:
    """The pinned keys under each node's name, and under its address.

    Two nodes may have one address, at two sites say; either could then pass for the other there, so both are
    found by name alone.
    """
    tally = Tally()
    found = [target for _, target in targets(nodes, tally, pinned=True)]
    held = Counter((target.ip, target.port) for target in found)
    out.write(HEAD)
    for target in found:
        names = [target.name, _at(target.name, target.port)]
        if held[target.ip, target.port] == 1:
            names.append(_at(target.ip, target.port))
        patterns = ",".join(dict.fromkeys(names))
        out.writelines(f"{patterns} {key.line}\n" for key in dict.fromkeys(target.host_keys))
    return tally


def _at(host: str, port: int) -> str:
    """A host as ssh looks it up: with its port where that is another one (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT)."""
    return host if port == _SSH_PORT else f"[{host}]:{port}"
