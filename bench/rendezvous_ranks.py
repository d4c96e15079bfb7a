"""One assembly of forked ranks in an interpreter that holds the probe and nothing else, as on a node.

Run by its path, with `-I -S`: a fork copies the page tables of its parent, and a benchmark's interpreter with its
libraries is several times as large as the probe ever is. Reads what to do from stdin and answers on stdout, in JSON.
"""

import importlib
import json
import resource
import sys
import time
from pathlib import Path

_PATIENCE_S = 60.0


def main() -> None:
    """Assemble, kill the last rank where that is asked for, and tell what it took."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    # whole, as the probe is when its drills begin
    importlib.import_module("verify.probe.main")
    from verify.probe.loop import Loop
    from verify.probe.rank import Parts
    from verify.probe.replica import Replica
    from verify.probe.seats import Plan, Seat
    from verify.probe.tls import Identity, load

    order = json.load(sys.stdin)
    loaded = load(Identity(*order["identity"]))
    seats = (Seat(*order["seat"]),) * order["ranks"]
    plan = Plan(bytes(16), seats, _PATIENCE_S, beat_s=10.0)
    loop, before = Loop(), _spent()
    with Replica(loop, plan, loaded, Parts(), lifetime_s=_PATIENCE_S) as replica:
        began = time.perf_counter()
        replica.start_leader()
        replica.start(list(range(1, plan.world)))
        if not replica.wait(lambda: replica.everybody_gone, _PATIENCE_S):
            sys.exit(replica.trouble)
        said = {"wall": time.perf_counter() - began}
        if order["kill"]:
            at = loop.now()
            replica.kill(plan.world - 1)
            replica.wait(lambda: replica.leader.first("over") is not None, _PATIENCE_S)
            over = replica.leader.first("over")
            if over is None:
                sys.exit("nobody noticed")
            said["noticed"] = over["at"] - at
    said["cpu"] = _spent() - before
    json.dump(said, sys.stdout)


def _spent() -> float:
    """CPU seconds of this process and of all its children that have ended."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usage)


if __name__ == "__main__":
    main()
