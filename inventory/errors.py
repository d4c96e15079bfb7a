"""The one error base: what happened, why, what to type next, and which exit code says so.

MusterError
├── BadInput      2   wrong usage, or a faulty file
│   └── BadFile       a file with faults, each with its place
├── Refused       3   a policy or a state forbids it
├── OtherSide     4   the other side refused, or was out of reach
├── NotVerified   5   the verification failed
└── Damaged       6   the authority or the record is damaged
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What a command's exit status means; the same for every command."""

    DONE = 0
    BUG = 1
    USAGE = 2
    REFUSED = 3
    OTHER_SIDE = 4
    VERIFICATION = 5
    DAMAGED = 6
    CHANGES = 10
    INTERRUPTED = 130
    TERMINATED = 143


EXIT_MEANINGS: dict[ExitCode, str] = {
    ExitCode.DONE: "done",
    ExitCode.BUG: "a bug of ours",
    ExitCode.USAGE: "wrong usage or a faulty file",
    ExitCode.REFUSED: "refused by policy or by a state",
    ExitCode.OTHER_SIDE: "the other side refused or was out of reach",
    ExitCode.VERIFICATION: "verification failed",
    ExitCode.DAMAGED: "CA or record damaged",
    ExitCode.CHANGES: "the plan has changes (only with --detailed-exitcode)",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.TERMINATED: "terminated",
}

_WORST_FIRST = (
    ExitCode.BUG,
    ExitCode.DAMAGED,
    ExitCode.OTHER_SIDE,
    ExitCode.REFUSED,
    ExitCode.VERIFICATION,
    ExitCode.USAGE,
    ExitCode.CHANGES,
)


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """The exit code that stands for several nodes: 1, 6, 4, 3, 5, then the rest; 0 only if all are 0."""
    seen = set(codes)
    for code in _WORST_FIRST:
        if code in seen:
            return code
    return max(seen, default=ExitCode.DONE)


class MusterError(Exception):
    """A foreseen failure: what happened, why, and what to type next.

    The three texts are lower case, without a full stop, and name the thing.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.BUG

    def __init__(self, what: str, *, why: str, next_step: str) -> None:
        """Keep the three parts; `str()` joins the first two."""
        super().__init__(f"{what}: {why}")
        self.what = what
        self.why = why
        self.next_step = next_step

    def to_json(self) -> dict[str, str | int]:
        """As --json shows it beside a node that failed."""
        return {"what": self.what, "why": self.why, "next": self.next_step, "exit_code": int(self.exit_code)}


class BadInput(MusterError):
    """Wrong usage, or a value that cannot be what was meant."""

    exit_code = ExitCode.USAGE


class Refused(MusterError):
    """A policy or a state forbids it."""

    exit_code = ExitCode.REFUSED


class OtherSide(MusterError):
    """The other side (Proxmox, a node) refused, or was out of reach."""

    exit_code = ExitCode.OTHER_SIDE


class NotVerified(MusterError):
    """A node did not pass muster."""

    exit_code = ExitCode.VERIFICATION


class Damaged(MusterError):
    """The authority's files or the record contradict themselves."""

    exit_code = ExitCode.DAMAGED


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a file.

    place: `file:line:col`, 1-based, or the file's name alone.
    text: what is wrong there, starting with the key's path where there is one.
    """

    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class BadFile(BadInput):
    """A file with faults; all of them are told at once."""

    def __init__(self, file: str, faults: Iterable[Fault]) -> None:
        """Keep every fault of `file` (at least one)."""
        self.faults = tuple(faults)
        count = len(self.faults)
        super().__init__(
            f"{file} has {count} fault{'' if count == 1 else 's'}",
            why="\n".join(str(fault) for fault in self.faults),
            next_step=f"mend {file} and run the command again; nothing was changed",
        )
