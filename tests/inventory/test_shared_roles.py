"""Two logins on one record: what each may write, and that neither can bend what the other wrote."""

from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
from sqlalchemy import text

from inventory.errors import BadInput, Refused
from inventory.lifecycle import MOVES
from inventory.migrations.guards_0002 import MOVES as GUARDED
from inventory.model import Address, Node, State
from inventory.store import Store
from inventory.store.database import Database
from inventory.store.grants import memberships, script
from inventory.store.making import migrate
from inventory.store.place import place_of
from tests.inventory.records import KEY, author, moved, node, store
from tests.postgres import Server, SqlRefused

INFRA, HOLDER, BOTH = "anna", "hugo", "zoe"


@dataclass(frozen=True)
class Shared:
    """A record with its grants. sql: runs a statement there by psql, as a login."""

    server: Server
    database: str
    schema: str

    def store(self, user: str) -> Store:
        """The record as one login has it."""
        return store(self.server.url(self.database, user=user, schema=self.schema))

    def sql(self, text: str, user: str) -> str:
        """What psql answers."""
        path = f"SET search_path = {self.schema};"
        return self.server.psql(path + text, database=self.database, user=user)


@pytest.fixture(scope="module")
def server(postgres: Server) -> Server:
    """The worker's server, with three people's logins."""
    return with_people(postgres)


@pytest.fixture
def shared(server: Server) -> Shared:
    """An empty record that infra and the holder share."""
    return made(server)


@pytest.fixture(scope="module")
def served(server: Server) -> Shared:
    """The same with a node in service; for tests that change nothing."""
    shared = made(server)
    serving(shared)
    return shared


def with_people(server: Server) -> Server:
    """A server that knows the three."""
    for name in (INFRA, HOLDER, BOTH):
        with suppress(SqlRefused):  # another module's tests have made it
            server.create_login(name)
    return server


def made(server: Server) -> Shared:
    """A record as `node-inventory migrate` and `grants` make it."""
    database, schema = server.fresh_database(), "fleet"
    migrate(Database(place_of(server.url(database, user="muster", schema=schema))))
    members = [
        f"GRANT muster_infra TO {INFRA}, {BOTH}",
        f"GRANT muster_holder TO {HOLDER}, {BOTH}",
    ]
    for _ in range(2):  # again it changes nothing
        server.psql(script(schema, members), database=database, user="postgres")
    return Shared(server, database, schema)


def awaiting(shared: Shared) -> Node:
    """A node that infra has made, with its ticket."""
    infra = shared.store(INFRA)
    made = infra.add(node(address=Address("10.0.0.7", 24, "static"), site="pve"), why="asked for")
    made = replace(made, state=State.AWAITING_IDENTITY, host_keys=(KEY,), ticket="the ticket")
    return infra.save(made, why="VM 5000 was made")


def serving(shared: Shared) -> Node:
    """The same in service, by the holder's hand."""
    holder = shared.store(HOLDER)
    found = moved(holder, awaiting(shared), State.ONBOARDING)
    found = holder.save(
        replace(found, state=State.AWAITING_VERIFICATION, receipt="the receipt"), why="certificate 01"
    )
    return moved(holder, found, State.VERIFYING, State.IN_SERVICE)


def test_the_database_knows_the_very_life_that_the_commands_know() -> None:
    known = {(before, after) for before in State for after in MOVES[before]}

    assert {(before, after) for before, after, _ in GUARDED if before} == {(str(b), str(a)) for b, a in known}
    assert all(role == author(State(after)) for _, after, role in GUARDED)


def test_a_node_walks_its_whole_road_by_two_logins_and_the_database_vouches_for_each(shared: Shared) -> None:
    done = serving(shared)
    shared.store(HOLDER).keep_report("gpu-01", {"ok": True}, passed=True)
    infra = shared.store(INFRA)

    assert infra.get("gpu-01") == replace(done, verified_at=infra.reports("gpu-01")[0].at)
    assert [(event.role, event.db_user) for event in infra.history("gpu-01")] == [
        *[("infra", INFRA)] * 2,
        *[("holder", HOLDER)] * 4,
    ]
    assert all(event.recorded_at is not None for event in infra.history("gpu-01"))
    assert infra.receipts("gpu-01")[0].db_user == infra.reports("gpu-01")[0].db_user == HOLDER
    leaving = moved(infra, done, State.RETIRING, State.RETIRED)
    assert leaving.state is State.RETIRED


