"""Names and uuids that are, or are not, another's: what a wrong list did is undone, and the first to come keeps all."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import Refused
from inventory.importing import NodeEntry
from inventory.importing_record import put_on_record
from inventory.model import Node, State
from inventory.store import Store
from tests.inventory.test_import import FULL, OTHER, UUID, on_record, take
from tests.inventory.test_shared_roles import INFRA, made, with_people
from tests.postgres import Server


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(f"sqlite:///{tmp_path / 'record.db'}")


def _retired(store: Store, **facts: Any) -> Node:
    node = store.add(Node("gpu-12", State.PLANNED, uuid=UUID, **facts), why="a test")
    for state in (State.RETIRING, State.RETIRED):
        node = store.save(replace(node, state=state), why="a test")
    return node


def test_a_machine_that_was_told_of_under_a_wrong_name_can_be_told_of_again(store: Store) -> None:
    _retired(store)

    take(store, FULL)

    assert (on_record(store).uuid, on_record(store, "gpu-12").uuid) == (UUID, None)
    assert "told of under a wrong name" in store.history("gpu-12")[-1].why


def test_so_it_can_where_roles_share_the_record_and_a_retired_node_keeps_its_uuid(postgres: Server) -> None:
    shared = made(with_people(postgres)).store(INFRA)
    _retired(shared)

    take(shared, FULL)

    assert (on_record(shared).uuid, on_record(shared, "gpu-12").uuid) == (UUID, None)
    assert on_record(shared, "gpu-12").state is State.RETIRED


def test_a_uuid_that_somebody_looked_at_stays_its_nodes_for_good(store: Store) -> None:
    before = _retired(store, spec_hash="00")

    with pytest.raises(Refused, match="on record as gpu-12's, which is retired"):
        take(store, FULL)

    assert on_record(store, "gpu-12") == before


def test_whoever_took_the_name_meanwhile_keeps_it(store: Store) -> None:
    store.add(Node("gpu-21", State.PROVISIONING, uuid=OTHER), why="another run")

    with pytest.raises(Refused, match="somebody else did meanwhile"):
        put_on_record(store, NodeEntry(name="gpu-21", uuid=UUID).as_node(), why="a test")


def test_whoever_took_the_machine_meanwhile_is_named(store: Store) -> None:
    store.add(Node("gpu-09", State.AWAITING_IDENTITY, uuid=UUID, ticket="signed"), why="another run")

    with pytest.raises(Refused) as refused:
        put_on_record(store, NodeEntry(name="gpu-21", uuid=UUID).as_node(), why="a test")

    assert refused.value.why == f"its uuid {UUID} is on record as gpu-09's, which is awaiting-identity"
    assert refused.value.next_step == "node-inventory show gpu-09"
