"""A machine that is busy is given time, and one that is always late is not."""

import socket

import pytest

from verify.probe.drills_lost import Slow, in_time
from verify.probe.loop import READ, Loop
from verify.probe.rank import Parts
from verify.probe.seats import Seat
from verify.probe.stage import Finding, Stage
from verify.probe.tls import Identity, load


def test_what_lies_ready_when_the_time_is_over_is_heard_still() -> None:
    loop, heard = Loop(), list[bytes]()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop.add(ours, READ, lambda _events: heard.append(ours.recv(1)))
        theirs.send(b"x")

        assert loop.run(lambda: bool(heard), 0.0)
        loop.close()


def test_what_is_always_late_is_tried_three_times_and_then_fails_with_what_was_found(good: Identity) -> None:
    tries: list[int] = []

    def late(_stage: Stage) -> tuple[Finding, float]:
        tries.append(len(tries))
        return Finding(ok=True, found=f"noticed in try {len(tries)}"), 0.25

    found = in_time(stage(good), late)

    assert len(tries) == 3
    assert found == Finding(ok=False, found="noticed in try 3; 250 ms too late, in each of up to 3 tries")


@pytest.mark.parametrize(("slow", "ok"), [(2, True), (3, False)])
def test_a_rank_that_nobody_touched_may_be_too_slow_for_two_tries_and_not_for_three(
    good: Identity, slow: int, *, ok: bool
) -> None:
    tries: list[int] = []

    def drill(_stage: Stage) -> tuple[Finding, float]:
        tries.append(len(tries))
        if len(tries) <= slow:
            raise Slow(f"rank 1 was slow in try {len(tries)}")
        return Finding(ok=True, found="in time"), 0.0

    found = in_time(stage(good), drill)

    assert found == Finding(ok, "in time" if ok else "rank 1 was slow in try 3")


def stage(good: Identity) -> Stage:
    loop = Loop()
    seats = (Seat("gpu-01", "spiffe://lab.example/node/gpu-01"),) * 2
    return Stage(loop, load(good), seats=seats, run_id=bytes(16), ends=loop.now() + 600, parts=Parts())
