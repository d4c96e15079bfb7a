"""The protocol, played in one process: each test is a thing that a naive rendezvous gets wrong."""

import os
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from verify.probe import wire
from verify.probe.channel import Channel
from verify.probe.loop import Loop
from verify.probe.member import Address, Member
from verify.probe.seats import Outcome
from verify.probe.tls import Contexts, contexts
from verify.probe.wire import Cause, Kind, Refusal

from .identities import Authority, authority, identity
from .table import PATIENCE_S, Seen, hello, plan, set_ahead, table


def refusal(heard: bytes) -> wire.Refused:
    (frame,) = wire.Decoder().feed(heard)
    assert frame.kind == Kind.REFUSED
    return wire.read_refused(frame.body)


def outcome(seen: Seen) -> Outcome:
    assert seen.outcome is not None
    return seen.outcome


def test_all_ranks_get_go_once_the_last_has_come(good_contexts: Contexts) -> None:
    with table(good_contexts) as made:
        early = [made.join(1), made.join(3)]
        made.until(lambda: len(made.led.events) == 2)
        before = [seen.gone for seen in early] + [made.led.gone]
        last = made.join(2)
        made.until(lambda: made.led.gone and all(seen.gone for seen in [*early, last]))

    assert before == [False, False, False]
    assert [made.led.gone, last.gone, *(seen.gone for seen in early)] == [True] * 4


def test_connections_are_held_after_go_until_the_replica_is_stopped(good_contexts: Contexts) -> None:
    with table(good_contexts) as made:
        seen = [made.join(rank) for rank in (1, 2, 3)]
        made.until(lambda: all(each.gone for each in seen))
        made.rest(0.2)
        meanwhile = [each.outcome for each in seen]
        made.leader.stop()
        made.until(lambda: all(each.outcome for each in seen))

    assert meanwhile == [None] * 3
    assert {outcome(each).cause for each in seen} == {Cause.STOPPED}
    assert outcome(made.led).cause == Cause.STOPPED


def test_who_connects_and_closes_is_no_worker(good_contexts: Contexts) -> None:
    with table(good_contexts, plan(3, deadline_s=0.3)) as made:
        for _ in range(2):
            made.knock().close()
        made.until(lambda: made.led.outcome is not None)

    assert not made.led.gone
    assert outcome(made.led).missing == (1, 2)


def test_fifty_resets_and_silent_strangers_hide_no_real_rank(good_contexts: Contexts) -> None:
    with table(good_contexts) as made:
        for _ in range(50):
            made.reset()
        for data in (b"", b"MST", b"GET / HTTP/1.1\r\n\r\n", os.urandom(64)):
            made.knock(data)
        began = time.monotonic()
        seen = [made.join(rank) for rank in (1, 2, 3)]
        made.until(lambda: made.led.gone and all(each.gone for each in seen))
        took = time.monotonic() - began

    assert made.led.gone
    assert took < made.plan.hello_timeout_s


def test_a_silent_stranger_is_sent_away_after_the_hello_timeout(good_contexts: Contexts) -> None:
    with table(good_contexts, plan(hello_timeout_s=0.2)) as made:
        sock = made.knock()
        made.until(lambda: bool(made.led.texts("stranger")))
        sock.settimeout(PATIENCE_S)
        rest = sock.recv(1)

    assert rest == b""
    assert made.led.texts("stranger") == ["said no hello within 0.2 s"]


def test_more_silent_strangers_than_there_is_room_for_push_out_the_oldest(good_contexts: Contexts) -> None:
    with table(good_contexts, plan(2)) as made:
        for _ in range(300):
            made.knock()
            made.rest(0.0001)
        seen = made.join(1)
        made.until(lambda: seen.gone)

    assert seen.gone
    assert "made way: too many connections wait for their hello" in made.led.texts("stranger")


