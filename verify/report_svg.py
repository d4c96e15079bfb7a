"""The time line of every rank as one inline SVG: what it was doing when, told by pattern as well as by colour."""

import html
import math
from collections.abc import Sequence

from inventory.console import printable
from verify.events import RankTimes

_WIDTH, _LEFT, _RIGHT, _TOP, _NAME = 900, 60, 40, 44, 22
_STEPS = (("start_ms", "joined_ms", "seek"), ("joined_ms", "go_ms", "seat"), ("go_ms", "end_ms", "work"))
_NAMES = {"seek": "dials and shakes hands", "seat": "has a seat, waits for GO", "work": "has GO"}
PATTERNS = """\
<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>
<pattern id="seek" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6" fill="#fff"/>\
<circle cx="3" cy="3" r="1.2" fill="#555"/></pattern>
<pattern id="seat" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">\
<rect width="6" height="6" fill="#f5c56b"/><rect width="2" height="6" fill="#7a4b00"/></pattern>
<pattern id="work" width="6" height="6" patternUnits="userSpaceOnUse">\
<rect width="6" height="6" fill="#2f7fb8"/></pattern>
</defs></svg>"""


def time_line(ranks: Sequence[RankTimes], *, nodes: Sequence[str] = ()) -> str:
    """The SVG, one row for each rank, rank 0 at the top.

    Its fills are those of `PATTERNS`, which the page holds once.

    `nodes` says of each rank where it runs; each node's ranks stand under its name.
    """
    last = max((at for rank in ranks for at in _times(rank)), default=0.0)
    scale = _nice(max(last, 0.1))
    row = 18 if len(ranks) <= 64 else 6
    every = 1 if row == 18 else 16
    begins = [at for at, node in enumerate(nodes) if at == 0 or node != nodes[at - 1]]
    height = _TOP + row * len(ranks) + _NAME * len(begins) + 8
    unit = (_WIDTH - _LEFT - _RIGHT) / scale
    parts = [
        (
            f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img" font-family="sans-serif" font-size="12"'
            f' fill="currentColor"><title>when each of {len(ranks)} ranks started, joined, got GO and ended</title>'
        ),
        *_legend(),
        *_axis(scale, unit, height),
    ]
    y = _TOP
    for number, rank in enumerate(ranks):
        if number in begins:
            name = html.escape(printable(nodes[number]))
            parts.append(f'<text x="{_LEFT}" y="{y + _NAME - 5}" font-weight="600">{name}</text>')
            y += _NAME
        if number % every == 0:
            parts.append(
                f'<text x="{_LEFT - 6}" y="{y + row * 0.75:.1f}" text-anchor="end">{rank.rank}</text>'
            )
        parts += _row(rank, y + row * 0.1, row * 0.8, unit)
        y += row
    return "\n".join([*parts, "</svg>"])


def _row(rank: RankTimes, y: float, height: float, unit: float) -> list[str]:
    told = ", ".join(
        f"{name} {'never' if at is None else f'{at:.1f} ms'}"
        for name, at in (
            ("started", rank.start_ms),
            ("joined", rank.joined_ms),
            ("GO", rank.go_ms),
            ("ended", rank.end_ms),
        )
    )
    bars = []
    for begin, end, kind in _STEPS:
        first, then = getattr(rank, begin), getattr(rank, end)
        if first is None or then is None:
            continue
        bars.append(
            f'<rect x="{_LEFT + first * unit:.2f}" y="{y:.1f}" width="{max(0.5, (then - first) * unit):.2f}"'
            f' height="{height:.1f}" fill="url(#{kind})" stroke="#333" stroke-width=".4"/>'
        )
    return [f"<g><title>rank {rank.rank}: {told}</title>", *bars, "</g>"]


def _legend() -> list[str]:
    parts, x = [], _LEFT
    for kind, name in _NAMES.items():
        parts.append(
            f'<rect x="{x}" y="4" width="22" height="12" fill="url(#{kind})" stroke="#333" stroke-width=".4"/>'
            f'<text x="{x + 28}" y="14">{name}</text>'
        )
        x += 60 + 7 * len(name)
    return parts


def _axis(scale: float, unit: float, height: int) -> list[str]:
    parts = []
    for step in range(6):
        at = scale * step / 5
        x = _LEFT + at * unit
        parts.append(
            f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{height}" stroke="currentColor" opacity=".25"/>'
            f'<text x="{x:.1f}" y="{_TOP - 10}" text-anchor="middle">{at:g} ms</text>'
        )
    return parts


def _nice(value: float) -> float:
    """The next round number whose fifths can be read."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.999)


def _times(rank: RankTimes) -> list[float]:
    return [at for at in (rank.start_ms, rank.joined_ms, rank.go_ms, rank.end_ms) if at is not None]
