"""What is read of the record: one node, or all of them page by page in bounded memory."""

from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from inventory.model import Event, KeptReceipt, KeptReport, Node, State, Summary
from inventory.store import rows
from inventory.store.database import Database
from inventory.store.tables import addresses, events, marks, nodes, receipts, reports

_PAGE = 500
# Literally in the statement: a plan that PostgreSQL keeps for a statement knows nothing of its parameters, and would
# be made for a tenth of all rows, and for a state that as many nodes are in as in any other.
_A_PAGE = sa.literal(_PAGE, literal_execute=True)
_FACTS = nodes.c.facts


def _newest(column: sa.Column[Any], *, kind: str | None = None) -> sa.ScalarSelect[Any]:
    """Of the receipts for a node's very uuid, what the newest says."""
    found = sa.select(column).where(
        receipts.c.node == nodes.c.name, receipts.c.uuid.is_not_distinct_from(nodes.c.uuid)
    )
    if kind is not None:
        found = found.where(receipts.c.kind == kind)
    return found.order_by(receipts.c.id.desc()).limit(1).scalar_subquery()


_REPORTED = (
    sa.select(sa.func.max(reports.c.at))
    .where(
        reports.c.node == nodes.c.name,
        reports.c.uuid.is_not_distinct_from(nodes.c.uuid),
        reports.c.passed.is_(True),
    )
    .scalar_subquery()
)
_LATEST = (
    _newest(receipts.c.until).label("until"),
    _newest(receipts.c.at, kind="verified").label("told"),
    _REPORTED.label("reported"),
)


def node_query() -> sa.Select[Any]:
    """Whole nodes."""
    own = [nodes.c[name] for name in rows.COLUMNS]
    return sa.select(*own, _FACTS, _newest(receipts.c.text).label("receipt"), *_LATEST)


def _summary_query() -> sa.Select[Any]:
    return sa.select(
        nodes.c.name,
        nodes.c.state,
        nodes.c.uuid,
        nodes.c.reason,
        _FACTS["vmid"].as_integer().label("vmid"),
        _FACTS["proxmox_node"].as_string().label("proxmox_node"),
        _FACTS["profile"].as_string().label("profile"),
        _FACTS[("address", "ip")].as_string().label("address"),
        sa.and_(_FACTS["spec_hash"].as_string().is_(None), _FACTS["ticket"].as_string().is_(None)).label(
            "told_of"
        ),
        *_LATEST,
    )


