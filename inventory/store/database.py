"""Which database a URL means, and one transaction in it: its deadlines, and its failures in the house's words."""

import os
import re
import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError
from sqlalchemy.pool import NullPool, QueuePool

from inventory.command import default_url, need
from inventory.errors import BadInput, Damaged, MusterError, OtherSide, Refused

DEFAULT_SCHEMA = "muster"
_BUSY_S = 15
_STATEMENT_S = 20
_CONNECT_S = 10
_SILENCE_S = 30.0
_PATIENCE_S = 3600
_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
# libpq's own words for these; every other one is refused, for it would be a setting that nobody knows of.
_QUERY = frozenset(
    {"host", "port", "service", "passfile", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "schema"}
)
_SECRETS = frozenset({"password", "sslpassword"})
_NOT_THERE = frozenset({"42P01", "3F000"})
_FORBIDDEN = "42501"
_READ_ONLY = "25006"
_UNFIT = "22"
_LATE = frozenset({"57014", "55P03", "25P03"})


@dataclass(frozen=True, slots=True)
class Place:
    """A database, without anything secret. where: as it is told to people. schema: PostgreSQL's only."""

    url: URL
    where: str
    schema: str | None = None

    @property
    def shared(self) -> bool:
        """Is it a server's, with roles and a clock of its own?"""
        return self.schema is not None


def place_of(text: str | None) -> Place:
    """What a URL means (default: `default_url`).

    Raises:
        BadInput: it is not one of ours, or holds what it must not.
    """
    try:
        parsed = make_url(text or default_url())
    except (ArgumentError, ValueError):
        raise _bad_url("it is not a database URL") from None
    if parsed.password is not None or _SECRETS & set(parsed.query):
        raise _bad_url("a URL is no place for a password: it shows in process lists and logs")
    if parsed.drivername == "postgresql":
        return _postgres(parsed)
    if parsed.drivername != "sqlite" or not parsed.database or parsed.database == ":memory:" or parsed.query:
        raise _bad_url("only sqlite:///FILE and postgresql://HOST/DATABASE are understood")
    return Place(parsed, parsed.database)


def _postgres(parsed: URL) -> Place:
    query: dict[str, str] = {}
    for key, value in parsed.query.items():
        if key not in _QUERY or not isinstance(value, str):
            raise _bad_url(f"{key!r} is not known in it; known are: {', '.join(sorted(_QUERY))}")
        query[key] = value
    if "port" in query and not (query["port"].isdecimal() and 0 < int(query["port"]) < 65536):
        raise _bad_url(f"{query['port']!r} is no port")
    schema = query.pop("schema", DEFAULT_SCHEMA)
    if not _SCHEMA.fullmatch(schema):
        raise _bad_url(f"{schema!r} cannot name a schema: a to z, 0 to 9 and '_', not beginning with pg_")
    # libpq asks no certificate of a local socket; of everything else, a service's host too, it is asked here.
    if query.setdefault("sslmode", "verify-full") != "verify-full":
        raise _bad_url("sslmode is verify-full and nothing less; over a local socket it does not matter")
    host = query.get("host") or parsed.host or (f"service {query['service']}" if "service" in query else "")
    where = f"postgresql://{host}/{parsed.database or ''} (schema {schema})"
    return Place(parsed.set(drivername="postgresql+psycopg", query=query), where, schema)


def _bad_url(why: str) -> BadInput:
    return BadInput(
        "the record's URL was refused",
        why=why,
        next_step="give --inventory sqlite:////path/to/inventory.db or postgresql://host/database",
    )


