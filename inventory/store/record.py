"""The record: what is known of every node, with versions so that two writers never lose an update."""

import getpass
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from inventory.errors import MusterError, Refused
from inventory.lifecycle import check_move
from inventory.model import HostKey, Lease, Node, State
from inventory.store import rows
from inventory.store.database import Database, make_file
from inventory.store.leases import LEASE_S, Leases
from inventory.store.making import check_version, make_anew
from inventory.store.place import place_of
from inventory.store.reading import Reading, node_query
from inventory.store.tables import addresses, events, marks, nodes, receipts, reports


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


class Store(Reading):
    """The record of all nodes; every method is one transaction, or one for each page of what it yields."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], datetime] = utc_now,
        actor: str | None = None,
        host: str | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        """Use `open`; `actor` and `host` are who and where the events name."""
        super().__init__(database)
        self._clock = clock
        self._actor = actor or whoami()
        self._host = host or platform.node()
        self._leases = Leases(
            database,
            actor=rows.storable(self._actor),
            host=rows.storable(self._host),
            now=lambda: clock().timestamp(),
            life_s=lease_s,
        )

    @classmethod
    def open(
        cls,
        url: str | None,
        *,
        clock: Callable[[], datetime] = utc_now,
        actor: str | None = None,
        host: str | None = None,
        lease_s: float = LEASE_S,
    ) -> "Store":
        """The record at `url` (default: `default_url`).

        A file is made if it is absent, 0600 from the first byte, and brought to the newest form; a database on a
        server is made by its owner (`node-inventory migrate`).

        Raises:
            BadInput: the URL is not one of ours, its folder cannot be made, or there is no record on the server.
            Damaged: there is something else than a record, or a newer one.
            OtherSide: the server did not answer.
        """
        place = place_of(url)
        if not place.shared:
            make_file(Path(place.where))
        database = Database(place)
        with database.begin() as connection:
            if not place.shared:
                make_anew(connection, place)
            check_version(connection, place)
        return cls(database, clock=clock, actor=actor, host=host, lease_s=lease_s)

    def lease(self, name: str, what: str, *, say: Callable[[str], None]) -> AbstractContextManager[None]:
        """Act on a node as the only run that does, on whichever host; within itself a run may ask again.

        what: the command, for those who are refused meanwhile. say: takes the word that a dead run's was taken over.

        Raises:
            Refused: another run acts on it.
        """
        return self._leases.hold(name, what, say=say)

    def lease_of(self, name: str) -> Lease | None:
        """Who acts on a node now, if anybody does."""
        return self._leases.of(name)

    def leased(self) -> frozenset[str]:
        """The nodes that some run acts on now, on whichever host."""
        return self._leases.names()

    def add(self, node: Node, *, why: str) -> Node:
        """A new node; its first event says why it is there.

        Raises:
            Refused: the name, or the uuid, is on record already; or another run acts on it.
            AddressTaken: another node has one of its static addresses.
        """
        added = replace(node, version=1)
        try:
            with self._database.begin() as connection:
                self._leases.check(connection, node.name)
                receipt = self._told(added, None)
                connection.execute(nodes.insert().values(**rows.row_of(added), ends=receipt.get("until")))
                self._hold_marks(connection, added)
                self._hold_addresses(connection, added)
                self._event(connection, added, before=None, why=why)
                return self._with_receipt(connection, added, receipt)
        except IntegrityError:
            raise Refused(
                f"{node.name} was not put on record",
                why="that name or its VM uuid is on record already",
                next_step=f"node-inventory show {node.name}",
            ) from None

    def save(self, node: Node, *, why: str | None = None) -> Node:
        """The node as it is now, one version on; with `why`, an event is kept.

        A change of state is checked against the life of a node, and needs its `why`.

        Raises:
            Refused: somebody saved the node after it was read, acts on it now, or it may not make this move; or the
                database lets this login not write what is to be written.
            AddressTaken: another node has one of its static addresses.
        """
        try:
            with self._database.begin() as connection:
                self._leases.check(connection, node.name)
                return self._saved(connection, node, why)
        except IntegrityError:
            raise Refused(
                f"{node.name} was not saved",
                why="its VM uuid is on record for another node",
                next_step="node-inventory list",
            ) from None

    def _saved(self, connection: sa.Connection, node: Node, why: str | None) -> Node:
        found = connection.execute(node_query().where(nodes.c.name == node.name)).mappings().one_or_none()
        if found is None:
            raise Refused(
                f"{node.name} was not saved",
                why="it is not on record any more",
                next_step="node-inventory list",
            )
        before = State(found["state"])
        check_move(node.name, before, node.state)
        if before != node.state and why is None:
            raise ValueError("a change of state needs its why")
        former, saved = rows.node_of(found), replace(node, version=node.version + 1)
        row = rows.row_of(saved)
        # Only what differs, for a login may write no more than is its role's.
        values = {key: value for key, value in row.items() if value != found[key]}
        receipt = self._told(saved, found)
        values |= {"ends": receipt.get("until")} if receipt else {}
        own = nodes.c.name == node.name, nodes.c.version == node.version
        if found["version"] != node.version or (
            connection.execute(nodes.update().where(*own).values(**values)).rowcount != 1
        ):
            raise Refused(
                f"{node.name} was not saved",
                why="somebody else changed it meanwhile",
                next_step=f"look at node-inventory history {node.name}, then run the command again",
            )
        if rows.marks_of(former) != rows.marks_of(saved):
            self._hold_marks(connection, saved)
        if rows.places_of(former) != rows.places_of(saved):
            self._hold_addresses(connection, saved)
        if why is not None:
            self._event(connection, saved, before=before, why=why)
        if not receipt and former.uuid == saved.uuid:
            return rows.node_of({**found, **row})
        return self._with_receipt(connection, saved, receipt)

    def may_keep_receipts(self) -> bool:
        """Whether this login may write receipts: in a record that is shared by grants only the holder's may."""
        if not self._database.place.shared:
            return True
        asked = sa.func.has_any_column_privilege(sa.func.current_user(), "receipts", "INSERT")
        with self._database.begin() as connection:
            return bool(connection.execute(sa.select(asked)).scalar_one())

    def keep_report(self, name: str, document: Mapping[str, Any], *, passed: bool) -> None:
        """Keep a whole verification of a node: its report as JSON (`verify.report`).

        Raises:
            Refused: it is not on record, or this login may not.
        """
        with self._database.begin() as connection:
            found = connection.execute(sa.select(nodes.c.uuid).where(nodes.c.name == name)).one_or_none()
            if found is None:
                raise Refused(
                    f"the report of {name} was not kept",
                    why="the node is not on record",
                    next_step="node-inventory list",
                )
            connection.execute(
                reports.insert().values(
                    node=name,
                    uuid=found.uuid,
                    at=self._clock().isoformat(),
                    passed=passed,
                    document=rows.storable(document),
                )
            )

    def find_machine(
        self, *, host_keys: Sequence[HostKey], machine_id: str | None, other_than_uuid: str | None
    ) -> Node | None:
        """A node with another uuid that has one of these host keys, or this machine-id, on record."""
        wanted = [rows.key_mark(key) for key in host_keys]
        wanted += [rows.machine_mark(machine_id)] if machine_id else []
        query = (
            node_query()
            .join(marks, marks.c.node == nodes.c.name)
            .where(marks.c.mark.in_(wanted), nodes.c.uuid.is_distinct_from(other_than_uuid))
            .order_by(nodes.c.name)
            .limit(1)
        )
        with self._database.begin() as connection:
            row = connection.execute(query).mappings().one_or_none()
        return None if row is None else rows.node_of(row)

    def _hold_addresses(self, connection: sa.Connection, node: Node) -> None:
        """The node's static addresses are its own from here on; those that it had before, or once retired, are free."""
        wanted = rows.places_of(node)
        found = connection.execute(sa.select(addresses).where(addresses.c.node == node.name)).mappings()
        held = {(row["site"], row["ip"]) for row in found}
        for site, ip in held - wanted:
            connection.execute(addresses.delete().where(addresses.c.site == site, addresses.c.ip == ip))
        for site, ip in sorted(wanted - held):
            try:
                connection.execute(addresses.insert().values(site=site, ip=ip, node=node.name))
            except IntegrityError:
                raise AddressTaken(
                    f"{node.name} was not put on record",
                    why=f"{ip} is another node's",
                    next_step="run the command again: it chooses among the addresses that are free then",
                ) from None

    def _hold_marks(self, connection: sa.Connection, node: Node) -> None:
        """By what a twin of the node's machine would be found."""
        wanted = rows.marks_of(node)
        held = set(connection.execute(sa.select(marks.c.mark).where(marks.c.node == node.name)).scalars())
        if gone := held - wanted:
            connection.execute(marks.delete().where(marks.c.node == node.name, marks.c.mark.in_(gone)))
        for mark in sorted(wanted - held):
            connection.execute(marks.insert().values(node=node.name, mark=mark))

    def _told(self, node: Node, found: sa.RowMapping | None) -> dict[str, Any]:
        """The row of a receipt that the record has not yet; empty where it has it, or there is none."""
        known = found["receipt"] if found is not None and found["uuid"] == node.uuid else None
        if node.receipt is None or node.receipt == known:
            return {}
        return told(node.receipt, self._clock())

    def _with_receipt(self, connection: sa.Connection, node: Node, receipt: dict[str, Any]) -> Node:
        """The saved node as a reader finds it; a new receipt is kept first."""
        if receipt:
            connection.execute(receipts.insert().values(node=node.name, uuid=node.uuid, **receipt))
        row = connection.execute(node_query().where(nodes.c.name == node.name)).mappings().one()
        return rows.node_of(row)

    def _event(self, connection: sa.Connection, node: Node, *, before: State | None, why: str) -> None:
        connection.execute(
            events.insert().values(
                node=node.name,
                at=self._clock().isoformat(),
                actor=rows.storable(self._actor),
                host=rows.storable(self._host),
                before=before,
                after=node.state,
                why=rows.storable(why),
            )
        )


def told(text: str, now: datetime) -> dict[str, Any]:
    """A receipt's row, as far as it can be read: kind, time, and the end of a certificate that still counts."""
    from inventory.ticket import peek_receipt

    values: dict[str, Any] = {"text": rows.storable(text), "at": now.isoformat()}
    try:
        said = peek_receipt(text)
    except MusterError:
        return values
    until = None if said.kind == "decommissioned" else said.not_after.isoformat()
    return {**values, "kind": said.kind, "at": said.made_at.isoformat(), "until": until}
