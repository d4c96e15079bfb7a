"""The life of a node: which state may follow which, whose move it is, and what that person types."""

from typing import Literal

from inventory.errors import Refused
from inventory.model import Node, State, Summary

Party = Literal["infra", "security", "nobody"]

MOVES: dict[State, frozenset[State]] = {
    # A name whose VM was made by hand has nothing left to be made.
    State.PLANNED: frozenset({State.PROVISIONING, State.AWAITING_IDENTITY, State.RETIRING}),
    State.PROVISIONING: frozenset({State.AWAITING_IDENTITY, State.PROVISION_FAILED}),
    # A node that was undone is planned again: nothing of it is left.
    State.PROVISION_FAILED: frozenset({State.PROVISIONING, State.PLANNED, State.RETIRING}),
    State.AWAITING_IDENTITY: frozenset({State.ONBOARDING, State.PROVISIONING, State.RETIRING}),
    # A node that infra retires without the holder's word (--orphan-identity) goes from wherever it stands.
    State.ONBOARDING: frozenset({State.AWAITING_VERIFICATION, State.ONBOARD_FAILED, State.RETIRING}),
    State.ONBOARD_FAILED: frozenset(
        {State.ONBOARDING, State.AWAITING_IDENTITY, State.DECOMMISSIONING, State.RETIRING}
    ),
    State.AWAITING_VERIFICATION: frozenset(
        {State.VERIFYING, State.AWAITING_IDENTITY, State.DECOMMISSIONING, State.RETIRING}
    ),
    State.VERIFYING: frozenset({State.IN_SERVICE, State.VERIFY_FAILED, State.RETIRING}),
    State.VERIFY_FAILED: frozenset(
        {
            State.VERIFYING,
            State.ONBOARDING,
            State.AWAITING_IDENTITY,
            State.DECOMMISSIONING,
            State.RETIRING,
        }
    ),
    State.IN_SERVICE: frozenset(
        {State.VERIFY_FAILED, State.AWAITING_IDENTITY, State.DECOMMISSIONING, State.RETIRING}
    ),
    State.DECOMMISSIONING: frozenset({State.AWAITING_RETIREMENT, State.DECOMMISSION_FAILED, State.RETIRING}),
    State.DECOMMISSION_FAILED: frozenset({State.DECOMMISSIONING, State.RETIRING}),
    State.AWAITING_RETIREMENT: frozenset({State.RETIRING, State.AWAITING_IDENTITY}),
    State.RETIRING: frozenset({State.RETIRED, State.RETIRE_FAILED}),
    State.RETIRE_FAILED: frozenset({State.RETIRING}),
    # Its name may be given to another VM; the history goes on under it.
    State.RETIRED: frozenset({State.PLANNED}),
}

_WHOSE: dict[State, Party] = {
    State.PLANNED: "infra",
    State.PROVISIONING: "infra",
    State.PROVISION_FAILED: "infra",
    State.AWAITING_RETIREMENT: "infra",
    State.RETIRING: "infra",
    State.RETIRE_FAILED: "infra",
    State.IN_SERVICE: "nobody",
    State.RETIRED: "nobody",
}

_NEXT: dict[State, str] = {
    State.PLANNED: "provision-node",
    State.PROVISIONING: "provision-node",
    State.PROVISION_FAILED: "provision-node",
    State.AWAITING_IDENTITY: "onboard-node",
    State.ONBOARDING: "onboard-node",
    State.ONBOARD_FAILED: "onboard-node",
    State.AWAITING_VERIFICATION: "verify-node",
    State.VERIFYING: "verify-node",
    State.VERIFY_FAILED: "verify-node",
    State.DECOMMISSIONING: "onboard-node --decommission",
    State.DECOMMISSION_FAILED: "onboard-node --decommission",
    State.AWAITING_RETIREMENT: "provision-node --retire",
    State.RETIRING: "provision-node --retire",
    State.RETIRE_FAILED: "provision-node --retire",
}


def check_move(name: str, before: State, after: State) -> None:
    """Refuse a move that the life of a node does not have; staying in a state is no move.

    Raises:
        Refused: `after` may not follow `before`.
    """
    if before is after or after in MOVES[before]:
        return
    allowed = ", ".join(sorted(MOVES[before]))
    raise Refused(
        f"{name} cannot become {after}",
        why=f"it is {before}, after which may come: {allowed}",
        next_step=f"node-inventory show {name}",
    )


def anew(node: Node) -> Node:
    """The node without a machine: what is on record of a former one is left to the history."""
    return Node(name=node.name, state=State.PLANNED, version=node.version, profile=node.profile)


def whose_move(state: State) -> Party:
    """Who acts next on a node in this state."""
    return _WHOSE.get(state, "security")


def unadopted(node: Node | Summary) -> bool:
    """Whether it was only told of: its VM was made by hand, and nothing that is on record of it was read from it."""
    if isinstance(node, Summary):
        return node.unadopted
    return only_told(node) and node.state is State.AWAITING_IDENTITY


def only_told(node: Node) -> bool:
    """The same of a node that may be leaving: its VM is none of ours to destroy."""
    return node.uuid is not None and node.spec_hash is None and node.ticket is None


def whose_turn(node: Node | Summary) -> Party:
    """The same by the node: what nobody signed a ticket for is not the holder's yet."""
    return "infra" if unadopted(node) else whose_move(node.state)


def next_command(node: Node | Summary) -> str | None:
    """What that person types; None where nobody needs to act."""
    if unadopted(node):
        return f"provision-node {node.name} --adopt"
    command = _NEXT.get(node.state)
    return None if command is None else f"{command} {node.name}"
