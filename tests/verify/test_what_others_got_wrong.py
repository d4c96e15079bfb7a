"""Public bug reports about other rendezvous, each by its number in SHOWN_BY, with what shows that ours differs."""

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.require import need, need_root
from verify.probe import wire
from verify.probe.leader import Leader
from verify.probe.loop import Loop
from verify.probe.member import Address, Member
from verify.probe.naming import NameFault, UnknownName, addresses, host_check
from verify.probe.tls import Contexts, Identity
from verify.probe.wire import Cause

from .probing import probe
from .table import PATIENCE_S, Seen, Table, plan, set_ahead, table

HERE = "test_what_others_got_wrong"
SHOWN_BY = {
    "pytorch#106294": ("test_fuzz", "test_any_bytes_leave_the_leader_small_and_real_ranks_join"),
    "nccl#1612": ("test_rendezvous", "test_fifty_resets_and_silent_strangers_hide_no_real_rank"),
    "nccl#1808": ("test_rendezvous", "test_fifty_resets_and_silent_strangers_hide_no_real_rank"),
    "nccl#1871": (HERE, "test_three_bytes_that_stay_hide_none_of_eight_ranks"),
    "pytorch#126510": ("test_what_the_original_got_wrong", "a_port_that_is_taken_is_told_with_its_holder"),
    "pytorch#72816": ("test_what_the_original_got_wrong", "a_port_that_is_taken_is_told_with_its_holder"),
    "vllm#43206": (HERE, "test_twenty_leaders_at_once_never_share_a_port"),
    "vllm#45960": (HERE, "test_a_worker_at_the_wrong_leader_is_refused_with_both_runs"),
    "pytorch#15592": (HERE, "test_a_name_that_leads_others_to_themselves_is_caught"),
    "pytorch#150532": (HERE, "test_a_name_that_nobody_knows_is_told_soon"),
    "pytorch#73656": (HERE, "test_a_leader_is_who_has_rank_0_whatever_its_address"),
    "sglang#7478": (HERE, "test_a_leader_is_who_has_rank_0_whatever_its_address"),
    "sglang#3226": (HERE, "test_each_way_not_to_be_reached_has_its_own_words"),
    "pytorch#10268": (HERE, "test_more_ranks_than_the_backlog_holds_join"),
    "pytorch#124982": ("test_rendezvous", "test_messages_grow_linearly_with_the_world"),
    "ompi#607": (HERE, "test_256_ranks_assemble"),
    "yolov5#4574": (HERE, "test_of_four_workers_for_one_seat_three_are_refused_at_once"),
    "megatron#782": ("test_rendezvous", "test_a_missed_deadline_names_every_missing_rank_to_everyone"),
    "pytorch#82160": ("test_emitted", "test_the_file_runs_alone_and_each_run_has_an_id_of_its_own"),
    "ray#34763": (HERE, "test_old_workers_do_not_join_the_next_leader_on_the_port"),
    "kuberay#1141": ("test_rendezvous", "test_the_death_of_the_leader_is_noticed_by_every_worker"),
    "sglang#3099": ("broken", "Deaf"),
    "sglang#20287": ("broken", "third_never_starts"),
    "vllm#23985": ("broken", "Deaf"),
    "elastic#134": ("test_rendezvous", "test_a_frozen_worker_is_noticed_within_three_heartbeats"),
    "pytorch#123678": ("test_rendezvous", "test_a_surplus_worker_is_refused_after_go"),
    "pytorch#88000": (HERE, "test_the_one_deadline_holds_in_every_phase"),
    "ray#23611": (HERE, "test_each_way_not_to_be_reached_has_its_own_words"),
    "capbk#158": ("test_scenarios", "test_an_identity_that_does_not_hold_fails_every_scenario_and_says_why"),
    "vllm#7815": ("test_across_networks", "test_a_rank_dials_from_no_other_address_than_its_nodes_own"),
    "ompi#6377": (
        "test_across_networks",
        "test_networks_of_containers_with_one_subnet_on_both_nodes_are_in_nobodys_way",
    ),
    "gpustack#2125": ("test_across_networks", "test_a_rank_that_nobody_answers_names_both_addresses"),
    "nccl#290": (HERE, "test_a_small_dev_shm_is_told_from_a_real_mount"),
    "nccl#2079": ("test_checks_gpu", "test_what_stands_between_two_gpus_is_told"),
    "nccl#1957": (
        "test_across_networks",
        "test_a_smaller_mtu_at_one_end_is_told_although_the_ranks_meet",
    ),
    "sglang#31229": ("test_checks_gpu", "test_a_wedged_nvidia_smi_cannot_be_judged_and_holds_nobody"),
    "lws#820": (
        "test_patience",
        "test_what_is_always_late_is_tried_three_times_and_then_fails_with_what_was_found",
    ),
    "goss#131": (HERE, "test_a_run_of_nothing_is_no_pass"),
    "nvsentinel#1370": ("test_artefact", "test_what_the_login_shell_inherited_does_not_reach_the_probe"),
    "silent listener": (
        "test_rendezvous",
        "test_a_leader_that_says_nothing_holds_no_worker_past_its_deadline",
    ),
}


