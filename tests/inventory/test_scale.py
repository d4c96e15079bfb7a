"""The record does not read more for the same answer when it holds more nodes, and a list of all keeps no more of it.

Nothing is timed: SQLite counts the steps of its machine, and PostgreSQL the rows that it looked at.
"""

import io
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from inventory import show
from inventory.console import Console
from inventory.model import State
from inventory.store import Store
from inventory.store.database import Database
from inventory.store.place import place_of
from inventory.store.scratch import scratch_record
from tests.inventory.filled import RARE, fill
from tests.inventory.filled_work import SAME, Filled, opened
from tests.require import need

FEW, MANY = 1_000, 8_000
Counted = Callable[[Callable[[], object]], int]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Filled, Filled]]:
    """A record with few nodes and one with many."""
    if request.param == "sqlite":
        folder = tmp_path_factory.mktemp("filled")
        yield _filled(f"sqlite:///{folder / 'few.db'}", FEW), _filled(f"sqlite:///{folder / 'many.db'}", MANY)
        return
    server_url: str = request.getfixturevalue("server_url")
    with scratch_record(server_url, name="few") as few, scratch_record(server_url, name="many") as many:
        yield _filled(few, FEW), _filled(many, MANY)


def _filled(url: str, count: int) -> Filled:
    Store.open(url)
    fill(url, count)
    return opened(url, count)


def steps(filled: Filled) -> Counted:
    """What a piece of work costs SQLite: the steps of its virtual machine, by tens."""
    engine = filled.store._database.engine  # noqa: SLF001 - what is counted is beneath the store

    def count(work: Callable[[], object]) -> int:
        taken = 0

        def step() -> int:
            nonlocal taken
            taken += 1
            return 0

        def watch(connection: object, _record: object) -> None:
            connection.set_progress_handler(step, 10)  # type: ignore[attr-defined]  # sqlite3's

        sa.event.listen(engine, "connect", watch)
        try:
            work()
        finally:
            sa.event.remove(engine, "connect", watch)
        return taken

    return count


def rows_read(filled: Filled) -> Counted:
    """What a piece of work costs PostgreSQL: the rows and index entries that it looks at."""
    database, watcher = filled.store._database, Database(place_of(filled.url))  # noqa: SLF001 - as above

    def total() -> int:
        with database.begin() as connection:
            connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
        with watcher.begin() as connection:
            return int(connection.execute(_LOOKED_AT, {"schema": database.place.schema}).scalar_one())

    def count(work: Callable[[], object]) -> int:
        before = total()
        work()
        return total() - before

    return count


def costs(both: tuple[Filled, Filled], work: Callable[[Filled], object]) -> tuple[int, int]:
    """What the work costs where few nodes are, and where many are."""
    found = []
    for filled in both:
        if filled.store._database.place.shared:  # noqa: SLF001
            with filled.store._database.begin() as connection:  # noqa: SLF001
                version = int(connection.execute(sa.text("SHOW server_version_num")).scalar_one())
            need(version >= 150000, "PostgreSQL 15 or newer", "apt-get install postgresql")
            counted = rows_read(filled)
        else:
            counted = steps(filled)
        found.append(counted(lambda filled=filled: work(filled)))  # type: ignore[misc]  # a lambda has no types
    return found[0], found[1]


@pytest.mark.parametrize("name", [name for name in SAME if name != "open"])
def test_the_same_answer_costs_the_same_with_eight_times_the_nodes(
    both: tuple[Filled, Filled], name: str
) -> None:
    few, many = costs(both, SAME[name])

    assert 0 < many <= 1.5 * few + 20, (few, many)


def test_a_whole_list_costs_as_much_a_node_in_a_state_or_in_any(both: tuple[Filled, Filled]) -> None:
    for states in (None, [State.IN_SERVICE], list(State)):
        few, many = costs(both, lambda filled, states=states: list(filled.store.summaries(states=states)))  # type: ignore[misc]

        assert many / MANY <= 1.5 * few / FEW, (states, few, many)


def test_states_and_an_end_choose_together_over_many_pages(both: tuple[Filled, Filled]) -> None:
    _, many = both
    now = datetime.now(UTC)
    soon, late = now + timedelta(days=14), now + timedelta(days=90)

    def names(**wanted: object) -> list[str]:
        return [each.name for each in many.store.summaries(**wanted)]  # type: ignore[arg-type]

    every = names()
    assert names(ends_by=late) == names(states=list(State)) == every == sorted(every)
    assert len(every) == MANY
    assert names(states=[State.IN_SERVICE], ends_by=late) == names(states=[State.IN_SERVICE])
    assert len(names(states=[State.IN_SERVICE])) == MANY - RARE
    assert len(names(states=[State.VERIFY_FAILED, State.IN_SERVICE], ends_by=soon)) == RARE
    assert names(states=[State.IN_SERVICE], ends_by=soon) == []
    assert names(states=[State.VERIFY_FAILED], names=every[-200:]) == names(states=[State.VERIFY_FAILED])[-1:]
    assert names(states=[]) == []


def test_the_last_reports_of_many_nodes_come_one_for_each(both: tuple[Filled, Filled]) -> None:
    _, many = both
    last = [report.node for report in many.store.last_reports()]

    assert last == [each.name for each in many.store.summaries()]


def test_a_list_of_all_keeps_no_more_in_memory_than_a_page(
    both: tuple[Filled, Filled], tmp_path: Path
) -> None:
    few, many = (_peak(filled, tmp_path / "list") for filled in both)

    assert many <= 1.3 * few, (few, many)


def _peak(filled: Filled, file: Path) -> int:
    """The most octets that a list as JSON has of Python's memory."""
    with file.open("w") as out:
        console = Console(json_output=True, stdout=out, stderr=io.StringIO())
        console.documents("nodes", map(show.summary, filled.store.summaries(names=["gpu-000001"])))
        tracemalloc.start()
        try:
            console.documents("nodes", map(show.summary, filled.store.summaries()))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


_LOOKED_AT = sa.text(
    "SELECT (SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables WHERE schemaname = :schema)"
    " + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = :schema)"
)
