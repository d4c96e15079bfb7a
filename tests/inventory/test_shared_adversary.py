"""SQL of one's own in a record that two share: what neither login can do to the other's words, nor to its readers."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from inventory.store.database import Database
from inventory.store.place import place_of
from tests.inventory.records import node
from tests.inventory.test_shared_roles import (
    A_LEASE,
    A_MOVE,
    A_SAVE,
    BOTH,
    HOLDER,
    INFRA,
    Shared,
    assert_refused,
    awaiting,
    made,
    serving,
    with_people,
)
from tests.postgres import Server, SqlRefused

WAIT_S = 60.0
WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = '{}' AND usename = 'hugo' AND wait_event_type = 'Lock'"
)
IN_SERVICE = "name = 'gpu-01'"
A_NODE = "INSERT INTO nodes (name, state, version, facts, ends) VALUES ('gpu-02', 'planned', {}, '{{}}', {});"
ITS_EVENT = (
    "INSERT INTO events (node, at, actor, host, after, why)"
    " VALUES ('gpu-02', '2026-11-30T12:00:00+00:00', 'anna', 'infra', 'planned', 'asked for');"
)
NO_TIME = "2026-11-30T24:00:00+00:00"  # PostgreSQL knows it, Python does not
A_WORD = A_MOVE.replace("2026-11-30T12:00:00+00:00", "{}") + "'in-service', 'in-service', 'looked at')"
BACK_AGAIN = (("in-service", "verify-failed"), ("verify-failed", "verifying"), ("verifying", "in-service"))
A_CLAIM = "MERGE INTO nodes n USING (SELECT) s ON n.name = 'gpu-01' WHEN MATCHED THEN "
BY_INFRA = {
    "a time that a reader stumbles over": A_WORD.format(NO_TIME),
    "a time that other quotes let through": "SET standard_conforming_strings = off;"
    + A_WORD.format("2026-11-30T12:00:00,5+00:00"),
    "a VMID that a list cannot read": f"""{A_SAVE}, facts = '{{"vmid": 99999999999}}'""",
    "a VMID in parts": f"""{A_SAVE}, facts = '{{"vmid": 1.5}}'""",
    "a node with the last version of all": f"BEGIN; {A_NODE.format(2147483647, 'NULL')} {ITS_EVENT} COMMIT",
    "a node whose end is no time": f"""BEGIN; {A_NODE.format(1, "'zzz'")} {ITS_EVENT} COMMIT""",
    "the holder's reason": f"{A_SAVE}, reason = 'it is slow' WHERE {IN_SERVICE}",
    "a move by way of a conflict": "INSERT INTO nodes (name, state, version, facts)"
    " VALUES ('gpu-01', 'planned', 1, '{}')"
    " ON CONFLICT (name) DO UPDATE SET state = 'decommissioning', version = nodes.version + 1",
    "an event again by way of a conflict": "INSERT INTO events (node, at, actor, host, before, after, why)"
    " VALUES ('gpu-01', '2026-11-30T12:00:00+00:00', 'a', 'h', 'in-service', 'in-service', 'w')"
    " ON CONFLICT (id) DO UPDATE SET why = 'nothing happened'",
    "a move by way of a merge": A_CLAIM + "UPDATE SET state = 'decommissioning', version = n.version + 1",
    "a node away by way of a merge": A_CLAIM + "DELETE",
    "events in bulk, and where they stand": "COPY events (id, node) FROM STDIN;\n\\.\n",
    "events in a table of its own below ours": "CREATE TEMP TABLE mine () INHERITS (fleet.events)",
    "a rule": "CREATE RULE mine AS ON INSERT TO fleet.events DO INSTEAD NOTHING",
    "a trigger": "CREATE TRIGGER mine BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION muster_stamp()",
    "a table that nobody else can use": "BEGIN; LOCK TABLE nodes IN ACCESS EXCLUSIVE MODE; COMMIT",
    "the holder's name": f"SET SESSION AUTHORIZATION {HOLDER}",
    "membership of its own login": f"GRANT {INFRA} TO {HOLDER}",
    "no triggers from the next session on": f"ALTER ROLE {INFRA} SET session_replication_role = replica",
    "roles of its own before the server's": "CREATE TEMP VIEW pg_roles AS SELECT 'muster_holder'::name AS rolname,"
    " 10::oid AS oid; SET search_path = pg_temp, pg_catalog, fleet;"
    f" {A_SAVE.replace('nodes', 'fleet.nodes')}, state = 'decommissioning' WHERE {IN_SERVICE}",
    "an operator of its own before the server's": "CREATE FUNCTION pg_temp.ne(integer, integer) RETURNS boolean"
    " LANGUAGE sql AS 'SELECT false'; CREATE OPERATOR pg_temp.<>"
    " (LEFTARG = integer, RIGHTARG = integer, FUNCTION = pg_temp.ne);"
    " SET search_path = pg_temp, fleet; UPDATE fleet.nodes SET version = 1",
}
BY_HOLDER = {
    "a road there and back that no node walked": "BEGIN;"
    + "".join(f"{A_MOVE}'{before}', '{after}', 'w');" for before, after in BACK_AGAIN)
    + "COMMIT",
    "a road there and back that nobody is told of": "BEGIN;"
    + "".join(f"{A_SAVE}, state = '{after}' WHERE {IN_SERVICE};" for _, after in BACK_AGAIN)
    + "COMMIT",
    "a report from no time": "INSERT INTO reports (node, uuid, at, passed, document)"
    " VALUES ('gpu-01', 'u', '2026-11-30T24:00:00+00:00', true, '{}')",
    "a receipt until no time": "INSERT INTO receipts (node, uuid, at, until, text)"
    " VALUES ('gpu-01', 'u', '2026-11-30T12:00:00+00:00', '2026-11-30T24:00:00+00:00', 'x')",
    "infra's reason": f"{A_SAVE}, reason = 'it was slow' WHERE name = 'gpu-08'",
    "a node by way of a conflict": "INSERT INTO nodes (name, state, version, facts)"
    " VALUES ('gpu-01', 'planned', 1, '{}') ON CONFLICT (name) DO NOTHING",
    "facts by way of a merge": A_CLAIM + "UPDATE SET facts = '{}', version = n.version + 1",
}


@pytest.fixture(scope="module")
def served(postgres: Server) -> Shared:
    """A record with gpu-01 in service, and gpu-08 that is infra's still; for tests that change nothing."""
    shared = made(with_people(postgres))
    serving(shared)
    shared.store(INFRA).add(node("gpu-08"), why="asked for")
    return shared


