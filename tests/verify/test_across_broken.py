"""Each scenario over several nodes fails when the one thing that it watches over is broken on one of them."""

import os
from pathlib import Path

import pytest

from verify.across import AcrossReport, run_across
from verify.local import LocalProcess
from verify.probe.tls import Identity
from verify.runner import Exec

from .identities import Authority, identity
from .probing import Broken
from .test_across import ONE, TWO, Within, place, reached, spiffe_id

WHOLE = os.environ.get("MUSTER_ACROSS_BROKEN") == "whole"
# these wait for a deadline each; MUSTER_ACROSS_BROKEN=whole runs them too
SLOW = (
    ("refuses-everyone", ONE, "wrong-identity-foreign-ca", "afterwards the real rank did not join"),
    ("goes-without", ONE, "missing-rank", "rank 3 was never started, and the leader says"),
)


@pytest.fixture(scope="module")
def identities(lab: Authority, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    folder: Path = tmp_path_factory.mktemp("nodes")
    return {name: identity(folder / name, by=lab, uris=(spiffe_id(name),)) for name in (ONE, TWO)}


def run(identities: dict[str, Identity], where: str, fault: str, *scenarios: str) -> AcrossReport:
    """Two nodes of two ranks, on one of which a part of the probe is broken."""
    wheres: dict[str, Exec] = {ONE: Within(), TWO: Within(), where: Broken(fault)}
    nodes = [(place(name, identities[name]), reached(wheres[name])) for name in (ONE, TWO)]
    return run_across(nodes, ranks=4, deadline_s=60.0, scenarios=scenarios)


def test_nothing_broken_passes_in_the_harness_that_breaks_things(identities: dict[str, Identity]) -> None:
    report = run(identities, ONE, "nothing", "assemble", "gate", "stranger", "port-taken")

    assert report.error is None, report.error


@pytest.mark.parametrize(
    ("fault", "where", "scenario", "found"),
    [
        ("serves-early", ONE, "gate", "the API answered before GO: status 200"),
        ("never-serves", ONE, "gate", "the API does not answer after GO: refused"),
        ("also-listens", TWO, "gate", f"before GO rank 2 of {TWO} listens on"),
        ("gives-up-at-once", TWO, "late-leader", "ranks [2, 3] did not wait for their leader: gave up"),
        ("believes-the-hello", ONE, "stranger", "strangers were counted: TLS without a certificate"),
        ("one-at-a-time", ONE, "stranger", "beside strangers rank "),
        ("believes-the-hello", ONE, "wrong-identity-foreign-ca", f"from {TWO}, was not refused"),
        ("believes-the-hello", ONE, "wrong-identity-cn-only", f"from {TWO}, was not refused"),
        ("believes-the-hello", ONE, "wrong-identity-wrong-node", "was not refused"),
        ("speaks-plainly", ONE, "wrong-identity-plain-tcp", "answered in plain text"),
        ("any-port", ONE, "port-taken", "and rank 0 says: nothing"),
        ("deaf", ONE, "killed-rank", "was not told of rank 3"),
        ("never-pings", ONE, "frozen-rank", "was not told of rank 3"),
        ("deafened", TWO, "killed-leader", "was not told of rank 0"),
        ("seats-twice", ONE, "duplicate-rank", "was not refused"),
        ("asks-nothing", ONE, "wrong-world", "was not refused"),
        ("asks-nothing", ONE, "old-run", "was not refused"),
        ("leaves-without-a-word", ONE, "clean-shutdown", "told to stop, not every rank ended well"),
        *(SLOW if WHOLE else ()),
    ],
)
def test_a_broken_rendezvous_fails_the_scenario_that_watches_over_it(
    identities: dict[str, Identity], fault: str, where: str, scenario: str, found: str
) -> None:
    report = run(identities, where, fault, scenario)
    (result,) = report.scenarios

    assert result.ok is False, result.found
    assert found in result.found
    assert result.name in str(report.error.why if report.error else "")


def test_a_scenario_for_which_a_node_has_no_openssl_is_not_judged(
    identities: dict[str, Identity], tmp_path: Path
) -> None:
    class Bare(Within):
        """A node whose PATH leads nowhere."""

        def start(self, command: str) -> LocalProcess:
            return super().start(command.replace("PATH=/usr/local/sbin", f"PATH={tmp_path} X=/usr"))

    nodes = [
        (place(ONE, identities[ONE]), reached(Within())),
        (place(TWO, identities[TWO]), reached(Bare())),
    ]
    report = run_across(nodes, ranks=2, deadline_s=60.0, scenarios=("assemble", "wrong-identity-foreign-ca"))

    assert [result.ok for result in report.scenarios] == [True, None]
    assert "no wrong identity could be made: openssl does not run here" in report.scenarios[1].found
    assert report.exit_code == 4
    assert report.error is not None
    assert "wrong-identity-foreign-ca" in report.error.why
