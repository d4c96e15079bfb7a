"""A record that two roles share: what is the holder's alone has tables of its own, and a run has leases."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from inventory.errors import Damaged
from inventory.migrations.guards_0002 import MOVES, STATEMENTS

revision = "0002"
down_revision = "0001"

_NAME = sa.String(63).with_variant(sa.String(63, collation="C"), "postgresql")
_JSON = sa.JSON().with_variant(JSONB(), "postgresql")
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_MOMENT = sa.DateTime(timezone=True)
_nodes = sa.table(
    "nodes",
    *(sa.column(name) for name in ("name", "state", "uuid", "reason", "ends")),
    sa.column("facts", _JSON),
)
_receipts = sa.table(
    "receipts", *(sa.column(name) for name in ("node", "uuid", "at", "kind", "until", "text"))
)
_marks = sa.table("marks", sa.column("node"), sa.column("mark"))


def upgrade() -> None:
    """Make the tables, move what is in the wrong place, and let PostgreSQL guard them."""
    _new_columns()
    _new_tables()
    for row in list(_rows()):
        _move(row)
    op.execute("DROP TABLE IF EXISTS muster")  # how a record told its form before there were migrations
    if op.get_bind().dialect.name == "postgresql":
        moves = op.create_table(
            "moves",
            sa.Column("before", sa.String(32), primary_key=True),
            sa.Column("after", sa.String(32), primary_key=True),
            sa.Column("role", sa.String(16), nullable=False),
        )
        op.bulk_insert(moves, [dict(zip(("before", "after", "role"), move, strict=True)) for move in MOVES])
        schema = op.get_bind().execute(sa.text("SELECT current_schema()")).scalar_one()
        for statement in STATEMENTS:
            op.execute(statement.replace("{schema}", f'"{schema}"'))


def _new_columns() -> None:
    op.add_column("nodes", sa.Column("reason", sa.Text))
    op.add_column("nodes", sa.Column("ends", sa.String(32)))
    op.create_index("ix_nodes_ends", "nodes", ["ends", "name"])
    op.create_index("ix_nodes_state", "nodes", ["state", "name"])
    op.add_column("events", sa.Column("role", sa.String(16)))
    op.add_column("events", sa.Column("db_user", sa.String(63)))
    op.add_column("events", sa.Column("recorded_at", _MOMENT))
    op.drop_index("ix_events_node", "events")
    op.create_index("ix_events_of", "events", ["node", "id"])


def _new_tables() -> None:
    op.create_table(
        "receipts",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("node", _NAME, nullable=False),
        sa.Column("uuid", sa.String(36)),
        sa.Column("at", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16)),
        sa.Column("until", sa.String(32)),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("db_user", sa.String(63)),
        sa.Column("recorded_at", _MOMENT),
        sa.Index("ix_receipts_of", "node", "id", "uuid", "kind", "at", "until"),
    )
    op.create_table(
        "reports",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("node", _NAME, nullable=False),
        sa.Column("uuid", sa.String(36)),
        sa.Column("at", sa.String(32), nullable=False),
        sa.Column("passed", sa.Boolean, nullable=False),
        sa.Column("document", _JSON, nullable=False),
        sa.Column("db_user", sa.String(63)),
        sa.Column("recorded_at", _MOMENT),
        sa.Index("ix_reports_of", "node", "id", "uuid", "passed", "at"),
    )
    op.create_table(
        "marks",
        sa.Column("node", _NAME, primary_key=True),
        sa.Column("mark", sa.String(80), primary_key=True, index=True),
    )
    op.create_table(
        "leases",
        sa.Column("node", _NAME, primary_key=True),
        sa.Column("token", sa.String(32), nullable=False),
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("process", sa.Text, nullable=False),
        sa.Column("role", sa.String(16)),
        sa.Column("taken", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
    )


def _rows() -> Iterator[dict[str, Any]]:
    found = op.get_bind().execute(sa.select(_nodes).order_by(_nodes.c.name)).mappings().all()
    return (dict(row) for row in found)


def _move(row: dict[str, Any]) -> None:
    """A node's reason and receipt out of its facts; its host keys and machine-id to where a twin is looked for."""
    if not isinstance(row["facts"], dict):
        raise Damaged(
            f"the record of {row['name']} cannot be brought on",
            why="its facts are no object",
            next_step="restore the record from a backup; nothing was changed",
        )
    bind, facts = op.get_bind(), dict(row["facts"])
    receipt, reason = facts.pop("receipt", None), facts.pop("reason", None)
    told = {} if receipt is None else _told(receipt)
    own = _nodes.update().where(_nodes.c.name == row["name"])
    bind.execute(own.values(facts=facts, reason=reason, ends=told.get("until")))
    if receipt is not None:
        bind.execute(_receipts.insert().values(node=row["name"], uuid=row["uuid"], **told))
    if row["state"] == "retired":
        return
    marks = {
        "key:" + hashlib.sha256(f"{key['type']} {key['base64']}".encode()).hexdigest()
        for key in facts.get("host_keys", [])
    }
    marks |= {f"machine:{facts['machine_id'][:64]}"} if facts.get("machine_id") else set()
    marks |= {f"vm:{facts['vmid']}"} if facts.get("vmid") is not None else set()
    for mark in sorted(marks):
        bind.execute(_marks.insert().values(node=row["name"], mark=mark))


def _told(receipt: str) -> dict[str, Any]:
    """What a receipt says of itself, as it was written then."""
    try:
        said = json.loads(receipt.partition("\n")[0])
        at, kind, until = (str(said[key]) for key in ("made_at", "kind", "not_after"))
    except (ValueError, KeyError, TypeError):
        return {"text": receipt, "at": "1970-01-01T00:00:00+00:00"}
    return {
        "text": receipt,
        "at": at.replace("Z", "+00:00"),
        "kind": kind,
        "until": None if kind == "decommissioned" else until.replace("Z", "+00:00"),
    }
