"""The record of one host: nodes, their events, and the static addresses that they hold."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None

_NAME = sa.String(63).with_variant(sa.String(63, collation="C"), "postgresql")
_JSON = sa.JSON().with_variant(JSONB(), "postgresql")
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the first three tables."""
    op.create_table(
        "nodes",
        sa.Column("name", _NAME, primary_key=True),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("uuid", sa.String(36), unique=True),
        sa.Column("facts", _JSON, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("node", _NAME, nullable=False, index=True),
        sa.Column("at", sa.String(32), nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("before", sa.String(32)),
        sa.Column("after", sa.String(32), nullable=False),
        sa.Column("why", sa.Text, nullable=False),
    )
    op.create_table(
        "addresses",
        sa.Column("site", sa.String(255), primary_key=True),
        sa.Column("ip", sa.String(45), primary_key=True),
        sa.Column("node", _NAME, nullable=False, index=True),
    )