@pytest.mark.parametrize("state", [state for state in State if author(state) == "holder"])
def test_infra_brings_no_node_into_a_state_that_is_the_holders_to_say(shared: Shared, state: State) -> None:
    waiting = awaiting(shared)
    before = next(before for before in State if state in MOVES[before])
    shared.sql(FREE.format(state=before), "postgres")  # as if the road had led there
    found = replace(waiting, state=state)

    with pytest.raises(Refused, match=r"does not let anna|may not become") as refused:
        shared.store(INFRA).save(found, why="forged")
    assert "role infra" in refused.value.why
    assert shared.sql("SELECT state FROM nodes", INFRA) == before


# What no login but a superuser can do: the triggers are off in this session.
FREE = (
    "SET session_replication_role = replica; UPDATE nodes SET state = '{state}';"
    " INSERT INTO events (node, at, actor, host, after, why)"
    " SELECT name, '2026-11-30T12:00:00+00:00', 'test', 'test', '{state}', 'set' FROM nodes"
)
A_MOVE = (
    "INSERT INTO events (node, at, actor, host, before, after, why)"
    " VALUES ('gpu-01', '2026-11-30T12:00:00+00:00', 'hugo', 'ca', "
)
A_LEASE = (
    "INSERT INTO leases (node, token, what, actor, host, process, taken, expires)"
    " VALUES ('gpu-01', 't', 'w', 'a', 'h', '', 'NaN', {})"
)
A_SAVE = "UPDATE nodes SET version = version + 1"
BY_INFRA = {
    "an event that the holder alone may write": A_MOVE + "'in-service', 'decommissioning', 'ended')",
    "an event of a move that was not made": A_MOVE + "'in-service', 'retiring', 'gone')",
    "an event that does not follow": A_MOVE + "'awaiting-identity', 'provisioning', 'again')",
    "a first event of a node that has one": A_MOVE + "NULL, 'provisioning', 'first')",
    "a move without its event": f"{A_SAVE}, state = 'retiring'",
    "a move of the holder's": f"{A_SAVE}, state = 'decommissioning'",
    "a version that was there already": "UPDATE nodes SET version = 1",
    "the last version of all": "UPDATE nodes SET version = 2147483647",
    "another uuid, which has no receipts": f"{A_SAVE}, uuid = 'another'",
    "facts that are none": f"{A_SAVE}, facts = '[]'",
    "a VMID that is none": f"""{A_SAVE}, facts = '{{"vmid": "x"}}'""",
    "a name that ssh would take for an option": "INSERT INTO nodes (name, state, version, facts)"
    " VALUES ('-oProxyCommand=id', 'planned', 1, '{}')",
    "a time that is none": "INSERT INTO events (node, at, actor, host, before, after, why)"
    " VALUES ('gpu-01', 'zzz', 'anna', 'infra', 'in-service', 'in-service', 'looked at')",
    "another name": "UPDATE nodes SET name = 'gpu-02'",
    "a receipt": "INSERT INTO receipts (node, uuid, at, text) VALUES ('gpu-01', 'u', 'now', 'forged')",
    "a report": "INSERT INTO reports (node, at, passed, document) VALUES ('gpu-01', 'now', true, '{}')",
    "who wrote an event": "INSERT INTO events (node, at, actor, host, before, after, why, role)"
    " VALUES ('gpu-01', '2026-11-30T12:00:00+00:00', 'hugo', 'ca', 'in-service', 'in-service', 'passed', 'holder')",
    "when an event was written": "INSERT INTO events (node, at, actor, host, before, after, why, recorded_at)"
    " VALUES ('gpu-01', '2026-11-30T12:00:00+00:00', 'hugo', 'ca', 'in-service', 'in-service', 'passed', '2020-01-01')",
    "where an event stands": "INSERT INTO events (id, node, at, actor, host, before, after, why)"
    " VALUES (1, 'gpu-01', '2026-11-30T12:00:00+00:00', 'hugo', 'ca', 'in-service', 'in-service', 'passed')",
    "an event again": "UPDATE events SET why = 'nothing happened'",
    "an event away": "DELETE FROM events",
    "all events away": "TRUNCATE events",
    "a receipt away": "DELETE FROM receipts",
    "a receipt again": "UPDATE receipts SET text = 'forged'",
    "a report again": "UPDATE reports SET passed = true",
    "a node away": "DELETE FROM nodes",
    "the roads": "INSERT INTO moves VALUES ('in-service', 'onboarding', 'infra')",
    "the form": "UPDATE alembic_version SET version_num = '0001'",
    "no guard": "ALTER TABLE nodes DISABLE TRIGGER guard",
    "no triggers in this session": "SET session_replication_role = replica",
    "a guard of its own": "CREATE OR REPLACE FUNCTION muster_role() RETURNS text LANGUAGE sql AS $$ SELECT 'x' $$",
    "a table in the schema": "CREATE TABLE moves2 (x int)",
    "another role": "SET ROLE muster_holder",
    "the owner's role": "SET ROLE muster",
    "more rights for itself": "GRANT muster_holder TO anna",
    "the counter back": "SELECT setval('events_id_seq', 1)",
    "roads of its own before ours": "CREATE TEMP TABLE moves (before text, after text, role text);"
    " INSERT INTO moves VALUES ('in-service', 'decommissioning', 'infra');"
    " SET search_path = pg_temp, fleet; UPDATE fleet.nodes SET version = version + 1, state = 'decommissioning'",
}
BY_HOLDER = {
    "a node": "INSERT INTO nodes (name, state, version, facts) VALUES ('gpu-09', 'awaiting-identity', 1, '{}')",
    "facts": f"{A_SAVE}, facts = '{{}}'",
    "another uuid": f"{A_SAVE}, uuid = 'another'",
    "a move of infra's": f"{A_SAVE}, state = 'awaiting-identity'",
    "a receipt from no time": "INSERT INTO receipts (node, uuid, at, text) VALUES ('gpu-01', 'u', '2026-13-01', 'x')",
    "a report that is none": "INSERT INTO reports (node, at, passed, document)"
    " VALUES ('gpu-01', '2026-11-30T12:00:00+00:00', true, '[1]')",
    "an event of infra's": A_MOVE + "'in-service', 'retiring', 'its VM is to be destroyed')",
    "an address": "INSERT INTO addresses (site, ip, node) VALUES ('pve', '10.0.0.8', 'gpu-01')",
    "an address away": "DELETE FROM addresses",
    "a mark away": "DELETE FROM marks",
    "a receipt again": "UPDATE receipts SET text = 'another'",
    "a receipt away": "DELETE FROM receipts",
    "a report again": "UPDATE reports SET passed = true",
    "an event again": "UPDATE events SET why = 'nothing happened'",
    "all events away": "TRUNCATE events CASCADE",
    "where a receipt stands": "INSERT INTO receipts (id, node, uuid, at, text) VALUES (0, 'gpu-01', 'u', 'now', 'x')",
}


