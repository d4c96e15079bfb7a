"""PostgreSQL guards the record more strictly; a file stays as it is."""

import sqlalchemy as sa
from alembic import op

from inventory.migrations.guards_0003 import STATEMENTS

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Put the stricter guards where the former ones were."""
    if op.get_bind().dialect.name != "postgresql":
        return
    schema = op.get_bind().execute(sa.text("SELECT current_schema()")).scalar_one()
    for statement in STATEMENTS:
        op.execute(statement.replace("{schema}", f'"{schema}"'))
