"""The migrations: each record comes to the form of now, whichever way it began, and loses nothing on it."""

import json
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from inventory import migrations
from inventory.errors import BadInput, Damaged
from inventory.model import State
from inventory.store import Store
from inventory.store.database import Database
from inventory.store.making import migrate, stands_at
from inventory.store.place import place_of
from inventory.store.scratch import drop
from inventory.store.tables import HEAD, metadata
from tests.inventory.records import KEY, node, store
from tests.inventory.test_receipts import Desk

# As the record of one host was before it had migrations.
FORMER = """
    CREATE TABLE muster (schema INTEGER NOT NULL PRIMARY KEY);
    INSERT INTO muster VALUES (1);
    CREATE TABLE nodes (name VARCHAR(63) NOT NULL PRIMARY KEY, state VARCHAR(32) NOT NULL, version INTEGER NOT NULL,
        uuid VARCHAR(36), facts JSON NOT NULL, UNIQUE (uuid));
    CREATE TABLE events (id INTEGER NOT NULL PRIMARY KEY, node VARCHAR(63) NOT NULL, at VARCHAR(32) NOT NULL,
        actor TEXT NOT NULL, host TEXT NOT NULL, "before" VARCHAR(32), "after" VARCHAR(32) NOT NULL,
        why TEXT NOT NULL);
    CREATE INDEX ix_events_node ON events (node);
    CREATE TABLE addresses (site VARCHAR(255) NOT NULL, ip VARCHAR(45) NOT NULL, node VARCHAR(63) NOT NULL,
        PRIMARY KEY (site, ip));
    CREATE INDEX ix_addresses_node ON addresses (node);
"""


def former(file: Path, receipt: str | None = None) -> str:
    """The URL of a record of that time with one node."""
    facts = {
        "vmid": 5000,
        "host_keys": [{"type": KEY.type, "base64": KEY.base64}],
        "machine_id": "ab" * 16,
        "reason": "it was slow",
        "receipt": receipt,
        "macs": [],
        "fabrics": [],
        "journal": {},
    }
    database = sqlite3.connect(file)
    database.executescript(FORMER)
    database.execute(
        "INSERT INTO nodes VALUES ('gpu-01', 'verify-failed', 7, 'uuid-of-gpu-01', ?)", [json.dumps(facts)]
    )
    database.execute(
        "INSERT INTO events (node, at, actor, host, after, why) VALUES"
        " ('gpu-01', '2026-11-01T12:00:00+00:00', 'anna', 'infra', 'verify-failed', 'it was slow')"
    )
    database.commit()
    database.close()
    return f"sqlite:///{file}"


def test_migrations_lead_to_the_very_tables_that_a_new_record_is_made_with(
    shared: str, tmp_path: Path
) -> None:
    migrated = former(tmp_path / "old.db")
    Store.open(migrated)
    for url in (shared, migrated):
        with Database(place_of(url)).begin() as connection:
            context = MigrationContext.configure(
                connection,
                opts={
                    "include_name": lambda name, *_: name not in {"alembic_version", "moves"},
                    # PostgreSQL's JSONB stands where the tables say JSON
                    "compare_type": lambda _context, _column, _theirs, found, wanted: (
                        False if isinstance(found, sa.JSON) and isinstance(wanted, sa.JSON) else None
                    ),
                },
            )
            assert compare_metadata(context, metadata) == []


def test_a_new_file_is_at_the_newest_migration_and_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    store(url)

    assert stands_at(Database(place_of(url))) == (HEAD, HEAD)
    assert migrations.KNOWN[-1] == HEAD


def test_a_record_from_before_the_migrations_is_brought_on_whole(tmp_path: Path) -> None:
    receipt = Desk(tmp_path).signed()
    url = former(tmp_path / "old.db", receipt)

    record = store(url)

    found = record.get("gpu-01")
    assert found is not None
    assert (found.state, found.version, found.reason, found.vmid) == (
        State.VERIFY_FAILED,
        7,
        "it was slow",
        5000,
    )
    assert found.receipt == receipt
    assert found.not_after is not None
    assert [event.why for event in record.history("gpu-01")] == ["it was slow"]
    assert record.find_machine(host_keys=(KEY,), machine_id=None, other_than_uuid="another") == found
    assert store(url).get("gpu-01") == found
    with sqlite3.connect(tmp_path / "old.db") as database:
        assert not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'muster'").fetchall()
    database.close()


