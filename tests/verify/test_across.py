"""Several nodes verified together: real processes, real networks, and networks that are broken on purpose."""

import os
import shlex
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest

from inventory.errors import BadInput, ExitCode
from verify.across import AcrossReport, Reach, check_shape, choose, run_across
from verify.across_drills import DRILLS, NAMES
from verify.fleet import Place
from verify.local import LocalExec, LocalProcess
from verify.probe.tls import Identity
from verify.runner import Exec
from verify.scenarios import NAMES as ONE_NODE

from .identities import Authority, identity
from .probing import ROOT, left_of
from .test_artefact import oldest_python

ONE, TWO, THREE = "gpu-01", "gpu-02", "gpu-03"
HOSTS = {ONE: "127.0.0.11", TWO: "127.0.0.12", THREE: "127.0.0.13"}


def spiffe_id(node: str) -> str:
    return f"spiffe://lab.example/node/{node}"


@pytest.fixture(scope="module")
def identities(lab: Authority, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    folder = tmp_path_factory.mktemp("nodes")
    return {name: identity(folder / name, by=lab, uris=(spiffe_id(name),)) for name in HOSTS}


class Within(LocalExec):
    """This machine, or a network namespace of it, in a node's place."""

    def __init__(self, namespace: str | None = None) -> None:
        self._before = ["ip", "netns", "exec", namespace] if namespace else []
        self.processes: list[LocalProcess] = []

    def start(self, command: str) -> LocalProcess:
        self.processes.append(LocalProcess([*self._before, *shlex.split(command.removeprefix("exec "))]))
        return self.processes[-1]


def place(name: str, files: Identity, *, address: str | None = None, mtu: int = 1500, **other: str) -> Place:
    at = address or HOSTS[name]
    return Place(
        name,
        other.get("claims", spiffe_id(name)),
        at,
        files._asdict(),
        python=sys.executable,
        fabrics={"ib": (at, mtu)},
    )


def reached(where: Exec) -> Reach:
    def reach() -> AbstractContextManager[Exec]:
        return nullcontext(where)

    return reach


def run(
    places: list[Place], wheres: list[Within], *scenarios: str, ranks: int = 4, **other: float
) -> AcrossReport:
    nodes = [(each, reached(where)) for each, where in zip(places, wheres, strict=True)]
    return run_across(
        nodes, ranks=ranks, deadline_s=other.get("deadline_s", 60.0), scenarios=scenarios or NAMES
    )


def verdicts(report: AcrossReport) -> dict[str, tuple[bool | None, str]]:
    return {result.name: (result.ok, result.found) for result in report.scenarios}


# -- on one machine, over two addresses ----------------------------------------------------------------------------


def test_two_nodes_pass_every_scenario_with_one_command_each(identities: dict[str, Identity]) -> None:
    wheres = [Within(), Within()]
    places = [
        place(ONE, identities[ONE]),
        replace(place(TWO, identities[TWO]), python=shlex.quote(oldest_python())),
    ]
    report = run(places, wheres)

    assert report.error is None, report.error
    assert [len(where.processes) for where in wheres] == [1, 1]
    found = verdicts(report)
    assert tuple(found) == NAMES
    assert "4 ranks on 2 nodes joined" in found["assemble"][1]
    assert "named rank 3" in found["missing-rank"][1]
    assert f"{ONE} in a seat of {TWO} was refused" in found["wrong-identity-wrong-node"][1]
    assert spiffe_id(TWO) in found["wrong-identity-wrong-leader"][1]
    # a rank dials from its node's address on the network, not from whichever the kernel would take
    assert f" at {HOSTS[TWO]}:" in found["duplicate-rank"][1]
    assert "a foreign identity with the node's own SPIFFE id" in found["stranger"][1]
    assert "not tried" not in found["stranger"][1]
    for what in ("foreign-ca", "cn-only", "plain-tcp"):
        assert found[f"wrong-identity-{what}"][1].startswith("CA: the installed bundle: ")
    assert found["port-taken"][1].startswith(f"rank 0 does not listen on {HOSTS[ONE]}: ")
    assert [(name, row.rank) for name, row in report.time_line] == [(ONE, 0), (ONE, 1), (TWO, 2), (TWO, 3)]
    for _, row in report.time_line:
        assert None not in (row.start_ms, row.joined_ms, row.go_ms, row.end_ms)
    assert [(row.source, row.target, row.ok) for row in report.paths] == [(ONE, TWO, True)]
    assert not [left for where in wheres for left in left_of(where.processes[0].pid)]


def test_three_nodes_of_one_rank_each_pass_too(identities: dict[str, Identity]) -> None:
    places = [place(name, identities[name]) for name in HOSTS]
    report = run(places, [Within(), Within(), Within()], "assemble", "duplicate-rank", "killed-rank", ranks=3)

    assert report.error is None, report.error
    assert len(report.paths) == 3


def test_a_node_with_another_nodes_identity_is_told_and_nothing_is_run(
    identities: dict[str, Identity],
) -> None:
    places = [place(ONE, identities[ONE]), place(TWO, identities[THREE])]
    report = run(places, [Within(), Within()])

    assert report.exit_code is ExitCode.VERIFICATION
    assert report.error is not None
    assert f"the certificate is for {spiffe_id(THREE)}" in report.error.why
    assert {ok for ok, _ in verdicts(report).values()} == {None}


def test_an_address_that_is_not_the_nodes_own_is_told(identities: dict[str, Identity]) -> None:
    places = [place(ONE, identities[ONE]), place(TWO, identities[TWO], address="192.0.2.7")]
    report = run(places, [Within(), Within()], "assemble")

    assert report.exit_code is ExitCode.VERIFICATION
    assert "192.0.2.7 is no address of this node" in report.paths[0].why
    assert verdicts(report)["assemble"][1] == f"not run: {ONE} does not reach {TWO} over ib"


def test_a_node_that_cannot_run_the_probe_leaves_nothing_judged(identities: dict[str, Identity]) -> None:
    class Without(Within):
        def start(self, command: str) -> LocalProcess:
            return super().start("exec sh -c 'exit 9'" if command else command)

    report = run(
        [place(ONE, identities[ONE]), place(TWO, identities[TWO])], [Within(), Without()], "assemble"
    )

    assert report.exit_code is ExitCode.OTHER_SIDE
    assert report.lost is not None
    assert report.lost[0] == TWO


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ('s/"ranks"/"rnaks"/g', f"{TWO}: an answer of its probe lacks 'ranks'"),
        ('s/"rank":/"rnak":/g', f"{TWO}: an answer of its probe lacks 'rank'"),
        ('s/"go": *[a-z]*/"go":[/g', f"{TWO}: no answer to 'watch'"),
        ('s/"ranks": *[[]/"ranks":null,"x":[/g', f"{TWO}: it told times that are none"),
        ('s/"port": *[0-9]*/"port":"x"/g', "an answer of a node made no sense (ValueError"),
    ],
)
def test_a_node_that_answers_nonsense_is_not_judged_and_no_bug_of_ours(
    identities: dict[str, Identity], change: str, words: str
) -> None:
    class Lying(Within):
        def start(self, command: str) -> LocalProcess:
            piped = f"{{ {command}; }} | sed -u {shlex.quote(change)}"
            return super().start(f"exec sh -c {shlex.quote(piped)}")

    wheres = [Lying(), Within()] if "port" in change else [Within(), Lying()]  # rank 0's node tells its port
    report = run([place(ONE, identities[ONE]), place(TWO, identities[TWO])], wheres, "assemble")

    told = f"{': '.join(report.lost or ())} {verdicts(report)}"
    assert report.exit_code is ExitCode.OTHER_SIDE, told
    assert words in told
    assert verdicts(report)["assemble"][0] is None