@pytest.fixture
def shared(postgres: Server) -> Shared:
    """An empty record of the two."""
    return made(with_people(postgres))


@pytest.mark.parametrize("what", BY_INFRA)
def test_infra_does_not_get_by_the_guards(served: Shared, what: str) -> None:
    assert_refused(served, BY_INFRA[what], INFRA)


@pytest.mark.parametrize("what", BY_HOLDER)
def test_the_holder_does_not_get_by_the_guards(served: Shared, what: str) -> None:
    assert_refused(served, BY_HOLDER[what], HOLDER)


def test_a_road_that_is_walked_and_told_step_by_step_is_taken_in_one_transaction_too(shared: Shared) -> None:
    """The refusals above are not refusals of everything."""
    serving(shared)
    steps = "".join(
        f"{A_SAVE}, state = '{after}', reason = 'slow'; {A_MOVE}'{before}', '{after}', 'w');"
        for before, after in BACK_AGAIN
    )

    shared.sql(f"BEGIN; {steps} COMMIT", HOLDER)
    shared.sql(A_WORD.format("2026-11-30T23:59:59.999999+00:00"), INFRA)
    shared.sql(f"""{A_SAVE}, facts = facts || '{{"vmid": 999999999}}'""", INFRA)
    shared.sql(f"BEGIN; {A_NODE.format(1, 'NULL')} {ITS_EVENT} COMMIT", INFRA)
    assert [each.vmid for each in shared.store(INFRA).summaries()] == [999999999, None]


@pytest.mark.parametrize(("owner", "told"), [("muster", "owner"), (BOTH, "owner"), (HOLDER, "holder")])
def test_a_lease_of_whoever_else_is_left_alone_while_it_holds(shared: Shared, owner: str, told: str) -> None:
    awaiting(shared)
    shared.sql(A_LEASE.format("9e9"), owner)

    for statement in (
        "DELETE FROM leases",
        "UPDATE leases SET expires = 0",
        A_LEASE.format("9e9") + " ON CONFLICT (node) DO UPDATE SET token = 'mine'",
        "MERGE INTO leases l USING (SELECT) s ON l.node = 'gpu-01' WHEN MATCHED THEN DELETE",
    ):
        with pytest.raises(SqlRefused, match=f"of the role {told}"):
            shared.sql(statement, INFRA)
    shared.sql("DELETE FROM leases", owner)


def test_an_event_that_had_to_wait_stands_after_the_one_it_waited_for(shared: Shared) -> None:
    """Its number is drawn before it waits, and a history is read by numbers."""
    serving(shared)
    infra = Database(place_of(shared.server.url(shared.database, user=INFRA, schema=shared.schema)))
    with ThreadPoolExecutor(1) as beside:
        with infra.begin() as connection:
            connection.execute(text(f"{A_SAVE}, state = 'retiring'"))
            waiting = beside.submit(shared.sql, f"{A_MOVE}'retiring', 'retiring', 'looked at')", HOLDER)
            until = time.monotonic() + WAIT_S
            while shared.sql(WAITING.format(shared.database), "postgres") != "1":
                assert time.monotonic() < until
                time.sleep(0.02)
            connection.exec_driver_sql(A_MOVE + "'in-service', 'retiring', 'gone')")
        assert waiting.result(WAIT_S) == ""

    whys = [event.why for event in shared.store(INFRA).history("gpu-01")]
    assert whys[-2:] == ["gone", "looked at"]
