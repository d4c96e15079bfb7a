"""Which nodes of the record a person asks for: names, states, whose move it is, whose certificate ends soon."""

import difflib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from inventory.errors import BadInput
from inventory.lifecycle import whose_move, whose_turn
from inventory.model import State, Summary
from inventory.nodeset import expand
from inventory.span import parse_span
from inventory.store import Store

STATES = tuple(map(str, State))
TURNS = ("infra", "security", "nobody")
_NAMED = 8


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for; None: everything. ends_by: of those alone whose certificate ends by then."""

    names: tuple[str, ...] | None
    states: tuple[State, ...] | None
    turn: str | None
    ends_by: datetime | None

    @property
    def narrowed(self) -> bool:
        """Whether it is less than all."""
        return any(each is not None for each in (self.names, self.states, self.turn, self.ends_by))


def asked(
    names: Sequence[str] | None,
    *,
    states: Collection[str] | None,
    turn: str | None,
    expiring: str | None,
    now: datetime,
    command: str = "list",
) -> Asked:
    """What was typed, checked. command: the verb whose help tells how it is typed.

    Raises:
        BadInput: names, states, a turn or a span of time are not understood; all of it is told at once.
    """
    faults = [fault for each in states or () if (fault := _fault("state", each, STATES))]
    if turn is not None and (fault := _fault("turn", turn, TURNS)):
        faults.append(fault)
    try:
        ends_by = None if expiring is None else now + parse_span(expiring)
    except ValueError as error:
        faults.append(str(error))
    try:
        wanted = tuple(expand(names)) if names else None
    except ValueError as error:
        faults.append(str(error))
    if faults:
        raise BadInput(
            "no node was chosen", why="\n".join(faults), next_step=f"see node-inventory {command} --help"
        )
    return Asked(wanted, tuple(map(State, states)) if states else None, turn, ends_by)


def chosen(store: Store, which: Asked) -> Iterator[Summary]:
    """The nodes that every condition holds for, by name; a name that is not on record is left out."""
    states: Sequence[State] | None = which.states
    if which.turn is not None:
        states = [state for state in states or tuple(State) if _may_be(state, which.turn)]
    found = store.summaries(states=states, names=which.names, ends_by=which.ends_by)
    return (node for node in found if which.turn is None or whose_turn(node) == which.turn)


def absent(store: Store, names: Sequence[str] | None) -> str:
    """Which names are not on record, in a few words; nothing where all are."""
    if names is None:
        return ""
    known = {each.name for each in store.summaries(names=names)}
    gone = [name for name in names if name not in known]
    more = f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
    return ", ".join(gone[:_NAMED]) + more


def _fault(what: str, told: str, known: Sequence[str]) -> str | None:
    if told in known:
        return None
    near = difflib.get_close_matches(told, known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"there is no {what} {told!a}{hint}; there are {', '.join(known)}"


def _may_be(state: State, turn: str) -> bool:
    """Whether it may be their turn in this state; what awaits its identity may be either's, and the node tells."""
    return whose_move(state) == turn or (state is State.AWAITING_IDENTITY and turn == "infra")