def test_a_receipt_that_cannot_be_read_is_brought_on_all_the_same(tmp_path: Path) -> None:
    found = store(former(tmp_path / "old.db", "no receipt at all")).get("gpu-01")

    assert found is not None
    assert (found.receipt, found.not_after) == ("no receipt at all", None)


def test_a_migration_that_fails_midway_leaves_the_record_as_it_was(tmp_path: Path) -> None:
    url = former(tmp_path / "old.db")
    with sqlite3.connect(tmp_path / "old.db") as database:
        database.execute("UPDATE nodes SET facts = '[1]'")  # what the second migration cannot take
    database.close()
    before = dump(tmp_path / "old.db")

    with pytest.raises(Damaged, match="facts are no object"):
        store(url)
    assert dump(tmp_path / "old.db") == before


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE nodes (x INTEGER)")
    database.close()
    before = dump(file)

    with pytest.raises(Damaged, match="nodes of something else"):
        store(f"sqlite:///{file}")
    assert dump(file) == before


def test_two_that_open_an_old_record_at_once_migrate_it_once(tmp_path: Path) -> None:
    url = former(tmp_path / "old.db")
    program = (
        "import sys; from inventory.store import Store; print(Store.open(sys.argv[1]).get('gpu-01').version)"
    )
    opening = [
        subprocess.Popen([sys.executable, "-c", program, url], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]

    assert [process.communicate(timeout=600)[0] for process in opening] == ["7\n"] * 3


def test_a_newer_record_is_left_alone(url: str) -> None:
    store(url)
    with Database(place_of(url)).begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))

    with pytest.raises(Damaged, match="knows them up to"):
        store(url)
    with pytest.raises(Damaged, match="knows them up to") as refused:
        migrate(Database(place_of(url)))
    assert refused.value.next_step == "use the Muster that wrote it"


def test_a_record_on_a_server_is_made_and_brought_on_by_its_owner_alone(
    shared: str,
) -> None:
    url = shared
    drop(url)
    database = Database(place_of(url))
    with pytest.raises(BadInput, match="finds no record"):
        store(url)

    assert stands_at(database) == (None, HEAD)
    assert migrate(database) == (None, HEAD)
    assert migrate(database) == (HEAD, HEAD)
    store(url).add(node(), why="asked for")
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0001'"))
    with pytest.raises(BadInput, match="older form") as refused:
        store(url)
    assert "node-inventory migrate" in refused.value.next_step


def test_a_record_on_a_server_is_brought_from_the_first_migration_to_the_last_with_its_nodes(
    shared: str,
) -> None:
    url = shared
    drop(url)
    database = Database(place_of(url))
    schema = database.place.schema or ""
    with database.begin() as connection:
        connection.execute(sa.schema.CreateSchema(schema))
        migrations.upgrade(connection, schema=schema, to="0001")
        connection.execute(
            sa.text(
                "INSERT INTO nodes VALUES ('gpu-01', 'in-service', 3, 'u', CAST(:facts AS jsonb));"
            ).bindparams(facts=json.dumps({"reason": None, "receipt": "r", "machine_id": "cd" * 16}))
        )
        connection.execute(
            sa.text(
                "INSERT INTO events (node, at, actor, host, after, why)"
                " VALUES ('gpu-01', '2026-11-01T12:00:00+00:00', 'anna', 'infra', 'in-service', 'made')"
            )
        )

    assert migrate(database) == ("0001", HEAD)
    found = store(url).get("gpu-01")
    assert found is not None
    assert (found.version, found.receipt, found.machine_id) == (3, "r", "cd" * 16)
    assert store(url).history("gpu-01")[0].at == datetime(2026, 11, 1, 12, tzinfo=UTC)


def dump(file: Path) -> list[str]:
    """A database as SQL."""
    database = sqlite3.connect(file)
    try:
        return list(database.iterdump())
    finally:
        database.close()
