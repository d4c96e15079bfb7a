"""The report of single nodes as one HTML file, each node below the other."""

from collections.abc import Iterable, Sequence

from verify.events import Check, ScenarioResult
from verify.report import NodeReport, again
from verify.report_page import facts, marked, ms, table, text, whole
from verify.report_phases import phase_rows
from verify.report_svg import time_line


def page(reports: Sequence[NodeReport]) -> bytes:
    """The whole page, each node below the other."""
    passed = sum(report.ok for report in reports)
    title = (
        f"verify-node: {reports[0].name} {reports[0].outcome}"
        if len(reports) == 1
        else f"verify-node: {passed} of {len(reports)} nodes passed"
    )
    body = [_overview(reports)] if len(reports) > 1 else []
    for number, report in enumerate(reports):
        body += _node(report, number)
    return whole(title, body)


def _overview(reports: Sequence[NodeReport]) -> str:
    rows = [
        (
            marked(report.outcome),
            f'<a href="#node-{number}">{text(report.name)}</a>',
            text(report.state or "-"),
            text(report.verdict),
        )
        for number, report in enumerate(reports)
    ]
    return table(("Outcome", "Node", "State", "Verdict"), rows)


def _node(report: NodeReport, number: int) -> Iterable[str]:
    kind = report.outcome.replace(" ", "-")
    yield f'<section id="node-{number}"><h2>{text(report.name)}</h2>'
    yield f'<div class="verdict {kind}">{marked(report.outcome)}<p>{text(report.verdict)}</p>'
    if report.error is not None:
        yield facts((("Why", report.error.why), ("Next", report.error.next_step)))
    findings = report.findings
    if findings is None:
        yield "</div><p>Nothing was run, so there is nothing else to tell.</p></section>"
        return
    yield f"<p><strong>Not checked:</strong> {text(', '.join(findings.not_checked) or 'nothing')}</p></div>"
    identity = findings.identity
    yield facts(
        (
            ("Run", report.run_id),
            ("At", f"{identity.node_clock} (the node's clock)"),
            ("Identity", identity.spiffe_id or "none that holds"),
            ("Serial", identity.serial or "-"),
            ("Valid until", identity.not_after or "-"),
            ("Ranks", str(report.ranks)),
            ("Run as", f"{findings.probe.user}, Python {findings.probe.python}, {findings.probe.openssl}"),
            ("Probe", f"sha256 {findings.probe_sha256}"),
            ("State", report.state or "not on record here"),
        )
    )
    yield "<h3>Phases</h3>"
    yield table(
        ("Phase", "ms", "p50 of ranks", "p99 of ranks", "When"),
        [
            (text(row.name), ms(row.ms), ms(row.p50_ms), ms(row.p99_ms), text(row.meaning))
            for row in phase_rows(findings)
        ],
        numbers=(1, 2, 3),
    )
    if findings.ranks:
        yield f'<h3>Time line of every rank</h3><div class="scroll">{time_line(findings.ranks)}</div>'
    yield f"<h3>Checks</h3>{_checks(findings.checks)}"
    yield f"<h3>Scenarios</h3>{_scenarios(report, findings.scenarios)}</section>"


def _checks(checks: Sequence[Check]) -> str:
    rows = [
        (
            marked(check.verdict),
            text(check.name),
            text(check.expected),
            text(check.found),
            text(check.why or ""),
            f"<code>{text(check.next)}</code>" if check.next else "",
        )
        for check in checks
    ]
    return table(("Verdict", "Check", "Expected", "Found", "Why it matters", "Next"), rows)


def _scenarios(report: NodeReport, results: Sequence[ScenarioResult]) -> str:
    rows = [
        (
            marked("ok" if result.ok else "FAILED"),
            text(result.name),
            text(f"{result.kind}: must {'succeed' if result.kind == 'positive' else 'fail'}"),
            f"{result.seconds:.2f}",
            text(result.expected),
            text(result.detail),
            "" if result.ok else f"<code>{text(again(report, result.name))}</code>",
        )
        for result in results
    ]
    return table(("Verdict", "Scenario", "Kind", "Seconds", "Expected", "Found", "Next"), rows, numbers=(3,))
