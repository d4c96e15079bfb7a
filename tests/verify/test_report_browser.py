"""The page in a real browser: it renders whole, runs nothing, asks the network for nothing, and fits a phone."""

import re
from pathlib import Path

from tests.browser import browse, widths
from verify.report import rendered

from .reported import ERROR, check, ranks, report, scenario

EVIL = "<script>document.title='owned';new Image().src='http://127.0.0.1:9/x'</script>"
LONG = "spiffe://lab.example/" + "node" * 44


def test_the_page_renders_whole_and_runs_nothing(tmp_path: Path) -> None:
    nodes = [
        report(
            error=ERROR,
            ranks=ranks(64),
            checks=(check(EVIL, "critical", found=EVIL),),
            scenarios=(scenario(EVIL, ok=False, detail=EVIL),),
        ),
        report(name="gpu-02"),
    ]
    page, log = browse(tmp_path, rendered(nodes, ".html"))

    assert "<title>verify-node: 1 of 2 nodes passed</title>" in page
    assert page.count("<g><title>rank ") == 64 + 8
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert ":CONSOLE" not in log
    asked = {url for url in re.findall(r'"url":"([^"]+)"', log) if not url.startswith(("file:", "data:"))}
    assert not [url for url in asked if "127.0.0.1:9" in url], asked


def test_the_page_fits_its_window(tmp_path: Path) -> None:
    """A page as wide as its window has no picture beyond it."""
    page = rendered([report(checks=(check(LONG, "critical", found=LONG, next=LONG),))], ".html")

    assert all(wide <= window for window, wide in widths(tmp_path, page, 390, 1200).items())
