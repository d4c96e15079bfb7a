"""Drawings without a time axis: the states' bar, the key of the patterns, the spread of a measure."""

from collections.abc import Iterable, Sequence

from inventory.report.hatch import filled
from inventory.report.markup import seconds, text
from inventory.report.road import KINDS, Fill, Kind
from inventory.report.robust import Spread

OUTLIERS_DRAWN = 40


def stacked(counts: Sequence[tuple[Kind, int]]) -> str:
    """One bar of all nodes, a part for each kind; the words beside it say the same."""
    total = sum(number for _, number in counts)
    told = ", ".join(f"{KINDS[of][1]} {number}" for of, number in counts if number)
    parts = [f'<svg class="whole" role="img"><title>{text(told)}</title>']
    x = 0.0
    for of, number in counts:
        if number:
            wide = 100 * number / total
            parts.append(filled(of, x + 0.1, 1, max(0.2, wide - 0.2), 32, unit="%", rx=3))
            x += wide
    return "".join([*parts, "</svg>"])


def key(kinds: Iterable[tuple[Fill, str]]) -> str:
    """What the patterns mean."""
    items = (
        f'<li><svg viewBox="0 0 26 14" aria-hidden="true">{filled(of, 1, 1, 24, 11)}</svg>{text(words)}</li>'
        for of, words in kinds
    )
    return f'<ul class="key">{"".join(items)}</ul>'


def bar(of: Kind, part: float, told: str) -> str:
    """One bar in a table's row, as long as its part of the longest."""
    wide = 100 * min(1.0, max(0.0, part))
    return (
        f'<svg class="bar" role="img"><title>{text(told)}</title>'
        f"{filled(of, 0.3, 1, max(0.8, wide - 1.2), 11, unit='%')}</svg>"
    )


def box(of: Spread) -> str:
    """Whiskers around what does not stand out, a box from quartile to quartile, the median, a diamond each outlier."""
    outliers = of.outliers[:OUTLIERS_DRAWN]
    top = max([of.high, *(each.value for each in outliers)]) or 1.0
    unit = 284 / top

    def x(value: float) -> float:
        return 8 + value * unit

    wide = max(1.5, (of.q3 - of.q1) * unit)
    words = f"median {seconds(of.median)}, half of the nodes between {seconds(of.q1)} and {seconds(of.q3)}"
    parts = [
        f'<svg class="box" viewBox="0 0 300 28" role="img"><title>{text(words)}; from 0 to {seconds(top)}</title>',
        '<path class="grid" d="M8 4V24M8 14H292"/>',
        f'<path class="way" d="M{x(of.low):.1f} 14H{x(of.high):.1f}M{x(of.low):.1f} 9V19M{x(of.high):.1f} 9V19"/>',
        f'<g class="plain"><rect x="{x(of.q1):.1f}" y="7" width="{wide:.1f}" height="14"/></g>',
        filled("infra", x(of.q1), 7, wide, 14),
        f'<path class="word" d="M{x(of.median) - 1.2:.1f} 3h2.4v22h-2.4z"/>',
    ]
    parts += [
        f'<path class="failed" d="M{x(each.value):.1f} 7l6 7l-6 7l-6 -7z"><title>{text(each.name)}'
        f" {seconds(each.value)}</title></path>"
        for each in outliers
    ]
    return "".join([*parts, "</svg>"])
