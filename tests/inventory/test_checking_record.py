"""The record against itself: each kind of disagreement is found where it is, and only there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest

from inventory.checking_record import ENDS_SOON, LASTS, RecordChecker
from inventory.lifecycle import next_command
from inventory.model import Address, Event, Fabric, HostKey, Node, State
from tests.inventory.check_kit import against_itself, as_text, asked, node
from tests.inventory.kit import NOW, receipt, ticket

OTHER_KEY = HostKey("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
OTHER_UUID = "0e1a2b3c-0000-4000-8000-0000000000ff"


@dataclass(frozen=True)
class Case:
    """A record with one thing wrong, and the same with it set right."""

    wrong: Sequence[Node]
    right: Sequence[Node]
    history: Mapping[str, Sequence[Event]] = field(default_factory=dict)


def event(state: State, at: datetime, *, before: State | None = None) -> Event:
    return Event(at, "infra", "host", before, state, "a test says so")


def other(**facts: object) -> Node:
    """gpu-02, which shares nothing with gpu-01 but what is given."""
    told = replace(ticket(), node="gpu-02", vm_uuid=OTHER_UUID)
    own: dict[str, object] = {
        "name": "gpu-02",
        "uuid": OTHER_UUID,
        "vmid": 5001,
        "address": Address("127.20.0.6", 24, "static"),
        "host_keys": (OTHER_KEY,),
        "machine_id": "cd" * 16,
        "ticket": as_text(told),
    }
    return node(State.AWAITING_IDENTITY, **{**own, **facts})


def waiting(**facts: object) -> Node:
    return node(State.AWAITING_IDENTITY, **facts)


def serving(**facts: object) -> Node:
    return node(State.IN_SERVICE, **facts)


def receipt_until(until: datetime) -> str:
    return as_text(replace(receipt(), not_after=until))


def stuck(state: State) -> Case:
    past = NOW - LASTS[state] - timedelta(seconds=1)
    return Case([node(state)], [node(State.IN_SERVICE)], {"gpu-01": [event(state, past)]})


def joined_by_hand(**facts: object) -> Node:
    return waiting(**{"ticket": None, "spec_hash": None, "host_keys": (), **facts})


CASES: dict[str, Case] = {
    "not-adopted": Case([joined_by_hand()], [waiting()]),
    "ticket-missing": Case([waiting(ticket=None)], [node(State.PROVISIONING, ticket=None)]),
    "ticket-expired": Case(
        [waiting(ticket=as_text(replace(ticket(), made_at=NOW - timedelta(days=4), expires=NOW)))],
        [waiting(ticket=as_text(replace(ticket(), expires=NOW + timedelta(seconds=1))))],
    ),
    "ticket-unfit": Case([waiting(ticket=as_text(replace(ticket(), vm_uuid=OTHER_UUID)))], [waiting()]),
    "host-keys-missing": Case([waiting(host_keys=())], [waiting()]),
    "vm-missing": Case([waiting(vmid=None)], [node(State.PLANNED, vmid=None)]),
    "receipt-missing": Case([serving(receipt=None)], [node(State.ONBOARDING, receipt=None)]),
    "receipt-unfit": Case([serving(receipt="no receipt")], [serving()]),
    "receipt-not-ended": Case(
        [node(State.AWAITING_RETIREMENT, receipt=as_text(receipt()))], [node(State.AWAITING_RETIREMENT)]
    ),
    **{f"stuck-{state}": stuck(state) for state in LASTS},
    "certificate-ended": Case(
        [serving(receipt=receipt_until(NOW))], [serving(receipt=receipt_until(NOW + timedelta(days=30)))]
    ),
    "certificate-ends-soon": Case(
        [serving(receipt=receipt_until(NOW + ENDS_SOON))],
        [serving(receipt=receipt_until(NOW + ENDS_SOON + timedelta(seconds=1)))],
    ),
    "address-double": Case(
        [waiting(), other(address=waiting().address)], [waiting(), other(address=waiting().address, site="b")]
    ),
    "machine-double": Case([waiting(), other(host_keys=waiting().host_keys)], [waiting(), other()]),
    "vmid-double": Case([waiting(), other(vmid=waiting().vmid)], [waiting(), other()]),
}


@pytest.mark.parametrize("about", CASES)
def test_each_kind_is_found_where_it_is_and_not_where_it_is_not(about: str) -> None:
    case = CASES[about]

    assert {kind for _, kind in against_itself(*case.wrong, history=case.history)} == {about}
    assert against_itself(*case.right, history=case.history) == []


def test_every_kind_has_its_case() -> None:
    assert [kind.about for kind in RecordChecker.kinds] == list(CASES)


@pytest.mark.parametrize("state", State)
def test_a_node_with_what_its_state_must_have_is_sound(state: State) -> None:
    assert against_itself(node(state), history={"gpu-01": [event(state, NOW)]}) == []


def test_what_two_nodes_share_is_told_of_both() -> None:
    nodes = waiting(), other(address=waiting().address)

    assert against_itself(*nodes) == [("gpu-01", "address-double"), ("gpu-02", "address-double")]


@pytest.mark.parametrize(
    "share",
    [
        lambda: (waiting(), other(machine_id=waiting().machine_id)),
        lambda: (waiting(fabrics=(Fabric("f", address="127.20.0.6/24"),)), other()),
    ],
    ids=["machine-id", "fabric"],
)
def test_a_machine_id_and_the_address_of_a_fabric_count_as_well(
    share: Callable[[], tuple[Node, Node]],
) -> None:
    assert len(against_itself(*share())) == 2


def test_a_retired_node_shares_nothing_any_more() -> None:
    assert against_itself(node(State.RETIRED), other(address=waiting().address, vmid=5000)) == []


def test_of_two_that_share_only_the_one_that_was_asked_for_is_told() -> None:
    nodes = waiting(), other(vmid=5000)

    assert against_itself(*nodes, names=frozenset({"gpu-02"})) == [("gpu-02", "vmid-double")]


def test_a_node_that_a_run_is_at_work_on_is_not_stuck() -> None:
    case = CASES["stuck-verifying"]

    assert against_itself(*case.wrong, history=case.history, held=frozenset({"gpu-01"})) == []


@pytest.mark.parametrize("state", LASTS)
def test_a_node_may_be_on_the_move_for_its_time(state: State) -> None:
    since = event(state, NOW - LASTS[state])

    assert against_itself(node(state), history={"gpu-01": [since]}) == []


def test_a_later_event_in_the_same_state_does_not_make_a_stuck_node_young() -> None:
    state, limit = State.VERIFYING, NOW - LASTS[State.VERIFYING]
    events = [
        event(State.AWAITING_VERIFICATION, limit - timedelta(hours=9)),
        event(state, limit - timedelta(minutes=1), before=State.AWAITING_VERIFICATION),
        event(state, NOW, before=state),
    ]

    assert against_itself(node(state), history={"gpu-01": events}) == [("gpu-01", "stuck-verifying")]
    assert against_itself(node(state), history={"gpu-01": [events[0], events[2]]}) == []


@pytest.mark.parametrize("state", LASTS)
def test_the_mend_of_a_stuck_node_is_the_command_that_its_state_waits_for(state: State) -> None:
    told = next(iter(RecordChecker().check(asked(stuck(state).wrong, history=stuck(state).history))))

    assert told.to_json()["mend"].partition(";")[0] == as_typed(next_command(node(state)))


def as_typed(command: str | None) -> str:
    """The same command with the name before its options, as a mend has it."""
    words = str(command).split()
    return " ".join([words[0], words[-1], *words[1:-1]])
