"""A node's road: its events as stays in states, each with how long it lasted."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from inventory.lifecycle import whose_move, whose_turn
from inventory.model import Event, Node, State, Summary

Kind = Literal["service", "infra", "security", "failed", "ended"]
Fill = Kind | Literal["soon", "later"]
"""What a drawing may be filled with; the two are for what has a date."""

_MOVING = frozenset(
    {State.PROVISIONING, State.ONBOARDING, State.VERIFYING, State.DECOMMISSIONING, State.RETIRING}
)
KINDS: dict[Kind, tuple[str, str]] = {
    "service": ("✓", "in service"),
    "infra": ("◆", "infra's move"),
    "security": ("●", "security's move"),
    "failed": ("✗", "failed"),
    "ended": ("○", "retired"),
}
"""Each kind of state: its sign and its words, so that nothing rests on a colour."""


def kind(state: State) -> Kind:
    """How a state is drawn: a failed one as failed, whoever's move it is."""
    if state.endswith("-failed"):
        return "failed"
    if state is State.IN_SERVICE:
        return "service"
    if state is State.RETIRED:
        return "ended"
    return "infra" if whose_move(state) == "infra" else "security"


def stand(node: Node | Summary) -> Kind:
    """How a node is drawn where it stands: one that waits for the holder, but has no ticket, waits for infra."""
    drawn = kind(node.state)
    return "infra" if drawn == "security" and whose_turn(node) == "infra" else drawn


def moving(state: State) -> bool:
    """Is a command at work in this state, or was it when it died?"""
    return state in _MOVING


@dataclass(frozen=True, slots=True)
class Stay:
    """One stay in a state.

    entry: the move that began it. until: None for the present one. notes: what happened in it.
    """

    state: State
    entry: Event
    until: datetime | None
    notes: tuple[Event, ...]

    def lasted(self, now: datetime) -> timedelta:
        """How long it lasted, or has lasted so far; never negative, whatever clocks wrote."""
        return max(timedelta(0), (self.until or now) - self.entry.at)


def stays(events: Iterable[Event]) -> tuple[Stay, ...]:
    """The stays that events (oldest first) tell of."""
    parts: list[tuple[Event, list[Event]]] = []
    for event in events:
        if parts and event.before is event.after:
            parts[-1][1].append(event)
        else:
            parts.append((event, []))
    ends: list[datetime | None] = [entry.at for entry, _ in parts[1:]]
    ends.append(None)
    return tuple(
        Stay(entry.after, entry, end, tuple(notes))
        for (entry, notes), end in zip(parts, ends[: len(parts)], strict=True)
    )
