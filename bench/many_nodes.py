"""Many light nodes in one lab, each walked to service: `python -m bench.many_nodes [--nodes N] [--floor N] [--json]`.

They are made by one provision-node, onboarded and verified by one onboard-node, as a person would type it; then the
record, the list and the page are asked for each of them. The cost of a node among many stands against one among few.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import peak
from bench.peak import Ran
from inventory.model import State
from inventory.store import Store
from lab import running
from lab.places import Places

NODES, FLOOR = 200, 10
_COMMAND_S = 3600.0


@dataclass(frozen=True, slots=True)
class Walked:
    """What a fleet cost, command by command, and what was found of it afterwards."""

    nodes: int
    backend: str
    provision: Ran
    onboard: Ran
    list: Ran
    report: Ran
    reports: int
    ranks: int
    page_kib: float

    @property
    def node_s(self) -> float:
        """Wall seconds of a node, from nothing to service."""
        return (self.provision.wall_s + self.onboard.wall_s) / self.nodes


class Faulty(Exception):
    """A command failed, or a node is not as it should be."""


def walk(count: int, *, backend: str | None = None) -> Walked:
    """A lab of its own with so many nodes, all brought into service and looked at; nothing is left of it.

    Raises:
        Faulty: not all of them came there, and which not.
    """
    with _lab(backend) as (lab, environment):
        names = tuple(f"gpu-{number:03}" for number in range(1, count + 1))
        every = f"gpu-[{names[0][4:]}-{names[-1][4:]}]"
        provision, _ = _run(environment, "provision-node", every, "--profile", "small", "--yes", "--json")
        onboard, _ = _run(environment, "onboard-node", every, "--yes", "--json")
        listing, told = _run(environment, "node-inventory", "list", "--json")
        page = lab.places.root / "fleet.html"
        report, _ = _run(environment, "node-inventory", "report", "--html", str(page), "--json")
        reports, ranks = _looked_at(environment["MUSTER_INVENTORY"], names)
        listed = {node["name"]: node["state"] for node in told["nodes"]}
        _need(names, lambda name: listed.get(name) == State.IN_SERVICE, "is not listed as in service")
        text = page.read_text("utf-8")
        _need(names, lambda name: f">{name}<" in text, "is not on the page")
        return Walked(
            nodes=count,
            backend=lab.backend,
            provision=provision,
            onboard=onboard,
            list=listing,
            report=report,
            reports=reports,
            ranks=ranks,
            page_kib=len(text) / 1024,
        )


def _looked_at(url: str, names: Sequence[str]) -> tuple[int, int]:
    """How many verifications the record keeps, and time lines of ranks in them."""
    store = Store.open(url)
    states = {node.name: node.state for node in store.summaries()}
    _need(names, lambda name: states.get(name) is State.IN_SERVICE, "is not on record as in service")
    lines = {
        report.node: report.document["verification"]["time_line"]
        for report in store.last_reports()
        if report.passed
    }
    _need(names, lambda name: bool(lines.get(name)), "has no report that it passed")
    return sum(len(store.reports(name)) for name in names), sum(map(len, lines.values()))


def _need(names: Sequence[str], is_right: Callable[[str], bool], what: str) -> None:
    wrong = [name for name in names if not is_right(name)]
    if wrong:
        raise Faulty(f"{wrong[0]} {what} ({len(wrong)} of {len(names)})")


@contextmanager
def _lab(backend: str | None) -> Iterator[tuple[running.Lab, dict[str, str]]]:
    with tempfile.TemporaryDirectory(prefix="bench-nodes-", ignore_cleanup_errors=True) as name:
        lab, server = running.start(Places(Path(name) / "lab"), backend=backend, tied=True)
        try:
            own = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
            yield lab, {**own, **lab.places.environment()}
        finally:
            running.end(server)


def _run(environment: dict[str, str], *words: str) -> tuple[Ran, Any]:
    """A command as it is typed; what it cost, and its document."""
    program = Path(sys.executable).with_name(words[0])
    sys.stderr.write(f"$ {' '.join(words)}\n")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        ran = peak.run(
            [str(program), *words[1:]], stdout=out, stderr=err, environment=environment, timeout_s=_COMMAND_S
        )
        out.seek(0)
        err.seek(0)
        if ran.code:
            raise Faulty(f"{words[0]} ended with {ran.code}: {err.read()[-3000:].decode(errors='replace')}")
        sys.stderr.write(f"  {ran.wall_s:.1f} s, {ran.cpu_s:.1f} CPU s, {ran.peak_mib:.0f} MiB\n")
        return ran, json.loads(out.read())


def main() -> int:
    """Walk few, then many, and tell both."""
    parser = argparse.ArgumentParser(prog="bench.many_nodes", description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--floor", type=int, default=FLOOR)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    few, many = (walk(count, backend=wanted.backend) for count in (wanted.floor, wanted.nodes))
    if wanted.json:
        print(json.dumps({"schema": 1, "few": asdict(few), "many": asdict(many)}))
        return 0
    print(f"{many.nodes} nodes ({many.backend}) in service, {many.reports} reports, {many.ranks} time lines")
    print(f"  a node of {many.nodes}: {many.node_s / few.node_s:.2f} of a node of {few.nodes}, in wall time")
    for name in ("provision", "onboard", "list", "report"):
        one, other = getattr(many, name), getattr(few, name)
        print(
            f"  {name:<9} {one.wall_s / many.nodes / (other.wall_s / few.nodes):5.2f} a node in time,"
            f" {one.peak_mib / other.peak_mib:5.2f} in peak memory"
            f"  ({one.wall_s:.1f} s, {one.cpu_s:.1f} CPU s, {one.peak_mib:.0f} MiB :"
            f" {other.wall_s:.1f} s, {other.cpu_s:.1f} CPU s, {other.peak_mib:.0f} MiB)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
