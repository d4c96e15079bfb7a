"""A node as something to log in to: checked once more, for each part of it is written into another program's file."""

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from inventory.errors import BadInput
from inventory.lifecycle import unadopted
from inventory.model import HostKey, Node, State, check_user

# What ssh(1) is to negotiate for a pinned key, `ssh -Q HostKeyAlgorithms`: an RSA key signs with SHA-2 (RFC 8332).
_ALGORITHMS = {
    "ssh-ed25519": "ssh-ed25519",
    "ecdsa-sha2-nistp256": "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384": "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521": "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com": "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com": "sk-ecdsa-sha2-nistp256@openssh.com",
    "ssh-rsa": "rsa-sha2-512,rsa-sha2-256",
}
# ssh(1) expands ~, % and ${} in it, Ansible splits it like a shell and reads {{ }} in it.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9/._+@=,:-]+")


@dataclass(frozen=True, slots=True)
class Target:
    """Where and as whom to log in, and which host keys to expect: only those of types that OpenSSH has."""

    name: str
    ip: str
    port: int
    user: str | None
    host_keys: tuple[HostKey, ...]

    @property
    def algorithms(self) -> str:
        """The value of HostKeyAlgorithms (ssh_config(5)) that asks for no key but the pinned ones."""
        return ",".join(dict.fromkeys(_ALGORITHMS[key.type] for key in self.host_keys))

    @property
    def pins(self) -> tuple[tuple[str, str], ...]:
        """The options of ssh_config(5) that believe the pinned keys and nothing else, under the node's own name.

        The name stands for it, since an address may be another node's at another site.
        """
        limits = (("HostKeyAlgorithms", self.algorithms),) if self.host_keys else ()
        return (
            ("HostKeyAlias", self.name),
            *limits,
            ("GlobalKnownHostsFile", "/dev/null"),
            ("StrictHostKeyChecking", "yes"),
            ("UpdateHostKeys", "no"),
            ("VerifyHostKeyDNS", "no"),
            ("CheckHostIP", "no"),
        )


@dataclass(slots=True)
class Tally:
    """What became of the nodes: how many were written, why others were not.

    absent: how many, by why: there is nothing to log in to yet, or no more. faulty: what is wrong with a node.
    """

    written: int = 0
    absent: dict[str, int] = field(default_factory=dict)
    faulty: list[str] = field(default_factory=list)

    @property
    def left(self) -> int:
        """How many were not written."""
        return sum(self.absent.values()) + len(self.faulty)


def targets(nodes: Iterable[Node], tally: Tally, *, pinned: bool) -> Iterator[tuple[Node, Target]]:
    """The nodes that can be logged in to; `tally` learns of the others.

    pinned: only those with a host key.
    """
    for node in nodes:
        why = _absent(node, pinned=pinned)
        if why is not None:
            tally.absent[why] = tally.absent.get(why, 0) + 1
            continue
        try:
            found = _target(node)
        except ValueError as error:
            tally.faulty.append(f"{node.name} is left out: {error}")
            continue
        if pinned and not found.host_keys:
            tally.faulty.append(f"{node.name} is left out: OpenSSH knows none of its host keys' types")
            continue
        tally.written += 1
        yield node, found


def known_hosts_path(file: Path) -> Path:
    """The absolute path of a known_hosts file, as it can be written into other programs' files.

    Raises:
        BadInput: it has characters that ssh or Ansible would read as something else.
    """
    path = file.absolute()
    if not _PLAIN_PATH.fullmatch(str(path)):
        raise BadInput(
            f"--known-hosts {file} cannot be used",
            why="ssh and Ansible read blanks, quotes, %, $, ~ and braces in a path as something else",
            next_step="choose a path of letters, digits and /._+@=,:-",
        )
    return path


def needed_known_hosts(file: Path | None) -> Path:
    """The same where there must be one.

    Raises:
        BadInput: there is none, or as `known_hosts_path`.
    """
    if file is None:
        raise BadInput(
            "nothing was exported",
            why="ssh must be told which host keys to believe, or it asks at the first connection",
            next_step="node-inventory export --format known-hosts -o FILE, then add --known-hosts FILE",
        )
    return known_hosts_path(file)


def _absent(node: Node, *, pinned: bool) -> str | None:
    if node.state is State.RETIRED:
        return "retired"
    if node.address is None:
        return "without an address"
    return "without a pinned host key" if pinned and not _pinned(node) else None


def _pinned(node: Node) -> tuple[HostKey, ...]:
    """The node's host keys; those that a list of nodes merely told of are nobody's pin."""
    return () if unadopted(node) else node.host_keys


def _target(node: Node) -> Target:
    """Raises ValueError where something would not arrive in a configuration file as what it is."""
    assert node.address is not None  # noqa: S101 - _absent has looked
    ip = ipaddress.ip_address(node.address.ip)
    if getattr(ip, "scope_id", None) is not None:  # any text at all may follow the %
        raise ValueError("its address names a network interface, which means something on one host only")
    if not 1 <= node.ssh_port <= 65535:
        raise ValueError(f"its SSH port {node.ssh_port} is not between 1 and 65535")
    user = None if node.user is None else check_user(node.user)
    keys = tuple(key for key in _pinned(node) if key.type in _ALGORITHMS)
    return Target(node.name, str(ip), node.ssh_port, user, keys)
