"""One transaction in a database: its deadlines, and its failures in the house's words."""

import os
import re
import socket
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.pool import NullPool, QueuePool

from inventory.command import need
from inventory.errors import BadInput, Damaged, MusterError, OtherSide, Refused
from inventory.store.place import Place

_BUSY_S = 15
_STATEMENT_S = 20
_CONNECT_S = 10
_SILENCE_S = 30.0
_PATIENCE_S = 3600
_NOT_THERE = frozenset({"42P01", "3F000"})
_FORBIDDEN = "42501"
_READ_ONLY = "25006"
_UNFIT = "22"
_LATE = frozenset({"57014", "55P03", "25P03"})
# What libpq says of each server that it left again, and psycopg before it.
_ONLY_READ = ("session is read-only", "server is in hot standby mode")
_FAILURE = re.compile(r"- host: .*?: connection failed: ")


def make_file(path: Path) -> None:
    """The file of an SQLite record, 0600 from the first byte, and its folder; one that may only be read stays so.

    Raises:
        BadInput: it cannot be made or opened.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if path.is_file() and os.access(path, os.R_OK):
            return  # a look needs no more, and whoever writes is told by `begin`
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

        It takes SQLite's write lock at once, so that it is never upgraded midway, unless the file may only be read:
        then nothing can be written. Over PostgreSQL it waits for no row and no statement longer than its deadlines.

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
            writable = os.access(self.place.where, os.W_OK)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writable else "BEGIN")
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
                    only_read = connection.execute(_LIMITS, limits).one()[-1]
                    break
                except DBAPIError as error:
                    if not (error.connection_invalidated and again):
                        raise
            if only_read:
                connection.invalidate()
                raise _only_read(self.place)
            yield connection

    def now(self, connection: sa.Connection) -> float | None:
        """Seconds since 1970 by the database's clock; None where it has none of its own."""
        if not self.place.shared:
            return None
        return float(connection.execute(_CLOCK).scalar_one())

    def _in_words(self, error: DBAPIError) -> MusterError:
        where = f"the record {self.place.where}"
        told = _told(error)
        state = getattr(error.orig, "sqlstate", None)
        if state == _READ_ONLY or (state is None and any(word in told for word in _ONLY_READ)):
            return _only_read(self.place, told)
        if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY:
            return Refused(
                f"{where} is not written to",
                why="its file or its folder may only be read here",
                next_step="do it as the file's owner, or name another record with --inventory; nothing was changed",
            )
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
        if (state or "").startswith(_UNFIT):
            return Refused(
                f"{where} did not take this",
                why=told,
                next_step="mend the value that is told; nothing was changed",
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


def _told(error: DBAPIError) -> str:
    """What the driver says, in one line; of several servers what each of them said, once."""
    whole = " ".join(str(error.orig).split())
    _, several, each = whole.partition("All failures were: ")
    if several:
        whole = "; ".join(filter(None, map(str.strip, _FAILURE.split(each))))
    return whole[:600]


def _only_read(
    place: Place, told: str = "it is a standby, which lags behind and is only read"
) -> MusterError:
    what = f"the record {place.where} is not written to"
    if "target_session_attrs" not in place.url.query:
        return Refused(
            what,
            why=told,
            next_step="name the primary, or all servers of the record: postgresql://HOST1,HOST2/DATABASE",
        )
    return OtherSide(
        what,
        why=told,
        next_step="try again once a standby has been promoted; nothing was changed",
    )


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
    " set_config('timezone', 'UTC', true),"
    " pg_is_in_recovery()"
)
_ROLE = sa.text("SELECT muster_role()")
_CLOCK = sa.text("SELECT extract(epoch FROM clock_timestamp())")
