"""A page in headless Chromium: what it makes of it, how wide it gets, how it looks and prints."""

import re
import struct
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

from tests.require import need_command

_ALWAYS = (
    *(
        "chromium",
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ),
    *("--disable-background-networking", "--disable-component-update", "--no-first-run"),
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


@dataclass(frozen=True, slots=True)
class Picture:
    """What the browser drew, as grey values from 0 (black) to 255, row by row."""

    width: int
    rows: tuple[bytes, ...]

    def ink(self, x: int, y: int, size: int) -> bytes:
        """A square in black and white alone, as the plainest printer has it: 1 is ink."""
        return bytes(grey < 128 for row in self.rows[y : y + size] for grey in row[x : x + size])


def browse(folder: Path, page: bytes, *, width: int = 1200) -> tuple[str, str]:
    """The DOM after loading, and everything that the browser logged meanwhile, its network's log with it."""
    file = folder / "page.html"
    file.write_bytes(page)
    log = folder / "net.json"
    shown = _run(
        folder,
        *("--enable-logging=stderr", "--v=0", f"--log-net-log={log}", "--dump-dom"),
        *(f"--window-size={width},1000", file.as_uri()),
    )
    return shown.stdout, shown.stderr + log.read_text()


def widths(folder: Path, page: bytes, *windows: int) -> dict[int, int]:
    """How wide the page gets in windows of these widths, by the browser's own measure, in frames of those widths."""
    # the page's own policy stays inside its frame; the script is ours, in the page around it
    (folder / "inner.html").write_bytes(page)
    inside = page.decode().replace("&", "&amp;").replace('"', "&quot;")
    frames = "".join(
        f'<iframe style="border:0;width:{each}px;height:900px" srcdoc="{inside}"></iframe>'
        for each in windows
    )
    (folder / "around.html").write_text(
        f"<!DOCTYPE html>{frames}<script>onload=()=>{{for(const frame of document.querySelectorAll('iframe')){{"
        "const root=frame.contentDocument.documentElement;"
        "document.body.insertAdjacentHTML('beforeend',`<p data-at=${frame.clientWidth} data-wide=${root.scrollWidth}>`)"
        "}}</script>"
    )
    shown = _run(folder, "--dump-dom", "--window-size=1600,1000", (folder / "around.html").as_uri())
    found = re.findall(r'data-at="(\d+)" data-wide="(\d+)"', shown.stdout)
    assert len(found) == len(windows), shown.stderr[-2000:]
    return {int(at): int(wide) for at, wide in found}


def picture(folder: Path, page: bytes, *, width: int, height: int) -> Picture:
    """The top of the page as it is drawn."""
    file, shot = folder / "page.html", folder / "page.png"
    file.write_bytes(page)
    _run(folder, f"--screenshot={shot}", f"--window-size={width},{height}", file.as_uri())
    return _grey(shot.read_bytes())


def printed(folder: Path, page: bytes) -> bytes:
    """The page on paper, as PDF."""
    file, pdf = folder / "page.html", folder / "page.pdf"
    file.write_bytes(page)
    _run(folder, "--no-pdf-header-footer", f"--print-to-pdf={pdf}", file.as_uri())
    return pdf.read_bytes()


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    need_command("chromium")
    done = subprocess.run(
        [*_ALWAYS, f"--user-data-dir={folder / 'browser'}", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def _grey(png: bytes) -> Picture:
    """The pixels of a PNG as browsers write them: 8 bits, RGB or RGBA, not interlaced (PNG 3rd ed., section 9)."""
    at, data, width, depth = 8, b"", 0, 3
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, _, bits, colour, *_, interlaced = struct.unpack(">IIBBBBB", body)
            assert (bits, interlaced) == (8, 0)
            depth = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            data += body
        at += 12 + size
    raw, stride = zlib.decompress(data), width * depth
    above, rows = bytearray(stride), []
    for begin in range(0, len(raw), stride + 1):
        line = bytearray(raw[begin + 1 : begin + 1 + stride])
        _unfilter(raw[begin], line, above, depth)
        rows.append(
            bytes((line[x] * 3 + line[x + 1] * 6 + line[x + 2]) // 10 for x in range(0, stride, depth))
        )
        above = line
    return Picture(width, tuple(rows))


def _unfilter(how: int, line: bytearray, above: bytearray, depth: int) -> None:
    for x in range(len(line)):
        left, up = line[x - depth] if x >= depth else 0, above[x]
        corner = above[x - depth] if x >= depth else 0
        nearest = min((left, up, corner), key=lambda each: abs(left + up - corner - each))
        line[x] = (line[x] + (0, left, up, (left + up) // 2, nearest)[how]) & 255
