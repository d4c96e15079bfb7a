"""What a verification says, to people and to programs; the verdict first, and with it what it does not cover."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from inventory.console import SCHEMA, Console
from inventory.errors import BadInput, ExitCode, MusterError
from inventory.files import write_whole
from verify.events import Check
from verify.report_phases import phase_rows
from verify.runner import Findings

FORMS = (".json", ".xml", ".tap", ".html")
_IDENTITY = ("spiffe_id", "serial", "fingerprint_sha256", "not_before", "not_after", "key_mode", "key_owner")


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node's verification.

    state: where the record has the node afterwards; None where it is not on record here.
    findings: None when nothing could be run.
    error: why it did not pass; None when it did.
    command: what verifies it again.
    """

    name: str
    ranks: int
    run_id: str
    state: str | None
    findings: Findings | None
    error: MusterError | None
    command: str

    @property
    def ok(self) -> bool:
        """Did the node pass everything that was asked?"""
        return self.error is None

    @property
    def exit_code(self) -> ExitCode:
        """The exit code for this node alone."""
        return ExitCode.DONE if self.error is None else self.error.exit_code

    @property
    def outcome(self) -> Literal["passed", "failed", "not judged"]:
        """How it went; "not judged" where nothing can be said of the node."""
        if self.error is None:
            return "passed"
        return "failed" if self.error.exit_code is ExitCode.VERIFICATION else "not judged"

    @property
    def verdict(self) -> str:
        """The first line of the report."""
        if self.findings is None:
            return f"{self.name}: not verified: {self.error.why if self.error else 'nothing was run'}"
        total = f"run {self.run_id}, {self.findings.seconds:.1f} s"
        if self.error and self.outcome == "not judged":
            return f"{self.name} could not be judged: {_first(self.error.why)} ({total})"
        if self.error:
            return f"{self.name} did not pass: {_failed(self.findings) or _first(self.error.why)} ({total})"
        return f"{self.name} passed: {covered(self.ranks, self.findings)} ({total})"

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values; it grows by addition only."""
        document: dict[str, Any] = {
            "name": self.name,
            "ok": self.ok,
            "outcome": self.outcome,
            "exit_code": int(self.exit_code),
            "state": self.state,
            "run_id": self.run_id,
        }
        if self.findings:
            document["seconds"] = self.findings.seconds
            document["probe_sha256"] = self.findings.probe_sha256
            document["identity"] = identity_json(self.findings)
            document["verification"] = verification_json(self)
        if self.error:
            document["error"] = self.error.to_json()
        return document


def critical(findings: Findings) -> tuple[Check, ...]:
    """The checks that fail the node."""
    return tuple(check for check in findings.checks if check.verdict == "critical")


def unjudged(findings: Findings) -> tuple[Check, ...]:
    """The essential checks that have no answer: without them nothing can be said of the node."""
    return tuple(check for check in findings.checks if check.verdict == "unknown" and check.essential)


def covered(ranks: int, findings: Findings) -> str:
    """What was shown and what was not, in one breath."""
    ran = {result.name for result in findings.scenarios}
    shown = (
        f"{ranks} ranks assembled on loopback"
        if "assemble" in ran
        else f"{', '.join(sorted(ran))} on loopback"
    )
    return f"{shown}; {', '.join(findings.not_checked)} not checked"


def identity_json(findings: Findings) -> dict[str, Any]:
    """The identity that the ranks used, as the node showed it."""
    facts = findings.identity.model_dump()
    return {**{key: facts[key] for key in _IDENTITY}, "notes": list(findings.identity.notes)}


def verification_json(report: NodeReport) -> dict[str, Any]:
    """Ranks, scenarios, and what was not checked."""
    findings = report.findings
    if findings is None:
        return {}
    return {
        "ranks": report.ranks,
        "phases": [row.to_json() for row in phase_rows(findings)],
        "time_line": [rank.model_dump() for rank in findings.ranks],
        "checks": [check.model_dump(exclude={"event"}) for check in findings.checks],
        "not_checked": list(findings.not_checked),
        "scenarios": [
            {
                "name": result.name,
                "kind": result.kind,
                "ok": result.ok,
                "seconds": result.seconds,
                "detail": result.detail,
                "expected": result.expected,
                "found": result.detail,
                "next": None if result.ok else again(report, result.name),
            }
            for result in findings.scenarios
        ],
    }


def document(reports: Sequence[NodeReport]) -> dict[str, Any]:
    """The one JSON document of a run; a single node's facts stand at its top as well."""
    whole: dict[str, Any] = {"ok": bool(reports) and all(report.ok for report in reports)}
    if len(reports) == 1:
        (only,) = reports
        whole |= {"node": only.name, "run_id": only.run_id}
        if only.findings:
            whole |= {"seconds": only.findings.seconds, "probe_sha256": only.findings.probe_sha256}
            whole |= verification_json(only)
    return {**whole, "nodes": [report.to_json() for report in reports]}


