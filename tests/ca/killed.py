"""Run as a program: issue again and again, killed (SIGKILL) at each step that reaches the disk in turn.

Prints one JSON document: for each kill what the next opener found, and what became of it.
"""

import itertools
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ca.authority import Authority
from tests.ca.material import NOW, issue, new_authority, reopened

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

fsync = os.fsync


def killed_at(authority: Authority, step: int, *, after: bool) -> bool:
    """Issue in a child that dies before or after its `step`-th fsync; False once there are fewer steps."""
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
        issue(reopened(authority))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def examined(authority: Authority) -> dict[str, Any]:
    """What stands after a kill, and after the next issue, which must simply work."""
    found = reopened(authority)
    newest = found.records()[-1] if found.records() else None
    stored = {file.stem for file in authority.layout.issued.glob("[!.]*.pem")}
    unknown = stored - {record.serial for record in found.records()}
    before = str(newest.standing) if newest else "nothing"
    warned = any("announced and not issued" in text for text in found.warnings(NOW))
    issue(found, now=NOW)
    again = reopened(authority)
    return {
        "before": before,
        "after": str(again.find(newest.serial).standing) if newest else "nothing",
        "why": again.find(newest.serial).why if newest else None,
        "stored but unknown": sorted(unknown),
        "open": len(again.open_intents),
        "warned": warned,
    }


def main() -> None:
    """Kill at every step, before and after it."""
    authority = new_authority(Path(sys.argv[1]))
    kills = []
    for after in (False, True):
        for step in itertools.count(1):
            if not killed_at(authority, step, after=after):
                break
            kills.append({"step": step, "after": after, **examined(authority)})
    json.dump(kills, sys.stdout)


if __name__ == "__main__":
    main()
