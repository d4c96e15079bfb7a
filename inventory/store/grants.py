"""The SQL that lets the two roles share a record: what infra and the holder may do there, and nothing more (pure)."""

import re
from collections.abc import Iterable

from inventory.errors import BadInput

INFRA_ROLE = "muster_infra"
HOLDER_ROLE = "muster_holder"
_LOGIN = re.compile(r"[a-z_][a-z0-9_.@-]{0,62}")
_TABLES = (
    "nodes",
    "events",
    "receipts",
    "reports",
    "addresses",
    "marks",
    "leases",
    "moves",
    "alembic_version",
)
_COUNTED = ("events", "receipts", "reports")
_EVENT = (
    "node, at, actor, host, before, after, why"  # id, role, db_user and recorded_at are the database's own
)
_RIGHTS = {
    INFRA_ROLE: (
        "INSERT, UPDATE (state, version, uuid, reason, facts) ON {schema}.nodes",
        f"INSERT ({_EVENT}) ON {{schema}}.events",
        "INSERT, DELETE ON {schema}.addresses, {schema}.marks",
        "INSERT, UPDATE, DELETE ON {schema}.leases",
        "USAGE ON SEQUENCE {schema}.events_id_seq",
    ),
    HOLDER_ROLE: (
        "UPDATE (state, version, reason, ends) ON {schema}.nodes",
        f"INSERT ({_EVENT}) ON {{schema}}.events",
        "INSERT (node, uuid, at, kind, until, text) ON {schema}.receipts",
        "INSERT (node, uuid, at, passed, document) ON {schema}.reports",
        "INSERT, UPDATE, DELETE ON {schema}.leases",
        "USAGE ON SEQUENCE {schema}.events_id_seq, {schema}.receipts_id_seq, {schema}.reports_id_seq",
    ),
}


def statements(schema: str) -> list[str]:
    """In order, to be run by the owner of the record; run again they change nothing.

    They make the two roles where they are absent; a person's login is made a member of one of them.
    """
    quoted = f'"{schema}"'
    everything = ", ".join(f"{quoted}.{table}" for table in _TABLES)
    counters = ", ".join(f"{quoted}.{table}_id_seq" for table in _COUNTED)
    told = []
    for role in _RIGHTS:
        told.append(
            f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = '{role}') THEN"
            f" CREATE ROLE {role} NOLOGIN; END IF; END $$"
        )
    told.append(f"REVOKE ALL ON SCHEMA {quoted} FROM PUBLIC, {', '.join(_RIGHTS)}")
    told.append(f"REVOKE ALL ON {everything} FROM PUBLIC, {', '.join(_RIGHTS)}")
    told.append(f"REVOKE ALL ON SEQUENCE {counters} FROM PUBLIC, {', '.join(_RIGHTS)}")
    for role, rights in _RIGHTS.items():
        told.append(f"GRANT USAGE ON SCHEMA {quoted} TO {role}")
        told.append(f"GRANT SELECT ON {everything} TO {role}")
        told += [f"GRANT {right.format(schema=quoted)} TO {role}" for right in rights]
    return told


def memberships(told: Iterable[str]) -> list[str]:
    """What makes logins members of a role, each given as `infra=LOGIN` or `holder=LOGIN`.

    Raises:
        BadInput: one is given in another form.
    """
    made: list[str] = []
    roles: dict[str, str] = {}
    for each in told:
        role, _, login = each.partition("=")
        if f"muster_{role}" not in _RIGHTS or not _LOGIN.fullmatch(login) or login in _RIGHTS:
            raise BadInput(
                f"{each!r} names no login",
                why="it is infra=LOGIN or holder=LOGIN; a login is of a-z, 0-9, '_', '-', '.' and '@'",
                next_step="node-inventory grants --to infra=anna --to holder=hugo",
            )
        if roles.setdefault(login, role) != role:
            raise BadInput(
                f"{login} cannot be both",
                why="who is a member of both roles is held to neither",
                next_step="give that person two logins, or name one role",
            )
        made.append(f'GRANT muster_{role} TO "{login}"')
    return made


def script(schema: str, members: Iterable[str] = ()) -> str:
    """The same as one transaction for psql(1)."""
    return "\n".join(
        ["BEGIN;", *(f"{statement};" for statement in (*statements(schema), *members)), "COMMIT;", ""]
    )
