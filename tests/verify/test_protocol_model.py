"""The protocol against a model of it: whatever joins, dies, lies and leaves, in whatever order, both agree."""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from verify.probe.seats import Plan
from verify.probe.tls import Contexts
from verify.probe.wire import Cause

from .table import Seen, Table, plan

_WORLD = 4
_MOST = 10
_RANKS = st.integers(1, _WORLD - 1)
_LIES: dict[str, dict[str, Any]] = {
    "run": {"run_id": b"\xee" * 16},
    "world": {"seats": plan(_WORLD + 1).seats},
}


class Protocol(RuleBasedStateMachine):
    """Model: who sits (rank to what it sees), whether GO was given, and how it ended."""

    contexts: Contexts

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        self.table = Table(self.contexts, self._plan())
        self.sitting: dict[int, tuple[int, Seen]] = {}
        self.gone = False
        self.ended: Cause | None = None
        self.blamed = -1

    @staticmethod
    def _plan() -> Plan:
        return plan(_WORLD, deadline_s=120.0, beat_s=30.0, hello_timeout_s=10.0)

    @property
    def open(self) -> bool:
        return self.ended is None and len(self.table.members) < _MOST

    @precondition(lambda self: self.open)
    @rule(rank=_RANKS)
    def join(self, rank: int) -> None:
        before = len(self.table.members)
        seen = self.table.join(rank)
        self.settle(lambda: bool(seen.outcome) or any(each["event"] == "welcome" for each in seen.events))
        if self.gone or rank in self.sitting:
            assert seen.outcome is not None
            assert seen.outcome.cause == Cause.REFUSED
            wanted = "one too many" if self.gone else "says it is the same"
            assert wanted in seen.outcome.text
            assert seen.outcome.text.count(f"pid {os.getpid()}") == 2
            return
        assert seen.outcome is None
        self.sitting[rank] = (before, seen)
        self.gone = len(self.sitting) == _WORLD - 1
        if self.gone:
            self.settle(lambda: all(each.gone for _, each in self.sitting.values()))

    @precondition(lambda self: self.open)
    @rule(rank=_RANKS, lie=st.sampled_from(sorted(_LIES)))
    def lie(self, rank: int, lie: str) -> None:
        seen = self.table.join(rank, **_LIES[lie])
        self.settle(lambda: seen.outcome is not None)
        assert seen.outcome is not None
        assert seen.outcome.cause == Cause.REFUSED

    @precondition(lambda self: self.open)
    @rule(data=st.binary(max_size=20))
    def stranger(self, data: bytes) -> None:
        self.table.knock(data).close()
        self.table.rest(0.002)

    @precondition(lambda self: self.ended is None and bool(self.sitting))
    @rule(choice=st.integers(0, _WORLD), politely=st.booleans())
    def go_away(self, choice: int, politely: bool) -> None:  # noqa: FBT001 - hypothesis draws it
        rank = sorted(self.sitting)[choice % len(self.sitting)]
        number, seen = self.sitting.pop(rank)
        freed = len(self.table.led.texts("freed"))
        member = self.table.members[number]
        if politely:
            member.leave()
        else:
            member.close()
        if self.gone:
            self.end(Cause.LEFT if politely else Cause.LOST, rank)
        else:
            self.settle(lambda: len(self.table.led.texts("freed")) > freed)
        assert seen.gone == self.gone

    @precondition(lambda self: self.ended is None and self.gone)
    @rule()
    def stop(self) -> None:
        self.table.leader.stop()
        self.end(Cause.STOPPED, -1)

    @precondition(lambda self: self.ended is None and bool(self.table.members))
    @rule()
    def cancel(self) -> None:
        self.table.leader.cancel("the model wants it")
        self.end(Cause.CANCELLED, -1)

    @precondition(lambda self: self.ended is None and bool(self.sitting))
    @rule()
    def leader_dies(self) -> None:
        self.table.leader.close()
        self.settle(lambda: all(each.outcome for _, each in self.sitting.values()))
        causes = {each.outcome.cause for _, each in self.sitting.values() if each.outcome}
        assert causes == {Cause.LEADER_LOST}
        self.ended, self.blamed = Cause.LEADER_LOST, 0

    @precondition(lambda self: self.ended is not None)
    @rule()
    def next_replica(self) -> None:
        self.table.close()
        self.begin()

    def end(self, cause: Cause, blamed: int) -> None:
        """Everybody who sits must learn of it, with the same cause and the same rank."""
        self.ended, self.blamed = cause, blamed
        self.settle(
            lambda: bool(self.table.led.outcome) and all(each.outcome for _, each in self.sitting.values())
        )

    def settle(self, holds: Any) -> None:
        assert self.table.until(holds, 20.0)

    @invariant()
    def agrees(self) -> None:
        led = self.table.led
        assert led.gone == self.gone
        if self.ended is None:
            assert led.outcome is None
            assert all(each.outcome is None for _, each in self.sitting.values())
            assert all(each.gone == self.gone for _, each in self.sitting.values())
            return
        if self.ended != Cause.LEADER_LOST:
            assert led.outcome is not None
            assert (led.outcome.cause, led.outcome.rank) == (self.ended, self.blamed)
        for _, each in self.sitting.values():
            assert each.outcome is not None
            assert (each.outcome.cause, each.outcome.rank) == (self.ended, self.blamed)

    def teardown(self) -> None:
        self.table.close()


@pytest.mark.parametrize("steps", [12])
def test_leader_and_workers_do_what_the_model_says(good_contexts: Contexts, steps: int) -> None:
    class Here(Protocol):
        contexts = good_contexts

    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=60,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
