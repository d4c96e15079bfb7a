"""The fixtures of tests that need a real PostgreSQL server; one is started per worker, when first asked for."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.require import need, need_command

if TYPE_CHECKING:
    from tests.postgres import Server
    from tests.postgres_tls import TlsServer


def need_postgres() -> None:
    """Go on only where PostgreSQL's server can be started."""
    from tests import postgres

    try:
        postgres.programs()
        postgres.server_user()
    except postgres.NoServer:
        need(condition=False, what="PostgreSQL's server", how="apt-get install postgresql")


@pytest.fixture(scope="session")
def postgres() -> "Iterator[Server]":
    """A server that all tests of a worker share: take a fresh_database(), and roles with names of your own."""
    need_postgres()
    from tests.postgres import Server

    with Server() as server:
        yield server


@pytest.fixture
def own_postgres() -> "Iterator[Server]":
    """A server of this test's own, to be paused, crashed and started again."""
    need_postgres()
    from tests.postgres import Server

    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def tls_postgres() -> "Iterator[TlsServer]":
    """A server on 127.0.0.1 too, with TLS; who has it present something else gives RIGHT back."""
    need_postgres()
    need_command("openssl")
    from tests.postgres_tls import TlsServer

    with TlsServer() as server:
        yield server
