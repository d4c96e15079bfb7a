"""The tables of the record, the same in both databases; what makes them so, step by step, is `inventory.migrations`."""

import sqlalchemy as sa

HEAD = "0002"
"""The newest migration: what a record must be at to be used."""

_Name = sa.String(63).with_variant(sa.String(63, collation="C"), "postgresql")  # ordered alike in both
# PostgreSQL's is JSONB, as the migrations make it; to import its dialect here is a fifth of a command's start.
_Json = sa.JSON()
_Moment = sa.DateTime(timezone=True)
_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # only an INTEGER counts by itself there

# An index holds what lists and the last of something are answered from, so that no row is read for it.
metadata = sa.MetaData()
nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("name", _Name, primary_key=True),
    sa.Column("state", sa.String(32), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("uuid", sa.String(36), unique=True),
    sa.Column("reason", sa.Text),
    sa.Column(
        "ends", sa.String(32)
    ),  # `until` of the last receipt, of whichever machine: finds whom to look at
    sa.Column("facts", _Json, nullable=False),
    sa.Index("ix_nodes_state", "state", "name"),
    sa.Index("ix_nodes_ends", "ends", "name"),
)
# role, db_user and recorded_at are the database's own word, where it has roles; nobody else can write them.
events = sa.Table(
    "events",
    metadata,
    sa.Column("id", _Id, primary_key=True, autoincrement=True),
    sa.Column("node", _Name, nullable=False),
    sa.Column("at", sa.String(32), nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("before", sa.String(32)),
    sa.Column("after", sa.String(32), nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("role", sa.String(16)),
    sa.Column("db_user", sa.String(63)),
    sa.Column("recorded_at", _Moment),
    sa.Index("ix_events_of", "node", "id"),
)
# Every receipt that was kept; the newest one for a node's uuid is that node's. `until` is its certificate's end.
receipts = sa.Table(
    "receipts",
    metadata,
    sa.Column("id", _Id, primary_key=True, autoincrement=True),
    sa.Column("node", _Name, nullable=False),
    sa.Column("uuid", sa.String(36)),
    sa.Column("at", sa.String(32), nullable=False),
    sa.Column("kind", sa.String(16)),
    sa.Column("until", sa.String(32)),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("db_user", sa.String(63)),
    sa.Column("recorded_at", _Moment),
    sa.Index("ix_receipts_of", "node", "id", "uuid", "kind", "at", "until"),
)
# Every whole verification, as its report's JSON.
reports = sa.Table(
    "reports",
    metadata,
    sa.Column("id", _Id, primary_key=True, autoincrement=True),
    sa.Column("node", _Name, nullable=False),
    sa.Column("uuid", sa.String(36)),
    sa.Column("at", sa.String(32), nullable=False),
    sa.Column("passed", sa.Boolean, nullable=False),
    sa.Column("document", _Json, nullable=False),
    sa.Column("db_user", sa.String(63)),
    sa.Column("recorded_at", _Moment),
    sa.Index("ix_reports_of", "node", "id", "uuid", "passed", "at"),
)
# Static addresses, each of them one node's: the key makes two writers at once never take the same one.
addresses = sa.Table(
    "addresses",
    metadata,
    sa.Column("site", sa.String(255), primary_key=True),
    sa.Column("ip", sa.String(45), primary_key=True),
    sa.Column("node", _Name, nullable=False, index=True),
)
# Host keys, machine-ids and VM ids of the nodes that are not retired, so that who has one is found without reading all.
marks = sa.Table(
    "marks",
    metadata,
    sa.Column("node", _Name, primary_key=True),
    sa.Column("mark", sa.String(80), primary_key=True, index=True),
)
# Who acts on a node now. Times are seconds since 1970 by the database's clock, or this host's over SQLite.
leases = sa.Table(
    "leases",
    metadata,
    sa.Column("node", _Name, primary_key=True),
    sa.Column("token", sa.String(32), nullable=False),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("process", sa.Text, nullable=False),
    sa.Column("role", sa.String(16)),
    sa.Column("taken", sa.Double, nullable=False),
    sa.Column("expires", sa.Double, nullable=False),
)