@pytest.mark.parametrize("report", SHOWN_BY)
def test_each_report_has_its_check(report: str) -> None:
    file, name = SHOWN_BY[report]
    text = Path(__file__).with_name(f"{file}.py").read_text()

    assert f"def {name}(" in text or f"class {name}(" in text


def test_three_bytes_that_stay_hide_none_of_eight_ranks(good_contexts: Contexts) -> None:
    with table(good_contexts, plan(9)) as made:
        made.knock(wire.MAGIC[:3])
        began = time.monotonic()
        seen = [made.join(rank) for rank in range(1, 9)]
        made.until(lambda: all(each.gone for each in seen))
        took = time.monotonic() - began

    assert all(each.gone for each in seen)
    assert took < made.plan.hello_timeout_s


def test_twenty_leaders_at_once_never_share_a_port(good_contexts: Contexts) -> None:
    tables = [Table(good_contexts, plan(2, run_id=bytes([number]) * 16)) for number in range(20)]
    try:
        for made in tables:
            seen = made.join(1)
            made.until(lambda seen=seen: seen.gone)
            assert seen.gone
        ports = {made.address.port for made in tables}
    finally:
        for made in tables:
            made.close()

    assert len(ports) == 20


def test_a_worker_at_the_wrong_leader_is_refused_with_both_runs(good_contexts: Contexts) -> None:
    theirs = b"\x77" * 16
    with table(good_contexts, plan(2)) as made:
        seen = made.join(1, run_id=theirs)
        made.until(lambda: seen.outcome is not None)

    assert seen.outcome is not None
    assert theirs.hex() in seen.outcome.text
    assert made.plan.run_id.hex() in seen.outcome.text


def answers(*hosts: str) -> Any:
    def lookup(_name: str, port: int, **_: Any) -> list[Any]:
        return [(0, 0, 0, "", (host, port)) for host in hosts]

    return lookup


@pytest.mark.parametrize("host", ["127.0.1.1", "127.0.0.1", "::1"])
def test_a_name_that_leads_others_to_themselves_is_caught(host: str) -> None:
    with pytest.raises(NameFault, match="every other node would dial itself"):
        addresses("gpu-01", 1, elsewhere=True, lookup=answers("10.0.0.5", host))

    assert addresses("gpu-01", 1, elsewhere=False, lookup=answers(host)) == [Address(host, 1)]
    assert host_check(name="gpu-01", lookup=answers(host))["verdict"] == "info"
    assert host_check(name="gpu-01", lookup=answers("10.0.0.5"))["verdict"] == "pass"


def test_a_name_that_nobody_knows_is_told_soon() -> None:
    asked: list[str] = []

    def nobody(name: str, _port: int, **_: Any) -> list[Any]:
        asked.append(name)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(UnknownName, match="asked 3 times"):
        addresses("gpu-99.invalid", 1, elsewhere=True, lookup=nobody)
    assert asked == ["gpu-99.invalid"] * 3


