"""Many nodes in one run: at once, bounded, each with its own fate; and no request that is not needed."""

import json
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from inventory.model import State
from provision.gates import CLONES_AT_ONCE, Gates
from provision.run import Result, warnings_of
from tests.provision.kit import CLONE, Place, state
from tests.provision.leaving import record, vmids

FLOOR = 9  # nextid, four writes, three task statuses, one call of the agent


def test_a_node_set_is_made_in_one_run_with_one_plan(place: Place) -> None:
    done = place.run("gpu-[01-04]", "--yes", "--json")

    nodes = json.loads(done.stdout)["nodes"]
    assert done.returncode == 0, done.stderr
    assert [node["name"] for node in nodes] == ["gpu-01", "gpu-02", "gpu-03", "gpu-04"]
    assert [node["vmid"] for node in nodes] == [100, 101, 102, 103]
    assert "plan: 4 to make, 0 to change" in done.stderr
    assert {node["state"] for node in nodes} == {"awaiting-identity"}


def test_a_table_has_one_row_a_node(place: Place) -> None:
    done = place.run("gpu-[01-03]", "--yes")

    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [
        "NAME",
        "gpu-01",
        "gpu-02",
        "gpu-03",
    ]


def test_a_malformed_node_set_is_wrong_usage(place: Place) -> None:
    done = place.run("gpu-[4-1]", "--yes")

    assert done.returncode == 2
    assert "runs backwards" in done.stderr
    assert place.requests == []


def test_a_node_that_fails_does_not_stop_the_others_and_the_next_run_does_only_the_rest(place: Place) -> None:
    place.pve.fail("POST", "/nodes/pve1/qemu/101/status/start", 500, "VM is locked (backup)", times=1)

    done = place.run("gpu-[01-04]", "--yes", "--json")

    states = [node["state"] for node in json.loads(done.stdout)["nodes"]]
    assert done.returncode == 4
    assert states == ["awaiting-identity", "provision-failed", "awaiting-identity", "awaiting-identity"]
    before = len(place.requests.writes)
    again = place.run("gpu-[01-04]", "--yes")
    assert again.returncode == 0, again.stderr
    assert place.requests.writes[before:] == [("POST", "/nodes/pve1/qemu/101/status/start")]
    assert sorted(vmids(place)) == [100, 101, 102, 103, 9000]


@pytest.mark.fakepve(time_scale=0.1)
def test_clones_of_one_storage_are_bounded_and_run_side_by_side(place: Place) -> None:
    place.pve.add_ceph_storage("ceph")
    place.pve.ceph_slow(30)  # 3 s each, so that they meet on a busy machine too
    place.pve.vm(9000).config["scsi0"] = "ceph:base-9000-disk-0,size=8G"
    place.write_site(profile_storage="ceph")
    running: list[int] = []
    place.requests.on_next = lambda _method, _path: running.append(
        sum(task["status"] == "running" and task["type"] == "qmclone" for task in list(place.pve.tasklog))
    )

    done = place.run("gpu-[01-06]", "--yes")

    assert done.returncode == 0, done.stderr
    assert max(running) == CLONES_AT_ONCE


def test_a_gate_lets_no_more_through_than_it_should() -> None:
    gates, inside, most = Gates(2), Counter[str](), []

    def work(storage: str) -> None:
        with gates.through(storage):
            inside[storage] += 1
            most.append(inside[storage])
            time.sleep(0.1)
            inside[storage] -= 1

    threads = [threading.Thread(target=work, args=(name,)) for name in ["a", "b"] * 6]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 2


@pytest.mark.parametrize("count", [1, 6])
def test_a_vm_takes_at_most_six_requests_over_the_floor(place: Place, count: int) -> None:
    done = place.run(f"gpu-[01-{count:02}]", "--yes")

    assert done.returncode == 0, done.stderr
    of_the_fleet = [path for method, path, _ in place.requests if method == "GET" and not _of_a_vm(path)]
    assert len(place.requests) - len(of_the_fleet) <= count * (FLOOR + 6)
    assert len(of_the_fleet) <= 8


