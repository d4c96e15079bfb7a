"""Leases: two runs never act on one node at once, and a dead one's is taken over with a word."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from inventory.errors import Refused
from inventory.store import Store
from inventory.store.leases import is_dead, this_process
from tests.inventory.records import node, store
from tests.require import need, need_root

SHORT_S = 1.5
LONGER_S = (
    SHORT_S,
    6 * SHORT_S,
    20 * SHORT_S,
)  # for what a busy machine may be too slow to see of a short one


@contextmanager
def another(url: str, *, lease_s: float = 90.0, elsewhere: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Another run that has gpu-01. elsewhere: it sees other processes than we do, as on another host."""
    command = [sys.executable, "-m", "tests.inventory.leasing", url, "gpu-01", str(lease_s)]
    if elsewhere:
        command = ["unshare", "--pid", "--fork", "--kill-child", *command]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert heard(run) == "held"
            yield run
        finally:
            run.kill()


def heard(run: subprocess.Popen[str]) -> str:
    """What a run says next."""
    assert run.stdout is not None
    return run.stdout.readline().strip()


def told(run: subprocess.Popen[str], word: str) -> None:
    """Say something to it."""
    assert run.stdin is not None
    run.stdin.write(f"{word}\n")
    run.stdin.flush()


def ours(url: str, *, lease_s: float = 90.0) -> Store:
    """The record with the clock of life, and gpu-01 in it."""
    record = Store.open(url, lease_s=lease_s)
    if record.get("gpu-01") is None:
        record.add(node(), why="asked for")
    return record


def test_a_node_that_another_run_acts_on_is_neither_acted_on_nor_saved(url: str) -> None:
    record = ours(url)
    with another(url) as run:
        with pytest.raises(Refused, match=r"gpu-01 is being worked on: provision-node of .* on another-host"):
            record.lease("gpu-01", "onboard-node", say=print).__enter__()
        found = record.get("gpu-01")
        assert found is not None
        with pytest.raises(Refused, match="being worked on"):
            record.save(replace(found, vmid=100))
        with record.lease("gpu-02", "onboard-node", say=print):
            assert record.leased() == {"gpu-01", "gpu-02"}
        told(run, "end")
        assert run.wait(timeout=600) == 0
    with record.lease("gpu-01", "onboard-node", say=fail):
        assert record.save(replace(found, vmid=100)).vmid == 100


def test_who_acts_on_a_node_is_shown_with_it(url: str) -> None:
    ours(url)
    program = str(Path(sys.executable).with_name("node-inventory"))

    def told(*more: str) -> str:
        words = [program, "show", "gpu-01", "--inventory", url, *more]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
        return str(done.stdout)

    with another(url) as run:
        lease = json.loads(told("--json"))["node"]["lease"]
        assert "in use\tby provision-node of" in told()
        run.kill()
        run.wait(timeout=600)
        assert "in use" not in told()
    assert (lease["what"], lease["host"]) == ("provision-node", "another-host")
    assert lease["since"] < lease["until"]
    assert json.loads(told("--json"))["node"]["lease"] is None


def test_a_run_that_was_killed_on_this_host_is_followed_at_once_and_with_a_word(url: str) -> None:
    record = ours(url)
    words: list[str] = []
    with another(url) as run:
        run.kill()
        run.wait(timeout=600)
    assert record.leased() == frozenset()
    with record.lease("gpu-01", "onboard-node", say=words.append):
        pass

    assert len(words) == 1
    assert words[0].startswith("gpu-01 was left by provision-node of ")
    assert words[0].endswith("on another-host, which has died: it is taken over")


def test_of_a_run_that_died_elsewhere_nothing_is_known_until_its_lease_runs_out(url: str) -> None:
    need_root()
    record = ours(url)
    words: list[str] = []
    for lease_s in LONGER_S:
        with another(url, lease_s=lease_s, elsewhere=True) as run:
            time.sleep(lease_s * 1.5)  # it is alive, and its lease goes on
            run.kill()
            run.wait(timeout=600)
            left = record.lease_of("gpu-01")
            if refused := refusal(record):
                break
        assert left is None or left.until < datetime.now(UTC)  # we were too slow for it
    assert refused is not None
    assert "being worked on" in refused.what
    assert "its lease runs out by itself in" in refused.next_step
    time.sleep(lease_s + 0.2)
    with record.lease("gpu-01", "onboard-node", say=words.append):
        pass

    assert len(words) == 1
    assert "whose lease ran out at 20" in words[0]