@pytest.mark.parametrize("what", BY_INFRA)
def test_infra_cannot_write(served: Shared, what: str) -> None:
    assert_refused(served, BY_INFRA[what], INFRA)


@pytest.mark.parametrize("what", BY_HOLDER)
def test_the_holder_cannot_write(served: Shared, what: str) -> None:
    assert_refused(served, BY_HOLDER[what], HOLDER)


def test_what_either_may_write_is_written_by_the_same_words(shared: Shared) -> None:
    """The refusals above are not refusals of everything."""
    serving(shared)

    shared.sql(f"{A_SAVE}, facts = '{{}}'", INFRA)
    shared.sql(A_MOVE + "'in-service', 'in-service', 'looked at')", INFRA)
    shared.sql(
        "INSERT INTO receipts (node, uuid, at, text) VALUES ('gpu-01', 'u', '2026-11-30T12:00:00+00:00', 'x')",
        HOLDER,
    )
    shared.sql(
        f"BEGIN; {A_SAVE}, state = 'decommissioning'; {A_MOVE}"
        " 'in-service', 'decommissioning', 'ended'); COMMIT",
        HOLDER,
    )
    assert shared.sql("SELECT role, db_user FROM events ORDER BY id DESC LIMIT 2", INFRA) == (
        "holder|hugo\ninfra|anna"
    )


def test_a_history_that_another_is_going_on_with_is_waited_for(shared: Shared) -> None:
    """Neither of two writers at once judges by a history that is not the last."""
    found = serving(shared)
    infra = Database(place_of(shared.server.url(shared.database, user=INFRA, schema=shared.schema)))
    with infra.begin() as connection:
        connection.execute(text(f"{A_SAVE}, state = 'retiring'"))
        connection.exec_driver_sql(A_MOVE + "'in-service', 'retiring', 'gone')")
        with pytest.raises(SqlRefused, match="lock timeout"):
            shared.sql(
                "SET lock_timeout = '300ms';" + A_MOVE + "'in-service', 'in-service', 'passed')", HOLDER
            )
    with pytest.raises(SqlRefused, match="ends with retiring, and an event from in-service cannot follow"):
        shared.sql(A_MOVE + "'in-service', 'in-service', 'passed')", HOLDER)
    gone = replace(found, version=found.version + 1, state=State.RETIRING)
    assert moved(shared.store(INFRA), gone, State.RETIRED).state is State.RETIRED


