"""What fills a shape: plain colour, or bars and checks that need no colour to be told apart.

They are dashed lines, one or more on top of each other. SVG's own patterns would be shorter, but a browser prints
each of them as a picture, so that paper costs a hundred times as many bytes.
"""

import math
from dataclasses import dataclass

from inventory.report.road import Fill


@dataclass(frozen=True, slots=True)
class _Hatch:
    """How a shape is filled, in rows that lie on top of each other.

    row: how high one is, at most; None: one as high as the shape. stroke: of that height. dash: on and off.
    shift: by how much every second row is moved.
    """

    row: float | None
    stroke: float
    dash: tuple[float, float] | None
    shift: float = 0.0


_HATCHES: dict[Fill, _Hatch] = {
    "infra": _Hatch(None, 1.0, (3.6, 3.2)),
    "security": _Hatch(5.5, 0.4, (2.2, 2.8), shift=2.5),
    "failed": _Hatch(4.5, 1.0, (4.0, 4.0), shift=4.0),
    "ended": _Hatch(5.5, 0.36, None),
    "soon": _Hatch(None, 1.0, (1.6, 2.0)),
    "later": _Hatch(None, 1.0, (1.4, 6.0)),
}
"""All but what is well: that is plain colour, for there is most of it."""


def filled(
    of: Fill,
    x: float,
    y: float,
    wide: float,
    high: float,
    *,
    unit: str = "",
    edge: bool = True,
    rx: float = 0,
) -> str:
    """A filled rectangle. unit: of `x` and `wide`, else those of the drawing. edge: whether it has an outline."""
    hatch = _HATCHES.get(of)
    box = f'x="{_n(x)}{unit}" y="{_n(y)}" width="{_n(wide)}{unit}" height="{_n(high)}"'
    box += f' rx="{_n(rx)}"' if rx else ""
    if hatch is None:
        return f'<rect class="{"edge " if edge else ""}{of}" {box}/>'
    outline = f'<rect class="edge {of}" {box} fill="none"/>' if edge else ""
    return "".join(_rows(of, hatch, (x, x + wide), y, high, unit)) + outline


def _rows(
    of: Fill, hatch: _Hatch, between: tuple[float, float], y: float, high: float, unit: str
) -> list[str]:
    count = 1 if hatch.row is None else max(2 if hatch.shift else 1, math.ceil(high / hatch.row))
    row = high / count
    left, right = (f"{_n(at)}{unit}" for at in between)
    dash = "" if hatch.dash is None else f' stroke-dasharray="{_n(hatch.dash[0])} {_n(hatch.dash[1])}"'
    rows = []
    for number in range(count):
        shift = f' stroke-dashoffset="{_n(hatch.shift)}"' if hatch.shift and number % 2 else ""
        at = _n(y + (number + 0.5) * row)
        rows.append(f'<line x1="{left}" x2="{right}" y1="{at}" y2="{at}"{shift}/>')
    return [f'<g class="hatch {of}" stroke-width="{_n(row * hatch.stroke)}"{dash}>', *rows, "</g>"]


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
