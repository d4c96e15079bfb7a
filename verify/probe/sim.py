"""The sim engine on its own: one process for each shard, started like a real engine, with a real engine's end.

    python3 -m verify.probe.sim --dist-init-addr 10.0.0.1:20000 --nnodes 4 --node-rank 0

Rank 0 leads: it listens on --dist-init-addr and, once every shard has joined, serves its API on --host and --port.
When one shard dies, every process of the replica ends with an error, and nothing answers any more.
"""

from __future__ import annotations

import argparse
import hashlib
import signal
import sys
import time
from typing import Any, Sequence

from .checks import identity_facts
from .engine import HOST, Engine
from .leader import Leader
from .listening import at, bind
from .loop import Loop
from .member import Address, Member
from .rank import FAILED, FINE
from .seats import Outcome, Plan, Seat
from .tls import Identity, IdentityFault, load
from .wire import Cause

_LAST_WORDS_S = 1.2
_FOREVER_S = 10 * 365 * 86400.0
USAGE = 2


def main(words: Sequence[str] | None = None) -> int:
    """Be one shard until the replica is over; the process's exit status."""
    asked = _asked(words)
    try:
        plan, loaded = _plan(asked)
        shard = _Shard(asked, plan)
        shard.begin(loaded)
    except (IdentityFault, OSError, ValueError) as error:
        _say(f"error: {error}")
        return USAGE
    return shard.run()


class _Shard:
    def __init__(self, asked: argparse.Namespace, plan: Plan) -> None:
        self._asked, self._plan, self._loop = asked, plan, Loop()
        self._session: Leader | Member | None = None
        self._outcome: Outcome | None = None
        self._told_to_stop = False

    def begin(self, loaded: Any) -> None:  # noqa: ANN401 - tls.Loaded
        """Listen, or dial."""
        asked, loop = self._asked, self._loop
        if asked.node_rank:
            self._session = Member(
                loop,
                asked.dist_init_addr,
                loaded.contexts.client,
                self._plan,
                asked.node_rank,
                on_event=self._event,
                on_go=lambda: None,
                on_over=self._over,
            )
        else:
            engine = Engine(loop, ranks=self._plan.world, host=asked.host, port=asked.port)
            listener = bind(*asked.dist_init_addr)
            listener.listen(max(128, 2 * self._plan.world))
            _say(f"rank 0 listens on {at(*asked.dist_init_addr)}")

            def served() -> None:
                engine.serve()
                _say(f"serving on {at(asked.host, engine.port)}")

            def over(outcome: Outcome) -> None:
                engine.stop()
                self._over(outcome)

            self._session = Leader(
                loop,
                listener,
                loaded.contexts.server,
                self._plan,
                on_event=self._event,
                on_go=served,
                on_over=over,
            )
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._stop)

    def run(self) -> int:
        """Until it is over."""
        while self._outcome is None:
            # short turns: a signal's handler alone does not end the selector's wait (PEP 475)
            self._loop.run(lambda: self._outcome is not None or self._told_to_stop, 0.2)
            if self._told_to_stop and self._outcome is None:
                self._leave()
        session = self._session
        if session:
            self._loop.run(lambda: session.silent, _LAST_WORDS_S)
            session.close()
        if self._outcome.cause == Cause.STOPPED:
            return FINE
        _say(f"error: {self._outcome.text}")
        return FAILED

    def _leave(self) -> None:
        if isinstance(self._session, Leader):
            self._session.stop()
        elif self._session:
            self._session.cancel("told to stop")

    def _stop(self, _signum: int, _frame: object) -> None:
        self._told_to_stop = True

    def _event(self, event: dict[str, Any]) -> None:
        if "text" in event:
            _say(f"{event['event']}: {event['text']}")

    def _over(self, outcome: Outcome) -> None:
        self._outcome = outcome


def _plan(asked: argparse.Namespace) -> tuple[Plan, Any]:
    folder = asked.identity
    files = Identity(f"{folder}/chain.pem", f"{folder}/key.pem", f"{folder}/bundle.pem", f"{folder}/crl.pem")
    loaded = load(files)
    own = _own_id(files)
    domain, _, node = own.rpartition("/")
    names = asked.nodes.split(",") if asked.nodes else [node]
    if asked.nnodes % len(names):
        raise ValueError(f"{asked.nnodes} shards do not spread evenly over {len(names)} nodes")
    each = asked.nnodes // len(names)
    seats = tuple(Seat(name, f"{domain}/{name}") for name in names for _ in range(each))
    if seats[asked.node_rank].node != node:
        raise ValueError(f"rank {asked.node_rank} is for {seats[asked.node_rank].node}, this is {node}")
    # the same words make the same run: a shard of another replica, or of another shape, is refused
    run = f"{asked.run} {at(*asked.dist_init_addr)} {asked.nnodes} {asked.nodes}"
    return Plan(hashlib.sha256(run.encode()).digest()[:16], seats, asked.timeout), loaded


def _own_id(files: Identity) -> str:
    facts = identity_facts(files, node="", expected_id=None, now=time.time())
    if "spiffe_id" not in facts:
        raise IdentityFault(str(facts["fault"]))
    return str(facts["spiffe_id"])


def _asked(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="muster-sim", description="One shard of a replica that needs no GPU."
    )
    parser.add_argument("--dist-init-addr", required=True, type=_address, metavar="HOST:PORT")
    parser.add_argument("--nnodes", required=True, type=int, metavar="N", help="shards of the replica")
    parser.add_argument("--node-rank", required=True, type=int, metavar="R", help="which of them this one is")
    parser.add_argument("--nodes", default="", metavar="A,B", help="the nodes, each with as many shards")
    parser.add_argument("--host", default=HOST, help="where rank 0 serves its API")
    parser.add_argument("--port", default=0, type=int, help="its port (default: the kernel's choice)")
    parser.add_argument(
        "--identity", default="/etc/muster/current", metavar="DIR", help="chain, key and bundle"
    )
    parser.add_argument(
        "--run", default="", metavar="ID", help="what tells this replica from its former ones"
    )
    parser.add_argument(
        "--timeout", default=300.0, type=float, metavar="S", help="until all must have joined"
    )
    asked = parser.parse_args(words)
    if not 0 <= asked.node_rank < asked.nnodes:
        parser.error(f"--node-rank {asked.node_rank} is not one of 0 to {asked.nnodes - 1}")
    return asked


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host.strip("[]"), int(port))


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