@pytest.mark.parametrize("expires", ["'Infinity'", "'NaN'", "-1e300", "'-Infinity'"])
def test_no_lease_is_without_end_or_without_a_beginning(shared: Shared, expires: str) -> None:
    awaiting(shared)
    shared.sql(A_LEASE.format(expires), INFRA)

    assert shared.sql("SELECT taken < 1e12 AND expires - taken BETWEEN 0 AND 3601 FROM leases", INFRA) == "t"
    shared.sql("DELETE FROM leases", INFRA)


def test_who_holds_both_roles_may_do_either_but_no_move_that_a_life_does_not_have(shared: Shared) -> None:
    serving(shared)
    person = shared.store(BOTH)
    found = person.get("gpu-01")
    assert found is not None

    moved(person, found, State.DECOMMISSIONING, State.AWAITING_RETIREMENT, State.RETIRING)
    assert person.history("gpu-01")[-1].role is None
    for user in (BOTH, "muster"):
        with pytest.raises(SqlRefused, match="may not become"):
            shared.sql(f"{A_SAVE}, state = 'in-service'", user)


def test_nobody_is_made_a_member_of_both_or_of_anything_else(shared: Shared) -> None:
    for members in (
        ["infra=anna", "holder=anna"],
        ["infra=muster_holder"],
        ["root=anna"],
        ['infra=a"b'],
        ["anna"],
    ):
        with pytest.raises(BadInput):
            memberships(members)
    assert memberships(["infra=anna", "holder=hugo"]) == [
        'GRANT muster_infra TO "anna"',
        'GRANT muster_holder TO "hugo"',
    ]
    shared.sql(
        "GRANT CREATE ON SCHEMA fleet TO muster_infra; GRANT DELETE ON events TO muster_holder", "postgres"
    )
    shared.sql(script("fleet"), "postgres")
    with pytest.raises(SqlRefused, match="permission denied"):
        shared.sql("CREATE TABLE own (x int)", INFRA)
    with pytest.raises(SqlRefused, match="permission denied"):
        shared.sql("DELETE FROM events", HOLDER)


def test_a_login_without_a_role_has_no_record_at_all(shared: Shared, server: Server) -> None:
    server.psql("DROP ROLE IF EXISTS otto; CREATE ROLE otto LOGIN", database="postgres")

    with pytest.raises(BadInput, match="otto finds no record") as refused:
        shared.store("otto")
    assert "node-inventory grants" in refused.value.next_step


def test_a_lease_of_the_other_role_is_left_alone_while_it_holds(shared: Shared) -> None:
    awaiting(shared)
    with shared.store(HOLDER).lease("gpu-01", "onboard-node", say=print):
        with pytest.raises(SqlRefused, match="of the role holder"):
            shared.sql("DELETE FROM leases", INFRA)
        with pytest.raises(SqlRefused, match="of the role holder"):
            shared.sql("UPDATE leases SET token = 'mine'", INFRA)
        shared.sql("UPDATE leases SET expires = 0", HOLDER)
        shared.sql("DELETE FROM leases", INFRA)


def test_the_record_tells_who_may_write_receipts(shared: Shared) -> None:
    assert not shared.store(INFRA).may_keep_receipts()
    assert shared.store(HOLDER).may_keep_receipts()
    assert shared.store("muster").may_keep_receipts()


def test_a_holder_that_knows_another_node_than_the_record_is_refused_in_words(shared: Shared) -> None:
    waiting = awaiting(shared)
    changed = replace(waiting, state=State.ONBOARDING, vmid=666)

    with pytest.raises(Refused, match="does not let hugo do this") as refused:
        shared.store(HOLDER).save(changed, why="ticket")
    assert "permission denied for table nodes" in refused.value.why
    assert shared.store(HOLDER).get("gpu-01") == waiting


def assert_refused(shared: Shared, statement: str, user: str) -> None:
    """It is refused, and nothing has changed."""
    before = everything(shared)

    with pytest.raises(SqlRefused):
        shared.sql(statement, user)
    assert everything(shared) == before


def everything(shared: Shared) -> str:
    """All that a record says, as its superuser reads it."""
    tables = ("nodes", "events", "receipts", "reports", "addresses", "marks", "moves", "alembic_version")
    return shared.sql("".join(f"TABLE {table};" for table in tables), "postgres")
