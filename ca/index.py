# ruff: noqa: S608 - every text here is our own, and every value is bound
"""The index of the audit: an SQLite file that answers at once what the lines add up to, and may be lost at any time.

The audit is the truth. The index says how far it has read, and the line that it stopped at must still be in
its place; where it is not, or where the file is broken, the index is made anew from the first line.
"""

import contextlib
import json
import sqlite3
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ca.index_file import built_at_once, empty, marks, open_index, remove, writing
from ca.layout import damaged
from ca.ledger import Ledger, Place, moment
from ca.profile import timestamp
from ca.record import Record, Standing, TicketUse, recorded
from ca.rules import Machine
from ca.taking import NO_SENSE, take

_LIVE = "standing IN ('issued', 'installed')"
_CERTIFIED = "standing IN ('issued', 'installed', 'revoked')"


@dataclass(frozen=True, slots=True)
class Which:
    """Which certificates are asked for; what is left empty asks for all.

    states: as `Record.state` names them. ends_by: live ones that end no later, the soonest first.
    """

    nodes: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    ends_by: datetime | None = None


class Index:
    """What the lines of one audit add up to; `catch_up` first."""

    def __init__(self, file: Path, ledger: Ledger) -> None:
        """Nothing is opened before it is needed."""
        self.notes: list[str] = []
        self._file = file
        self._ledger = ledger
        self._opened: sqlite3.Connection | None = None
        self._in_memory = self._was_broken = False

    def close(self) -> None:
        """Let go of the file; the next question opens it again."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def catch_up(self) -> bytes:
        """Take up what the audit says since; what stands after its last newline comes back.

        Raises:
            Damaged: the audit cannot be relied on, or a line of it makes no sense.
        """
        while True:
            try:
                return self._catch_up()
            except (sqlite3.Error, OSError) as error:
                self._give_way(error)

    # Questions

    @property
    def beginning(self) -> Mapping[str, Any]:
        """What the first line says; empty where there is none."""
        return self.latest("init") or {}

    def latest(self, kind: str) -> Mapping[str, Any] | None:
        """The body of the last line of a kind that speaks of no certificate."""
        rows = self._rows("SELECT body FROM latest WHERE kind = ?", (kind,))
        return json.loads(rows[0][0]) if rows else None

    def latest_at(self, kind: str) -> datetime | None:
        """When the last line of such a kind was written."""
        rows = self._rows("SELECT at FROM latest WHERE kind = ?", (kind,))
        return moment(rows[0][0]) if rows else None

    def one(self, target: str) -> Record | None:
        """The certificate of a serial number, or of a fingerprint."""
        return next(
            iter(
                self._records("serial = ?", (target,)) or self._records("fingerprint_sha256 = ?", (target,))
            ),
            None,
        )

    def has(self, serial: str) -> bool:
        """Whether a serial number was ever announced."""
        return bool(self._rows("SELECT 1 FROM certificates WHERE serial = ?", (serial,)))

    def open(self) -> tuple[Record, ...]:
        """What was about to be signed and has no end yet."""
        return self._records("standing = ? ORDER BY n", (Standing.OPEN,))

    def of_node(self, node: str) -> tuple[Record, ...]:
        """Every certificate of a node's name, oldest first."""
        return self._records("node = ? ORDER BY n", (node,))

    def of_ticket(self, ticket_id: str) -> tuple[Record, ...]:
        """Every certificate that a ticket led to, oldest first."""
        return self._records("ticket_id = ? ORDER BY n", (ticket_id,))

    def of_machine(self, vm_uuid: str) -> tuple[Record, ...]:
        """Every certificate of a machine, whatever its name was, oldest first."""
        return self._records("vm_uuid = ? ORDER BY n", (vm_uuid,))

    def newest_live(self, node: str) -> Record | None:
        """The newest certificate of a name that was issued and not revoked."""
        found = self._records(f"node = ? AND {_LIVE} ORDER BY n DESC LIMIT 1", (node,))
        return found[0] if found else None

    def live_of(self, node: str, now: datetime) -> tuple[Record, ...]:
        """The certificates of a name that a verifier would still accept."""
        found = self._records(f"node = ? AND not_after >= ? AND {_LIVE} ORDER BY n", (node, timestamp(now)))
        return tuple(record for record in found if record.live(now))

    def like(self, machine: Machine) -> tuple[Record, ...]:
        """Certificates of another name or machine that share a key, a host key or the machine-id with this one."""
        lines = [key.line for key in machine.host_keys]
        shared = f"""
            n IN (SELECT n FROM certificates WHERE key_sha256 = ?
                  UNION SELECT n FROM certificates WHERE machine_id IS NOT NULL AND machine_id = ?
                  UNION SELECT n FROM host_keys WHERE line IN ({marks(lines)}))
            AND {_CERTIFIED} AND (node <> ? OR vm_uuid IS NOT ?) ORDER BY n LIMIT 20"""
        return self._records(
            shared, (machine.key_sha256, machine.machine_id, *lines, machine.node, machine.vm_uuid)
        )

    def ticket(self, ticket_id: str) -> TicketUse | None:
        """The one use of a ticket."""
        rows = self._rows("SELECT node, vm_uuid, key_sha256 FROM tickets WHERE id = ?", (ticket_id,))
        return TicketUse(*rows[0]) if rows else None

    def voided_by(self, ticket_id: str, node: str) -> str | None:
        """The later ticket of the same node, used since, that made this one void; another node's makes nothing void."""
        rows = self._rows(
            "SELECT v.by FROM void_tickets v JOIN tickets t ON t.id = v.by WHERE v.id = ? AND t.node = ?",
            (ticket_id, node),
        )
        return str(rows[0][0]) if rows else None

    def count(self, now: datetime) -> dict[str, int]:
        """How many certificates are in each state, by its name."""
        found: Counter[str] = Counter()
        for standing, count, ended in self._rows(
            "SELECT standing, count(*), sum(not_after < ?) FROM certificates GROUP BY standing",
            (timestamp(now),),
        ):
            expired = ended if standing in {Standing.ISSUED, Standing.INSTALLED} else 0
            found.update({standing: count - expired, "expired": expired})
        return {state: count for state, count in sorted(found.items()) if count}

    def select(self, which: Which, now: datetime) -> Iterator[Record]:
        """Certificates one by one, as many as there may be; oldest first unless `which` says otherwise."""
        where, values = _where(which, now)
        order, table = "n" if which.ends_by is None else "not_after, n", "certificates"
        if which.ends_by is not None and not which.nodes:
            table += " INDEXED BY of_end"  # it has them in order, so the first come without the rest
        cursor = self._db.execute(f"SELECT {_COLUMNS} FROM {table} WHERE {where} ORDER BY {order}", values)
        try:
            for row in cursor:
                yield _record(row)
        except sqlite3.DatabaseError as error:
            raise damaged(
                f"{self._file} broke while it was read ({error}); delete it, it is made anew"
            ) from error

    def ask(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """The rows of a question that another module asks; it changes nothing."""
        return self._rows(sql, values)

    def contents(self) -> Iterator[tuple[Any, ...]]:
        """Every row, in one order: what two indexes of the same audit have in common."""
        for table, order in (
            ("latest", "kind"),
            ("tickets", "id"),
            ("void_tickets", "id, by"),
            ("certificates", "n"),
            ("host_keys", "line, n"),
            ("lists_held", "node"),
            ("bundles_held", "node"),
            ("rotations", "n"),
        ):
            yield from self._db.execute(f"SELECT * FROM {table} ORDER BY {order}")

    def discard(self, why: str) -> None:
        """Make the index anew from the audit, with a word on it."""
        self._told(why)
        with writing(self._db) as db:
            empty(db)
        self.catch_up()

    # What carries them

    @property
    def _db(self) -> sqlite3.Connection:
        if self._opened is None:
            self._opened = open_index(None if self._in_memory else self._file)
            weakref.finalize(self, self._opened.close)
        return self._opened

    def _give_way(self, error: sqlite3.Error | OSError) -> None:
        """A file that is broken goes; where none can be written, or another process keeps it, memory does."""
        self.close()
        if self._in_memory:
            raise damaged(f"no index of the audit can be kept, not even in memory: {error}") from error
        outside = isinstance(error, OSError | sqlite3.OperationalError) and "no such" not in str(error)
        if outside or self._was_broken:
            self.notes.append(f"{self._file} could not be written ({error}), so the whole audit was read")
            self._in_memory = True
            return
        self._was_broken = True
        self._told(f"it was broken ({error})")
        remove(self._file)

    def _catch_up(self) -> bytes:
        db, ledger = self._db, self._ledger
        ledger.place = self._place()
        if not self._doubt() and ledger.size() == ledger.place.end:
            return b""
        before = ledger.place
        try:
            with writing(db):
                ledger.place = self._place()
                if why := self._doubt():
                    self._told(why)
                    empty(db)
                    ledger.place = Place()
                with built_at_once(db) if ledger.place.seq == 0 else contextlib.nullcontext():
                    rest = self._read()
        except BaseException:
            ledger.place = before
            raise
        return rest

    def _read(self) -> bytes:
        db, rest = self._db, b""
        for item in self._ledger.read_on():
            if isinstance(item, bytes):
                rest = item
                break
            try:
                take(db, item)
            except NO_SENSE as error:
                raise damaged(f"line {item.seq} of the audit makes no sense ({error})") from error
        place = self._ledger.place
        at = timestamp(place.at) if place.at else None
        self._db.execute(
            "INSERT OR REPLACE INTO place VALUES (1, ?, ?, ?, ?, ?)",
            (place.seq, place.start, place.end, place.head, at),
        )
        return rest

    def _doubt(self) -> str | None:
        """Why the audit is not the one that was read; None: it is."""
        place = self._ledger.place
        if self._ledger.size() < place.end:
            return "the audit is shorter than when it was last read"
        if not self._ledger.holds(place):
            return f"the audit's line {place.seq} is not the one that was last read"
        return None

    def _told(self, why: str) -> None:
        self.notes.append(
            f"{self._file.name} was made anew from the audit: {why}; unless you know why, compare: "
            "node-ca audit --expect HEAD"
        )

    def _place(self) -> Place:
        row = self._db.execute("SELECT seq, start, end, head, at FROM place").fetchone()
        if row is None:
            return Place()
        try:
            return Place(int(row[0]), int(row[1]), int(row[2]), str(row[3]), moment(row[4]))
        except (TypeError, ValueError) as error:
            raise sqlite3.DatabaseError(f"it does not say how far it read ({error})") from error

    def _rows(self, sql: str, values: Sequence[Any]) -> list[Any]:
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            self._give_way(error)
        self.catch_up()
        return self._db.execute(sql, values).fetchall()

    def _records(self, where: str, values: Sequence[Any]) -> tuple[Record, ...]:
        return tuple(
            _record(row) for row in self._rows(f"SELECT {_COLUMNS} FROM certificates WHERE {where}", values)
        )


_COLUMNS = "body, actor, at, standing, fingerprint_sha256, installed_at, ended_at, why"


def _record(row: Sequence[Any]) -> Record:
    body, actor, at, standing, fingerprint, installed_at, ended_at, why = row
    return recorded(
        json.loads(body),
        actor=actor,
        at=moment(at),
        standing=Standing(standing),
        fingerprint_sha256=fingerprint,
        installed_at=moment(installed_at) if installed_at else None,
        ended_at=moment(ended_at) if ended_at else None,
        why=why,
    )


def _where(which: Which, now: datetime) -> tuple[str, list[Any]]:
    terms, values = ["1"], list[Any]()
    if which.nodes:
        terms.append(f"node IN ({marks(which.nodes)})")
        values += which.nodes
    if which.ends_by is not None:
        terms.append(f"{_LIVE} AND not_after BETWEEN ? AND ?")
        values += [timestamp(now), timestamp(which.ends_by)]
    if which.states:
        terms.append(
            f"CASE WHEN {_LIVE} AND not_after < ? THEN 'expired' ELSE standing END IN ({marks(which.states)})"
        )
        values += [timestamp(now), *which.states]
    return " AND ".join(terms), values