def make_file(path: Path) -> None:
    """The file of an SQLite record, 0600 from the first byte, and its folder.

    Raises:
        BadInput: it cannot be made or opened.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise BadInput(
            f"the record {path} cannot be opened",
            why=error.strerror or str(error),
            next_step="give another place with --inventory or MUSTER_INVENTORY",
        ) from error


class Database:
    """A record's database; every use of it is one transaction."""

    def __init__(self, place: Place, *, lock_s: int = _BUSY_S, silence_s: float = _SILENCE_S) -> None:
        """Nothing is connected yet.

        lock_s: how long another's transaction is waited for. silence_s: how long one of ours may take on a server,
        whatever becomes of that server.
        """
        self.place = place
        self._lock_s, self._silence_s = lock_s, silence_s
        # Threads of one process queue here: SQLite would have them sleep and look again.
        self._turn = threading.Lock()
        if not place.shared:
            self.engine = sa.create_engine(place.url, poolclass=NullPool, connect_args={"timeout": lock_s})
            return
        need("postgres", "psycopg")
        self.engine = sa.create_engine(
            place.url,
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=0,
            connect_args={
                "connect_timeout": _CONNECT_S,
                "application_name": "muster",
                "client_encoding": "utf8",
                "prepare_threshold": None,  # a pooler in between may hand the next transaction to another session
                "gssencmode": "disable",  # verify-full is asked of TLS alone
                "tcp_user_timeout": _STATEMENT_S * 1000,
                "keepalives_idle": _CONNECT_S,
                "keepalives_interval": 5,
                "keepalives_count": 3,
            },
        )
        weakref.finalize(self, self.engine.dispose)  # the connection ends with whoever used it

    def role(self, connection: sa.Connection) -> str | None:
        """The role that a shared record knows this login by: `infra`, `holder`, or none of them alone."""
        if not self.place.shared:
            return None
        found: str | None = connection.execute(_ROLE).scalar_one()
        return found

    @contextmanager
    def begin(self, *, patient: bool = False) -> Iterator[sa.Connection]:
        """One transaction. patient: it may take an hour, as a migration may.

        It takes SQLite's write lock at once, so that it is never upgraded midway; over PostgreSQL it waits for no
        row and no statement longer than its deadlines.

        Raises:
            IntegrityError: a key is taken; the caller knows which.
            MusterError: the database did not answer, refused, or is not a record.
        """
        try:
            opened = self._on_server(patient=patient) if self.place.shared else self._in_file()
            with self._turn, opened as connection:
                yield connection
                connection.commit()
        except IntegrityError:
            raise
        except DBAPIError as error:
            raise self._in_words(error) from error

    @contextmanager
    def _in_file(self) -> Iterator[sa.Connection]:
        with self.engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection

    @contextmanager
    def _on_server(self, *, patient: bool) -> Iterator[sa.Connection]:
        """A connection under its deadlines: the one of before if it still stands, else a new one."""
        statement_s, silence_s = (_PATIENCE_S, _PATIENCE_S) if patient else (_STATEMENT_S, self._silence_s)
        limits = {
            "path": f'"{self.place.schema}"',
            "lock": f"{self._lock_s}s",
            "statement": f"{statement_s}s",
            "idle": f"{2 * statement_s}s",
        }
        with ExitStack() as stack:
            for again in (True, False):
                connection = self.engine.connect()
                stack.callback(connection.close)
                stack.enter_context(_cut_off(connection, silence_s))
                try:
                    connection.execute(_LIMITS, limits)
                    break
                except DBAPIError as error:
                    if not (error.connection_invalidated and again):
                        raise
            yield connection

    def now(self, connection: sa.Connection) -> float | None:
        """Seconds since 1970 by the database's clock; None where it has none of its own."""
        if not self.place.shared:
            return None
        return float(connection.execute(_CLOCK).scalar_one())

    def _in_words(self, error: DBAPIError) -> MusterError:
        where = f"the record {self.place.where}"
        told = " ".join(str(error.orig).split())[:600]
        state = getattr(error.orig, "sqlstate", None)
        if state == _FORBIDDEN:
            return Refused(
                f"{where} does not let {self._user()} do this",
                why=told,
                next_step="have the one do it whose role it is (docs/shared-record.md); nothing was changed",
            )
        if state in _NOT_THERE:
            return BadInput(
                f"{self._user()} finds no record at {self.place.where}",
                why=told,
                next_step="have the database's owner make it (node-inventory migrate) or let this login in"
                " (node-inventory grants)",
            )
        if state == _READ_ONLY or (state or "").startswith(_UNFIT):
            return Refused(
                f"{where} did not take this",
                why=told,
                next_step="name the server that is written to"
                if state == _READ_ONLY
                else "mend the value that is told; nothing was changed",
            )
        late = state in _LATE
        if late or isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError):
            return OtherSide(
                f"{where} did not answer{' in time' if late else ''}",
                why=told,
                next_step="try again; if it stays so, look whether the server runs and lets you in"
                if self.place.shared
                else "try again; if it stays so, look who uses the file and whether the disk is full",
            )
        return Damaged(
            f"{where} cannot be read",
            why=told,
            next_step="restore it from a backup, or name another with --inventory",
        )

    def _user(self) -> str:
        return self.place.url.username or "this login"


@contextmanager
def _cut_off(connection: sa.Connection, after_s: float) -> Iterator[None]:
    """Close a connection's way out from under it when its time is over: libpq waits for an answer without end."""
    own = socket.socket(fileno=os.dup(connection.connection.driver_connection.fileno()))  # type: ignore[union-attr]  # psycopg's
    timer = threading.Timer(after_s, _shut, [own])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        own.close()


def _shut(own: socket.socket) -> None:
    with suppress(OSError):  # it has ended by itself
        own.shutdown(socket.SHUT_RDWR)


_LIMITS = sa.text(
    "SELECT set_config('search_path', :path, true),"
    " set_config('statement_timeout', :statement, true),"
    " set_config('lock_timeout', :lock, true),"
    " set_config('idle_in_transaction_session_timeout', :idle, true),"
    " set_config('timezone', 'UTC', true)"
)
_ROLE = sa.text("SELECT muster_role()")
_CLOCK = sa.text("SELECT extract(epoch FROM clock_timestamp())")
