"""A primary with a standby: what a record does while the one dies and the other takes its place."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from inventory.errors import MusterError, OtherSide, Refused
from inventory.store import Store
from inventory.store.database import Database
from inventory.store.making import migrate
from inventory.store.place import place_of
from tests.fixtures_postgres import need_postgres
from tests.inventory.records import node
from tests.inventory.test_leases import another, heard, told
from tests.postgres_standby import Standby, both, pair
from tests.postgres_tls import TlsServer
from tests.require import need_command

WAIT_S = 60.0
BUSY = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'muster' AND state <> 'idle'"
Pair = tuple[TlsServer, Standby]


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    """A primary with its standby, and a record; for tests after which both are what they were."""
    yield from made()


@pytest.fixture
def own_servers() -> Iterator[Pair]:
    """The same for one test alone."""
    yield from made()


def made() -> Iterator[Pair]:
    need_postgres()
    need_command("openssl")
    with pair() as (primary, standby):
        migrate(Database(place_of(primary.url(user="muster"))))
        yield primary, standby


def node_inventory(*words: str) -> "subprocess.CompletedProcess[str]":
    """The command as a user types it."""
    program = str(Path(sys.executable).with_name("node-inventory"))
    return subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=600)


def until(reached: Callable[[], bool]) -> None:
    """Wait for something that comes to be by itself."""
    deadline = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@dataclass
class Writer:
    """A host that writes event after event, each with a number of its own, and goes on after every failure."""

    url: str
    name: str
    kept: list[str] = field(default_factory=list)
    failed: list[MusterError] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        """Begin."""
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Until `over`; what is in `kept` was said to be written."""
        record, number = Store.open(self.url), 0
        while not self.over.is_set():
            number += 1
            try:
                found = record.get(self.name)
                assert found is not None
                record.save(replace(found, vmid=number), why=str(number))
            except MusterError as error:
                self.failed.append(error)
                time.sleep(0.05)
            else:
                self.kept.append(str(number))


def test_a_run_outlives_its_server_and_no_event_is_lost_or_told_twice(own_servers: Pair) -> None:
    primary, standby = own_servers
    url = both(primary.certificate_url(), standby)
    record = Store.open(url)
    for name in ("gpu-01", "gpu-02", "gpu-03"):
        record.add(node(name), why="asked for")
    writers = [Writer(url, name) for name in ("gpu-02", "gpu-03")]
    with another(url) as run:
        until(lambda: all(len(writer.kept) > 5 for writer in writers))

        primary.crash()
        told(run, "save")
        refused = heard(run)
        shown = node_inventory("show", "gpu-01", "--inventory", url)
        until(lambda: all(writer.failed for writer in writers))
        until(lambda: "is not written to" in str(writers[0].failed[-1]))
        standby.promote()
        so_far = [len(writer.kept) for writer in writers]
        until(lambda: all(len(w.kept) > n + 5 for w, n in zip(writers, so_far, strict=True)))
        told(run, "save")
        saved = heard(run)
        with pytest.raises(Refused, match=r"gpu-01 is being worked on: provision-node of .* on another-host"):
            record.lease("gpu-01", "onboard-node", say=print).__enter__()
        told(run, "end")
        assert run.wait(timeout=WAIT_S) == 0
    for writer in writers:
        writer.over.set()
        writer.thread.join(WAIT_S)

    either = r"the record .* (is not written to|did not answer)"  # a standby may be slow to say which it is
    assert re.match(either, refused)
    assert (shown.returncode, shown.stdout) == (4, "")
    assert re.search(either, shown.stderr)
    assert "next: try again" in shown.stderr
    assert "Traceback" not in shown.stderr
    assert saved == "saved"
    for writer in writers:
        whys = [event.why for event in record.history(writer.name)[1:]]
        assert len(set(whys)) == len(whys)
        assert set(writer.kept) <= set(whys)
        assert all(isinstance(error, OtherSide) for error in writer.failed)
        told_apart = [error.next_step for error in writer.failed if "is not written to" in error.what]
        assert set(told_apart) <= {"try again once a standby has been promoted; nothing was changed"}
    with record.lease("gpu-01", "onboard-node", say=pytest.fail):
        pass


@pytest.mark.parametrize("words", [("list",), ("migrate",)])
def test_a_standby_alone_is_refused_and_the_primary_asked_for(servers: Pair, words: tuple[str]) -> None:
    _, standby = servers

    done = node_inventory(*words, "--inventory", standby.url(user="muster"))
    assert (done.returncode, done.stdout) == (3, "")
    assert "is not written to" in done.stderr
    assert "it is a standby, which lags behind and is only read" in done.stderr
    assert "name the primary, or all servers of the record" in done.stderr


def test_a_server_of_several_is_not_taken_for_the_primary_because_it_comes_first(servers: Pair) -> None:
    primary, standby = servers
    sockets = {"host": f"{standby.folder},{primary.folder}", "port": f"{standby.port},{primary.port}"}
    record = Store.open(primary.url(user="muster", **sockets))

    record.add(node("gpu-08"), why="asked for")
    assert record.get("gpu-08") is not None


def test_what_no_standby_took_is_not_said_to_be_done(servers: Pair) -> None:
    primary, standby = servers
    url = both(primary.certificate_url(), standby)
    record, hasty = Store.open(url), Store(Database(place_of(url), silence_s=2))
    found = record.add(node("gpu-09"), why="asked for")

    standby.pause()
    try:
        with pytest.raises(OtherSide, match="did not answer"):
            hasty.save(replace(found, vmid=100), why="VM 100 was made")
    finally:
        standby.resume()
    until(lambda: primary.psql(BUSY) == "0")  # what the standby takes now is seen from now on
    # It stands, or it does not; either way the command that is typed again goes on from there.
    kept = record.get("gpu-09")
    assert kept is not None
    assert record.save(replace(kept, vmid=101), why="VM 101 was made").version == kept.version + 1
    assert len(record.history("gpu-09")) == kept.version + 1
