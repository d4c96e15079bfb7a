"""The record of the nodes: SQLAlchemy over SQLite, with versions so that two writers never lose an update."""

import functools
import getpass
import os
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json, to_jsonable_python
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, IntegrityError, OperationalError
from sqlalchemy.pool import NullPool

from inventory.command import state_home
from inventory.errors import BadInput, Damaged, OtherSide, Refused
from inventory.lifecycle import check_move
from inventory.model import Event, HostKey, Node, State

_SCHEMA = 1
_BUSY_S = 15
_tables = sa.MetaData()
_meta = sa.Table("muster", _tables, sa.Column("schema", sa.Integer, primary_key=True))
_nodes = sa.Table(
    "nodes",
    _tables,
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("state", sa.String(32), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("uuid", sa.String(36), unique=True),
    sa.Column("facts", sa.JSON, nullable=False),
)
_events = sa.Table(
    "events",
    _tables,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("node", sa.String(63), nullable=False, index=True),
    sa.Column("at", sa.String(32), nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("before", sa.String(32)),
    sa.Column("after", sa.String(32), nullable=False),
    sa.Column("why", sa.Text, nullable=False),
)
# Static addresses, each of them one node's: the key makes two writers at once never take the same one.
_addresses = sa.Table(
    "addresses",
    _tables,
    sa.Column("site", sa.String(255), primary_key=True),
    sa.Column("ip", sa.String(45), primary_key=True),
    sa.Column("node", sa.String(63), nullable=False, index=True),
)
_AS_COLUMNS = {"name", "state", "version", "uuid"}


def default_url() -> str:
    """The record in the state directory: `sqlite:///$XDG_STATE_HOME/muster/inventory.db`."""
    return f"sqlite:///{state_home() / 'inventory.db'}"


def utc_now() -> datetime:
    """The clock that commands use."""
    return datetime.now(UTC)


def whoami() -> str:
    """The login name that events record; the numeric id where it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


class AddressTaken(Refused):
    """Another node has this static address."""


class Store:
    """The record of all nodes; every method is one transaction."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        clock: Callable[[], datetime] = utc_now,
        actor: str | None = None,
        host: str | None = None,
    ) -> None:
        """Use `open`; `actor` and `host` are who and where the events name."""
        self._engine = engine
        # Threads of one process queue here: SQLite would have them sleep and look again.
        self._turn = threading.Lock()
        self._clock = clock
        self._actor = actor or whoami()
        self._host = host or platform.node()

    @classmethod
    def open(cls, url: str | None, *, clock: Callable[[], datetime] = utc_now) -> "Store":
        """The record at `url` (default: `default_url`); made if it is absent, 0600 from the first byte.

        Raises:
            BadInput: the URL is not one of ours, or its folder cannot be made.
            Damaged: there is something else than a record.
        """
        text = url or default_url()
        try:
            parsed = make_url(text)
        except ArgumentError:
            raise _bad_url("it is not a database URL") from None
        if parsed.password is not None:
            raise _bad_url("a URL is no place for a password: it shows in process lists and logs")
        if parsed.get_backend_name() != "sqlite" or not parsed.database or parsed.database == ":memory:":
            raise _bad_url("only sqlite:///FILE is understood")
        path = Path(parsed.database)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise BadInput(
                f"the record {path} cannot be opened",
                why=error.strerror or str(error),
                next_step="give another place with --inventory or MUSTER_INVENTORY",
            ) from error
        engine = sa.create_engine(parsed, poolclass=NullPool, connect_args={"timeout": _BUSY_S})
        store = cls(engine, clock=clock)
        with store._begin() as connection:
            held_before = sa.inspect(connection).has_table(_addresses.name)
            _tables.create_all(connection)
            if not held_before:
                store._hold_what_is_recorded(connection)
            found = connection.execute(sa.select(_meta.c.schema)).scalar_one_or_none()
            if found is None:
                connection.execute(_meta.insert().values(schema=_SCHEMA))
            elif found != _SCHEMA:
                raise Damaged(
                    f"the record {path} cannot be used",
                    why=f"it has schema {found}, this Muster writes schema {_SCHEMA}",
                    next_step="use the Muster that wrote it",
                )
        return store

    def get(self, name: str) -> Node | None:
        """The node called `name`, if it is on record."""
        with self._begin() as connection:
            row = connection.execute(sa.select(_nodes).where(_nodes.c.name == name)).mappings().one_or_none()
        return None if row is None else _node(row)

    def all(self) -> tuple[Node, ...]:
        """Every node, by name."""
        with self._begin() as connection:
            rows = connection.execute(sa.select(_nodes).order_by(_nodes.c.name)).mappings().all()
        return tuple(_node(row) for row in rows)

    def history(self, name: str) -> tuple[Event, ...]:
        """What happened to the node called `name`, oldest first."""
        with self._begin() as connection:
            rows = connection.execute(
                sa.select(_events).where(_events.c.node == name).order_by(_events.c.id)
            ).mappings()
            return tuple(
                Event(
                    at=datetime.fromisoformat(row["at"]),
                    actor=row["actor"],
                    host=row["host"],
                    before=None if row["before"] is None else State(row["before"]),
                    after=State(row["after"]),
                    why=row["why"],
                )
                for row in rows
            )

    def add(self, node: Node, *, why: str) -> Node:
        """A new node; its first event says why it is there.

        Raises:
            Refused: the name, or the uuid, is on record already.
            AddressTaken: another node has one of its static addresses.
        """
        added = replace(node, version=1)
        try:
            with self._begin() as connection:
                connection.execute(_nodes.insert().values(**_row(added)))
                self._hold_addresses(connection, added)
                self._event(connection, added, before=None, why=why)
        except IntegrityError:
            raise Refused(
                f"{node.name} was not put on record",
                why="that name or its VM uuid is on record already",
                next_step=f"node-inventory show {node.name}",
            ) from None
        return added

    def save(self, node: Node, *, why: str | None = None) -> Node:
        """The node as it is now, one version on; with `why`, an event is kept.

        A change of state is checked against the life of a node, and needs its `why`.

        Raises:
            Refused: somebody saved the node after it was read, or it may not make this move.
            AddressTaken: another node has one of its static addresses.
        """
        with self._begin() as connection:
            before = connection.execute(
                sa.select(_nodes.c.state).where(_nodes.c.name == node.name)
            ).scalar_one_or_none()
            if before is None:
                raise Refused(
                    f"{node.name} was not saved",
                    why="it is not on record any more",
                    next_step="node-inventory list",
                )
            check_move(node.name, State(before), node.state)
            if before != node.state and why is None:
                raise ValueError("a change of state needs its why")
            saved = replace(node, version=node.version + 1)
            changed = connection.execute(
                _nodes.update()
                .where(_nodes.c.name == node.name, _nodes.c.version == node.version)
                .values(**_row(saved))
            )
            if changed.rowcount != 1:
                raise Refused(
                    f"{node.name} was not saved",
                    why="somebody else changed it meanwhile",
                    next_step=f"look at node-inventory history {node.name}, then run the command again",
                )
            self._hold_addresses(connection, saved)
            if why is not None:
                self._event(connection, saved, before=State(before), why=why)
        return saved

    def find_machine(
        self, *, host_keys: Sequence[HostKey], machine_id: str | None, other_than_uuid: str | None
    ) -> Node | None:
        """A node with another uuid that has one of these host keys, or this machine-id, on record."""
        keys = set(host_keys)
        for node in self.all():
            if node.uuid == other_than_uuid or node.state is State.RETIRED:
                continue
            if keys.intersection(node.host_keys) or (machine_id and node.machine_id == machine_id):
                return node
        return None

    def held_addresses(self, site: str) -> dict[str, str]:
        """Every static address of a site that a node has, and which node."""
        with self._begin() as connection:
            rows = connection.execute(sa.select(_addresses).where(_addresses.c.site == site)).mappings()
            return {row["ip"]: row["node"] for row in rows}

    def _hold_addresses(self, connection: sa.Connection, node: Node) -> None:
        """The node's static addresses are its own from here on; those that it had before, or once retired, are free."""
        wanted = {(node.site or "", ip) for ip in _static_addresses(node)}
        rows = connection.execute(sa.select(_addresses).where(_addresses.c.node == node.name)).mappings()
        held = {(row["site"], row["ip"]) for row in rows}
        for site, ip in held - wanted:
            connection.execute(_addresses.delete().where(_addresses.c.site == site, _addresses.c.ip == ip))
        for site, ip in sorted(wanted - held):
            try:
                connection.execute(_addresses.insert().values(site=site, ip=ip, node=node.name))
            except IntegrityError:
                raise AddressTaken(
                    f"{node.name} was not put on record",
                    why=f"{ip} is another node's",
                    next_step="run the command again: it chooses among the addresses that are free then",
                ) from None

    def _hold_what_is_recorded(self, connection: sa.Connection) -> None:
        """A record that is older than the table of addresses; what two nodes share stays the first one's."""
        taken: set[tuple[str, str]] = set()
        for row in connection.execute(sa.select(_nodes).order_by(_nodes.c.name)).mappings().all():
            node = _node(row)
            for ip in _static_addresses(node):
                if (node.site or "", ip) not in taken:
                    taken.add((node.site or "", ip))
                    connection.execute(
                        _addresses.insert().values(site=node.site or "", ip=ip, node=node.name)
                    )

    def _event(self, connection: sa.Connection, node: Node, *, before: State | None, why: str) -> None:
        connection.execute(
            _events.insert().values(
                node=node.name,
                at=self._clock().isoformat(),
                actor=self._actor,
                host=self._host,
                before=before,
                after=node.state,
                why=why,
            )
        )

    @contextmanager
    def _begin(self) -> Iterator[sa.Connection]:
        """One transaction, which takes SQLite's write lock at once so that it is never upgraded midway."""
        try:
            with self._turn, self._engine.connect() as connection:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                yield connection
                connection.commit()
        except IntegrityError:
            raise
        except OperationalError as error:
            raise OtherSide(
                f"the record {self._engine.url.database} did not answer",
                why=str(error.orig),
                next_step="try again; if it stays so, look who uses the file and whether the disk is full",
            ) from error
        except DatabaseError as error:
            raise Damaged(
                f"the record {self._engine.url.database} cannot be read",
                why=str(error.orig),
                next_step="restore it from a backup, or name another with --inventory",
            ) from error


def _bad_url(why: str) -> BadInput:
    return BadInput(
        "the record's URL was refused", why=why, next_step="give --inventory sqlite:////path/to/inventory.db"
    )


def _static_addresses(node: Node) -> set[str]:
    """The addresses that infra chose for a node that is not retired, as text without their prefix."""
    if node.state is State.RETIRED:
        return set()
    own = {node.address.ip} if node.address is not None and node.address.source == "static" else set()
    return own | {
        str(ip_interface(fabric.address).ip) for fabric in node.fabrics if fabric.address is not None
    }


@functools.cache
def _node_from() -> "TypeAdapter[Node]":
    return TypeAdapter(Node)


def _row(node: Node) -> dict[str, Any]:
    told: dict[str, Any] = to_jsonable_python(node)
    return {
        "name": node.name,
        "state": str(node.state),
        "version": node.version,
        "uuid": node.uuid,
        "facts": {key: value for key, value in told.items() if key not in _AS_COLUMNS},
    }


def _node(row: sa.RowMapping) -> Node:
    whole = {**row["facts"], **{key: row[key] for key in _AS_COLUMNS}}
    try:
        return _node_from().validate_json(to_json(whole))
    except ValidationError as error:
        raise Damaged(
            f"the record of {row['name']} cannot be read",
            why="; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()),
            next_step="restore the record from a backup",
        ) from None
