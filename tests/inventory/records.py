"""Records for tests: each test that takes `url` runs over a file and over a real PostgreSQL server.

Where MUSTER_INVENTORY names a server's database, that one is used, in schemas that the tests make and drop.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from inventory.model import HostKey, Node, State
from inventory.store import Store
from inventory.store.scratch import scratch_record
from tests.postgres import Server

GIVEN = os.environ.get("MUSTER_INVENTORY", "")  # read at once: the tests' environment is scrubbed
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
KEY = HostKey("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIN0vJAn+qf44X7TfV4Xj8QW/1U1bQqBFTBFdo/rCnrY5")


INFRAS = frozenset(
    {
        State.PLANNED,
        State.PROVISIONING,
        State.PROVISION_FAILED,
        State.AWAITING_IDENTITY,
        State.RETIRING,
        State.RETIRE_FAILED,
        State.RETIRED,
    }
)
"""The states that infra brings a node into; all others are the holder's to say."""


def author(state: State) -> str:
    """The role whose login alone brings a node into a state."""
    return "infra" if state in INFRAS else "holder"


@pytest.fixture(scope="session")
def server_url(request: pytest.FixtureRequest) -> str:
    """The URL of a database on a real server, where schemas can be made."""
    if GIVEN.startswith("postgresql:"):
        return GIVEN
    server: Server = request.getfixturevalue("postgres")
    return server.url(server.fresh_database(), user="muster")


@pytest.fixture
def shared(server_url: str) -> Iterator[str]:
    """A record on a server, empty, made by its owner; nothing is left of it afterwards."""
    with scratch_record(server_url, name="t") as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty record in each of the two databases."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'record' / 'inventory.db'}"
    found: str = request.getfixturevalue("shared")
    return found


def store(url: str, *, now: datetime = NOW, host: str | None = None, lease_s: float = 90.0) -> Store:
    """The record at `url`, whose clock stands still."""
    return Store.open(url, clock=lambda: now, host=host, lease_s=lease_s)


def node(name: str = "gpu-01", **facts: object) -> Node:
    """A node that is being made."""
    return replace(Node(name, State.PROVISIONING, uuid=f"uuid-of-{name}"), **facts)  # type: ignore[arg-type]  # facts vary


def moved(record: Store, node: Node, *states: State) -> Node:
    """The node after these moves."""
    for state in states:
        node = record.save(replace(node, state=state), why=f"moved to {state}")
    return node
