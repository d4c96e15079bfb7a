"""Addresses that nodes have are read once for a run, and again after anything has happened."""

from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa

from inventory.model import Address, Node, State
from inventory.store import Store
from provision.known import Known


def node(number: int) -> Node:
    return Node(
        f"gpu-{number:02}",
        State.PROVISIONING,
        ticket="t" * 99,
        address=Address(f"10.0.0.{number}", 24, "static"),
    )


def test_the_record_is_read_again_only_after_an_event_or_when_asked(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'r.db'}")
    known, asked = Known(store), list[str]()
    sa.event.listen(
        store._database.engine,  # noqa: SLF001 - what is asked for is beneath the store
        "before_cursor_execute",
        lambda _c, _cursor, statement, *_rest: asked.append(statement),
    )

    def reads() -> int:
        found = sum("facts" in statement and "INSERT" not in statement for statement in asked)
        asked.clear()
        return found

    assert known.nodes() == ()
    store.add(node(1), why="asked")
    reads()
    (first,) = known.nodes()
    assert (first.name, first.address, first.ticket) == ("gpu-01", node(1).address, None)
    assert reads() == 1
    assert known.nodes() == (first,)
    assert reads() == 0
    assert known.nodes(anew=True) == (first,)
    assert reads() == 1
    gone = store.get("gpu-01")
    assert gone is not None
    store.save(replace(gone, state=State.AWAITING_IDENTITY), why="made")
    assert [each.state for each in known.nodes()] == [State.AWAITING_IDENTITY]
