"""The record against what else knows of a node: what a checker is, what it finds, and how all of them are run.

A checker only reads. The ground floor has one of its own (`checking_record`); each upper floor offers its own by an
entry point of the group `muster.checks`, whose name is the source that the record is compared with.
"""

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from inventory.console import Console
from inventory.errors import BadInput, ExitCode, MusterError, worst
from inventory.jump import Jump
from inventory.model import Event, Node

GROUP = "muster.checks"
"""The group of entry points; each names a class that is made without arguments and is a `Checker`."""


class Severity(StrEnum):
    """Whether two that should agree do not, or one of them only ought to be seen to in time."""

    WRONG = "wrong"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One thing that does not agree, or has come to its time.

    node: its name; of a machine that the record does not know, the name that the other side has for it.
    about: which kind it is. mend: what to type, or where typing does not help, what to do.
    """

    node: str
    about: str
    severity: Severity
    found: str
    recorded: str
    mend: str
    source: str

    def to_json(self) -> dict[str, Any]:
        """As --json shows it."""
        return {
            "node": self.node,
            "about": self.about,
            "severity": str(self.severity),
            "found": self.found,
            "recorded": self.recorded,
            "mend": self.mend,
            "source": self.source,
        }


@dataclass(frozen=True, slots=True)
class NotChecked:
    """What could not be looked at: a whole source, or one node of it.

    how: what makes it possible. exit_code: what it costs the run; `DONE` where nobody asked for it.
    """

    source: str
    why: str
    how: str
    node: str | None = None
    exit_code: ExitCode = ExitCode.DONE

    @classmethod
    def of(cls, error: MusterError, source: str, node: str | None = None) -> "NotChecked":
        """What a foreseen failure leaves unchecked."""
        return cls(source, f"{error.what}: {error.why}", error.next_step, node, error.exit_code)

    def to_json(self) -> dict[str, Any]:
        """As --json shows it."""
        return {
            "source": self.source,
            "node": self.node,
            "why": self.why,
            "how": self.how,
            "exit_code": int(self.exit_code),
        }


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of disagreement; the table in docs/inventory-check.md has a row for each.

    meaning: what it is, for that table. mend: a text for `str.format`, with {node} and what `of` is given.
    """

    source: str
    about: str
    severity: Severity
    meaning: str
    mend: str

    def of(self, node: str, *, found: object, recorded: object, **facts: object) -> Disagreement:
        """One of this kind. What others say of a machine is quoted for the shell: a mend is pasted there."""
        quoted = {key: shlex.quote(str(value)) for key, value in facts.items()}
        mend = self.mend.format(node=shlex.quote(node), **quoted)
        return Disagreement(
            node, self.about, self.severity, str(found), str(recorded), mend, source=self.source
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run was asked for, and the record to compare with; nothing in here can write.

    nodes: those that were asked for. everyone: all on record. Both give a new reading, by name, at each call.
    held: whether a run that is not over acts on a node.
    names: None where no node was named. site, ca_dir, ssh_key, jump: where the others are, as far as it was said.
    """

    nodes: Callable[[], Iterator[Node]]
    everyone: Callable[[], Iterator[Node]]
    history: Callable[[str], Sequence[Event]]
    held: Callable[[str], bool]
    now: datetime
    console: Console
    names: frozenset[str] | None = None
    site: Path | None = None
    ca_dir: Path | None = None
    ssh_key: Path | None = None
    jump: Jump | None = None

    def concerns(self, name: str) -> bool:
        """Whether this name was asked for, be it on record or not."""
        return self.names is None or name in self.names


class Checker(Protocol):
    """One source that the record is compared with; it writes nowhere."""

    @property
    def source(self) -> str:
        """Its name, which is its entry point's."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """All that it can find."""

    def was_asked(self, asked: Asked) -> bool:
        """Whether what was said (a file, a folder, a key) asks for this source, so that its absence counts."""

    def check(self, asked: Asked) -> Iterable[Disagreement | NotChecked]:
        """What does not agree. Raises MusterError where the source cannot be looked at."""


@dataclass(slots=True)
class Outcome:
    """What a run found. checked: the sources that were looked at. bug: what a checker of ours failed with."""

    checked: list[str] = field(default_factory=list)
    disagreements: list[Disagreement] = field(default_factory=list)
    not_checked: list[NotChecked] = field(default_factory=list)
    bug: Exception | None = None

    @property
    def exit_code(self) -> ExitCode:
        """Refused where something is wrong; else, and before it, what kept a source from being looked at."""
        wrong = any(each.severity is Severity.WRONG for each in self.disagreements)
        codes = [each.exit_code for each in self.not_checked]
        return worst([ExitCode.REFUSED, *codes] if wrong else codes)

    def to_json(self) -> dict[str, Any]:
        """As --json shows it."""
        return {
            "ok": self.exit_code is ExitCode.DONE,
            "checked": list(self.checked),
            "disagreements": [each.to_json() for each in self.disagreements],
            "not_checked": [each.to_json() for each in self.not_checked],
        }


@dataclass(frozen=True, slots=True)
class Offer:
    """A source by its name, and what makes its checker."""

    source: str
    load: Callable[[], Any]

    def checker(self) -> Checker:
        """The checker.

        Raises:
            MusterError: what it is made of is not installed.
        """
        try:
            made: Checker = self.load()()
        except ImportError as error:
            raise BadInput(
                "its checker cannot be loaded",
                why=f"{error.name or error} is not installed",
                next_step="uv tool install 'passmuster[provision,onboard]'",
            ) from error
        return made


def discover() -> tuple[Offer, ...]:
    """The sources that are offered here: the record itself, then those of the upper floors, by name."""
    from importlib.metadata import entry_points  # takes its time, and only this needs it

    def own() -> Any:  # noqa: ANN401 - as an entry point's load
        from inventory.checking_record import RecordChecker

        return RecordChecker

    found = {point.name: point for point in entry_points(group=GROUP)}
    return (Offer("record", own), *(Offer(name, found[name].load) for name in sorted(found)))


def chosen(offers: Sequence[Offer], only: Collection[str]) -> tuple[Offer, ...]:
    """The sources of `only`, or all of them where it is empty.

    Raises:
        BadInput: one of them is offered by nobody.
    """
    known = [offer.source for offer in offers]
    if strange := [source for source in dict.fromkeys(only) if source not in known]:
        raise BadInput(
            "nothing was checked",
            why=f"no source is called {', '.join(strange)}; there are {', '.join(known)}",
            next_step=f"node-inventory check --only {known[0]}",
        )
    return tuple(offer for offer in offers if not only or offer.source in only)


def run_checks(offers: Iterable[Offer], asked: Asked, *, only: Collection[str] = ()) -> Outcome:
    """Compare with each source; one that cannot be looked at is told as such, and keeps none of the others."""
    outcome = Outcome()
    for offer in offers:
        wanted = offer.source in only
        try:
            checker = offer.checker()
            wanted = wanted or checker.was_asked(asked)
            for each in checker.check(asked):
                if isinstance(each, Disagreement):
                    outcome.disagreements.append(each)
                else:
                    outcome.not_checked.append(each)
            outcome.checked.append(offer.source)
        except MusterError as error:
            outcome.not_checked.append(_untold(error, offer.source, wanted=wanted))
        except Exception as error:  # noqa: BLE001 - what the others found is told before it
            outcome.bug = outcome.bug or error
            why = f"its checker failed with {type(error).__name__}"
            outcome.not_checked.append(
                NotChecked(offer.source, why, "report it, as the last line says", exit_code=ExitCode.BUG)
            )
    outcome.disagreements.sort(key=lambda each: (each.node, each.source))
    return outcome


def _untold(error: MusterError, source: str, *, wanted: bool) -> NotChecked:
    """A source that nobody asked for and that is not to be had here costs nothing; all else does."""
    left = NotChecked.of(error, source)
    if wanted or not isinstance(error, BadInput):
        return left
    return NotChecked(left.source, left.why, left.how)
