"""A record behind PgBouncer in transaction mode, where each transaction may get another session."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inventory.errors import Refused
from inventory.model import State
from inventory.store import Store
from inventory.store.database import Database
from inventory.store.making import migrate
from inventory.store.place import place_of
from tests.inventory.records import moved, node
from tests.postgres import Server, server_user
from tests.require import need_command

PORT = 6432  # of the socket's name; nothing listens on TCP
SETTINGS = """\
[databases]
* = host={folder} port={port} user=muster
[pgbouncer]
listen_addr =
listen_port = {own}
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = 2
server_reset_query_always = 1
logfile = {folder}/pooler.log
pidfile = {folder}/pooler.pid
"""


@pytest.fixture
def pooled(postgres: Server) -> Iterator[str]:
    """The URL of a record that is reached through the pooler alone."""
    need_command("pgbouncer")
    database = postgres.fresh_database()
    migrate(Database(place_of(postgres.url(database, user="muster"))))
    settings = SETTINGS.format(folder=postgres.folder, port=postgres.port, own=PORT)
    file = postgres.write("pooler.ini", settings)
    run = subprocess.Popen(
        ["/usr/sbin/pgbouncer", str(file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **server_user(),
    )
    try:
        until = time.monotonic() + 60
        while not (Path(postgres.folder) / f".s.PGSQL.{PORT}").exists():
            assert run.poll() is None, (postgres.folder / "pooler.log").read_text()
            assert time.monotonic() < until
            time.sleep(0.02)
        yield postgres.url(database, user="muster", port=str(PORT))
    finally:
        run.terminate()
        run.wait(timeout=600)
        for left in postgres.folder.glob("pooler.*"):
            left.unlink()


def test_a_record_works_behind_a_pooler_that_gives_each_transaction_another_session(pooled: str) -> None:
    record, other = Store.open(pooled), Store.open(pooled)
    with record.lease("gpu-01", "provision-node", say=print):
        made = record.add(node(), why="asked for")
        with pytest.raises(Refused, match="being worked on"):
            other.save(replace(made, vmid=1))
        for number in range(12):  # a driver prepares a statement after a few
            made = record.save(replace(made, vmid=number + 100))
        moved(record, made, State.AWAITING_IDENTITY)
    assert [each.name for each in other.summaries(states=[State.AWAITING_IDENTITY])] == ["gpu-01"]


def test_many_write_through_it_at_once_and_none_loses_an_update(pooled: str) -> None:
    record = Store.open(pooled)
    record.add(node(journal={"count": 0}), why="asked for")

    def count() -> None:
        own, done = Store.open(pooled), 0
        while done < 8:
            found = own.get("gpu-01")
            assert found is not None
            with contextlib.suppress(Refused):
                own.save(replace(found, journal={"count": found.journal["count"] + 1}))
                done += 1

    counting = [threading.Thread(target=count) for _ in range(4)]
    for thread in counting:
        thread.start()
    for thread in counting:
        thread.join(timeout=600)

    found = record.get("gpu-01")
    assert found is not None
    assert found.journal["count"] == 32
