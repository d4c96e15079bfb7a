"""Leases: one run at a time acts on a node, on whichever host it runs; a dead one's lease is taken over."""

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from inventory.errors import MusterError, Refused
from inventory.model import Lease
from inventory.store.database import Database
from inventory.store.tables import leases

LEASE_S = 90.0
"""How long a run that says nothing keeps its node; it speaks up every third of that."""
_TURNS = 3


@dataclass(frozen=True, slots=True)
class Holder:
    """A run of a command. process: tells on this very host whether it is still there."""

    actor: str
    host: str
    process: str


def this_process() -> str:
    """Our process as no other host, boot, container or later process can be named; '' where /proc does not tell."""
    pid = os.getpid()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        space = Path("/proc/self/ns/pid").readlink()
        return f"{boot} {space} {pid} {_started(pid)}"
    except OSError:
        return ""


def is_dead(process: str) -> bool:
    """Surely gone: it ran here, under this boot, and is no more. Of another host's nothing is known."""
    own = this_process().split()
    told = process.split()
    if len(own) != 4 or len(told) != 4 or own[:2] != told[:2] or not told[2].isdecimal():
        return False
    try:
        return _started(int(told[2])) != told[3]
    except OSError:
        return _is_gone(int(told[2]))  # /proc may hide another user's


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _started(pid: int) -> str:
    """Clock ticks from boot to the start of a process (proc_pid_stat(5), field 22)."""
    return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]


