"""A record for a while: a schema of its own on a server, made, used and taken away with all that is in it."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from inventory.store.database import Database
from inventory.store.making import migrate
from inventory.store.place import in_schema, place_of


def is_shared(url: str) -> bool:
    """Does a URL name a record on a server?

    Raises:
        BadInput: it is not one of ours.
    """
    return place_of(url).shared


@contextmanager
def scratch_record(url: str, *, name: str, keep: bool = False) -> Iterator[str]:
    """The URL of an empty record in the server's database that `url` names; the schema's name begins with `name`.

    keep: it is not taken away at the end.

    Raises:
        MusterError: the login may not make a schema there, or the server did not answer.
    """
    schema = f"{name}_{secrets.token_hex(6)}"
    own = in_schema(url, schema)
    migrate(Database(place_of(own)))
    try:
        yield own
    finally:
        if not keep:
            drop(own)


def drop(url: str) -> None:
    """Take a record's schema away."""
    database = Database(place_of(url))
    with database.begin() as connection:
        connection.execute(sa.schema.DropSchema(database.place.schema or "", cascade=True, if_exists=True))
