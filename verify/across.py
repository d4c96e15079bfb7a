"""Verifies several nodes together: their networks pair by pair, then one replica over all of them, with its drills."""

import difflib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

from inventory.errors import BadInput, ExitCode, MusterError, NotVerified, OtherSide
from verify import events
from verify.across_drills import DRILLS, NAMES, Result, play
from verify.artefact import artefact
from verify.fleet import Fleet, Lost, Place, Worker
from verify.runner import Exec

MAX_RANKS = 512
_NOT_CHECKED = (
    "GPUs",
    "inference engine",
    "bandwidth between nodes",
    "each node by itself",
)
Reach = Callable[[], AbstractContextManager[Exec]]


@dataclass(frozen=True, slots=True)
class PathRow:
    """One pair of nodes on one network.

    mtu: what was sent, headers included. why: what went wrong; empty where nothing did.
    """

    fabric: str
    source: str
    target: str
    mtu: int
    reached: bool
    full: bool
    why: str

    @property
    def ok(self) -> bool:
        """Did full-size packets get there and back?"""
        return self.reached and self.full and not self.why


@dataclass(frozen=True, slots=True)
class AcrossReport:
    """What came of it.

    lost: the node that stopped answering and why; None where all answered to the end.
    probes: what runs on each node, as whom; without those that were not reached.
    """

    run_id: str
    ranks: int
    places: tuple[Place, ...]
    identities: Mapping[str, events.IdentityFacts]
    paths: tuple[PathRow, ...]
    scenarios: tuple[Result, ...]
    lost: tuple[str, str] | None
    seconds: float
    probes: Mapping[str, events.Began] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Was everything judged, and good?"""
        return self.error is None

    @property
    def error(self) -> MusterError | None:
        """Why it is no pass; what was judged bad counts before what could not be judged."""
        names = ", ".join(place.name for place in self.places)
        bad = [f"{row.fabric}: {row.source} to {row.target}: {row.why}" for row in self.paths if not row.ok]
        bad += [f"{result.name}: {result.found}" for result in self.scenarios if result.ok is False]
        bad += [f"{name}: {facts.fault}" for name, facts in self.identities.items() if facts.fault]
        if bad:
            return NotVerified(
                f"{names} did not pass muster together", why="\n".join(bad), next_step=self.command
            )
        if self.lost or any(result.ok is None for result in self.scenarios) or not self.scenarios:
            unknown = [f"{result.name}: {result.found}" for result in self.scenarios if result.ok is None]
            name, why = self.lost or (names, next(iter(unknown), "nothing was run"))
            return OtherSide(
                f"{names} could not be verified together",
                why=f"{name}: {why}",
                next_step=f"verify-node {name}, which looks at that node alone",
            )
        return None

    @property
    def exit_code(self) -> ExitCode:
        """0 passed, 5 failed, 4 could not be judged."""
        return ExitCode.DONE if self.error is None else self.error.exit_code

    @property
    def outcome(self) -> Literal["passed", "failed", "not judged"]:
        """How it went; "not judged" where nothing can be said of them."""
        if self.error is None:
            return "passed"
        return "failed" if self.error.exit_code is ExitCode.VERIFICATION else "not judged"

    @property
    def command(self) -> str:
        """What verifies them again."""
        return f"verify-node --across {' '.join(place.name for place in self.places)}"

    @property
    def not_checked(self) -> tuple[str, ...]:
        """What it says nothing about."""
        return _NOT_CHECKED

    @property
    def time_line(self) -> tuple[tuple[str, events.RankTimes], ...]:
        """Each rank of `assemble` with its node; empty where it was not run."""
        per_node = max(1, self.ranks // max(1, len(self.places)))
        return tuple(
            (self.places[row.rank // per_node].name, row)
            for result in self.scenarios
            for row in result.line
            if row.rank < per_node * len(self.places)
        )

    def again(self, scenario: str) -> str:
        """What runs one scenario once more, and says more of it."""
        return f"{self.command} --scenario {scenario} -v"

    def fault(self, place: Place) -> str | None:
        """What is wrong with one of the nodes by itself; None where nothing is."""
        if self.lost and self.lost[0] == place.name:
            return self.lost[1]
        facts = self.identities.get(place.name)
        return facts.fault if facts else "not reached"

    @property
    def verdict(self) -> str:
        """The first line."""
        names = ", ".join(place.name for place in self.places)
        total = f"run {self.run_id}, {self.seconds:.1f} s"
        if self.error is None:
            return f"{names} passed together: {self.ranks} ranks; {', '.join(_NOT_CHECKED)} not checked ({total})"
        word = (
            "did not pass together" if isinstance(self.error, NotVerified) else "could not be judged together"
        )
        first = self.error.why.splitlines()[0]
        return f"{names} {word}: {first} ({total})"

    def document(self) -> dict[str, Any]:
        """The report as JSON values; it grows by addition only."""
        return {
            "ok": self.ok,
            "across": True,
            "run_id": self.run_id,
            "ranks": self.ranks,
            "probe_sha256": artefact().sha256,
            "seconds": round(self.seconds, 3),
            "nodes": [self._node(place) for place in self.places],
            "fabrics": [
                {
                    "name": row.fabric,
                    "from": row.source,
                    "to": row.target,
                    "mtu": row.mtu,
                    "reached": row.reached,
                    "full_size": row.full,
                    "ok": row.ok,
                    "why": row.why or None,
                }
                for row in self.paths
            ],
            "scenarios": [
                {
                    "name": result.name,
                    "kind": result.kind,
                    "ok": result.ok,
                    "seconds": round(result.seconds, 3),
                    "expected": result.expected,
                    "found": result.found,
                    "next": None if result.ok else self.again(result.name),
                }
                for result in self.scenarios
            ],
            "time_line": [{"node": name, **row.model_dump()} for name, row in self.time_line],
            "not_checked": list(_NOT_CHECKED),
            "error": None if self.error is None else self.error.to_json(),
        }

    def _node(self, place: Place) -> dict[str, Any]:
        facts = self.identities.get(place.name)
        fault = self.fault(place)
        return {
            "name": place.name,
            "ok": fault is None,
            "address": place.address,
            "spiffe_id": place.spiffe_id,
            "serial": facts.serial if facts else None,
            "found": fault,
        }


def choose(wanted: Sequence[str]) -> tuple[str, ...]:
    """The scenarios called so, all of them when none is named; raises BadInput."""
    for name in wanted:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1)
            raise BadInput(
                f"there is no scenario {name!r} across nodes",
                why=f"the scenarios are {', '.join(NAMES)}",
                next_step=f"did you mean --scenario {near[0]}" if near else "choose one of them",
            )
    return tuple(name for name in NAMES if name in wanted) if wanted else NAMES


def check_shape(nodes: int, ranks: int) -> None:
    """Refuse what cannot be placed; raises BadInput."""
    if nodes < 2:
        raise BadInput(
            "nothing was verified across nodes",
            why=f"{nodes} node was named, and two at least must meet",
            next_step="verify-node --across 'gpu-[01-04]'",
        )
    if ranks % nodes or not nodes <= ranks <= MAX_RANKS:
        raise BadInput(
            f"{ranks} ranks cannot be placed on {nodes} nodes",
            why=f"each node takes the same number, and {MAX_RANKS} ranks are the most",
            next_step=f"--ranks {2 * nodes}",
        )


def run_across(
    nodes: Sequence[tuple[Place, Reach]],
    *,
    ranks: int,
    deadline_s: float,
    scenarios: Sequence[str] = NAMES,
    on_result: Callable[[Result], None] = lambda _result: None,
) -> AcrossReport:
    """Run everything, and leave nothing running; a node that is lost ends the run, and is told in the report."""
    check_shape(len(nodes), ranks)
    run = _Run([place for place, _ in nodes], ranks, deadline_s, on_result)
    with ExitStack() as stack:
        try:
            workers = run.start(nodes, stack)
            run.identify(workers)
            fleet = Fleet(workers, ranks, join_s=max(2.0, min(15.0, deadline_s / 8)))
            run.networks(fleet)
            run.drills(fleet, scenarios)
            for worker in workers:
                worker.leave()
        except Lost as lost:
            run.lost = (lost.name, lost.why)
    return run.report(scenarios)


class _Run:
    def __init__(
        self, places: Sequence[Place], ranks: int, deadline_s: float, on_result: Callable[[Result], None]
    ) -> None:
        self._places, self._ranks, self._deadline_s = tuple(places), ranks, deadline_s
        self._on_result = on_result
        self._run_id = secrets.token_hex(16)
        self._began = time.monotonic()
        self._identities: dict[str, events.IdentityFacts] = {}
        self._probes: dict[str, events.Began] = {}
        self._paths: list[PathRow] = []
        self._results: list[Result] = []
        self._unmet = ""
        self.lost: tuple[str, str] | None = None

    def start(self, nodes: Sequence[tuple[Place, Reach]], stack: ExitStack) -> list[Worker]:
        """One session and one command on each node."""
        workers = []
        per_node = self._ranks // len(nodes)
        seats = [(place.name, place.spiffe_id) for place in self._places for _ in range(per_node)]
        for place, reach in nodes:
            settings = {
                "schema": 1,
                "node": place.name,
                "run_id": self._run_id,
                "identity": dict(place.files),
                "spiffe_id": place.spiffe_id,
                "deadline_s": self._deadline_s,
                "across": {"seats": seats, "address": place.address},
            }
            try:
                where = stack.enter_context(reach())
            except MusterError as error:
                raise Lost(place.name, error.why) from error
            worker = Worker(place, where, settings, ends=self._began + self._deadline_s)
            stack.callback(worker.kill)
            workers.append(worker)
        return workers

    def identify(self, workers: Sequence[Worker]) -> None:
        """Whose identity each node shows."""
        for worker in workers:
            self._identities[worker.place.name] = worker.identity()
            if worker.probe:
                self._probes[worker.place.name] = worker.probe
        bad = [name for name, facts in self._identities.items() if facts.fault]
        if bad:
            self._unmet = f"the identity of {', '.join(bad)} does not hold"

    def networks(self, fleet: Fleet) -> None:
        """Every pair of nodes on every network: a small packet, and one of the full size, there and back."""
        ports: dict[str, dict[str, str]] = {}
        for worker in fleet.workers:
            addresses = [address for address, _ in worker.place.fabrics.values()]
            ports[worker.place.name] = worker.ask("echo", addresses=addresses)["ports"]
        for one, other in combinations(fleet.workers, 2):
            for fabric in one.place.fabrics:
                if fabric in other.place.fabrics:
                    self._paths.append(self._path(fabric, one, other, ports))
        main = {worker.place.address for worker in fleet.workers}
        apart = [
            row for row in self._paths if not row.reached and self._address(row.source, row.fabric) in main
        ]
        if apart and not self._unmet:
            self._unmet = f"{apart[0].source} does not reach {apart[0].target} over {apart[0].fabric}"

    def _path(
        self, fabric: str, one: Worker, other: Worker, ports: Mapping[str, Mapping[str, str]]
    ) -> PathRow:
        (source, mtu), (target, their_mtu) = one.place.fabrics[fabric], other.place.fabrics[fabric]
        port = ports[other.place.name].get(target, "it has no echo")
        names, size = (one.place.name, other.place.name), max(mtu, their_mtu)
        if not port.isdigit():
            return PathRow(fabric, *names, size, reached=False, full=False, why=port)
        said = one.ask("path", **{"from": source, "to": (target, int(port)), "mtu": size})
        why = str(said["why"])[:300]
        if mtu != their_mtu:
            differ = f"declared are MTU {mtu} on {names[0]} and {their_mtu} on {names[1]}"
            why = f"{differ}; {why}" if why else differ
        return PathRow(fabric, *names, size, bool(said["reached"]), bool(said["full"]), why)

    def _address(self, name: str, fabric: str) -> str:
        return next(place.fabrics[fabric][0] for place in self._places if place.name == name)

    def drills(self, fleet: Fleet, scenarios: Sequence[str]) -> None:
        """Every scenario that was asked, in its order."""
        if self._unmet:
            return
        for drill in DRILLS:
            if drill.name in scenarios:
                result = play(drill, fleet)
                self._results.append(result)
                self._on_result(result)

    def report(self, scenarios: Sequence[str]) -> AcrossReport:
        """All of it; what was not run is told as not judged."""
        ran = {result.name for result in self._results}
        why = self._unmet or (f"{self.lost[0]} was lost: {self.lost[1]}" if self.lost else "")
        left = [
            Result(drill.name, drill.kind, None, 0.0, drill.expected, f"not run: {why}")
            for drill in DRILLS
            if drill.name in scenarios and drill.name not in ran
        ]
        return AcrossReport(
            self._run_id,
            self._ranks,
            self._places,
            self._identities,
            tuple(self._paths),
            (*self._results, *left),
            self.lost,
            time.monotonic() - self._began,
            self._probes,
        )
