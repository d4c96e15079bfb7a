"""The report in a real browser: it fits a phone, runs nothing, loads nothing, prints, and needs no colour."""

import itertools
import re
import zlib
from pathlib import Path

from inventory.report.hatch import filled
from inventory.report.page import page
from inventory.report.road import Fill
from inventory.report.style import STYLE
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


def test_on_paper_every_drawing_is_of_lines_and_none_is_a_picture(tmp_path: Path) -> None:
    pdf = printed(tmp_path, written(fleets.fleet()[34:37]))

    assert not re.findall(rb"/Subtype\s*/Image", pdf)
    assert sum(map(len, _streams(pdf))) < 300_000


def test_what_is_folded_is_open_on_paper(tmp_path: Path) -> None:
    told = written(fleets.fleet()[34:37])
    rule = b"details::details-content{content-visibility:visible;height:auto}"
    assert told.count(b"<details>") > 5
    assert told.count(rule) == 1
    as_it_is, opened, without = (
        _words(printed(tmp_path, page))
        for page in (told, told.replace(b"<details>", b"<details open>"), told.replace(rule, b""))
    )

    assert as_it_is == opened
    assert without < as_it_is * 0.9


def _streams(pdf: bytes) -> list[bytes]:
    """What is drawn on each page, as it is kept: compressed."""
    found = re.findall(rb"\n<<([^>]*)>>\s*stream\n(.*?)\nendstream", pdf, re.DOTALL)
    return [data for facts, data in found if b"/Subtype" not in facts and b"Length1" not in facts]


def _words(pdf: bytes) -> int:
    """How many pieces of text are shown."""
    return sum(len(re.findall(rb"\bTj\b", zlib.decompress(data))) for data in _streams(pdf))


def test_no_two_fills_look_alike_in_black_and_white(tmp_path: Path) -> None:
    size = 48
    shapes = "".join(
        f'<svg style="position:absolute;left:{number * 60}px;top:0" width="{size}" height="{size}">'
        f"{filled(of, 0, 0, size, size, edge=False)}</svg>"
        for number, of in enumerate(FILLS)
    )
    drawn = picture(
        tmp_path,
        f"<!DOCTYPE html><style>{STYLE}body{{--page:#fff;--card:#fff}}</style>{shapes}".encode(),
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


def test_where_the_reader_insists_on_their_own_colours_every_drawing_is_in_them(tmp_path: Path) -> None:
    """Forced likewise; black on white is what a browser has for its own colours then."""
    own = page(tuple(map(fleets.row, fleets.fleet())), (), sections=(), now=NOW)
    own = own.replace(b"</style>", b"#waits,#failures,#certificates{display:none}</style>")  # to the states
    forced = own.replace(b"(forced-colors:active)", b" all")
    serving, infra = (
        [
            [drawn.rows[y][x] for y in (372, 382) for x in range(left, right)]
            for drawn in (picture(tmp_path, told, width=1200, height=400) for told in (own, forced))
        ]
        for left, right in ((80, 630), (660, 735))
    )

    assert min(serving[0]) > 60
    assert max(serving[1]) == 0
    assert {min(infra[1]), max(infra[1])} == {0, 255}
