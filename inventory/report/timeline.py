"""Drawings with a time axis: a node's road, the ends of the certificates, the ranks of a run; each has its text."""

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from inventory.lifecycle import whose_move
from inventory.report.hatch import filled
from inventory.report.markup import span, text
from inventory.report.reading import Rank
from inventory.report.road import KINDS, Fill, Stay, kind

STAYS_DRAWN = 14
RANKS_DRAWN = 256
_WIDTH = 900
_LANES = (("infra", "infra"), ("security", "security"), ("nobody", "nobody's move"))
_LANE, _BLOCK, _LEFT = 56, 44, 100
_BEFORE, _AFTER = 14, 120


def road(stays: Sequence[Stay], now: datetime) -> str:
    """A node's stays from left to right, each in the lane of whoever's move it was; numbered as in the table.

    Minutes and weeks stand side by side, so a block's width grows with the logarithm of its time.
    """
    drawn = stays[-STAYS_DRAWN:]
    if not drawn:
        return ""
    first = len(stays) - len(drawn)
    widths = _widths([stay.lasted(now) for stay in drawn])
    height = _LANE * len(_LANES) + 8
    parts = [_open(height, f"the road through {len(drawn)} states, to {drawn[-1].state}")]
    for number, (_, words) in enumerate(_LANES):
        y = number * _LANE + 6
        parts.append(f'<text class="faint" x="0" y="{y + 27}" font-size="13">{words}</text>')
        parts.append(f'<path class="grid" d="M{_LEFT} {y + _LANE - 6}H{_WIDTH}"/>')
    x, last = float(_LEFT), None
    for number, (stay, width) in enumerate(zip(drawn, widths, strict=True), first + 1):
        y = _lane(stay) * _LANE + 6
        if last is not None and last != y:
            parts.append(
                f'<path class="way" d="M{x:.1f} {min(last, y) + _BLOCK / 2:.0f}V{max(last, y) + _BLOCK / 2:.0f}"/>'
            )
        parts.append(_block(stay, number, x, y, width, now))
        x, last = x + width, y
    return "".join([*parts, "</svg>"])


def _block(stay: Stay, number: int, x: float, y: float, width: float, now: datetime) -> str:
    of = kind(stay.state)
    lasted = span(stay.lasted(now))
    name = f"{KINDS[of][0]} {number} {stay.state}"
    if len(name) * 6.9 > width - 8:
        name = f"{KINDS[of][0]} {number}"
    if len(lasted) * 6.2 > width - 8:
        lasted = "".join(lasted.split()[:1]) + lasted.split()[1][0]
    told = f"{number}: {stay.state}, {span(stay.lasted(now))}{'' if stay.until else ' so far'}"
    left, wide = f"{x + 1.5:.1f}", f"{max(4.0, width - 3):.1f}"
    return (
        f'<g class="{of}"><title>{text(told)}</title>'
        f'<rect class="plain" x="{left}" y="{y}" width="{wide}" height="{_BLOCK}" rx="4"/>'
        f"{filled(of, x + 1.5, y, max(4.0, width - 3), 11, edge=False, rx=3)}"
        f'<rect class="edge" fill="none" x="{left}" y="{y}" width="{wide}" height="{_BLOCK}" rx="4"'
        f"{'' if stay.until else ' stroke-dasharray=' + chr(34) + '5 3' + chr(34)}/>"
        f'<text class="word" x="{x + 6:.1f}" y="{y + 24}" font-size="12" font-weight="600">{name}</text>'
        f'<text class="faint" x="{x + 6:.1f}" y="{y + 38}" font-size="11">{lasted}</text></g>'
    )


def _widths(lasted: Sequence[timedelta]) -> list[float]:
    room = _WIDTH - _LEFT
    least = min(52.0, room / len(lasted))
    weights = [math.log1p(length.total_seconds() / 60) for length in lasted]
    unit = (room - least * len(lasted)) / (sum(weights) or 1.0)
    return [least + weight * unit for weight in weights]


def _lane(stay: Stay) -> int:
    return [party for party, _ in _LANES].index(whose_move(stay.state))


def ends(certified: Iterable[tuple[str, datetime]], now: datetime) -> str:
    """How many certificates end on each day, counted from now; what is far away is counted at the margins."""
    days: dict[int, list[str]] = {}
    for name, over in certified:
        # at the very end a certificate is over: the day before now is -1, as that before the first day after it
        day = math.ceil((over - now) / timedelta(days=1)) - 1
        days.setdefault(min(max(day, -_BEFORE - 1), _AFTER + 1), []).append(name)
    if not days:
        return ""
    low, high = min(*days, -3), max(*days, 8)
    unit = (_WIDTH - 24) / (high + 1 - low)
    most = max(map(len, days.values()))
    top, base = 46, 190

    def x(day: int) -> float:
        return 12 + (day - low) * unit

    parts = [
        _open(base + 34, f"certificates ending on each day, from {-low} days ago to {high} days from now")
    ]
    for begin, end, words in (
        (low, 0, "ended"),
        (0, 7, "within 7 days"),
        (7, 30, "within 30 days"),
        (30, high + 1, "later"),
    ):
        until = min(end, high + 1)
        if until <= begin:
            continue
        parts.append(f'<path class="grid" d="M{x(begin):.1f} 18V{base}"/>')
        if (until - begin) * unit > 6.2 * len(words) + 6:
            parts.append(f'<text class="faint" x="{x(begin) + 5:.1f}" y="28" font-size="12">{words}</text>')
    for day, names in sorted(days.items()):
        tall = max(3.0, (base - top) * len(names) / most)
        of: Fill = "failed" if day < 0 else "soon" if day < 7 else "later" if day < 30 else "service"
        parts.append(
            f'<g class="{of}"><title>{text(_day(day, now))}: {text(", ".join(sorted(names)[:20]))}'
            f"{f' and {len(names) - 20} more' if len(names) > 20 else ''}</title>"
            f"{filled(of, x(day) + unit * 0.08, base - tall, unit * 0.84, tall)}</g>"
            f'<text x="{x(day) + unit / 2:.1f}" y="{base - tall - 5:.1f}" font-size="{11 if unit > 14 else 9}"'
            f' text-anchor="middle">{len(names)}</text>'
        )
    parts.append(f'<path class="way" d="M12 {base}H{_WIDTH - 12}"/>')
    parts.append(f'<path class="edge" d="M{x(0):.1f} 12V{base + 6}"/>')
    parts.append(_ticks(low, high, now, x, base))
    return "".join([*parts, "</svg>"])


