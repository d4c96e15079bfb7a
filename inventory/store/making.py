"""How a record comes to be, and to the form of now: a new file at once, everything else by its migrations."""

from pathlib import Path

import sqlalchemy as sa

from inventory import migrations
from inventory.errors import BadInput, Damaged, Refused
from inventory.store.database import Database, make_file
from inventory.store.place import Place
from inventory.store.tables import HEAD, metadata

_version = sa.table("alembic_version", sa.column("version_num", sa.String))
_LOCK = 0x6D757374  # "must": one at a time migrates a database


def version_of(connection: sa.Connection) -> str | None:
    """The migration that a record is at; None where there is no record."""
    if not sa.inspect(connection).has_table(_version.name):
        return None
    found = connection.execute(sa.select(_version)).scalars().all()
    return found[0] if len(found) == 1 else None


def check_version(connection: sa.Connection, place: Place) -> None:
    """Refuse a record that this Muster cannot use.

    Raises:
        BadInput: there is none, or it must be migrated first.
        Damaged: it is a newer one.
    """
    found = connection.execute(sa.select(_version)).scalar_one_or_none()
    if found == HEAD:
        return
    if found is not None and found in migrations.KNOWN:
        raise BadInput(
            f"the record at {place.where} has an older form",
            why=f"it is at migration {found}, and this Muster uses {HEAD}",
            next_step="have the database's owner bring it on: node-inventory migrate",
        )
    raise Damaged(
        f"the record at {place.where} cannot be used",
        why=f"it is at migration {found}, and this Muster knows them up to {HEAD}",
        next_step="use the Muster that wrote it",
    )


def make_anew(connection: sa.Connection, place: Place) -> None:
    """A file that is new, or older: to the form of now, in this transaction.

    Raises:
        Damaged: it is something else.
    """
    found = connection.execute(
        sa.text(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ('alembic_version', 'nodes', 'muster')"
        )
    ).scalars()
    tables = set(found)
    if not tables:
        metadata.create_all(connection)
        connection.execute(
            sa.text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
        )
        connection.execute(_version.insert().values(version_num=HEAD))
        return
    if _version.name in tables:
        if version_of(connection) in migrations.KNOWN[:-1]:
            migrations.upgrade(connection)
    elif "muster" in tables:  # as it was before migrations: the first of them
        migrations.upgrade(connection, stands_at=migrations.KNOWN[0])
    else:
        raise Damaged(
            f"the record at {place.where} cannot be used",
            why="it has nodes of something else than Muster",
            next_step="name another file with --inventory",
        )


def migrate(database: Database) -> tuple[str | None, str]:
    """Bring a record to the form of now; from which migration to which.

    Raises:
        Damaged: it is a newer one.
        MusterError: the database refused, or did not answer; nothing was changed.
    """
    place = database.place
    if not place.shared:
        make_file(Path(place.where))
    with database.begin(patient=True) as connection:
        if place.shared:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            if place.schema not in sa.inspect(connection).get_schema_names():
                connection.execute(sa.schema.CreateSchema(place.schema or ""))
        before = version_of(connection)
        if not place.shared:
            make_anew(connection, place)
            check_version(connection, place)
            return before, HEAD
        if before is not None and before not in migrations.KNOWN:
            check_version(connection, place)
        if before != HEAD:
            migrations.upgrade(connection, schema=place.schema)
    return before, HEAD


def stands_at(database: Database) -> tuple[str | None, str]:
    """What `migrate` would do: from which migration to which."""
    if not database.place.shared and not Path(database.place.where).exists():
        return None, HEAD
    with database.begin() as connection:
        return version_of(connection), HEAD


def need_shared(place: Place) -> str:
    """The schema of a record on a server.

    Raises:
        Refused: the record is a file, which knows no roles.
    """
    if place.schema is None:
        raise Refused(
            "there is nothing to grant",
            why=f"the record is a file, {place.where}, and whoever can read it has all of it",
            next_step="name a record on a server: --inventory postgresql://host/database",
        )
    return place.schema