def test_a_second_claimant_of_a_rank_is_refused_and_both_are_named(good_contexts: Contexts) -> None:
    with table(good_contexts) as made:
        first = made.join(1)
        made.until(lambda: bool(first.events))
        second = made.join(1)
        made.until(lambda: second.outcome is not None)

    assert outcome(second).cause == Cause.REFUSED
    assert outcome(second).text == made.led.texts("refused")[0]
    assert outcome(second).text.count(f"pid {os.getpid()}") == 2
    assert first.outcome is None


@pytest.mark.parametrize(
    ("said", "code", "values"),
    [
        (hello(4), Refusal.RANK, ("4", "1 to 3")),
        (hello(-1), Refusal.RANK, ("-1", "1 to 3")),
        (hello(0), Refusal.RANK, ("rank 0", "1 to 3")),
        (hello(1, world=9), Refusal.WORLD, ("4 here", "9 in the hello")),
        (hello(1, run=b"\xff" * 16), Refusal.RUN, ("00010203", "ffffffff")),
        (hello(1, version=7), Refusal.VERSION, ("version 7", f"{wire.VERSION} here")),
        (hello(1, node="gpu-02"), Refusal.IDENTITY, ("gpu-01", "gpu-02")),
        (wire.frame(Kind.GO), Refusal.PROTOCOL, ("frame 3",)),
        (b"GET / HTTP/1.1\r\n\r\n", Refusal.PROTOCOL, ("no frame begins",)),
    ],
    ids=["rank 4", "rank -1", "rank 0", "world", "run", "version", "node", "frame", "http"],
)
def test_what_does_not_fit_is_refused_at_once_on_both_sides_with_both_values(
    good_contexts: Contexts, said: bytes, code: Refusal, values: tuple[str, ...]
) -> None:
    with table(good_contexts) as made:
        began = time.monotonic()
        heard = refusal(made.listen_to(made.peer(said)))
        took = time.monotonic() - began

    told = " ".join(made.led.texts("refused") + made.led.texts("stranger"))
    assert heard.code == code
    assert all(value in heard.text and value in told for value in values)
    assert took < made.plan.hello_timeout_s
    assert not made.led.gone


@pytest.mark.parametrize(
    ("rank", "other"), [(9, {}), (1, {"run_id": b"\xff" * 16}), (1, {"seats": plan(9).seats})]
)
def test_a_refused_worker_does_not_try_again(
    good_contexts: Contexts, rank: int, other: dict[str, Any]
) -> None:
    with table(good_contexts) as made:
        seen = made.join(rank, **other)
        made.until(lambda: seen.outcome is not None)
        made.rest(0.3)

    assert outcome(seen).cause == Cause.REFUSED
    assert len(made.led.texts("refused")) == 1


def test_a_surplus_worker_is_refused_after_go(good_contexts: Contexts) -> None:
    with table(good_contexts, plan(2)) as made:
        first = made.join(1)
        made.until(lambda: first.gone)
        surplus = made.join(1)
        made.until(lambda: surplus.outcome is not None)

    assert "one too many" in outcome(surplus).text
    assert first.outcome is None
    assert made.led.outcome is None


def test_a_worker_that_dies_before_go_frees_its_seat(good_contexts: Contexts) -> None:
    with table(good_contexts, plan(3)) as made:
        made.join(1)
        made.until(lambda: bool(made.led.events))
        made.members[0].close()
        made.until(lambda: bool(made.led.texts("freed")))
        other = made.join(2)
        made.rest(0.2)
        before = made.led.gone
        again = made.join(1)
        made.until(lambda: again.gone and other.gone)

    assert not before
    assert again.gone
    assert other.gone


def test_a_worker_that_dies_after_go_fails_everyone_by_rank_and_pid(good_contexts: Contexts) -> None:
    with table(good_contexts, plan(beat_s=PATIENCE_S / 2)) as made:
        seen = [made.join(rank) for rank in (1, 2, 3)]
        made.until(lambda: made.led.gone and all(each.gone for each in seen))
        began = time.monotonic()
        made.members[1].close()
        made.until(lambda: all(each.outcome for each in (made.led, seen[0], seen[2])))
        took = time.monotonic() - began

    assert took < made.plan.beat_s  # no heartbeat was needed to tell
    for each in (made.led, seen[0], seen[2]):
        assert (outcome(each).cause, outcome(each).rank) == (Cause.LOST, 2)
        assert f"rank 2 (pid {os.getpid()})" in outcome(each).text


