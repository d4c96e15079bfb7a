"""Run as a program, in a mount namespace of its own: act on an authority whose disk is full, at each page of it.

Arguments: a folder to mount a small file system on. Prints one JSON document: for each action and each number
of pages that were left, how it ended, and what stands afterwards.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ca.audit import audit
from ca.authority import Authority
from inventory.errors import MusterError
from tests.ca.killed import ACTIONS, differs, loads, reopened_in
from tests.ca.material import NOW, issue, new_authority

PAGE = 4096
MOST = 60
"""Pages that are certainly enough for one action."""


def fill(file: Path, *, left: int) -> None:
    """Take all room of the file system but some pages, and the one that lets the file itself go."""
    with file.open("wb", buffering=0) as out:
        for size in (64 * PAGE, PAGE):
            while True:
                try:
                    if out.write(bytes(size)) < size:
                        break
                except OSError:
                    break
        out.truncate(max(0, out.tell() // PAGE * PAGE - left * PAGE))


def pad(folder: Path) -> None:
    """Have the audit end just before a page of its file does, so that the next line needs another one."""
    authority = reopened_in(folder)
    audit_file = authority.layout.audit
    before = audit_file.stat().st_size
    use_ticket(authority, f"t{before}")
    overhead = audit_file.stat().st_size - before - len(f"t{before}")
    missing = (-audit_file.stat().st_size - 20 - overhead) % PAGE
    use_ticket(authority, "x" * max(missing, 30))
    authority.close()


def use_ticket(authority: Authority, ticket: str) -> None:
    authority.use_ticket(
        ticket, node="gpu-09", vm_uuid=None, node_key_sha256="00" * 32, actor="tester", now=NOW
    )


def tried(folder: Path, action: str) -> str:
    """How an action on a full disk ends: "done", or the exit code of its error."""
    try:
        authority = reopened_in(folder)
    except MusterError as error:
        return f"not opened: {error}"
    try:
        ACTIONS[action](authority)
    except MusterError as error:
        return str(int(error.exit_code))
    finally:
        authority.close()
    return "done"


def examined(folder: Path, lines: int) -> dict[str, Any]:
    """What stands once there is room again."""
    found = reopened_in(folder)
    known = {record.serial for record in found.records()}
    stored = {file.stem for file in found.layout.issued.glob("[!.]*")}
    torn = [file.name for file in found.layout.issued.iterdir() if file.stat().st_size == 0]
    unread = [
        each.serial for each in found.records() if each.fingerprint_sha256 and not loads(found, each.serial)
    ]
    written = found.entries - lines
    issue(found)
    left = [record.serial for record in found.open_intents]
    found.close()
    return {
        "wrong": sorted(stored - known) + torn + unread + left,
        "left over": [file.name for file in found.layout.issued.glob(".*")],
        "lines": written,
        "breaks": [each.why for each in audit(found.layout).breaks],
        "index differs": differs(folder),
    }


def main() -> None:
    """Each action with 0, 1, 2 ... pages left, until it comes to its end."""
    place = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "none", str(place)], check=True)
    os.environ["PATH"] = "/nowhere"
    authority = new_authority(place)
    issue(authority)
    folder, filler = authority.layout.folder, place / "filler"
    authority.close()
    ends = []
    for action in ACTIONS:
        for left in itertools.count():
            begun = reopened_in(folder)
            issue(begun)
            begun.close()
            pad(folder)
            begun = reopened_in(folder)
            lines = begun.entries
            begun.close()
            fill(filler, left=left)
            ended = tried(folder, action)
            filler.unlink()
            ends.append({"action": action, "left": left, "ended": ended, **examined(folder, lines)})
            if ended == "done" or left > MOST:
                break
    json.dump(ends, sys.stdout)


if __name__ == "__main__":
    main()
