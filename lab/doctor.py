"""Which backends start on this machine, found by starting them; and what would add the others."""

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inventory.errors import MusterError
from lab import namespaces, user_namespace
from lab.directory import DirectoryBackend
from lab.nodes import Backend, choose
from lab.server import TRIAL_HOST, claim
from lab.spawner import find_program

TIMEOUT_S = 1200.0  # for a person: the backends have deadlines of their own, and an image is built once
TITLES = ("BACKEND", "STARTS", "SECONDS", "WHY NOT", "ADD")
_PACKAGES = {  # Debian's, where the package is not named like its program
    "bwrap": "bubblewrap",
    "nsenter": "util-linux",
    "pivot_root": "util-linux",
    "setpriv": "util-linux",
    "sshd": "openssh-server",
    "umount": "mount",
    "unshare": "util-linux",
}
_SWITCHES = (  # what can forbid user namespaces to an ordinary user, the value that forbids, and one that does not
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "10000"),
)
_SETTINGS = Path("/proc/sys")
_INSTALL = re.compile(r"apt-get install [^;,\n]*[^;,.\s)]")


@dataclass(frozen=True, slots=True)
class Finding:
    """One backend, tried.

    why: why it does not start; None if it does.
    add: the one line that would make it start, or let it make nodes that are more real; None if nothing known would.
    not_real: what the nodes that it makes are not. seconds: how long the trial took.
    """

    name: str
    starts: bool
    why: str | None
    add: str | None
    not_real: tuple[str, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As --json shows it."""
        return {
            "name": self.name,
            "starts": self.starts,
            "why": self.why,
            "add": self.add,
            "not_real": list(self.not_real),
            "seconds": self.seconds,
        }

    def row(self) -> tuple[str, ...]:
        """As a table's row."""
        return (
            self.name,
            "yes" if self.starts else "no",
            f"{self.seconds:.1f}",
            self.why or "-",
            self.add or "-",
        )


def examine(name: str) -> Finding:
    """Boot a trial node of one backend, on an address that no lab uses, and take it away again.

    Raises:
        BadInput: there is no backend of that name.
        OtherSide: this machine has no address to try it on.
    """
    with claim() as (_, prefix), tempfile.TemporaryDirectory(prefix="muster-doctor-") as folder:
        address = str(prefix.network_address + TRIAL_HOST)
        began = time.monotonic()
        try:
            backend = choose(Path(folder), wanted=name, trial_address=address)
        except MusterError as error:
            if not error.why.startswith(f"{name}: "):
                raise  # it was not even tried
            told = "; ".join(
                dict.fromkeys(line.strip().removeprefix(f"{name}: ") for line in error.why.splitlines())
            )
            return Finding(
                name, starts=False, why=told, add=remedy(name, told), not_real=(), seconds=_since(began)
            )
        try:
            found = backend.not_real
            add = improvement(backend)
        finally:
            backend.close()
        return Finding(name, starts=True, why=None, add=add, not_real=found, seconds=_since(began))


def remedy(name: str, why: str, *, root: bool | None = None) -> str | None:
    """The line that would make a backend start whose trial failed, and `why`; None if no such line is known."""
    root = os.geteuid() == 0 if root is None else root
    if (told := _INSTALL.search(why)) is not None:
        return told.group() if root else f"sudo {told.group()}"
    if name == "namespaces":
        if not root:
            return 'sudo "$(command -v node-lab)" up'
        return _install(missing(namespaces.TOOLS), root=root)
    if name == "directory":
        return _install(missing(("tar", "openssl", "python3")), root=root)
    return None


def missing(programs: Iterable[str]) -> list[str]:
    """Those that this machine does not have."""
    return [program for program in programs if find_program(program) is None]


def improvement(
    backend: Backend, *, absent: Callable[[Iterable[str]], list[str]] = missing, settings: Path = _SETTINGS
) -> str | None:
    """The line that would let a backend that starts make nodes that are more real.

    absent: which of some programs this machine does not have. settings: where the kernel shows its own.
    """
    root = os.geteuid() == 0
    if backend.name == "namespaces":
        return _install(absent(("sshd", "sudo")), root=root)
    if not isinstance(backend, DirectoryBackend):
        return None
    walls: list[str] = []
    if backend.walls is None:
        switched = _switched_off(settings)
        if switched is not None:
            return switched if root else f"sudo {switched}"
        # Whatever was there has been tried, and did not stand.
        walls = absent(("bwrap",)) or absent(user_namespace.TOOLS)
    return _install((*walls, *absent(("sshd",))), root=root)


def _install(programs: Iterable[str], *, root: bool) -> str | None:
    packages = " ".join(dict.fromkeys(_PACKAGES.get(program, program) for program in programs))
    if not packages:
        return None
    return f"{'' if root else 'sudo '}apt-get install --no-install-recommends {packages}"


def _switched_off(settings: Path) -> str | None:
    """The sysctl(8) line that lets users make namespaces again, where a switch forbids it."""
    for name, forbids, allows in _SWITCHES:
        try:
            value = (settings / name.replace(".", "/")).read_text().strip()
        except OSError:
            continue
        if value == forbids:
            return f"sysctl -w {name}={allows}"
    return None


def _since(began: float) -> float:
    return round(time.monotonic() - began, 1)
