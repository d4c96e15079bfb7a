"""Run as a program: act on an authority again and again, killed (SIGKILL) at each step in turn.

Arguments: a folder, and `exhaustive` for every call that reaches the disk, or how many lines of our own code
to be killed at, drawn at random. Prints one JSON document: what the next opener found after each kill.
"""

import itertools
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from ca.audit import audit
from ca.authority import Authority
from ca.batch import Asked
from ca.index import Index
from ca.ledger import Ledger
from ca.record import Standing
from tests.ca.material import CHEAP, NOW, PASSPHRASE, issue, new_authority, request

ROOT = str(Path(__file__).parents[2])
CALLS = ("write", "fsync", "replace", "rename", "ftruncate", "unlink", "open", "mkdir")
"""Of `os`, through which everything but SQLite's own file reaches the disk."""


def newest_issued(authority: Authority) -> str:
    return [each.serial for each in authority.records() if each.standing is Standing.ISSUED][-1]


def issue_three(authority: Authority) -> None:
    asked = [Asked(request(), f"gpu-1{number}") for number in range(3)]
    authority.issue_many(asked, signer=authority.unlock(PASSPHRASE), now=NOW, actor="tester")


ACTIONS: dict[str, Callable[[Authority], object]] = {
    "issue": issue,
    "issue many": issue_three,
    "install": lambda authority: authority.installed(newest_issued(authority), now=NOW, actor="tester"),
    "revoke": lambda authority: authority.revoke(
        newest_issued(authority), reason="superseded", now=NOW, actor="tester"
    ),
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def deadly_calls(step: int, *, after: bool) -> None:
    """Have this process die before or after its `step`-th call that changes the disk."""
    seen = itertools.count(1)

    def deadly(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if name == "open" and not arguments[1] & (os.O_CREAT | os.O_WRONLY):
                return real(*arguments, **named)
            here = next(seen) == step
            if here and not after:
                die()
            result = real(*arguments, **named)
            if here:
                die()
            return result

        setattr(os, name, call)

    for name in CALLS:
        deadly(name)


def deadly_lines(step: int) -> None:
    """Have this process die at the `step`-th line of our own code, SQLite's statements lie between them."""
    seen = itertools.count(1)

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.startswith((f"{ROOT}/ca/", f"{ROOT}/inventory/files.py")):
            return None
        if event == "line" and next(seen) == step:
            die()
        return trace

    sys.settrace(trace)


def killed(folder: Path, action: str, arm: Callable[[], None]) -> bool:
    """Act in a child that is armed; False where it came to its end."""
    child = os.fork()
    if child == 0:
        authority = reopened_in(folder)
        arm()
        ACTIONS[action](authority)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"{action} failed by itself")
    return os.WIFSIGNALED(status)


def reopened_in(folder: Path) -> Authority:
    return Authority.open(folder, now=NOW, kdf_floor=CHEAP)


def examined(folder: Path) -> dict[str, Any]:
    """What stands after a kill, and after the next issue, which must simply work."""
    found = reopened_in(folder)
    opened = {record.serial for record in found.open_intents}
    warned = any("announced and not issued" in text for text in found.warnings(NOW))
    notes = [text for text in found.warnings(NOW) if "index" in text]
    known = {record.serial for record in found.records()}
    stored = {file.stem for file in found.layout.issued.glob("[!.]*.pem")}
    unread = [
        each.serial for each in found.records() if each.fingerprint_sha256 and not loads(found, each.serial)
    ]
    found.close()
    again = reopened_in(folder)
    issue(again)
    wrong = sorted(stored - known) + unread
    whys = sorted({again.find(serial).why or "" for serial in opened})
    left = len(again.open_intents)
    again.close()
    return {
        "unknown or unreadable": wrong,
        "abandoned": len(opened),
        "warned": warned,
        "whys": whys,
        "open": left,
        "breaks": [each.why for each in audit(again.layout).breaks],
        "index differs": differs(folder),
        "notes": notes,
    }


def loads(authority: Authority, serial: str) -> bool:
    return authority.load_issued(serial).serial == serial


def differs(folder: Path) -> bool:
    """Whether the index in the folder says anything else than one that is made anew."""
    fresh_file = folder.parent / "fresh.db"
    both = [Index(file, Ledger(folder / "audit.jsonl")) for file in (folder / "index.db", fresh_file)]
    for index in both:
        index.catch_up()
    kept, fresh = ([*index.contents()] for index in both)
    for index in both:
        index.close()
    fresh_file.unlink()
    return kept != fresh


def main() -> None:
    """Kill at every call, before and after it; or at lines drawn at random."""
    folder, how = Path(sys.argv[1]), sys.argv[2]
    os.environ["PATH"] = (
        "/nowhere"  # without openssl the judges are quick; what they say is not the matter here
    )
    authority = new_authority(folder)
    issue(authority)
    place = authority.layout.folder
    authority.close()
    kills = []
    if how == "exhaustive":
        for action, after in itertools.product(ACTIONS, (False, True)):
            for step in itertools.count(1):
                if not killed(place, action, lambda: deadly_calls(step, after=after)):  # noqa: B023
                    break
                kills.append({"action": action, "step": step, "after": after, **examined(place)})
    else:
        draw = random.Random(how)  # noqa: S311 - no secret
        for number in range(int(how)):
            action = [*ACTIONS][number % len(ACTIONS)]
            step = draw.randrange(1, 4_000 if action.startswith("issue") else 500)
            if killed(place, action, lambda: deadly_lines(step)):  # noqa: B023
                kills.append({"action": action, "step": step, "after": False, **examined(place)})
    json.dump(kills, sys.stdout)


if __name__ == "__main__":
    main()
