"""What a verification says, to people and to programs; the verdict first, and with it what it does not cover."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inventory.console import SCHEMA, Console
from inventory.errors import BadInput, ExitCode, MusterError
from inventory.files import write_whole
from verify.runner import Findings

_SUFFIX = ".json"
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
    def verdict(self) -> str:
        """The first line of the report."""
        if self.findings is None:
            return f"{self.name}: not verified: {self.error.why if self.error else 'nothing was run'}"
        total = f"run {self.run_id}, {self.findings.seconds:.1f} s"
        if self.error:
            return f"{self.name} did not pass: {_failed(self.findings) or self.error.why} ({total})"
        return f"{self.name} passed: {covered(self.ranks, self.findings)} ({total})"

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values; it grows by addition only."""
        document: dict[str, Any] = {
            "name": self.name,
            "ok": self.ok,
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
                "next": None if result.ok else _again(report, result.name),
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


def show(report: NodeReport, console: Console) -> None:
    """The report for people."""
    console.data(report.verdict)
    if report.findings is None:
        return
    rows = [
        ("ok" if result.ok else "FAILED", result.name, result.kind, f"{result.seconds:.2f}", result.detail)
        for result in report.findings.scenarios
    ]
    console.table(("VERDICT", "SCENARIO", "KIND", "SECONDS", "FOUND"), rows)
    for result in report.findings.scenarios:
        if not result.ok:
            console.data(f"{result.name}: expected: {result.expected}")
            console.data(f"{result.name}: found: {result.detail}")
            console.data(f"{result.name}: next: {_again(report, result.name)}")
    facts = report.findings.identity
    if facts.spiffe_id and facts.not_after:
        console.data(f"identity: {facts.spiffe_id}, valid until {facts.not_after}, key of {facts.key_owner}")
    console.data(f"not checked: {', '.join(report.findings.not_checked)}")
    for note in facts.notes:
        console.warn(f"{report.name}: {note}")


def check_file(file: Path | None) -> None:
    """Refuse a report file that could not be written, before anything is run.

    Raises:
        BadInput: its name asks for another form than JSON.
    """
    if file is not None and file.suffix != _SUFFIX:
        raise BadInput(
            f"the report cannot be written as {file.name}",
            why=f"reports are written as {_SUFFIX} only; other forms (.xml, .html) are still to come",
            next_step=f"--report {file.with_suffix(_SUFFIX)}",
        )


def write(reports: Sequence[NodeReport], file: Path) -> None:
    """Write the document to a file.

    Raises:
        BadInput: the file cannot be written.
    """
    text = json.dumps({"schema": SCHEMA, **document(reports)}, indent=2, ensure_ascii=False)
    try:
        write_whole(file, (text + "\n").encode(), mode=0o644)
    except OSError as error:
        raise BadInput(
            f"the report {file} was not written",
            why=error.strerror or str(error),
            next_step="give another --report",
        ) from error


def _failed(findings: Findings) -> str:
    failed = [result for result in findings.scenarios if not result.ok]
    return ", ".join(result.name for result in failed) + " failed" if failed else ""


def _again(report: NodeReport, scenario: str) -> str:
    return f"{report.command} --scenario {scenario} -v"
