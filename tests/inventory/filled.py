"""A record with as many nodes as one likes, each as a node in service is, with all that is kept of it.

The rows are those that saves would have written; the database's guards are switched off while they go in.
"""

import base64
import functools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from inventory.model import Address, HostKey, Node, State
from inventory.store import rows
from inventory.store.database import Database
from inventory.store.place import place_of
from inventory.ticket import sign_receipt, sign_ticket
from tests.inventory.kit import KEY, keygen, receipt, ticket

RARE = 50
"""Nodes that are in another state than all others, and whose certificates end soon: as many at any size."""
RARE_STATE = State.VERIFY_FAILED
A_SITE = 500
"""Nodes of one site."""
SOON, LATE = timedelta(days=3), timedelta(days=60)
_ROAD = (
    None,
    State.PROVISIONING,
    State.AWAITING_IDENTITY,
    State.ONBOARDING,
    State.AWAITING_VERIFICATION,
    State.VERIFYING,
)
_RANKS = 8
_NOWHERE = "192.0.2.1"
_MACHINE = "ab" * 16
_TABLES: dict[str, Sequence[str]] = {
    "nodes": (*rows.COLUMNS, "ends", "facts"),
    "events": ("node", "at", "actor", "host", "before", "after", "why"),
    "receipts": ("node", "uuid", "at", "kind", "until", "text"),
    "reports": ("node", "uuid", "at", "passed", "document"),
    "addresses": ("site", "ip", "node"),
    "marks": ("node", "mark"),
}
Row = tuple[Any, ...]


def name_of(number: int) -> str:
    """The nodes are called gpu-000000 and so on."""
    return f"gpu-{number:06}"


def site_of(number: int) -> str:
    """Where a node stands."""
    return f"site-{number // A_SITE:04}"


def uuid(number: int) -> str:
    """A node's own."""
    return f"0e1a2b3c-0000-4000-8000-{number:012x}"


def address(number: int) -> str:
    """A node's own."""
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def fill(url: str, count: int) -> None:
    """So many nodes into an empty record, by its owner; its statistics are as fresh then as a server keeps them."""
    database = Database(place_of(url))
    into = _copied if database.place.shared else _inserted
    with database.begin(patient=True) as connection:
        for table, values in _filled(count):
            into(connection, table, values)
    if database.place.shared:
        with database.begin(patient=True) as connection:
            connection.execute(sa.text("ANALYZE"))


def _inserted(connection: sa.Connection, table: str, values: Iterator[Row]) -> None:
    names, marks = ", ".join(_TABLES[table]), ", ".join("?" * len(_TABLES[table]))
    own: Any = connection.connection.driver_connection
    own.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", values)  # noqa: S608


def _copied(connection: sa.Connection, table: str, values: Iterator[Row]) -> None:
    own: Any = connection.connection.driver_connection
    connection.execute(sa.text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
    with own.cursor().copy(f"COPY {table} ({', '.join(_TABLES[table])}) FROM STDIN") as copy:
        for row in values:
            copy.write_row(row)
    connection.execute(sa.text(f"ALTER TABLE {table} ENABLE TRIGGER USER"))


def _filled(count: int) -> Iterator[tuple[str, Iterator[Row]]]:
    """Every table's rows, one table after the other."""
    model = _model()
    made: dict[str, Callable[[int, State], Iterator[Row]]] = {
        "nodes": model.node,
        "events": model.events,
        "receipts": model.receipts,
        "reports": model.reports,
        "addresses": model.addresses,
        "marks": model.marks,
    }
    apart = count // RARE

    def every(of: Callable[[int, State], Iterator[Row]]) -> Iterator[Row]:
        for number in range(count):
            yield from of(number, RARE_STATE if number % apart == apart // 2 else State.IN_SERVICE)

    for table, of in made.items():
        yield table, every(of)


class _Model:
    """One node in service, from which all are made by another name, number and address."""

    def __init__(self, folder: Path) -> None:
        self._now = datetime.now(UTC).replace(microsecond=0)
        key = keygen(folder, "signer")
        node = Node(
            "NAME",
            State.IN_SERVICE,
            version=len(_ROAD),
            uuid="UUID",
            vmid=100,
            proxmox_node="pve1",
            site="SITE",
            profile="h100x8",
            spec_hash="ab" * 32,
            address=Address(_NOWHERE, 8, "static"),
            user="muster",
            macs=("bc:24:11:00:00:01",),
            host_keys=(KEY,),
            machine_id=_MACHINE,
            ticket=sign_ticket(ticket(), key_file=key),
        )
        self._facts = json.dumps(rows.row_of(node)["facts"])
        soon, late = (
            sign_receipt(replace(receipt(), not_after=self._now + span), key_file=key)
            for span in (SOON, LATE)
        )
        self._receipt = {True: soon, False: late}
        moments = {"starting": 0.2, "identity": 0.3, "meeting": 0.4, "assembled": 0.5, "done": 0.6}
        line = [{"rank": rank, **moments} for rank in range(_RANKS)]
        self._document = json.dumps(
            {"name": "gpu-01", "ok": True, "seconds": 1.5, "verification": {"ranks": 8, "time_line": line}}
        )

    def node(self, number: int, state: State) -> Iterator[Row]:
        facts = self._facts
        for told, own in (
            ('"SITE"', f'"{site_of(number)}"'),
            (f'"{_NOWHERE}"', f'"{address(number)}"'),
            ('"vmid": 100', f'"vmid": {vmid(number)}'),
            (f'"{_MACHINE}"', f'"{machine_id(number)}"'),
            (f'"{KEY.base64}"', f'"{host_key(number).base64}"'),
        ):
            facts = facts.replace(told, own)
        ends = self._until(state)
        yield name_of(number), str(state), len(_ROAD), uuid(number), None, ends, facts

    def _until(self, state: State) -> str:
        return (self._now + (SOON if state is RARE_STATE else LATE)).isoformat()

    def events(self, number: int, state: State) -> Iterator[Row]:
        at = self._now.isoformat()
        for before, after in zip(_ROAD, (*_ROAD[1:], state), strict=True):
            old = None if before is None else str(before)
            yield name_of(number), at, "somebody", "host", old, str(after), f"it became {after}"

    def receipts(self, number: int, state: State) -> Iterator[Row]:
        until, at = self._until(state), self._now.isoformat()
        for kind in ("onboarded", "verified"):
            yield (
                name_of(number),
                uuid(number),
                at,
                kind,
                until,
                self._receipt[state is RARE_STATE],
            )

    def reports(self, number: int, state: State) -> Iterator[Row]:
        yield (
            name_of(number),
            uuid(number),
            self._now.isoformat(),
            state is not RARE_STATE,
            self._document,
        )

    def addresses(self, number: int, state: State) -> Iterator[Row]:  # noqa: ARG002
        yield site_of(number), address(number), name_of(number)

    def marks(self, number: int, state: State) -> Iterator[Row]:  # noqa: ARG002
        yield name_of(number), rows.machine_mark(machine_id(number))
        yield name_of(number), rows.key_mark(host_key(number))
        yield name_of(number), rows.vm_mark(vmid(number))


def vmid(number: int) -> int:
    """A node's own."""
    return number + 100


def machine_id(number: int) -> str:
    """A node's own."""
    return f"{number:032x}"


def host_key(number: int) -> HostKey:
    """A node's own."""
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + number.to_bytes(32, "big")
    return HostKey("ssh-ed25519", base64.b64encode(blob).decode())


@functools.cache
def _model() -> _Model:
    with tempfile.TemporaryDirectory(prefix="filled-") as folder:
        return _Model(Path(folder))
