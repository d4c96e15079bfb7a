"""The top of the report: who must act next on what, what ends next, what failed last; and nothing that misleads."""

import re
from dataclasses import replace
from datetime import timedelta

from inventory.model import State
from inventory.report.facts import Row, Whole
from inventory.report.markup import code
from inventory.report.page import page
from inventory.report.style import STYLE

from . import fleets
from .fleets import NOW
from .test_report_page import written

S = State


def node(number: int, state: State, days: float = 1, left: float | None = None) -> Whole:
    end = None if left is None else timedelta(days=left)
    return fleets.whole(number, state, waited=timedelta(days=days), left=end)


def tiles(*wholes: Whole, rows: tuple[Row, ...] | None = None) -> list[str]:
    told = written(wholes) if rows is None else page(rows, (), sections=(), now=NOW)
    found = re.findall(r"<li><a .*?</a></li>", told.decode())
    return [re.sub(r"<[^>]+>", " ", each).replace("\N{NO-BREAK SPACE}", " ") for each in found]


def part(told: str, begin: str, end: str) -> str:
    return told[told.index(f'id="{begin}"') : told.index(f'id="{end}"')]


def test_the_first_numbers_name_the_node_to_begin_with() -> None:
    serves, infra, security, failed, certificates = tiles(
        node(1, S.IN_SERVICE, left=9),
        node(2, S.AWAITING_RETIREMENT, 3),
        node(3, S.RETIRE_FAILED, 2),
        node(4, S.AWAITING_IDENTITY, 5),
        node(5, S.VERIFY_FAILED, 0.5, left=-2),
    )

    assert "of 5 that are not retired" in serves
    assert "longest: gpu-02, 3 d 0 h; 1 failed" in infra
    assert "longest: gpu-04, 5 d 0 h; 1 failed" in security
    assert "newest: gpu-05, 12 h 00 min ago" in failed
    assert "first: gpu-05, ended 2 d 0 h ago" in certificates


def test_who_waits_since_nobody_knows_when_still_waits() -> None:
    silent = replace(fleets.row(node(1, S.PROVISION_FAILED)), since=None)
    _, infra, security, failed, certificates = tiles(rows=(silent,))

    assert "since when is not known; 1 failed" in infra
    assert "nobody waits" in security
    assert "since when is not known" in failed
    assert "no end is known" in certificates
    waits = part(page((silent,), (), sections=(), now=NOW).decode(), "waits", "failures")
    assert "<svg" not in waits


def test_an_empty_record_says_what_puts_a_node_there() -> None:
    assert code("provision-node NAME") in written(()).decode()
    assert code("provision-node NAME") not in written((node(1, S.IN_SERVICE),)).decode()


def test_what_somebody_must_do_comes_before_what_is_only_good_to_know() -> None:
    told = written(fleets.fleet()).decode()
    found = re.findall(r'<section id="([a-z]+)"', told)

    assert found == ["waits", "failures", "certificates", "states", "timings", "nodes"]
    assert re.findall(r'<a href="#([a-z]+)">', told[: told.index("</nav>")]) == found


def test_a_long_list_is_folded_after_its_first_lines_and_loses_none() -> None:
    waiting = tuple(node(number, S.AWAITING_IDENTITY, number) for number in range(1, 31))
    waits = part(written(waiting).decode(), "waits", "failures")
    open_part, _, folded = waits.partition("<details>")

    assert open_part.count("#node-") == 10
    assert "20 more in this list" in folded
    assert folded.count("#node-") == 20
    assert len(set(re.findall("#node-(gpu-[0-9]+)", waits))) == 30


def test_a_list_of_a_few_lines_more_is_not_folded() -> None:
    waiting = tuple(node(number, S.AWAITING_IDENTITY, number) for number in range(1, 14))

    assert "<details>" not in part(written(waiting).decode(), "waits", "failures")


def test_a_wait_that_begins_in_the_future_says_so() -> None:
    ahead, now = node(1, S.AWAITING_IDENTITY, -2), node(2, S.AWAITING_IDENTITY, 0)

    assert "is yet to come" in part(written((ahead,)).decode(), "waits", "failures")
    assert "is yet to come" not in part(written((now,)).decode(), "waits", "failures")


def test_certificates_that_are_counted_at_the_margins_are_not_told_as_a_days() -> None:
    far = (node(1, S.IN_SERVICE, left=3650), node(2, S.IN_SERVICE, left=-400))
    near = (node(1, S.IN_SERVICE, left=20), node(2, S.IN_SERVICE, left=-3))

    told = part(written(far).decode(), "certificates", "states")
    assert ">over 120 d</text>" in told
    assert ">over 14 d ago</text>" in told
    assert ">over " not in part(written(near).decode(), "certificates", "states")


def test_an_option_and_a_duration_are_never_broken_in_two() -> None:
    assert '<span class="option">--reissue-ticket</span>' in code("provision-node gpu-07 --reissue-ticket")
    assert re.search(r"\.option\{white-space:nowrap\}", STYLE)
    assert ".set,.option{white-space:normal}" not in STYLE
    assert "1\N{NO-BREAK SPACE}d 0\N{NO-BREAK SPACE}h" in written((node(1, S.PLANNED),)).decode()


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    digits = colour.strip("#")
    digits = "".join(each * 2 for each in digits) if len(digits) == 3 else digits
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_text_is_read_on_every_ground_in_both_schemes() -> None:
    sheets = re.findall(r":root\{([^}]*--page[^}]*)\}", STYLE.replace("\n", ""))[:2]
    words = ("ink", "dim", "link", "service", "infra", "security", "failed", "ended", "warn")
    faint = []
    for scheme, sheet in zip(("light", "dark"), sheets, strict=True):
        colours = dict(re.findall(r"--([a-z]+):(#[0-9a-f]{3,6})", sheet))
        for ground in ("page", "card", "soft"):
            for word in words:
                low, high = sorted((luminance(colours[word]), luminance(colours[ground])))
                ratio = (high + 0.05) / (low + 0.05)
                if ratio < 4.5:  # WCAG 2.2, 1.4.3, level AA
                    faint.append((scheme, word, ground, round(ratio, 2)))

    assert faint == []