def test_a_goodbye_is_told_from_a_crash(good_contexts: Contexts) -> None:
    with table(good_contexts, plan(2)) as made:
        seen = made.join(1)
        made.until(lambda: made.led.gone and seen.gone)
        made.members[0].leave()
        made.until(lambda: made.led.outcome is not None)

    assert (outcome(made.led).cause, outcome(made.led).rank) == (Cause.LEFT, 1)


def test_the_death_of_the_leader_is_noticed_by_every_worker(good_contexts: Contexts) -> None:
    with table(good_contexts, plan(3)) as made:
        seen = [made.join(rank) for rank in (1, 2)]
        made.until(lambda: all(each.gone for each in seen))
        made.leader.close()
        made.until(lambda: all(each.outcome for each in seen))

    assert {outcome(each).cause for each in seen} == {Cause.LEADER_LOST}


def test_a_missed_deadline_names_every_missing_rank_to_everyone(good_contexts: Contexts) -> None:
    with table(good_contexts, plan(4)) as made:
        seen = made.join(2)
        made.until(lambda: bool(seen.events))
        set_ahead(made.loop, made.plan.deadline_s / 2)
        made.rest(0.1)
        early = made.led.outcome or seen.outcome
        set_ahead(made.loop, made.plan.deadline_s / 2)
        made.until(lambda: seen.outcome is not None)

    for each in (made.led, seen):
        assert outcome(each).cause == Cause.DEADLINE
        assert "2 of 4 ranks joined" in outcome(each).text
        assert "missing ranks 1, 3" in outcome(each).text
    assert outcome(made.led).missing == (1, 3)
    assert early is None


def test_cancelled_is_not_a_missed_deadline(good_contexts: Contexts) -> None:
    with table(good_contexts) as made:
        seen = made.join(1)
        made.until(lambda: bool(seen.events))
        made.leader.cancel("the operator said so")
        made.until(lambda: seen.outcome is not None)

    for each in (made.led, seen):
        assert outcome(each).cause == Cause.CANCELLED
        assert "the operator said so" in outcome(each).text


def test_the_deadline_travels_as_remaining_time(good_contexts: Contexts) -> None:
    with table(good_contexts, plan(3)) as made:
        patient = made.join(1, deadline_s=100 * PATIENCE_S)
        made.until(lambda: bool(patient.events))
        set_ahead(made.loop, made.plan.deadline_s)
        made.until(lambda: patient.outcome is not None)

    assert outcome(patient).cause == Cause.DEADLINE


def test_a_frozen_worker_is_noticed_within_three_heartbeats(good_contexts: Contexts) -> None:
    with table(good_contexts, plan(2, beat_s=0.1)) as made:
        peer = made.peer(hello(1, world=2))
        made.listen_to(peer)
        made.until(lambda: made.led.gone)
        made.until(lambda: made.led.outcome is not None)

    assert (outcome(made.led).cause, outcome(made.led).rank) == (Cause.FROZEN, 1)
    # of 2.5 to 3 heartbeats; a pause of this very process, shorter than a heartbeat, may count as one more
    assert re.search(r"silent for 0\.[234] s$", outcome(made.led).text)


def test_heartbeats_keep_an_idle_replica_alive(good_contexts: Contexts) -> None:
    with table(good_contexts, plan(2, beat_s=0.05)) as made:
        seen = made.join(1)
        made.until(lambda: seen.gone)
        made.rest(0.6)

    assert made.led.outcome is None
    assert seen.outcome is None


