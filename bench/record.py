"""Whether the record gets slower with the nodes that it holds: at 100,000, against at 1,000, in both databases."""

import atexit
import functools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import peak
from bench.row import Contest
from inventory import show
from inventory.model import State
from inventory.store import Store
from inventory.store.database import Database
from inventory.store.making import migrate
from inventory.store.place import place_of
from tests.inventory.filled import fill
from tests.inventory.filled_work import SAME, Filled, Work, opened
from tests.postgres import NoServer, Server, programs

MANY, FEW = 100_000, 1_000
TIMES = 20
_AGAIN = 10  # a list of few is over in a moment, and another process' turn would double it


def contests() -> list[Contest]:
    """Work whose answer is the same at either size; then what all nodes cost, for each of them."""
    return [contest for name, url_of in databases().items() for contest in _of(name, url_of)]


def databases() -> dict[str, Callable[[int], str]]:
    """Those that there are here."""
    found: dict[str, Callable[[int], str]] = {"SQLite": sqlite_url}
    try:
        programs()
    except NoServer as error:
        sys.stderr.write(f"bench: {error}: SQLite alone\n")
        return found
    return {**found, "PostgreSQL": postgres_url}


@functools.cache
def sqlite_url(count: int) -> str:
    """A file with so many nodes; it is there as long as this process."""
    url = f"sqlite:///{_folder() / str(count)}.db"
    Store.open(url)
    fill(url, count)
    return url


@functools.cache
def postgres_url(count: int) -> str:
    """The same on a server of our own."""
    url = _server().url(user="muster", schema=f"nodes_{count}")
    migrate(Database(place_of(url)))
    fill(url, count)
    return url


@functools.cache
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="bench-record-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@functools.cache
def _server() -> Server:
    server = Server()
    atexit.register(server.end)
    return server


def _of(database: str, url_of: Callable[[int], str]) -> list[Contest]:
    same = [
        Contest(
            f"{database}: {name}",
            took(work, url_of, MANY),
            took(work, url_of, FEW),
            f"the same at {FEW}",
            "s",
        )
        for name, work in SAME.items()
    ]
    each = [
        Contest(
            f"{database}: {name}, a node",
            took(work, url_of, MANY, times=1, per=MANY),
            took(work, url_of, FEW, times=_AGAIN, per=FEW),
            f"one of {FEW}",
            "s",
        )
        for name, work in WHOLE.items()
    ]
    most = Contest(
        f"{database}: list --json, peak memory",
        memory(url_of, MANY),
        memory(url_of, FEW),
        f"of {FEW} nodes",
        "MiB",
    )
    return [*same, *each, most]


def took(
    work: Work, url_of: Callable[[int], str], count: int, *, times: int = TIMES, per: int = 1
) -> Callable[[], float]:
    """A run that gives the seconds of working once over, divided by `per`."""

    def run() -> float:
        filled = _opened(url_of, count)
        began = time.perf_counter()
        for _ in range(times):
            work(filled)
        return (time.perf_counter() - began) / times / per

    return run


def memory(url_of: Callable[[int], str], count: int) -> Callable[[], float]:
    """A run of the command as it is typed, that gives the most memory that its process had, in MiB."""

    def run() -> float:
        program = Path(sys.executable).with_name("node-inventory")
        command = [str(program), "list", "--json", "--inventory", url_of(count)]
        ran = peak.run(command)
        if ran.code:
            raise SystemExit(f"bench: node-inventory list ended with {ran.code}")
        return ran.peak_mib

    return run


@functools.cache
def _opened(url_of: Callable[[int], str], count: int) -> Filled:
    return opened(url_of(count), count)


WHOLE: dict[str, Work] = {
    "list all": lambda filled: [None for _ in map(show.summary, filled.store.summaries())],
    "list --state of most": lambda filled: [None for _ in filled.store.summaries(states=[State.IN_SERVICE])],
    "events of all": lambda filled: [None for _ in filled.store.events()],
    "last reports of all": lambda filled: [None for _ in filled.store.last_reports()],
}