def _day(day: int, now: datetime) -> str:
    if day < -_BEFORE:
        return f"more than {_BEFORE} days ago"
    if day > _AFTER:
        return f"in more than {_AFTER + 1} days"
    begin = now + timedelta(days=day)
    return f"the day from {begin:%d %b %H:%M}"


def _ticks(low: int, high: int, now: datetime, x: Callable[[int], float], base: int) -> str:
    every = next(step for step in (1, 2, 7, 14, 30) if (high - low) / step <= 16)
    days = [day for day in range(low, high + 1) if day % every == 0]
    begin, end = (110 if low < -_BEFORE else 20), _WIDTH - (110 if high > _AFTER else 20)
    told = [
        f'<text class="faint" x="{x(day):.1f}" y="{base + 18}" font-size="11" text-anchor="middle">'
        f"{'now' if day == 0 else format(now + timedelta(days=day), '%d %b')}</text>"
        for day in days
        if begin < x(day) < end or (day == 0 and x(day) > 20)
    ]
    # a bar at the margin is no day: years may be in it
    if low < -_BEFORE:
        told.append(f'<text class="faint" x="12" y="{base + 18}" font-size="11">over {_BEFORE} d ago</text>')
    if high > _AFTER:
        told.append(
            f'<text class="faint" x="{_WIDTH - 12}" y="{base + 18}" font-size="11" text-anchor="end">'
            f"over {_AFTER} d</text>"
        )
    return "".join(told)


_STEPS: tuple[tuple[str, str, Fill, str], ...] = (
    ("start_ms", "joined_ms", "ended", "dials and shakes hands"),
    ("joined_ms", "go_ms", "soon", "has a seat, waits for GO"),
    ("go_ms", "end_ms", "service", "has GO"),
)
RANK_KEY = tuple((of, words) for _, _, of, words in _STEPS)


def ranks(told: Sequence[Rank]) -> str:
    """When each rank of a run started, joined, had GO and ended."""
    drawn = told[:RANKS_DRAWN]
    times = [
        at
        for rank in drawn
        for at in (rank.start_ms, rank.joined_ms, rank.go_ms, rank.end_ms)
        if at is not None
    ]
    if not times:
        return ""
    left, top = 60, 26
    scale = _nice(max(*times, 0.1))
    row, every = (18, 1) if len(drawn) <= 64 else (6, 16)
    height = top + row * len(drawn) + 6
    unit = (_WIDTH - left - 40) / scale
    parts = [_open(height, f"when each of {len(drawn)} ranks started, joined, got GO and ended")]
    for step in range(6):
        at = left + scale * step / 5 * unit
        parts.append(
            f'<path class="grid" d="M{at:.1f} {top - 6}V{height}"/><text class="faint" x="{at:.1f}" y="{top - 11}"'
            f' font-size="12" text-anchor="middle">{scale * step / 5:g} ms</text>'
        )
    for number, rank in enumerate(drawn):
        y = top + row * number
        if number % every == 0:
            parts.append(
                f'<text x="{left - 8}" y="{y + row * 0.75:.1f}" font-size="12" text-anchor="end">{rank.rank}</text>'
            )
        parts.append(f"<g><title>rank {rank.rank}: {rank_words(rank)}</title>")
        for begin, end, of, _ in _STEPS:
            first, then = getattr(rank, begin), getattr(rank, end)
            if first is not None and then is not None:
                wide = max(0.6, (then - first) * unit)
                parts.append(filled(of, left + first * unit, y + row * 0.12, wide, row * 0.76))
        parts.append("</g>")
    return "".join([*parts, "</svg>"])


def rank_words(rank: Rank) -> str:
    """A rank's times in words."""
    steps = (
        ("started", rank.start_ms),
        ("joined", rank.joined_ms),
        ("GO", rank.go_ms),
        ("ended", rank.end_ms),
    )
    return ", ".join(f"{name} {'never' if at is None else f'{at:.1f} ms'}" for name, at in steps)


def _open(height: float, title: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img" font-size="12"><title>{text(title)}</title>'


def _nice(value: float) -> float:
    """The next round number whose fifths can be read."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.999)
