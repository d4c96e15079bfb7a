"""From the record to the values of a report; the only part of it that reads."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from inventory.errors import BadInput
from inventory.report.facts import Row, Whole, last_run
from inventory.store import Store

EARLIER = 10


def rows(store: Store) -> tuple[Row, ...]:
    """Every node by name; of its events and its reports only what a row needs is kept."""
    since: dict[str, datetime] = {}
    for name, event in store.events():
        if name not in since or event.before is not event.after:
            since[name] = event.at
    last = {kept.node: last_run(kept) for kept in store.last_reports()}
    return tuple(Row(each, since.get(each.name), last.get(each.name)) for each in store.summaries())


def check_names(named: Sequence[str], found: Sequence[Row]) -> None:
    """Refuse names that the record does not have, all at once.

    Raises:
        BadInput: some are not on record.
    """
    known = {row.summary.name for row in found}
    if missing := [name for name in named if name not in known]:
        raise BadInput(
            "nothing was written",
            why=f"not on record: {', '.join(missing[:20])}"
            + (f" and {len(missing) - 20} more" if len(missing) > 20 else ""),
            next_step="node-inventory list",
        )


def wholes(store: Store, names: Sequence[str]) -> Iterator[Whole]:
    """The nodes that get a section, one after the other."""
    for name in names:
        node = store.get(name)
        if node is not None:
            yield Whole(
                node, store.history(name), store.reports(name, last=EARLIER + 1), store.receipts(name)
            )
