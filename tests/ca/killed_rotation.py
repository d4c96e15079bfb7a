"""Run as a program: rotate an authority, root and all, killed (SIGKILL) at each call that reaches the disk in turn.

Argument: a folder. Prints one JSON document: for each kill which phase it hit, what the next opener found, and
that the same phase, done again, simply works.
"""

import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ca.audit import audit
from ca.authority import Authority
from ca.layout import ROOT_KEY
from ca.rotation import Stage
from tests.ca.killed import deadly_calls, differs
from tests.ca.material import CHEAP, NOW, PASSPHRASE, issue, new_authority


def prepare(authority: Authority) -> None:
    place = authority.layout.folder.parent
    authority.prepare(
        secret=PASSPHRASE,
        root_key=place / "away" / ROOT_KEY,
        root_secret=PASSPHRASE,
        new_root=True,
        root_out=place / "new-away",
        now=NOW,
        actor="tester",
        kdf=CHEAP,
    )


PHASES: dict[Stage, Callable[[Authority], None]] = {
    Stage.PREPARED: prepare,
    Stage.DISTRIBUTED: lambda authority: authority.distribute(now=NOW, actor="tester"),
    Stage.ACTIVATED: lambda authority: authority.activate(secret=PASSPHRASE, now=NOW, actor="tester"),
    Stage.NONE: lambda authority: authority.retire(now=NOW, actor="tester"),
}


def killed(place: Path, stage: Stage, step: int, *, after: bool) -> bool:
    """Enter a phase in a child that dies at a call; False where it came to its end."""
    child = os.fork()
    if child == 0:
        authority = Authority.open(place / "ca", now=NOW, kdf_floor=CHEAP)
        deadly_calls(step, after=after)
        PHASES[stage](authority)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"{stage} failed by itself")
    return os.WIFSIGNALED(status)


def examined(place: Path, stage: Stage) -> dict[str, Any]:
    """What stands after a kill, and after the phase was done again."""
    found = Authority.open(place / "ca", now=NOW, kdf_floor=CHEAP)
    reached = found.rotation.stage is stage and (stage is not Stage.NONE or bool(found.rotation.retired))
    between = issue(found, node="between", vm_uuid=None, address=None).chain_pem
    usable = found.issuing_pem in between and found.plan_rotation(NOW) is not None
    found.revoke(found.records("between")[-1].serial, reason="superseded", now=NOW, actor="tester")
    if not reached or stage is Stage.NONE:
        PHASES[stage](found)
    elif stage is Stage.PREPARED:  # whatever it lacked is what the planner names
        found.sign_lists(signer=found.unlock(PASSPHRASE), now=NOW, actor="tester")
    found.close()
    again = Authority.open(place / "ca", now=NOW, kdf_floor=CHEAP)
    left = [str(path) for path in again.left_over()]
    blocks = [block.why for block in again.plan_rotation(NOW).blocks]
    stands = again.rotation.stage is stage
    again.close()
    return {
        "reached": reached,
        "usable": usable,
        "stands": stands,
        "left over": left,
        "blocks": blocks,
        "breaks": [each.why for each in audit(again.layout).breaks],
        "index differs": differs(place / "ca"),
    }


def main() -> None:
    """Kill at the calls of every phase; then go on from where it stands whole."""
    folder = Path(sys.argv[1])
    os.environ["PATH"] = "/nowhere"  # without openssl the judges are quick; others look at what they say
    authority = new_authority(folder)
    shutil.move(authority.layout.take_away, folder / "away")
    authority.sign_lists(signer=authority.unlock(PASSPHRASE), now=NOW, actor="tester")
    authority.close()
    kills = []
    for stage, enter in PHASES.items():
        for after in (False, True):
            for step in itertools.count(1):
                trial = folder / "trial"
                shutil.rmtree(trial, ignore_errors=True)
                trial.mkdir()
                for name in ("ca", "away", "new-away"):
                    if (folder / name).exists():
                        shutil.copytree(folder / name, trial / name)
                if not killed(trial, stage, step, after=after):
                    break
                kills.append({"phase": str(stage), "step": step, "after": after, **examined(trial, stage)})
        whole = Authority.open(folder / "ca", now=NOW, kdf_floor=CHEAP)
        enter(whole)
        whole.close()
    json.dump(kills, sys.stdout)


if __name__ == "__main__":
    main()