class Reading:
    """The record as its readers know it. States and names choose; None is all of them. Everything comes by name."""

    def __init__(self, database: Database) -> None:
        """Nothing is read yet."""
        self._database = database

    def get(self, name: str) -> Node | None:
        """The node called `name`, if it is on record."""
        with self._database.begin() as connection:
            named = node_query().where(nodes.c.name == rows.storable(name))
            row = connection.execute(named).mappings().one_or_none()
        return None if row is None else rows.node_of(row)

    def all(self) -> tuple[Node, ...]:
        """Every node, by name."""
        return tuple(self.each())

    def each(
        self, *, states: Collection[State] | None = None, names: Iterable[str] | None = None
    ) -> Iterator[Node]:
        """Whole nodes."""
        return map(rows.node_of, self._pages(node_query(), states, names))

    def summaries(
        self,
        *,
        states: Collection[State] | None = None,
        names: Iterable[str] | None = None,
        ends_by: datetime | None = None,
    ) -> Iterator[Summary]:
        """The few facts that a list shows.

        ends_by: of those alone whose newest certificate ends by then, or has ended.
        """
        only = None
        if ends_by is not None:
            # to the second, as a certificate's end: so texts of one length are compared
            by = ends_by.astimezone(UTC).replace(microsecond=0).isoformat()
            of_any = sa.select(nodes.c.name).where(nodes.c.ends <= by).alias()
            only = sa.and_(nodes.c.name.in_(sa.select(of_any.c.name)), _newest(receipts.c.until) <= by)
        return map(rows.summary_of, self._pages(_summary_query(), states, names, only=only))

    def history(self, name: str) -> tuple[Event, ...]:
        """What happened to the node called `name`, oldest first."""
        query = sa.select(events).where(events.c.node == name).order_by(events.c.id)
        with self._database.begin() as connection:
            return tuple(rows.event_of(row) for row in connection.execute(query).mappings())

    def claimants(
        self, *, uuid: str | None = None, vmid: int | None = None, ips: Collection[str] = (), site: str = ""
    ) -> Iterator[Node]:
        """The nodes that have one of these, found by indexes alone: retired ones have no more than their uuid.

        vmid: of whichever site. ips: static addresses at a site, or of nodes that are on record without one.
        """
        wanted = [] if uuid is None else [sa.select(nodes.c.name).where(nodes.c.uuid == uuid)]
        wanted += [] if vmid is None else [sa.select(marks.c.node).where(marks.c.mark == rows.vm_mark(vmid))]
        for place in sorted({site, ""}) if ips else ():
            held = addresses.c.site == rows.storable(place), addresses.c.ip.in_(sorted(ips))
            wanted.append(sa.select(addresses.c.node).where(*held))
        if not wanted:
            return iter(())
        with self._database.begin() as connection:
            names = connection.execute(sa.union(*wanted)).scalars().all()
        return self.each(names=names)

    def events(self, *, names: Iterable[str] | None = None) -> Iterator[tuple[str, Event]]:
        """What happened to the nodes, each one's oldest first."""
        for page in self._by_node(sa.select(events), events, names):
            for row in page:
                yield row["node"], rows.event_of(row)

    def last_event(self) -> int:
        """The number of the newest event; 0 where nothing has happened yet."""
        with self._database.begin() as connection:
            return connection.execute(sa.select(sa.func.max(events.c.id))).scalar_one() or 0

    def reports(self, name: str, *, last: int | None = None) -> tuple[KeptReport, ...]:
        """Verifications of the machine that a node has now, newest first.

        last: so many at most.
        """
        query = _of_now(reports).where(nodes.c.name == name).order_by(reports.c.id.desc()).limit(last)
        with self._database.begin() as connection:
            return tuple(rows.report_of(row) for row in connection.execute(query).mappings())

    def last_reports(self, *, names: Iterable[str] | None = None) -> Iterator[KeptReport]:
        """The newest verification of each node's machine that had one."""
        of_now = reports.alias("of_now")
        newest = (
            sa.select(sa.func.max(of_now.c.id))
            .where(of_now.c.node == nodes.c.name, of_now.c.uuid.is_not_distinct_from(nodes.c.uuid))
            .scalar_subquery()
        )
        # one lookup for each node of a page, however many reports there are
        query = sa.select(reports, nodes.c.name).select_from(nodes).join(reports, reports.c.id == newest)
        return map(rows.report_of, self._pages(query, None, names))

    def receipts(self, name: str) -> tuple[KeptReceipt, ...]:
        """Every receipt that was kept for a node of this name, oldest first."""
        query = sa.select(receipts).where(receipts.c.node == name).order_by(receipts.c.id)
        with self._database.begin() as connection:
            return tuple(rows.receipt_of(row) for row in connection.execute(query).mappings())

    def _pages(
        self,
        query: sa.Select[Any],
        states: Collection[State] | None,
        names: Iterable[str] | None,
        *,
        only: sa.ColumnElement[bool] | None = None,
    ) -> Iterator[sa.RowMapping]:
        """Rows that each belong to one node, by its name."""
        if states is not None and not states:
            return
        for chosen in _chunks(names):
            last: str | None = None
            while True:
                page = _next_of(query, states, chosen, only=only, last=last)
                with self._database.begin() as connection:
                    found = connection.execute(page.order_by(nodes.c.name).limit(_A_PAGE)).mappings().all()
                yield from found
                if len(found) < _PAGE:
                    break
                last = found[-1]["name"]

    def _by_node(
        self, query: sa.Select[Any], table: sa.Table, names: Iterable[str] | None
    ) -> Iterator[list[sa.RowMapping]]:
        """Rows that belong to nodes, by node and then by their age, in pages."""
        node, number = table.c.node, table.c.id
        for chosen in _chunks(names):
            own = query if chosen is None else query.where(node.in_(chosen))
            last: tuple[str, int] | None = None
            while True:
                page = own if last is None else own.where(sa.tuple_(node, number) > sa.tuple_(*last))
                with self._database.begin() as connection:
                    found = list(connection.execute(page.order_by(node, number).limit(_A_PAGE)).mappings())
                yield found
                if len(found) < _PAGE:
                    break
                last = (found[-1]["node"], found[-1]["id"])


def _next_of(
    query: sa.Select[Any],
    states: Collection[State] | None,
    names: list[str] | None,
    *,
    only: sa.ColumnElement[bool] | None,
    last: str | None,
) -> sa.Select[Any]:
    """The nodes that come after `last`."""
    wanted = [] if only is None else [only]
    wanted += [] if last is None else [nodes.c.name > last]
    if names is not None:
        wanted += [nodes.c.name.in_(names)]
        wanted += [] if states is None else [nodes.c.state.in_(sorted(states))]
    elif states is not None:
        # Of each state as its index has them, so that nodes of others, and those of later pages, are not read.
        each = [
            [nodes.c.state == sa.literal(state, nodes.c.state.type, literal_execute=True), *wanted]
            for state in sorted(states)
        ]
        wanted = each[0] if len(each) == 1 else [nodes.c.name.in_(sa.union_all(*map(_first, each)))]
    return query.where(*wanted)


def _first(wanted: list[sa.ColumnElement[bool]]) -> sa.Select[Any]:
    """The names of as many such nodes as a page has."""
    found = sa.select(nodes.c.name).where(*wanted).order_by(nodes.c.name).limit(_A_PAGE).subquery()
    return sa.select(found)


def _of_now(table: sa.Table) -> sa.Select[Any]:
    """Rows that are about the machine which a node has now."""
    return (
        sa.select(table)
        .join(nodes, nodes.c.name == table.c.node)
        .where(table.c.uuid.is_not_distinct_from(nodes.c.uuid))
    )


def _chunks(names: Iterable[str] | None) -> Iterator[list[str] | None]:
    """Names in order, so many at a time as one statement takes; None for all nodes."""
    if names is None:
        yield None
        return
    wanted = sorted({rows.storable(name) for name in names})
    for first in range(0, len(wanted), _PAGE):
        yield wanted[first : first + _PAGE]