def again(report: NodeReport, scenario: str) -> str:
    """What runs one scenario once more, and says more of it."""
    return f"{report.command} --scenario {scenario} -v"


def show(report: NodeReport, console: Console) -> None:
    """The report for people."""
    console.data(report.verdict)
    if report.findings is None:
        return
    findings = report.findings
    _show_phases(findings, console)
    _show_checks(findings, console)
    rows = [
        ("ok" if result.ok else "FAILED", result.name, result.kind, f"{result.seconds:.2f}", result.detail)
        for result in findings.scenarios
    ]
    console.table(("VERDICT", "SCENARIO", "KIND", "SECONDS", "FOUND"), rows)
    for result in findings.scenarios:
        if not result.ok:
            console.data(f"{result.name}: expected: {result.expected}")
            console.data(f"{result.name}: found: {result.detail}")
            console.data(f"{result.name}: next: {again(report, result.name)}")
    facts = report.findings.identity
    if facts.spiffe_id and facts.not_after:
        console.data(f"identity: {facts.spiffe_id}, valid until {facts.not_after}, key of {facts.key_owner}")
    console.data(f"not checked: {', '.join(report.findings.not_checked)}")
    for note in facts.notes:
        console.warn(f"{report.name}: {note}")


def check_files(files: Sequence[Path]) -> None:
    """Refuse report files that could not be written, before anything is run.

    Raises:
        BadInput: a name asks for no form that there is, or two are the same file.
    """
    for file in files:
        if file.suffix not in FORMS:
            raise BadInput(
                f"the report cannot be written as {file.name}",
                why=f"the end of its name says in which form, and must be one of {', '.join(FORMS)}",
                next_step=f"--report {file.with_suffix('.html')}",
            )
        if not file.parent.is_dir():
            raise BadInput(
                f"the report {file} cannot be written",
                why=f"there is no folder {file.parent}",
                next_step="make the folder, or give another --report",
            )
    if len(set(files)) < len(files):
        raise BadInput(
            "the reports cannot be written",
            why="one file was named twice",
            next_step="name each --report once",
        )


def rendered(reports: Sequence[NodeReport], form: str) -> bytes:
    """The report in the form of that suffix."""
    # each form imports this module, and most runs write none of them
    if form == ".html":
        from verify.report_html import page

        return page(reports)
    if form == ".xml":
        from verify.report_cases import suite
        from verify.report_junit import junit

        return junit([suite(report) for report in reports])
    if form == ".tap":
        from verify.report_cases import suite
        from verify.report_tap import tap

        return tap([suite(report) for report in reports])
    text = json.dumps({"schema": SCHEMA, **document(reports)}, indent=2, ensure_ascii=False)
    return (text + "\n").encode("utf-8", "backslashreplace")


def write(reports: Sequence[NodeReport], file: Path) -> None:
    """Write the report to a file, in the form that its suffix asks for; raises BadInput."""
    keep(rendered(reports, file.suffix), file)


def keep(text: bytes, file: Path) -> None:
    """Write a report's text to its file, whole or not at all.

    Raises:
        BadInput: the file cannot be written.
    """
    try:
        write_whole(file, text, mode=0o644)
    except OSError as error:
        raise BadInput(
            f"the report {file} was not written",
            why=error.strerror or str(error),
            next_step="give another --report",
        ) from error


def _show_phases(findings: Findings, console: Console) -> None:
    rows = [
        (row.name, _ms(row.ms), _ms(row.p50_ms), _ms(row.p99_ms), row.meaning) for row in phase_rows(findings)
    ]
    if rows:
        console.table(("PHASE", "MS", "P50", "P99", "WHEN"), rows)


def _show_checks(findings: Findings, console: Console) -> None:
    rows = [(check.verdict, check.name, check.found) for check in findings.checks]
    if rows:
        console.table(("VERDICT", "CHECK", "FOUND"), rows)
    for check in findings.checks:
        if check.verdict in ("pass", "info"):
            continue
        for name in ("expected", "found", "why", "next"):
            text = getattr(check, name)
            if text:
                console.data(f"{check.name}: {name}: {text}")


def _failed(findings: Findings) -> str:
    failed = [result for result in findings.scenarios if not result.ok]
    told = [", ".join(result.name for result in failed) + " failed"] if failed else []
    names = [check.name for check in critical(findings)]
    return "; ".join([*told, *([f"critical: {', '.join(names)}"] if names else [])])


def _first(text: str) -> str:
    return text.partition("\n")[0]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
