"""What every HTML report stands on: one file, no network, no script, readable without colour, on a phone, printed."""

import html
from collections.abc import Iterable, Sequence

from inventory.console import printable
from verify.report_svg import PATTERNS

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


def whole(title: str, body: Iterable[str]) -> bytes:
    """The page around its body, which is markup already."""
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            # the file's own word that it needs nothing and runs nothing
            (
                '<meta http-equiv="Content-Security-Policy"'
                " content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            ),
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{text(title)}</title><style>{_STYLE}</style></head><body>",
            PATTERNS,
            f"<h1>{text(title)}</h1>",
            *body,
            "</body></html>\n",
        ]
    ).encode("utf-8", "xmlcharrefreplace")


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """`rows` are markup already."""
    if not rows:
        return "<p>None.</p>"
    head = "".join(f'<th scope="col">{text(title)}</th>' for title in titles)
    body = []
    for row in rows:
        cells = [
            f'<td data-t="{text(title)}"{_class(at, numbers)}>{cell}</td>'
            for at, (title, cell) in enumerate(zip(titles, row, strict=True))
            if cell or at == 0
        ]
        missing = len(titles) - len(cells)
        body.append(f"<tr>{''.join(cells)}{'<td></td>' * missing}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _class(at: int, numbers: Sequence[int]) -> str:
    """Numbers stand at the right; the first two columns hold short names, which are not broken."""
    return " class=n" if at in numbers else " class=k" if at < 2 else ""


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and what is told of each."""
    return "<dl>" + "".join(f"<dt>{text(key)}</dt><dd>{text(told)}</dd>" for key, told in pairs) + "</dl>"


def marked(verdict: str) -> str:
    """A verdict as a sign and a word, so that it does not rest on its colour."""
    kind = verdict.replace(" ", "-")
    return f'<span class="mark {kind}">{_MARK.get(verdict, "")} {text(verdict)}</span>'


def text(said: str) -> str:
    """Whatever a node says is text here, never markup."""
    return html.escape(printable(said), quote=True)


def ms(value: float | None) -> str:
    """Milliseconds, or that there are none."""
    return "-" if value is None else f"{value:.1f}"
