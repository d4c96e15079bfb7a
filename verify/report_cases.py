"""A run as a list of test cases: what JUnit and TAP have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from verify.report import NodeReport, again

Outcome = Literal["passed", "failed", "error", "skipped"]
_OF_VERDICT: dict[str, Outcome] = {
    "pass": "passed",
    "info": "passed",
    "warning": "passed",
    "critical": "failed",
    "unknown": "skipped",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that was asked of a node.

    kind: "verdict", "scenario", "check" or "not checked".
    outcome: "error" is what could not be judged and had to be; "skipped" is what nobody looked at.
    details: names and texts, in order: verdict, expected, found, why, next.
    """

    node: str
    kind: str
    name: str
    outcome: Outcome
    message: str
    seconds: float = 0.0
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Suite:
    """The cases of one run, and the facts that are the same for all of them.

    host: the one machine that it is about; None where there are several.
    facts: names and values, in order.
    """

    name: str
    host: str | None
    seconds: float
    facts: tuple[tuple[str, str], ...]
    cases: tuple[Case, ...]


def suite(report: NodeReport) -> Suite:
    """A single node's run."""
    facts = [("run_id", report.run_id), ("ranks", str(report.ranks))]
    if report.findings:
        facts.append(("probe_sha256", report.findings.probe_sha256))
    seconds = report.findings.seconds if report.findings else 0.0
    return Suite(report.name, report.name, seconds, tuple(facts), cases(report))


def cases(report: NodeReport) -> tuple[Case, ...]:
    """Every case of a node, its verdict first: a run that found nothing still has that one."""
    return (_verdict(report), *_scenarios(report), *_checks(report), *_not_checked(report))


def counts(of: Sequence[Case]) -> dict[Outcome, int]:
    """How many had which outcome."""
    told: dict[Outcome, int] = {"passed": 0, "failed": 0, "error": 0, "skipped": 0}
    for case in of:
        told[case.outcome] += 1
    return told


def _verdict(report: NodeReport) -> Case:
    outcome: Outcome = "error" if report.outcome == "not judged" else report.outcome
    error = report.error
    details = () if error is None else (("found", error.why), ("next", error.next_step))
    seconds = report.findings.seconds if report.findings else 0.0
    return Case(report.name, "verdict", "verdict", outcome, report.verdict, seconds, details)


def _scenarios(report: NodeReport) -> list[Case]:
    if report.findings is None:
        return []
    return [
        Case(
            report.name,
            "scenario",
            result.name,
            "passed" if result.ok else "failed",
            result.detail,
            result.seconds,
            (
                ("kind", result.kind),
                ("expected", result.expected),
                ("found", result.detail),
                *(() if result.ok else (("next", again(report, result.name)),)),
            ),
        )
        for result in report.findings.scenarios
    ]


def _checks(report: NodeReport) -> list[Case]:
    return [
        Case(
            report.name,
            "check",
            check.name,
            "error" if check.verdict == "unknown" and check.essential else _OF_VERDICT[check.verdict],
            f"{check.verdict}: {check.found}",
            0.0,
            tuple(
                (name, text)
                for name, text in (
                    ("verdict", check.verdict),
                    ("expected", check.expected),
                    ("found", check.found),
                    ("why", check.why),
                    ("next", check.next),
                )
                if text
            ),
        )
        for check in (report.findings.checks if report.findings else ())
    ]


def _not_checked(report: NodeReport) -> list[Case]:
    items = report.findings.not_checked if report.findings else ()
    return [Case(report.name, "not checked", item, "skipped", "not checked") for item in items]
