"""The named scenarios: positive ones must succeed, negative ones must fail, and each has its twin."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from inventory.errors import BadInput
from verify.probe.drills import DRILLS

Kind = Literal["positive", "negative"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario as the probe knows it.

    kind: a negative one passes when what it provokes failed as it must.
    twin: a scenario of the other kind, which shows that this one could have ended otherwise.
    expected: what must be seen, in words.
    """

    name: str
    kind: Kind
    twin: str
    expected: str


SCENARIOS = tuple(
    Scenario(drill.name, cast("Kind", drill.kind), drill.twin, drill.expected) for drill in DRILLS
)
NAMES = tuple(scenario.name for scenario in SCENARIOS)


def choose(wanted: Sequence[str]) -> tuple[str, ...]:
    """The scenarios called so, in the order they are run in; all of them when none is named.

    Raises:
        BadInput: there is no such scenario.
    """
    for name in wanted:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1)
            raise BadInput(
                f"there is no scenario {name!r}",
                why=f"the scenarios are {', '.join(NAMES)}",
                next_step=f"did you mean --scenario {near[0]}" if near else "choose one of them",
            )
    return tuple(name for name in NAMES if name in wanted) if wanted else NAMES
