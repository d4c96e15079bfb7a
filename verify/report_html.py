"""One HTML file that needs nothing else: no network, no script, readable without colour, on a phone, and printed."""

import html
from collections.abc import Iterable, Sequence

from inventory.console import printable
from verify.events import Check, ScenarioResult
from verify.report import NodeReport, again
from verify.report_phases import phase_rows
from verify.report_svg import PATTERNS, time_line

_MARK = {
    "passed": "✓",
    "ok": "✓",
    "pass": "✓",
    "info": "i",
    "warning": "!",
    "failed": "✗",
    "FAILED": "✗",
    "critical": "✗",
    "unknown": "?",
    "not judged": "?",
}
_STYLE = """\
:root{color-scheme:light dark;--line:#8886;--good:#0a7a34;--bad:#b3123a;--warn:#8a5a00;--soft:#8881}
@media(prefers-color-scheme:dark){:root{--good:#4fd183;--bad:#ff7b95;--warn:#f0b64a}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:0 auto;padding:1rem}
h1{font-size:1.4rem;margin:.2rem 0}
h2{font-size:1.3rem;margin:2.5rem 0 .5rem;border-top:2px solid var(--line);padding-top:1rem}
h3{font-size:1.05rem;margin:1.5rem 0 .4rem}
p,td,dd{overflow-wrap:anywhere}td.k{min-width:7rem}dd{white-space:pre-line}
.verdict{border-left:.5rem solid;padding:.5rem 1rem;background:var(--soft);font-size:1.1rem}
.passed,.ok,.pass{color:var(--good)}.failed,.FAILED,.critical{color:var(--bad)}
.warning,.unknown,.not-judged{color:var(--warn)}
.verdict p,.verdict dl{color:CanvasText;margin:.3rem 0}.mark{font-weight:700;white-space:nowrap}
table{border-collapse:collapse;width:100%;margin:.5rem 0}
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid var(--line)}
th{font-weight:600}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;margin:.3rem 0}dt{font-weight:600}dd{margin:0}
.scroll{overflow-x:auto}.scroll svg{width:100%;min-width:38rem;height:auto;display:block}
code{font:.9em ui-monospace,monospace}
@media(max-width:40rem){
table,tbody,tr,td{display:block;width:100%}thead{display:none}tr{border-bottom:2px solid var(--line);padding:.4rem 0}
td{border:0;padding:.1rem 0;text-align:left}td[data-t]::before{content:attr(data-t) ": ";font-weight:600}
.n{text-align:left}dl{grid-template-columns:1fr}}
@media print{body{max-width:none;font-size:10pt;padding:0}tr,.verdict,svg{break-inside:avoid}h2{break-before:auto}}
"""


def page(reports: Sequence[NodeReport]) -> bytes:
    """The whole page, each node below the other."""
    passed = sum(report.ok for report in reports)
    title = (
        f"verify-node: {reports[0].name} {reports[0].outcome}"
        if len(reports) == 1
        else f"verify-node: {passed} of {len(reports)} nodes passed"
    )
    body = [f"<h1>{_text(title)}</h1>"]
    if len(reports) > 1:
        body.append(_overview(reports))
    for number, report in enumerate(reports):
        body += _node(report, number)
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            # the file's own word that it needs nothing and runs nothing
            (
                '<meta http-equiv="Content-Security-Policy"'
                " content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            ),
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>",
            PATTERNS,
            *body,
            "</body></html>\n",
        ]
    ).encode("utf-8", "xmlcharrefreplace")


def _overview(reports: Sequence[NodeReport]) -> str:
    rows = [
        (
            _marked(report.outcome),
            f'<a href="#node-{number}">{_text(report.name)}</a>',
            _text(report.state or "-"),
            _text(report.verdict),
        )
        for number, report in enumerate(reports)
    ]
    return _table(("Outcome", "Node", "State", "Verdict"), rows)


def _node(report: NodeReport, number: int) -> Iterable[str]:
    kind = report.outcome.replace(" ", "-")
    yield f'<section id="node-{number}"><h2>{_text(report.name)}</h2>'
    yield f'<div class="verdict {kind}">{_marked(report.outcome)}<p>{_text(report.verdict)}</p>'
    if report.error is not None:
        yield _facts((("Why", report.error.why), ("Next", report.error.next_step)))
    findings = report.findings
    if findings is None:
        yield "</div><p>Nothing was run, so there is nothing else to tell.</p></section>"
        return
    yield f"<p><strong>Not checked:</strong> {_text(', '.join(findings.not_checked) or 'nothing')}</p></div>"
    facts = findings.identity
    yield _facts(
        (
            ("Run", report.run_id),
            ("At", f"{facts.node_clock} (the node's clock)"),
            ("Identity", facts.spiffe_id or "none that holds"),
            ("Serial", facts.serial or "-"),
            ("Valid until", facts.not_after or "-"),
            ("Ranks", str(report.ranks)),
            ("Run as", f"{findings.probe.user}, Python {findings.probe.python}, {findings.probe.openssl}"),
            ("Probe", f"sha256 {findings.probe_sha256}"),
            ("State", report.state or "not on record here"),
        )
    )
    yield "<h3>Phases</h3>"
    yield _table(
        ("Phase", "ms", "p50 of ranks", "p99 of ranks", "When"),
        [
            (_text(row.name), _ms(row.ms), _ms(row.p50_ms), _ms(row.p99_ms), _text(row.meaning))
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
            _marked(check.verdict),
            _text(check.name),
            _text(check.expected),
            _text(check.found),
            _text(check.why or ""),
            f"<code>{_text(check.next)}</code>" if check.next else "",
        )
        for check in checks
    ]
    return _table(("Verdict", "Check", "Expected", "Found", "Why it matters", "Next"), rows)


def _scenarios(report: NodeReport, results: Sequence[ScenarioResult]) -> str:
    rows = [
        (
            _marked("ok" if result.ok else "FAILED"),
            _text(result.name),
            _text(f"{result.kind}: must {'succeed' if result.kind == 'positive' else 'fail'}"),
            f"{result.seconds:.2f}",
            _text(result.expected),
            _text(result.detail),
            "" if result.ok else f"<code>{_text(again(report, result.name))}</code>",
        )
        for result in results
    ]
    return _table(("Verdict", "Scenario", "Kind", "Seconds", "Expected", "Found", "Next"), rows, numbers=(3,))


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """`rows` are markup already."""
    if not rows:
        return "<p>None.</p>"
    head = "".join(f'<th scope="col">{_text(title)}</th>' for title in titles)
    body = []
    for row in rows:
        cells = [
            f'<td data-t="{_text(title)}"{_class(at, numbers)}>{cell}</td>'
            for at, (title, cell) in enumerate(zip(titles, row, strict=True))
            if cell or at == 0
        ]
        missing = len(titles) - len(cells)
        body.append(f"<tr>{''.join(cells)}{'<td></td>' * missing}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _class(at: int, numbers: Sequence[int]) -> str:
    """Numbers stand at the right; the first two columns hold short names, which are not broken."""
    return " class=n" if at in numbers else " class=k" if at < 2 else ""


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{_text(key)}</dt><dd>{_text(told)}</dd>" for key, told in facts) + "</dl>"


def _marked(verdict: str) -> str:
    """A verdict as a sign and a word, so that it does not rest on its colour."""
    kind = verdict.replace(" ", "-")
    return f'<span class="mark {kind}">{_MARK.get(verdict, "")} {_text(verdict)}</span>'


def _text(text: str) -> str:
    """Whatever a node says is text here, never markup."""
    return html.escape(printable(text), quote=True)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