def test_a_worker_that_comes_before_the_leader_waits_for_it(good_contexts: Contexts) -> None:
    loop, seen = Loop(), Seen()
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", reserved.getsockname()[1])
        member = early(loop, address, good_contexts, seen, deadline_s=0.5)
        loop.run(lambda: seen.outcome is not None, PATIENCE_S)
        member.close()
    loop.close()

    assert outcome(seen).cause == Cause.DEADLINE
    assert "connection refused" in outcome(seen).text
    assert f"{address.host}:{address.port}" in outcome(seen).text


def test_a_leader_that_says_nothing_holds_no_worker_past_its_deadline(good_contexts: Contexts) -> None:
    loop, seen = Loop(), Seen()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("127.0.0.1", silent.getsockname()[1])
        member = early(loop, address, good_contexts, seen, deadline_s=PATIENCE_S, hello_timeout_s=0.2)
        loop.run(lambda: bool(seen.events), PATIENCE_S / 2)
        set_ahead(loop, PATIENCE_S)
        loop.run(lambda: seen.outcome is not None, PATIENCE_S)
        member.close()
    loop.close()

    assert outcome(seen).cause == Cause.DEADLINE
    assert "said nothing for 0.2 s" in outcome(seen).text


@pytest.mark.parametrize("address", [Address("", 1), Address("node.example", 1), Address("127.0.0.1", 0)])
def test_a_world_without_an_address_is_an_error_and_no_pass(
    good_contexts: Contexts, address: Address
) -> None:
    loop = Loop()
    with pytest.raises(ValueError, match="needs the leader's IP address"):
        early(loop, address, good_contexts, Seen())
    loop.close()


def test_an_identity_of_another_authority_is_never_seated(good_contexts: Contexts, tmp_path: Path) -> None:
    foreign = contexts(identity(tmp_path, by=authority("other")))
    with table(good_contexts, plan(2)) as made:
        seen = made.join(1, contexts=foreign)
        made.until(lambda: seen.outcome is not None)

    assert outcome(seen).cause == Cause.TLS
    assert not made.led.gone


def test_an_identity_of_another_authority_that_trusts_ours_is_told_so_by_the_leader(
    good_contexts: Contexts, lab: Authority, tmp_path: Path
) -> None:
    spy = contexts(identity(tmp_path, by=authority("other"), trusts=lab))
    with table(good_contexts, plan(2)) as made:
        seen = made.join(1, contexts=spy)
        made.until(lambda: seen.outcome is not None)

    assert outcome(seen).cause == Cause.TLS
    assert "unknown ca" in outcome(seen).text
    assert made.led.texts("stranger")
    assert not made.led.gone


def test_a_certificate_for_another_node_gets_no_seat(
    good_contexts: Contexts, lab: Authority, tmp_path: Path
) -> None:
    other = contexts(identity(tmp_path, by=lab, uris=("spiffe://lab.example/node/gpu-02",)))
    with table(good_contexts, plan(2)) as made:
        seen = made.join(1, contexts=other)
        made.until(lambda: seen.outcome is not None)

    assert outcome(seen).cause == Cause.REFUSED
    assert "gpu-01" in outcome(seen).text
    assert "gpu-02" in outcome(seen).text


def test_messages_grow_linearly_with_the_world(
    good_contexts: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    send = Channel.send

    def counted(self: Channel, frame: bytes) -> None:
        sent.append(frame[5])
        send(self, frame)

    monkeypatch.setattr(Channel, "send", counted)
    for world in (4, 16):
        sent.clear()
        with table(good_contexts, plan(world)) as made:
            seen = [made.join(rank) for rank in range(1, world)]
            made.until(lambda seen=seen, made=made: made.led.gone and all(each.gone for each in seen))

        assert len([kind for kind in sent if kind != Kind.PING]) == 3 * (world - 1)


def early(loop: Loop, address: Address, both: Contexts, seen: Seen, **other: float) -> Member:
    return Member(
        loop,
        address,
        both.client,
        plan(2, **other),
        1,
        on_event=seen.events.append,
        on_go=seen.go,
        on_over=seen.over,
    )