def test_a_resolver_that_hangs_holds_nobody() -> None:
    def hangs(*_: Any, **__: Any) -> list[Any]:
        time.sleep(120)
        return []

    began = time.monotonic()
    found = host_check(name="gpu-01", lookup=hangs)

    assert found["verdict"] == "unknown"
    assert time.monotonic() - began < 100


def meet(listener: socket.socket, both: Contexts) -> tuple[Seen, Seen]:
    """A leader on this listener and one worker; what each was told."""
    loop, led, seen = Loop(), Seen(), Seen()
    host, port = listener.getsockname()[:2]
    hooks: list[dict[str, Any]] = [
        {"on_event": each.events.append, "on_go": each.go, "on_over": each.over} for each in (led, seen)
    ]
    leader = Leader(loop, listener, both.server, plan(2), **hooks[0])
    member = Member(loop, Address(host, port), both.client, plan(2), 1, **hooks[1])
    loop.run(lambda: led.gone and seen.gone, PATIENCE_S)
    member.close()
    leader.close()
    loop.close_all()
    return led, seen


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1"])
def test_a_leader_is_who_has_rank_0_whatever_its_address(good_contexts: Contexts, host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        need(condition=False, what="an IPv6 loopback", how="sysctl net.ipv6.conf.lo.disable_ipv6=0")
        raise
    led, seen = meet(listener, good_contexts)

    assert (led.gone, seen.gone) == (True, True)


def alone(address: Address, both: Contexts, **other: Any) -> str:
    """One worker that dials there until its end, by default that of its first try; why it ended."""
    loop, seen = Loop(), Seen()
    hooks: dict[str, Any] = {"on_event": seen.events.append, "on_go": seen.go, "on_over": seen.over}
    member = Member(loop, address, both.client, plan(2, **{"hello_timeout_s": 0.2, **other}), 1, **hooks)
    if "deadline_s" not in other:
        loop.run(lambda: bool(seen.events or seen.outcome), PATIENCE_S / 2)
        set_ahead(loop, PATIENCE_S)
    loop.run(lambda: seen.outcome is not None, 2 * PATIENCE_S)
    member.close()
    loop.close_all()
    assert seen.outcome is not None
    return f"{seen.outcome.cause.name} {seen.outcome.text}"


def test_each_way_not_to_be_reached_has_its_own_words(good_contexts: Contexts) -> None:
    texts = {}
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        texts["refused"] = alone(Address(*closed.getsockname()), good_contexts)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        held = [socket.socket() for _ in range(4)]
        for each in held:
            each.settimeout(0)
            each.connect_ex(full.getsockname())
        texts["dropped"] = alone(Address(*full.getsockname()), good_contexts)
        for each in held:
            each.close()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        texts["silent"] = alone(Address(*silent.getsockname()), good_contexts)

    assert texts["refused"].startswith("DEADLINE")
    assert "connection refused" in texts["refused"]
    assert "did not answer within 0.2 s" in texts["dropped"]
    assert "accepted the connection and said nothing" in texts["silent"]
    assert all("127.0.0.1:" in text for text in texts.values())


def test_no_route_is_told_as_such(good: Identity) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from tests.verify.test_what_others_got_wrong import alone\n"
        "from verify.probe.member import Address\n"
        "from verify.probe.tls import Identity, contexts\n"
        f"print(alone(Address('192.0.2.1', 9), contexts(Identity(*{tuple(good)!r}))))"
    )
    done = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    need(
        done.returncode == 0 or "unshare" not in done.stderr, "user namespaces", "kernel.unprivileged_userns"
    )

    assert "network is unreachable" in done.stdout


def test_more_ranks_than_the_backlog_holds_join(good_contexts: Contexts) -> None:
    loop, led = Loop(), Seen()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1)
    hooks: dict[str, Any] = {"on_event": led.events.append, "on_go": led.go, "on_over": led.over}
    the_plan = plan(17, hello_timeout_s=0.3)
    address, seen = Address(*listener.getsockname()), [Seen() for _ in range(16)]
    members = [
        Member(
            loop,
            address,
            good_contexts.client,
            the_plan,
            rank,
            on_event=each.events.append,
            on_go=each.go,
            on_over=each.over,
        )
        for rank, each in enumerate(seen, start=1)
    ]
    loop.run(lambda: False, 0.1)  # nobody accepts yet
    leader = Leader(loop, listener, good_contexts.server, the_plan, **hooks)
    loop.run(lambda: all(each.gone for each in seen), PATIENCE_S)
    for member in members:
        member.close()
    leader.close()
    loop.close_all()

    assert all(each.gone for each in seen)