def test_a_node_whose_probe_dies_mid_run_is_named_and_no_pass(identities: dict[str, Identity]) -> None:
    wheres = [Within(), Within()]
    places = [place(ONE, identities[ONE]), place(TWO, identities[TWO])]

    def strike() -> None:
        while len(wheres[1].processes) == 0:
            time.sleep(0.01)
        time.sleep(1.0)
        os.kill(wheres[1].processes[0].pid, 9)

    striking = threading.Thread(target=strike)
    striking.start()
    report = run(places, wheres)
    striking.join()

    assert report.exit_code in (ExitCode.OTHER_SIDE, ExitCode.VERIFICATION)
    assert report.lost is not None
    assert report.lost[0] == TWO
    assert None in {ok for ok, _ in verdicts(report).values()}
    assert not [left for where in wheres for left in left_of(where.processes[0].pid)]


@pytest.mark.parametrize(
    ("nodes", "ranks", "why"), [(1, 2, "two at least"), (2, 3, "same number"), (2, 0, "same")]
)
def test_what_cannot_be_placed_is_refused(nodes: int, ranks: int, why: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_shape(nodes, ranks)

    assert why in refused.value.why


def test_each_scenario_has_a_twin_of_the_other_kind_and_one_node_has_them_all_but_one() -> None:
    kinds = {drill.name: drill.kind for drill in DRILLS}

    assert all({drill.kind, kinds[drill.twin]} == {"positive", "negative"} for drill in DRILLS)
    assert set(NAMES) - set(ONE_NODE) == {"wrong-identity-wrong-leader"}
    # a throw-away CA's leader and its other ranks must be of one node, for its key leaves no node
    assert set(ONE_NODE) - set(NAMES) == {"wrong-identity-expired", "wrong-identity-revoked"}


def test_every_scenario_is_documented() -> None:
    text = (ROOT / "docs" / "across.md").read_text().replace(", -", ", wrong-identity-")

    assert [name for name in (*NAMES, "wrong-identity-expired") if name not in text] == []


def test_a_wrong_scenario_gets_a_suggestion() -> None:
    with pytest.raises(BadInput) as refused:
        choose(["killed-rnak"])

    assert refused.value.next_step == "did you mean --scenario killed-rank"