def test_a_run_that_lost_its_lease_writes_nothing_more(url: str) -> None:
    need_root()
    record = ours(url)
    with another(url, lease_s=SHORT_S, elsewhere=True) as run:
        child = child_of(run.pid)
        subprocess.run(["kill", "-STOP", child], check=True)  # it sleeps, as a laptop does
        time.sleep(SHORT_S + 0.3)
        with record.lease("gpu-01", "onboard-node", say=[""].append):
            subprocess.run(["kill", "-CONT", child], check=True)
            told(run, "save")
            assert heard(run).startswith("gpu-01 was not saved: the lease of this run on it was lost")
    found = record.get("gpu-01")
    assert found is not None
    assert found.vmid is None


def test_of_many_who_want_a_node_at_once_one_gets_it(url: str) -> None:
    ours(url)
    inside, won, lost = threading.Lock(), [], []
    start = threading.Barrier(6)

    def want(number: int) -> None:
        record = Store.open(url)  # each a run of its own, for leases are a store's
        start.wait()
        try:
            with record.lease("gpu-01", f"run {number}", say=fail):
                assert inside.acquire(blocking=False)
                time.sleep(0.5)
                inside.release()
                won.append(number)
        except Refused:
            lost.append(number)

    wanting = [threading.Thread(target=want, args=(number,)) for number in range(6)]
    for thread in wanting:
        thread.start()
    for thread in wanting:
        thread.join(timeout=600)

    assert len(won) + len(lost) == 6
    assert won


def test_within_a_run_a_node_may_be_taken_again_and_is_let_go_with_the_last(url: str) -> None:
    record, other = ours(url), Store.open(url)
    with record.lease("gpu-01", "onboard-node", say=fail):
        with record.lease("gpu-01", "verify-node", say=fail):
            pass
        with pytest.raises(Refused, match="onboard-node of"):
            other.lease("gpu-01", "provision-node", say=fail).__enter__()
    with other.lease("gpu-01", "provision-node", say=fail):
        pass


def test_a_lease_is_kept_alive_for_as_long_as_the_run_takes(url: str) -> None:
    other = Store.open(url)

    def kept(lease_s: float) -> bool:
        with ours(url, lease_s=lease_s).lease("gpu-01", "onboard-node", say=[""].append):
            time.sleep(2 * lease_s)
            return refusal(other) is not None

    # a machine that stands still for longer than a lease loses it: then a longer one shows that it is kept
    assert any(kept(lease_s) for lease_s in LONGER_S)


def test_a_servers_clock_counts_and_not_a_hosts(shared: str) -> None:
    ours(shared)
    behind = store(shared, now=datetime(2020, 1, 1, tzinfo=UTC))
    ahead = store(shared, now=datetime.now(UTC) + timedelta(days=365))
    with behind.lease("gpu-01", "provision-node", say=fail), pytest.raises(Refused, match="being worked on"):
        ahead.lease("gpu-01", "onboard-node", say=fail).__enter__()


def test_a_process_is_told_from_a_later_one_with_its_number() -> None:
    own = this_process()
    need(own, "/proc", "mount it")
    boot, space, pid, started = own.split()

    assert not is_dead(own)
    assert is_dead(f"{boot} {space} {pid} {int(started) + 1}")
    assert not is_dead(f"another-boot {space} {pid} {int(started) + 1}")
    assert not is_dead(f"{boot} another-space {pid} {int(started) + 1}")
    assert not is_dead("")


def refusal(record: Store) -> Refused | None:
    """Why gpu-01 may not be acted on; None where it may, and was."""
    try:
        with record.lease("gpu-01", "onboard-node", say=[""].append):
            return None
    except Refused as refused:
        return refused


def child_of(pid: int) -> str:
    """The one child of a process."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]


def fail(word: str) -> None:
    """Nothing is to be said."""
    raise AssertionError(word)
