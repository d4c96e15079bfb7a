"""The page in a real browser: it renders whole, runs nothing, asks the network for nothing, and fits a phone."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.require import need_command
from verify.report import NodeReport, rendered

from .reported import ERROR, check, ranks, report, scenario

EVIL = "<script>document.title='owned';new Image().src='http://127.0.0.1:9/x'</script>"
LONG = "spiffe://lab.example/" + "node" * 44


def browse(folder: Path, reports: list[NodeReport], *, width: int = 1200) -> tuple[str, str]:
    """The DOM after loading, and everything that the browser logged meanwhile."""
    need_command("chromium")
    file = folder / "report.html"
    file.write_bytes(rendered(reports, ".html"))
    log = folder / "net.json"
    done = subprocess.run(
        [
            *("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--enable-logging=stderr", "--v=0", f"--log-net-log={log}", "--dump-dom"),
            *("--disable-background-networking", "--disable-component-update", "--no-first-run"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'browser'}"),
            *(f"--window-size={width},1000", file.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr + log.read_text()


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
    page, log = browse(tmp_path, nodes)

    assert "<title>verify-node: 1 of 2 nodes passed</title>" in page
    assert page.count("<g><title>rank ") == 64 + 8
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert ":CONSOLE" not in log
    asked = {url for url in re.findall(r'"url":"([^"]+)"', log) if not url.startswith(("file:", "data:"))}
    assert not [url for url in asked if "127.0.0.1:9" in url], asked


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_fits_its_window(tmp_path: Path, width: int) -> None:
    """A page as wide as its window has no picture beyond it: the browser's own measure, by a frame of that width."""
    inner = rendered([report(checks=(check(LONG, "critical", found=LONG, next=LONG),))], ".html").decode()
    # the page's own policy stays inside the frame; the script is the test's, in the page around it
    escaped = inner.replace("&", "&amp;").replace('"', "&quot;")
    (tmp_path / "around.html").write_text(
        f'<!DOCTYPE html><iframe style="border:0;width:{width}px;height:900px" srcdoc="{escaped}"></iframe>'
        "<script>onload=()=>{const inside=document.querySelector('iframe').contentDocument.documentElement;"
        "document.body.dataset.wide=inside.scrollWidth}</script>"
    )
    need_command("chromium")
    done = subprocess.run(
        [
            *("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--dump-dom", "--window-size=1600,1000", f"--user-data-dir={tmp_path / 'browser'}"),
            (tmp_path / "around.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = re.search(r'data-wide="(\d+)"', done.stdout)

    assert found is not None, done.stderr[-2000:]
    assert int(found[1]) <= width