@pytest.mark.parametrize("count", [1, 6])
def test_a_run_with_nothing_to_do_writes_nothing_and_asks_little(place: Place, count: int) -> None:
    names = f"gpu-[01-{count:02}]"
    assert place.run(names, "--yes").returncode == 0
    place.requests.clear()

    again = place.run(names)

    assert again.returncode == 0, again.stderr
    assert place.requests.writes == []
    assert len(place.requests) <= 3 * count


def test_a_plan_of_many_asks_no_more_than_a_plan_of_one(place: Place) -> None:
    place.run("gpu-01", "--plan")
    one = len(place.requests)
    place.requests.clear()

    place.run("gpu-[01-50]", "--plan")

    assert len(place.requests) == one


def _of_a_vm(path: str) -> bool:
    """Whether a request is for one node's VM: its id, its config, its tasks, its guest."""
    return re.search(r"/nextid|/qemu/(?!9000/)\d+|/tasks/", path) is not None


def test_a_clone_that_finds_the_lock_held_is_tried_again(place: Place) -> None:
    held = "can't lock file '/var/lock/qemu-server/lock-9000.conf' - got timeout"
    place.pve.fail("POST", "/clone", 500, held, times=1)

    done = place.run("gpu-01", "--yes")

    assert done.returncode == 0, done.stderr
    assert place.requests.writes.count(CLONE) == 2
    assert vmids(place) == [9000, 100]


@pytest.mark.fakepve(time_scale=0.1)
@pytest.mark.parametrize(("names", "sign"), [("gpu-01", signal.SIGINT), ("gpu-[01-03]", signal.SIGTERM)])
def test_an_interruption_says_what_goes_on_and_the_same_command_finishes_it(
    place: Place, names: str, sign: signal.Signals
) -> None:
    place.pve.add_ceph_storage("ceph")
    place.pve.ceph_slow(30)
    place.pve.vm(9000).config["scsi0"] = "ceph:base-9000-disk-0,size=8G"
    place.write_site(profile_storage="ceph")
    process = subprocess.Popen(
        place.command(names, "--yes"), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    wait_until(lambda: any("qmclone" in path for _, path, _ in list(place.requests)))

    process.send_signal(sign)
    _, told = process.communicate(timeout=600)

    assert process.returncode == 128 + sign
    assert re.search(
        r"the clone of template 9000 to VM \d+ keeps running on pve1 without us \(task UPID:pve1:", told
    )
    assert state(place, "gpu-01") is State.PROVISIONING
    place.pve.ceph_slow(0)
    done = place.run(names, "--yes")
    assert done.returncode == 0, done.stderr
    assert len(vmids(place)) == place.requests.writes.count(CLONE) + 1


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_every_ticket_of_a_set_lands_in_the_folder(place: Place) -> None:
    folder = place.folder / "tickets"
    folder.mkdir()

    done = place.run("gpu-[01-03]", "--yes", "--ticket-out", str(folder))

    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in folder.iterdir()) == [
        "gpu-01.ticket",
        "gpu-02.ticket",
        "gpu-03.ticket",
    ]


def test_new_tickets_for_a_set_void_the_old_ones_without_a_write(place: Place) -> None:
    first = place.run("gpu-[01-03]", "--yes", "--json")
    old = [node["ticket"]["id"] for node in json.loads(first.stdout)["nodes"]]
    before = len(place.requests.writes)

    done = place.run("gpu-[01-03]", "--reissue-ticket", "--json", "--ticket-out", str(place.folder))

    new = [node["ticket"]["id"] for node in json.loads(done.stdout)["nodes"]]
    assert done.returncode == 0, done.stderr
    assert not set(old) & set(new)
    assert len(place.requests.writes) == before
    for name, void in zip(("gpu-01", "gpu-02", "gpu-03"), old, strict=True):
        assert f"ticket {void} is void" in place.store.history(name)[-1].why
        assert (place.folder / f"{name}.ticket").read_text() == record(place, name).ticket


def test_a_warning_that_concerns_many_is_told_once() -> None:
    shared = [Result(f"n{number}", warnings=("the host is full", "the host is full")) for number in range(6)]

    assert warnings_of(shared) == ["n0, n1, n2, n3 and 2 more: the host is full"]
    assert warnings_of(shared[:2]) == ["n0, n1: the host is full"]
    assert warnings_of(shared[:1]) == ["the host is full"]
