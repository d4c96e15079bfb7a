"""node-inventory check over a record that a team shares: two logins, runs that are alive, and many nodes."""

import json
import os
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ca.authority import Authority
from inventory.checking_run import Typed
from inventory.checking_run import check as run_check
from inventory.command import ca_folder
from inventory.console import Console
from inventory.store import Store
from tests.inventory.check_kit import typed
from tests.inventory.filled import fill
from tests.inventory.passports import NAME, World, world
from tests.inventory.records import node, store
from tests.inventory.test_shared_roles import BOTH, HOLDER, INFRA, Shared, made
from tests.postgres import Server
from tests.require import need

FEW, MANY = 1100, 2200
"""Both more than two pages, so that what one page holds is in either."""


@pytest.fixture(autouse=True)
def _no_authority_here() -> None:
    need(
        not os.path.lexists(ca_folder(None)), "no authority of this machine's own", "run them as another user"
    )


def told(url: str, *words: str) -> tuple[int, list[tuple[str, str]]]:
    """How a check ends, and what it finds: node and kind."""
    done = typed(*words, "--inventory", url, "--json")
    document = json.loads(done.stdout)
    return done.returncode, [(each["node"], each["about"]) for each in document["disagreements"]]


def test_a_node_that_a_living_run_acts_on_is_not_stuck(url: str) -> None:
    long_ago = store(url, now=datetime.now(UTC) - timedelta(hours=9))
    for name in ("gpu-01", "gpu-02"):
        long_ago.add(node(name), why="the plan was confirmed")
    stuck = [("gpu-01", "stuck-provisioning"), ("gpu-02", "stuck-provisioning")]

    assert told(url, "--only", "record") == (3, stuck)
    with Store.open(url).lease("gpu-01", "provision-node", say=print):
        assert told(url, "--only", "record") == (3, stuck[1:])
        assert told(url, "--only", "record", "gpu-01") == (0, [])
    assert told(url, "--only", "record") == (3, stuck)


@pytest.fixture(scope="module")
def record(postgres: Server) -> Shared:
    """A record for two people."""
    known = postgres.psql("SELECT rolname FROM pg_roles", database="postgres").splitlines()
    for name in {INFRA, HOLDER, BOTH}.difference(known):
        postgres.create_login(name)
    return made(postgres)


@pytest.fixture(scope="module")
def gpu(record: Shared, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A node in service by infra's and the holder's hand, and the authority that gave it its identity."""
    now = datetime.now(UTC).replace(microsecond=0)
    return world(
        tmp_path_factory.mktemp("shared"), now=now, urls=(url_of(record, INFRA), url_of(record, HOLDER))
    )


def url_of(record: Shared, user: str) -> str:
    return record.server.url(record.database, user=user, schema=record.schema)


def test_either_login_compares_a_shared_record_with_the_ledger(record: Shared, gpu: World) -> None:
    before = [Store.open(gpu.url).get(NAME), *Store.open(gpu.url).history(NAME)]
    found = [
        told(url_of(record, user), "--ca-dir", str(gpu.ca_dir), "--only", "record", "--only", "ledger")
        for user in (INFRA, HOLDER)
    ]

    assert found == [(0, [])] * 2
    assert [Store.open(gpu.url).get(NAME), *Store.open(gpu.url).history(NAME)] == before


def test_a_certificate_that_was_revoked_is_found_in_a_shared_record(record: Shared, gpu: World) -> None:
    authority = Authority.open(gpu.ca_dir, now=gpu.now)
    authority.revoke(gpu.receipt.serial, reason="key-compromise", now=datetime.now(UTC), actor="tester")
    authority.close()

    code, found = told(url_of(record, INFRA), "--ca-dir", str(gpu.ca_dir), "--only", "ledger")
    assert (code, found) == (3, [(NAME, "identity-revoked")])


def test_many_nodes_are_compared_page_by_page(url: str, tmp_path: Path) -> None:
    """What grows with the nodes are their marks and what is found: a fraction of what a node is."""

    def most(count: int) -> int:
        place = f"sqlite:///{tmp_path}/{count}.db" if url.startswith("sqlite") else url
        Store.open(place)
        fill(place, count)
        tracemalloc.start()
        outcome = run_check(Typed(only=("record",), inventory=place), Console(quiet=True))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert {each.about for each in outcome.disagreements} == {"receipt-unfit"}  # made for another name
        assert len(outcome.disagreements) == count
        return peak

    if url.startswith("postgresql"):
        assert most(FEW) > 0
    else:
        few = most(FEW)
        assert (most(MANY) - few) / (MANY - FEW) < 2000
