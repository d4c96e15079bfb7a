"""Pieces of HTML: whatever comes from outside goes through `text`, and is text then, never markup."""

import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from inventory.console import printable
from inventory.model import Node, State, Summary
from inventory.report.reading import short
from inventory.report.road import KINDS, Kind, kind, stand

_TOGETHER = 24
_ANCHOR = re.compile(r"[a-z0-9-]{1,63}")


def text(told: object) -> str:
    """Anything as text of the page: bounded, without control characters, escaped."""
    return html.escape(printable(short(str(told))), quote=True)


def anchor(name: str) -> str:
    """The id of a node's section; a name that no node could have gets one of its own all the same."""
    if _ANCHOR.fullmatch(name):
        return f"node-{name}"
    return "odd-" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def link(name: str, sections: frozenset[str]) -> str:
    """A node's name, as a link where the page has its section."""
    told, of = text(name), _together(name)
    return f'<a{of} href="#{anchor(name)}">{told}</a>' if name in sections else f"<b{of}>{told}</b>"


def marked(of: Kind, told: str) -> str:
    """A sign and words in the colour of a kind: each alone would do."""
    return signed(of, KINDS[of][0], told)


def signed(of: str, sign: str, told: str) -> str:
    """A sign and words in the colour of a class; short words stay on one line."""
    together = " set" if len(told) <= _TOGETHER else ""
    return f'<span class="mark {of}{together}"><span aria-hidden="true">{sign}</span> {text(told)}</span>'


def outcome(told: str, *, passed: bool) -> str:
    """How a verification went; one that could not judge the node says nothing against it."""
    if told == "not judged" and not passed:
        return signed("warn", "?", told)
    return marked("service" if passed else "failed", told)


def state(of: State) -> str:
    """A state as sign and name."""
    return marked(kind(of), str(of))


def stands(node: Node | Summary) -> str:
    """The state that a node is in, with the sign of whoever's turn it is."""
    return marked(stand(node), str(node.state))


def code(told: str) -> str:
    """What is typed; a command is broken between its words only, not in gpu-07 or --retire."""
    words = short(told).split(" ")
    if len(words) > 1:
        return f"<code>{' '.join(f'<span{_typed(word)}>{text(word)}</span>' for word in words)}</code>"
    return f"<code>{text(told)}</code>" if told else ""


def _together(told: str) -> str:
    """For short words: they stay on one line."""
    return ' class="set"' if len(told) <= _TOGETHER else ""


def _typed(told: str) -> str:
    """An option stays on one line on a phone, too: what is typed from `--` and `retire` is no option."""
    return ' class="option"' if told.startswith("-") and len(told) <= _TOGETHER else _together(told)


def word(told: str) -> str:
    """A name, which is not broken where it is short."""
    return f"<span{_together(told)}>{text(told)}</span>" if told else ""


def when(moment: datetime | None, *, exact: bool = False) -> str:
    """A moment in UTC, to the minute or the second, which programs can read too."""
    if moment is None:
        return "-"
    utc = moment.astimezone(UTC)
    shown = f"{utc:%Y-%m-%d %H:%M:%S}" if exact else f"{utc:%Y-%m-%d %H:%M}"
    return f'<time datetime="{utc:%Y-%m-%dT%H:%M:%SZ}">{shown}</time>'


def span(length: timedelta | None) -> str:
    """A duration in its two greatest units, each on one line; a negative one is that much ago for the caller to say."""
    if length is None:
        return "-"
    seconds = abs(length.total_seconds())
    if seconds < 60:
        return f"{seconds:.0f}\N{NO-BREAK SPACE}s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes}\N{NO-BREAK SPACE}min"
    if minutes < 24 * 60:
        return f"{minutes // 60}\N{NO-BREAK SPACE}h {minutes % 60:02d}\N{NO-BREAK SPACE}min"
    return f"{minutes // 1440}\N{NO-BREAK SPACE}d {minutes % 1440 // 60}\N{NO-BREAK SPACE}h"


def seconds(value: float | None) -> str:
    """A short duration with three digits or so."""
    if value is None:
        return "-"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms" if value >= 0.00995 else f"{value * 1000:.1f} ms"
    return f"{value:.2f} s" if value < 99.995 else f"{value:.0f} s"


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    caption: str = "",
) -> str:
    """A table whose cells are markup already; on a narrow screen each row is a card with its titles inside."""
    head = "".join(
        f'<th scope="col"{_number(at, numbers)}>{text(title)}</th>' for at, title in enumerate(titles)
    )
    body = []
    for row in rows:
        cells = [
            f'<td data-t="{text(title)}"{_number(at, numbers)}>{cell}</td>' if cell else "<td></td>"
            for at, (title, cell) in enumerate(zip(titles, row, strict=True))
        ]
        body.append(f"<tr>{''.join(cells)}</tr>")
    if not body:
        return '<p class="none">None.</p>'
    told = f"<caption>{text(caption)}</caption>" if caption else ""
    return f"<table>{told}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _number(at: int, numbers: Sequence[int]) -> str:
    return ' class="n"' if at in numbers else ""


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Titles and markup; what is empty is left out."""
    told = "".join(f"<div><dt>{text(title)}</dt><dd>{cell}</dd></div>" for title, cell in pairs if cell)
    return f'<dl class="facts">{told}</dl>' if told else '<p class="none">Nothing is on record.</p>'


def picture(drawing: str) -> str:
    """A drawing that scrolls inside its frame where the screen is narrower."""
    return f'<div class="picture" tabindex="0">{drawing}</div>'


def folded(title: str, body: str) -> str:
    """What is there for whoever looks for it; print shows it open."""
    return f"<details><summary>{text(title)}</summary>{body}</details>"


def count(number: int, one: str, many: str | None = None) -> str:
    """1 node, 2 nodes."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def left_off(number: int, where: str) -> str:
    """What a bounded list says at its end."""
    return f'<p class="more">and {number:,} more: {text(where)}</p>' if number > 0 else ""