def test_256_ranks_assemble(good: Identity) -> None:
    (result,) = probe(good, "assemble", ranks=256, deadline_s=120.0).scenarios

    assert result.ok, result.detail


def test_of_four_workers_for_one_seat_three_are_refused_at_once(good_contexts: Contexts) -> None:
    with table(good_contexts, plan(2)) as made:
        began = time.monotonic()
        seen = [made.join(1) for _ in range(4)]
        made.until(lambda: sum(each.outcome is not None for each in seen) == 3 and made.led.gone)
        took = time.monotonic() - began
        causes = [each.outcome.cause for each in seen if each.outcome]

    assert causes == [Cause.REFUSED] * 3
    assert made.led.gone
    assert took < made.plan.hello_timeout_s


def test_old_workers_do_not_join_the_next_leader_on_the_port(good_contexts: Contexts) -> None:
    with table(good_contexts, plan(3)) as old:
        seen = old.join(1)
        old.until(lambda: bool(seen.events))
        again = old.listener.dup()  # nobody else may get the port in between
        old.leader.close()
        old.until(lambda: seen.outcome is not None)
        loop, led = Loop(), Seen()
        hooks: dict[str, Any] = {"on_event": led.events.append, "on_go": led.go, "on_over": led.over}
        leader = Leader(loop, again, good_contexts.server, plan(2, run_id=b"\x01" * 16), **hooks)
        for _ in range(20):
            old.rest(0.01)
            loop.run(lambda: False, 0.01)
        leader.close()
        loop.close_all()

    assert seen.outcome is not None
    assert seen.outcome.cause == Cause.LEADER_LOST
    assert not led.gone
    assert led.events == []


@pytest.mark.parametrize("stalled", ["nobody listens", "nobody accepts", "nobody else joins"])
def test_the_one_deadline_holds_in_every_phase(good_contexts: Contexts, stalled: str) -> None:
    began, slow_s = time.monotonic(), PATIENCE_S
    if stalled == "nobody else joins":
        with table(good_contexts, plan(3, deadline_s=0.5)) as made:
            seen = made.join(1)
            made.until(lambda: seen.outcome is not None)
        assert seen.outcome is not None
        text = f"{seen.outcome.cause.name} {seen.outcome.text}"
    else:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            if stalled == "nobody accepts":
                sock.listen()
            facts = {"deadline_s": 0.5, "hello_timeout_s": slow_s}
            text = alone(Address(*sock.getsockname()), good_contexts, **facts)

    assert text.startswith("DEADLINE")
    assert 0.45 < time.monotonic() - began < slow_s


def test_a_run_of_nothing_is_no_pass(good: Identity) -> None:
    from verify.local import LocalExec
    from verify.runner import Order, run_probe

    from .probing import order

    asked: Order = order(good, "assemble")
    with pytest.raises(Exception, match=r"contradicts|asked were"):
        run_probe(LocalExec(), Order(**{**{f: getattr(asked, f) for f in asked.__slots__}, "scenarios": ()}))


def test_a_small_dev_shm_is_told_from_a_real_mount() -> None:
    need_root()
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from verify.probe.machine import Machine\n"
        "from verify.probe.machinecheck import checks\n"
        "(told,) = [each for each in checks({}, {}, Machine(), skew_s=None) if each['name'] == 'shared-memory']\n"
        "print(told['verdict'], told['found'], told['next'], sep='|')"
    )
    told = {}
    for size in ("16m", "2g"):
        mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told[size] = done.stdout.strip()

    assert told["16m"].startswith("warning|16 MiB|mount -o remount,size=")
    assert told["2g"] == "pass|2048 MiB|None"
