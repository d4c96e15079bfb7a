"""The steps that made the record what it is; each is done in one transaction, and none is ever changed again."""

from pathlib import Path

import sqlalchemy as sa

KNOWN = ("0001", "0002")
"""Every migration, in order."""


def upgrade(
    connection: sa.Connection, *, schema: str | None = None, stands_at: str | None = None, to: str = KNOWN[-1]
) -> None:
    """Bring the record to the newest form, in the connection's transaction.

    schema: PostgreSQL's, where the migrations keep their own table. stands_at: where a record stands that does not
    say so itself. to: an older form, for what must be tried there.
    """
    from alembic import command  # half a second to import
    from alembic.config import Config

    config = Config(attributes={"connection": connection, "schema": schema})
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    if stands_at is not None:
        command.stamp(config, stands_at)
    command.upgrade(config, to)
