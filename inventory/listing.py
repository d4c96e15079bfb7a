"""Which nodes of the record a person asks for: names, states, whose move it is, whose certificate ends soon."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

from inventory.errors import BadInput
from inventory.lifecycle import whose_move, whose_turn
from inventory.model import State, Summary
from inventory.nodeset import expand
from inventory.span import parse_span
from inventory.store import Store


def chosen(
    store: Store,
    names: Sequence[str] | None,
    *,
    states: Collection[State] | None,
    turn: str | None,
    expiring: str | None,
    now: datetime,
) -> Iterator[Summary]:
    """The nodes that every condition holds for, by name; a name that is not on record is left out.

    Raises:
        BadInput: a name or a span of time is not understood.
    """
    try:
        by = None if expiring is None else now + parse_span(expiring)
    except ValueError as error:
        raise _bad(str(error)) from None
    wanted = states or None
    if turn is not None:
        wanted = [state for state in wanted or State if _may_be(state, turn)]
    found = store.summaries(states=wanted, names=names_of(names), ends_by=by)
    return (node for node in found if turn is None or whose_turn(node) == turn)


def _may_be(state: State, turn: str) -> bool:
    """Whether it may be their turn in this state; what awaits its identity may be either's, and the node tells."""
    return whose_move(state) == turn or (state is State.AWAITING_IDENTITY and turn == "infra")


def names_of(texts: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names of node sets; None where there are none, which means all.

    Raises:
        BadInput: one is not understood.
    """
    if not texts:
        return None
    try:
        return tuple(expand(texts))
    except ValueError as error:
        raise _bad(str(error)) from None


def _bad(why: str) -> BadInput:
    return BadInput("nothing was listed", why=why, next_step="see node-inventory list --help")
