"""What became of each step: told as it happens, then as a table and as JSON."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from inventory.console import Console
from inventory.errors import MusterError

Verdict = Literal["passed", "failed", "not run"]


class Failed(Exception):
    """What was expected of a step and not found."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One step. seconds: how long it took. found: what was seen, for people."""

    step: str
    verdict: Verdict
    seconds: float
    found: str


@dataclass
class Outcomes:
    """All steps so far. left: what is still there of what was made. looked: whether that was looked for."""

    console: Console
    done: list[Outcome] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    looked: bool = False

    @property
    def ok(self) -> bool:
        """Whether every step passed."""
        return bool(self.done) and all(outcome.verdict == "passed" for outcome in self.done)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Carry out a step; the list takes what it found. A failure is kept, an interruption goes on.

        Raises:
            KeyboardInterrupt, SystemExit: somebody ended the run within it.
        """
        self.console.say(f"{name} ...")
        found: list[str] = []
        verdict: Verdict = "failed"
        began = time.monotonic()
        try:
            yield found
            verdict = "passed"
        except Failed as failed:
            found.append(str(failed))
        except MusterError as error:
            found.append(f"{error.what}: {error.why}")
        except (KeyboardInterrupt, SystemExit):
            found.append("interrupted")
            raise
        finally:
            outcome = Outcome(name, verdict, time.monotonic() - began, "; ".join(found))
            self.done.append(outcome)
            self.console.say(f"{name}: {verdict} in {outcome.seconds:.1f} s; {outcome.found}")

    def skip(self, name: str) -> None:
        """A step that stands on one that failed."""
        self.done.append(Outcome(name, "not run", 0.0, "a step before it failed"))

    def rows(self) -> list[tuple[str, ...]]:
        """For the table."""
        return [
            (each.step, each.verdict, f"{each.seconds:.1f}", " ".join(each.found.split()))
            for each in self.done
        ]

    def as_json(self) -> dict[str, Any]:
        """For --json, without the schema number."""
        return {
            "steps": [
                {
                    "step": each.step,
                    "verdict": each.verdict,
                    "seconds": round(each.seconds, 3),
                    "found": each.found,
                }
                for each in self.done
            ],
            "left": list(self.left),
            "looked": self.looked,
        }