class Leases:
    """The leases that this process holds.

    Args:
        now: seconds since 1970, where the database has no clock of its own.
        life_s: how long a lease holds without a word.
    """

    def __init__(
        self, database: Database, *, actor: str, host: str, now: Callable[[], float], life_s: float = LEASE_S
    ) -> None:
        """None is held yet."""
        self._database = database
        self._holder = Holder(actor, host, this_process())
        self._clock = now
        self._life_s = life_s
        self._held: dict[str, tuple[str, int]] = {}
        self._lock = threading.Lock()
        self._beats: threading.Thread | None = None
        self._over = threading.Event()

    @contextmanager
    def hold(self, name: str, what: str, *, say: Callable[[str], None]) -> Iterator[None]:
        """The node called `name` is this run's, and what it does with it is `what`.

        say: told in one sentence when a dead run's lease is taken over.

        Raises:
            Refused: another run acts on it.
        """
        token = self._take(name, what, say)
        try:
            yield
        finally:
            self._let_go(name, token)

    def of(self, name: str) -> Lease | None:
        """Who acts on a node now, if anybody does."""
        with self._database.begin() as connection:
            now = self._now(connection)
            held = sa.select(leases).where(leases.c.node == name, leases.c.expires > now)
            row = connection.execute(held).mappings().one_or_none()
        if row is None or is_dead(row["process"]):
            return None
        since, until = (datetime.fromtimestamp(row[key], UTC) for key in ("taken", "expires"))
        return Lease(row["what"], row["actor"], row["host"], since, until)

    def names(self) -> frozenset[str]:
        """The nodes that a run acts on now."""
        with self._database.begin() as connection:
            now = self._now(connection)
            held = sa.select(leases.c.node, leases.c.process).where(leases.c.expires > now)
            found = connection.execute(held).all()
        return frozenset(row.node for row in found if not is_dead(row.process))

    def check(self, connection: sa.Connection, name: str) -> None:
        """In the transaction of a write to `name`: it is ours to write, and our lease goes on from now.

        Raises:
            Refused: our lease was taken over, or another run acts on the node.
        """
        held = self._held.get(name)
        now = self._now(connection)
        if held is not None:
            changed = connection.execute(
                leases.update()
                .where(leases.c.node == name, leases.c.token == held[0])
                .values(expires=now + self._life_s)
            )
            if changed.rowcount != 1:
                raise _lost(name)
            return
        row = connection.execute(sa.select(leases).where(leases.c.node == name)).mappings().one_or_none()
        if row is not None and row["expires"] > now and not is_dead(row["process"]):
            raise _taken(row, now)

    def _take(self, name: str, what: str, say: Callable[[str], None]) -> str:
        with self._lock:
            if name in self._held:  # a run within a run, as onboarding's verification is
                token, count = self._held[name]
                self._held[name] = (token, count + 1)
                return token
        token = secrets.token_hex(16)
        for turn in range(_TURNS):
            try:
                with self._database.begin() as connection:
                    word = self._written(connection, name, token, what)
                break
            except IntegrityError:  # another was first, in this very moment
                if turn + 1 == _TURNS:
                    raise _lost(name) from None
        if word:
            say(word)
        with self._lock:
            self._held[name] = (token, 1)
            self._beat()
        return token

    def _written(self, connection: sa.Connection, name: str, token: str, what: str) -> str | None:
        query = sa.select(leases).where(leases.c.node == name).with_for_update()
        row = connection.execute(query).mappings().one_or_none()
        now = self._now(connection)
        values = {
            "token": token,
            "what": what,
            "actor": self._holder.actor,
            "host": self._holder.host,
            "process": self._holder.process,
            "taken": now,
            "expires": now + self._life_s,
        }
        if row is None:
            connection.execute(leases.insert().values(node=name, **values))
            return None
        # the other role's is left alone until it runs out: the database knows nothing of processes
        dead = is_dead(row["process"]) and self._database.role(connection) in {None, row["role"]}
        if row["expires"] > now and not dead:
            raise _taken(row, now)
        connection.execute(leases.update().where(leases.c.node == name).values(**values))
        why = "which has died" if dead else f"whose lease ran out at {_time(row['expires'])}"
        return f"{name} was left by {row['what']} of {row['actor']} on {row['host']}, {why}: it is taken over"

    def _let_go(self, name: str, token: str) -> None:
        with self._lock:
            held = self._held.get(name)
            if held is None or held[0] != token:
                return
            if held[1] > 1:
                self._held[name] = (token, held[1] - 1)
                return
            del self._held[name]
            if not self._held:
                self._over.set()
                self._beats = None
        # Where this fails it runs out by itself.
        with suppress(MusterError), self._database.begin() as connection:
            connection.execute(leases.delete().where(leases.c.node == name, leases.c.token == token))

    def _beat(self) -> None:
        """Keep every lease alive while this process is, from a thread; the lock is held."""
        if self._beats is None:
            self._over = threading.Event()
            self._beats = threading.Thread(
                target=self._keep_alive, args=(self._over,), name="leases", daemon=True
            )
            self._beats.start()

    def _keep_alive(self, over: threading.Event) -> None:
        while not over.wait(self._life_s / 3):
            with self._lock:
                held = [(name, token) for name, (token, _) in self._held.items()]
            # A record that does not answer now may answer the next time; a lease that was lost stays lost.
            with suppress(MusterError), self._database.begin() as connection:
                for name, token in held:
                    connection.execute(
                        leases.update()
                        .where(leases.c.node == name, leases.c.token == token)
                        .values(expires=self._now(connection) + self._life_s)
                    )

    def _now(self, connection: sa.Connection) -> float:
        now = self._database.now(connection)
        return self._clock() if now is None else now


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _taken(row: sa.RowMapping, now: float) -> Refused:
    return Refused(
        f"{row['node']} is being worked on",
        why=f"{row['what']} of {row['actor']} on {row['host']} has it since {_time(row['taken'])}",
        next_step="wait until that run has ended; were it dead, its lease runs out by itself in"
        f" {row['expires'] - now:.0f} s, and the same command takes over",
    )


def _lost(name: str) -> Refused:
    return Refused(
        f"{name} was not saved",
        why="the lease of this run on it was lost: another run has taken it over, for nothing was heard of this one",
        next_step=f"look at node-inventory history {name}, then run the command again",
    )
