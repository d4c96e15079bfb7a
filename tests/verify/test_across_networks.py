"""Nodes in network namespaces of their own: too small an MTU, swallowed packets and a cut link are each told."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from inventory.errors import ExitCode
from verify.across import run_across
from verify.across_drills import Stage
from verify.fleet import Fleet, Place, Worker
from verify.probe.tls import Identity

from .identities import Authority, identity
from .networks import ADDRESSES, Wire, wire
from .test_across import ONE, TWO, Within, place, reached, run, spiffe_id, verdicts


@pytest.fixture(scope="module")
def identities(lab: Authority, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    folder = tmp_path_factory.mktemp("nodes")
    return {name: identity(folder / name, by=lab, uris=(spiffe_id(name),)) for name in (ONE, TWO)}


def places(identities: dict[str, Identity], *, mtu: int = 1500) -> list[Place]:
    return [
        place(name, identities[name], address=address, mtu=mtu)
        for name, address in zip((ONE, TWO), ADDRESSES, strict=True)
    ]


def wheres(between: Wire) -> list[Within]:
    return [Within(name) for name in between.names]


def test_two_machines_with_jumbo_frames_between_them_pass(identities: dict[str, Identity]) -> None:
    with wire(mtu=9000) as between:
        report = run(places(identities, mtu=9000), wheres(between), "assemble", "killed-rank")

    assert report.error is None, report.error
    assert [(row.mtu, row.full) for row in report.paths] == [(9000, True)]


@pytest.mark.parametrize(
    ("end", "why"),
    [(0, "does not fit: an interface or a router has a smaller MTU"), (1, "no full-size packet came back")],
)
def test_a_smaller_mtu_at_one_end_is_told_although_the_ranks_meet(
    identities: dict[str, Identity], end: int, why: str
) -> None:
    with wire(mtu=9000) as between:
        between.narrow(end, 1500)
        report = run(places(identities, mtu=9000), wheres(between), "assemble")

    assert report.exit_code is ExitCode.VERIFICATION
    assert [(row.reached, row.full) for row in report.paths] == [(True, False)]
    assert why in report.paths[0].why
    assert verdicts(report)["assemble"][0] is True
    assert json.dumps(report.document())


def test_mtus_that_are_declared_otherwise_at_each_end_are_told(identities: dict[str, Identity]) -> None:
    one, two = places(identities, mtu=9000)[0], places(identities, mtu=1500)[1]
    with wire(mtu=9000) as between:
        report = run([one, two], wheres(between), "assemble")

    assert report.paths[0].why == f"declared are MTU 9000 on {ONE} and 1500 on {TWO}"
    assert report.exit_code is ExitCode.VERIFICATION


def test_a_network_that_swallows_packets_is_told_and_no_drill_waits_for_it(
    identities: dict[str, Identity],
) -> None:
    with wire() as between:
        between.swallow()
        began = time.monotonic()
        report = run(places(identities), wheres(between))

    assert time.monotonic() - began < 50
    assert report.exit_code is ExitCode.VERIFICATION
    assert [(row.reached, row.full) for row in report.paths] == [(False, False)]
    assert "no small packet came back, 3 were sent" in report.paths[0].why
    assert verdicts(report)["assemble"] == (None, f"not run: {ONE} does not reach {TWO} over ib")


def test_a_link_that_is_cut_under_a_replica_ends_it_on_both_sides(identities: dict[str, Identity]) -> None:
    with wire() as between, together(identities, between) as fleet:
        stage = Stage(fleet)
        stage.assembled(
            beat_s=1.0
        )  # slow ranks of a busy machine are not taken for frozen ones before the cut
        between.cut()
        seen = stage.watch("over", within_s=60)

    causes = {rank: one["over"] and one["over"]["cause"] for rank, one in seen.items()}
    assert causes[0] == "frozen"
    assert seen[0]["over"]["rank"] in (2, 3)
    assert causes[1] == "frozen"
    assert (causes[2], causes[3]) == ("leader_lost", "leader_lost")


def test_a_link_that_is_cut_between_two_scenarios_fails_the_next(identities: dict[str, Identity]) -> None:
    with wire() as between:
        nodes = [
            (each, reached(where)) for each, where in zip(places(identities), wheres(between), strict=True)
        ]
        report = run_across(
            nodes,
            ranks=2,
            deadline_s=40,
            scenarios=("assemble", "clean-shutdown"),
            on_result=lambda result: between.cut() if result.name == "assemble" else None,
        )

    found = verdicts(report)
    assert found["assemble"][0] is True
    assert found["clean-shutdown"][0] is False
    assert "got no GO" in found["clean-shutdown"][1]
    assert report.exit_code is ExitCode.VERIFICATION


def test_a_rank_that_nobody_answers_names_both_addresses(identities: dict[str, Identity]) -> None:
    with wire() as between, together(identities, between) as fleet:
        stage = Stage(fleet)
        stage.open(deadline_s=5.0, hello_timeout_s=0.5)
        between.lose()
        stage.join()
        seen = stage.watch("over", within_s=60)

    text = seen[2]["over"]["text"]
    assert f"{ADDRESSES[0]}:{stage.leader[1]} from {ADDRESSES[1]} did not answer within 0.5 s" in text


def test_a_rank_dials_from_no_other_address_than_its_nodes_own(identities: dict[str, Identity]) -> None:
    with wire() as between:
        between.set(1, "address", "add", "10.251.7.77/24", "dev", "ib0")
        between.set(1, "route", "replace", "10.251.7.0/24", "dev", "ib0", "src", "10.251.7.77")
        report = run(places(identities), wheres(between), "duplicate-rank")

    assert f" at {ADDRESSES[1]}:" in report.scenarios[0].found
    assert "10.251.7.77" not in report.scenarios[0].found


def test_networks_of_containers_with_one_subnet_on_both_nodes_are_in_nobodys_way(
    identities: dict[str, Identity],
) -> None:
    with wire() as between:
        for end in (0, 1):
            between.bridge(end, "172.17.0.1/16")
        report = run(places(identities), wheres(between), "assemble", "killed-leader", "stranger")

    assert report.error is None, report.error
    assert [row.fabric for row in report.paths] == ["ib"]


def test_a_network_of_containers_that_has_the_fabrics_subnet_is_told(identities: dict[str, Identity]) -> None:
    with wire() as between:
        between.bridge(1, "10.251.7.254/24")
        # its route goes before the wire's
        between.set(1, "route", "delete", "10.251.7.0/24", "dev", "ib0")
        report = run(places(identities), wheres(between), "assemble")

    assert report.exit_code is ExitCode.VERIFICATION
    assert [row.reached for row in report.paths] == [False]
    assert verdicts(report)["assemble"] == (None, f"not run: {ONE} does not reach {TWO} over ib")


@contextmanager
def together(identities: dict[str, Identity], between: Wire) -> Iterator[Fleet]:
    """Both nodes' probes, four ranks."""
    ends, there = time.monotonic() + 60, places(identities)
    workers = [
        Worker(each, where, settings(there, each), ends=ends)
        for each, where in zip(there, wheres(between), strict=True)
    ]
    try:
        for worker in workers:
            assert worker.identity().fault is None
        yield Fleet(workers, 4)
    finally:
        for worker in workers:
            worker.leave()


def settings(there: list[Place], each: Place) -> dict[str, object]:
    return {
        "schema": 1,
        "node": each.name,
        "run_id": "ab" * 16,
        "identity": dict(each.files),
        "spiffe_id": each.spiffe_id,
        "deadline_s": 60.0,
        "across": {
            "seats": [(one.name, one.spiffe_id) for one in there for _ in range(2)],
            "address": each.address,
        },
    }
