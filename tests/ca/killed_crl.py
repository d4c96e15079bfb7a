"""Run as a program: sign revocation lists, killed (SIGKILL) at each step that reaches the disk in turn.

Prints one JSON document: for each kill what the next opener found, and what the next signing made of it.
"""

import itertools
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ca.authority import Authority
from tests.ca.material import NOW, PASSPHRASE, new_authority, reopened

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

fsync = os.fsync


def sign(authority: Authority) -> None:
    signer = authority.unlock(PASSPHRASE)
    authority.sign_lists(signer=signer, now=NOW, actor="tester", ahead_months=2)


def killed_at(authority: Authority, step: int, *, after: bool) -> bool:
    """Sign in a child that dies before or after its `step`-th fsync; False once there are fewer steps."""
    child = os.fork()
    if child == 0:
        seen = itertools.count(1)

        def fatal(fd: "FileDescriptorLike") -> None:
            here = next(seen) == step
            if here and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            fsync(fd)
            if here:
                os.kill(os.getpid(), signal.SIGKILL)

        os.fsync = fatal
        sign(reopened(authority))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def examined(authority: Authority) -> dict[str, Any]:
    """What stands after a kill, and after the next signing, which must simply work."""
    found = reopened(authority)
    unfinished = found.unfinished_lists is not None
    handed_out = found.due_list(NOW)[0].number
    last = found.unfinished_lists.last.number if found.unfinished_lists else handed_out
    sign(found)
    lists = reopened(authority).lists
    assert lists is not None
    stored = set(authority.layout.crls.iterdir())
    announced = [
        item["number"]
        for line in map(json.loads, authority.layout.audit.read_text().splitlines())
        if line["kind"] == "crl"
        for item in line["body"]["lists"]
    ]
    return {
        "unfinished": unfinished,
        "handed out": handed_out,
        "higher": lists.slots[0].number > last,
        "repeated": len(announced) - len(set(announced)),
        "left over": sorted(str(file) for file in stored ^ {found.list_file(slot) for slot in lists.slots}),
    }


def main() -> None:
    """Kill at every step, before and after it."""
    authority = new_authority(Path(sys.argv[1]), now=NOW - timedelta(days=1))
    sign(authority)
    kills = []
    for after in (False, True):
        for step in itertools.count(1):
            if not killed_at(authority, step, after=after):
                break
            kills.append({"step": step, "after": after, **examined(authority)})
    json.dump(kills, sys.stdout)


if __name__ == "__main__":
    main()
