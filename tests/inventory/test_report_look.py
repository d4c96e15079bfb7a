"""The report in a real browser: it fits a phone, runs nothing, loads nothing, prints, and needs no colour."""

import itertools
import re
from pathlib import Path

from inventory.report.page import page
from inventory.report.road import Fill
from inventory.report.style import PATTERNS, STYLE, paint
from tests.browser import browse, picture, printed, widths

from . import fleets
from .fleets import NOW
from .test_report_page import evil_document, hostile, written

FILLS: tuple[Fill, ...] = ("service", "infra", "security", "failed", "ended", "soon", "later")
OWN = "document.title='owned'"
EVIL = f"</p></style><script>{OWN}</script><img src='http://127.0.0.1:9/x' onerror=\"{OWN}\">"
LONG = "spiffe://lab.example/" + "node" * 44


def test_a_hostile_page_runs_nothing_and_asks_the_network_for_nothing(tmp_path: Path) -> None:
    whole = hostile(EVIL, evil_document(EVIL))
    dom, log = browse(tmp_path, written((whole,), title="hall 2"))

    assert "<title>hall 2</title>" in dom
    assert "<script" not in dom
    assert "<img" not in dom
    assert dom.count("&lt;script&gt;") >= 20
    assert ":CONSOLE" not in log
    assert not re.findall(r'"url":"([^"]*127\.0\.0\.1:9[^"]*)"', log)


def test_the_page_is_as_wide_as_its_window_even_on_a_phone(tmp_path: Path) -> None:
    some = fleets.fleet()
    told = written((*some[:8], *some[35:38], hostile(LONG, evil_document(LONG))), title=LONG, record=LONG)
    found = widths(tmp_path, told, 360, 390, 840, 1200)

    assert all(wide <= window for window, wide in found.items()), found


def test_the_page_prints_with_each_node_on_a_sheet_of_its_own(tmp_path: Path) -> None:
    pdf = printed(tmp_path, written(fleets.fleet()[34:37]))

    assert pdf.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 3 + 3


def test_no_two_fills_look_alike_in_black_and_white(tmp_path: Path) -> None:
    size = 48
    shapes = "".join(
        f'<svg style="position:absolute;left:{number * 60}px;top:0" width="{size}" height="{size}">'
        f'<rect class="{of}" width="{size}" height="{size}" fill="{paint(of)}"/></svg>'
        for number, of in enumerate(FILLS)
    )
    drawn = picture(
        tmp_path,
        f"<!DOCTYPE html><style>{STYLE}body{{--page:#fff;--card:#fff}}</style>{PATTERNS}{shapes}".encode(),
        width=600,
        height=200,
    )
    squares = {of: drawn.ink(number * 60 + 4, 4, size - 8) for number, of in enumerate(FILLS)}

    assert all(any(square) for square in squares.values())
    for (one, left), (other, right) in itertools.combinations(squares.items(), 2):
        apart = sum(a != b for a, b in zip(left, right, strict=True)) / len(left)
        assert apart > 0.1, (one, other)


def test_the_page_follows_the_scheme_of_its_reader(tmp_path: Path) -> None:
    """Forced, for headless browsers are light: what a dark system asks for is dark."""
    told = page((), (), sections=(), now=NOW)
    light = picture(tmp_path, told, width=600, height=300)
    dark = picture(tmp_path, told.replace(b"(prefers-color-scheme:dark)", b" all"), width=600, height=300)

    assert light.rows[2][300] > 200
    assert dark.rows[2][300] < 60
