"""A run over several nodes in every form that a single node's has: JSON, HTML, JUnit and TAP."""

import json
from pathlib import Path

from inventory.console import SCHEMA
from verify.across import AcrossReport
from verify.report import keep
from verify.report_cases import Case, Outcome, Suite

_TOGETHER = "together"
_OUTCOMES: dict[bool | None, Outcome] = {True: "passed", False: "failed", None: "error"}


def rendered(done: AcrossReport, form: str) -> bytes:
    """The report in the form of that suffix."""
    # most runs write none of them
    if form == ".html":
        from verify.across_html import page

        return page(done)
    if form == ".xml":
        from verify.report_junit import junit

        return junit([suite(done)])
    if form == ".tap":
        from verify.report_tap import tap

        return tap([suite(done)])
    text = json.dumps({"schema": SCHEMA, **done.document()}, indent=2, ensure_ascii=False)
    return (text + "\n").encode("utf-8", "backslashreplace")


def write(done: AcrossReport, file: Path) -> None:
    """Write the report to a file, in the form that its suffix asks for; raises BadInput."""
    keep(rendered(done, file.suffix), file)


def suite(done: AcrossReport) -> Suite:
    """The run as test cases: its verdict, each node's identity, each pair on each network, each scenario."""
    facts = (
        ("run_id", done.run_id),
        ("ranks", str(done.ranks)),
        ("nodes", " ".join(place.name for place in done.places)),
        ("probe_sha256", str(done.document()["probe_sha256"])),
    )
    cases = (_verdict(done), *_nodes(done), *_networks(done), *_scenarios(done), *_not_checked(done))
    return Suite(f"across {len(done.places)} nodes", None, done.seconds, facts, cases)


def _verdict(done: AcrossReport) -> Case:
    outcome: Outcome = "error" if done.outcome == "not judged" else done.outcome
    details = () if done.error is None else (("found", done.error.why), ("next", done.error.next_step))
    return Case(_TOGETHER, "verdict", "verdict", outcome, done.verdict, done.seconds, details)


def _nodes(done: AcrossReport) -> list[Case]:
    cases = []
    for place in done.places:
        fault = done.fault(place)
        facts = done.identities.get(place.name)
        # a node that showed what it is, and is not what it should be, has failed; of one that is gone nothing is known
        judged = facts is not None and facts.fault is not None
        outcome: Outcome = "passed" if fault is None else "failed" if judged else "error"
        found = fault or place.spiffe_id
        details = (("expected", f"the identity {place.spiffe_id}, to the end of the run"), ("found", found))
        cases.append(Case(place.name, "node", "identity", outcome, found, 0.0, details))
    return cases


def _networks(done: AcrossReport) -> list[Case]:
    return [
        Case(
            _TOGETHER,
            "network",
            f"{row.fabric}: {row.source} to {row.target}",
            "passed" if row.ok else "failed",
            row.why or "full size, there and back",
            0.0,
            (
                ("expected", f"packets of {row.mtu} bytes there and back, in one piece"),
                ("found", row.why or "they came"),
            ),
        )
        for row in done.paths
    ]


def _scenarios(done: AcrossReport) -> list[Case]:
    return [
        Case(
            _TOGETHER,
            "scenario",
            result.name,
            _OUTCOMES[result.ok],
            result.found,
            result.seconds,
            (
                ("kind", result.kind),
                ("expected", result.expected),
                ("found", result.found),
                *(() if result.ok else (("next", done.again(result.name)),)),
            ),
        )
        for result in done.scenarios
    ]


def _not_checked(done: AcrossReport) -> list[Case]:
    return [Case(_TOGETHER, "not checked", item, "skipped", "not checked") for item in done.not_checked]
