"""Run as a program: change a key's custody again and again, killed (SIGKILL) before each step that leaves a trace.

`passphrase` changes the issuing key's passphrase, `complete` completes an authority below an outside root.
Prints one JSON document: for each kill what was found, and whether the next issue worked.
"""

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ca.authority import Authority
from ca.layout import Layout
from inventory.errors import BadInput
from tests.ca.material import CHEAP, NOW, PASSPHRASE, issue, new_authority
from tests.ca.outside_root import made
from tests.ca.test_external import completed, waiting

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

OTHER = b"six other quiet brown otters"
fsync = os.fsync


def killed_at(step: int, act: Callable[[Path], object], folder: Path) -> bool:
    """Act in a child that dies before its `step`-th trace; False once there are fewer."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.WIFSIGNALED(status)
    seen = itertools.count(1)

    def trace() -> None:
        if next(seen) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def audited(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE
        if (event in {"os.rename", "os.remove"} or writes) and f"{folder}/ca" in str(arguments[0]):
            trace()

    def traced(fd: "FileDescriptorLike") -> None:
        trace()
        fsync(fd)

    os.fsync = traced
    sys.addaudithook(audited)
    act(folder)
    os._exit(0)


def change(folder: Path) -> None:
    authority = Authority.open(folder / "ca", now=NOW, kdf_floor=CHEAP)
    authority.change_passphrase(PASSPHRASE, OTHER, now=NOW, actor="tester", kdf=CHEAP)


def after_change(folder: Path) -> dict[str, Any]:
    """Which passphrases open the key; and whether one can go on with it."""
    authority = Authority.open(folder / "ca", now=NOW, kdf_floor=CHEAP)
    opens = []
    for name, secret in (("old", PASSPHRASE), ("new", OTHER)):
        try:
            signer = authority.unlock(secret)
        except BadInput:
            continue
        opens.append(name)
        issue(authority, signer=signer)
    if opens == ["old"]:
        change(folder)
    return {"opens": opens, "left": _strangers(folder / "ca")}


def complete(folder: Path) -> None:
    completed(folder, folder / "signed.pem", folder / "root" / "root.pem")


def after_completion(folder: Path) -> dict[str, Any]:
    begun = Layout(folder / "ca").audit.exists()
    if not begun:
        complete(folder)
    authority = Authority.open(folder / "ca", now=NOW, kdf_floor=CHEAP)
    issue(authority)
    return {"opens": ["complete" if begun else "waiting"], "left": _strangers(folder / "ca")}


def _strangers(folder: Path) -> list[str]:
    """Files that no part of the authority has; what is not yet cleared of the waiting counts as known."""
    layout = Layout(folder)
    return sorted(
        {file.name for file in folder.iterdir()} - layout.taken_names - {"index.db-shm", "index.db-wal"}
    )


def main() -> None:
    """Kill before every step."""
    what, place = sys.argv[1], Path(sys.argv[2])
    (place / "first").mkdir()
    if what == "passphrase":
        new_authority(place / "first")
        act, examine = change, after_change
    else:
        waiting(place / "first")
        signed = made(place / "first" / "root").signs(place / "first" / "ask.csr")
        signed.rename(place / "first" / "signed.pem")
        act, examine = complete, after_completion
    found = []
    for step in itertools.count(1):
        folder = place / str(step)
        shutil.copytree(place / "first", folder)
        if not killed_at(step, act, folder):
            break
        found.append({"step": step, **examine(folder)})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
