"""Tables on terminals of every width: no word is broken, what is left out is told, what is copied is whole."""

import io
import re

import pytest

from inventory.console import Console
from inventory.show import SPARE, TITLES

MEND = "provision-node gpu-01 --reissue-ticket, then onboard-node gpu-01"
NODES = [
    ["gpu-01", "awaiting-identity", "security", "10.20.0.17", "100", "pve1", "2026-12-30T21:31:07Z", "-"],
    ["gpu-02", "in-service", "nobody", "10.20.0.18", "101", "pve1", "2026-12-30T21:31:07Z", "-"],
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(titles: tuple[str, ...], rows: list[list[str]], *, width: int, **more: object) -> tuple[str, str]:
    out, err = Terminal(), Terminal()
    environ = {"TERM": "xterm-256color", "COLUMNS": str(width)}
    Console(stdout=out, stderr=err, environ=environ).table(titles, rows, **more)  # type: ignore[arg-type]  # spare
    return tuple(re.sub(r"\x1b\[[0-9;]*m", "", each.getvalue()) for each in (out, err))  # type: ignore[return-value]  # two


@pytest.mark.parametrize(
    ("width", "gone"), [(200, 0), (98, 1), (80, 2), (62, 4), (40, 5)], ids=lambda each: str(each)
)
def test_a_narrow_terminal_goes_without_the_columns_that_matter_least(width: int, gone: int) -> None:
    out, err = shown(TITLES, NODES, width=width, spare=SPARE)

    lines = out.splitlines()
    assert len(lines) == 3
    assert all(len(line.rstrip()) <= width for line in lines)
    assert lines[0].split() == [title for title in TITLES if title not in SPARE[:gone]]
    assert lines[1].split()[:3] == NODES[0][:3]
    assert (f"no room for {', '.join(SPARE[:gone])}" in err) == bool(gone)


def test_where_even_these_do_not_fit_the_values_stand_one_under_the_other() -> None:
    out, _ = shown(TITLES, NODES, width=30, spare=SPARE)

    assert "STATE         awaiting-identity\n" in out
    assert "EXPIRES       2026-12-30T21:31:07Z\n" in out
    assert out.count("NAME") == 2


@pytest.mark.parametrize("width", [40, 80])
def test_a_mend_is_copied_whole_from_a_narrow_terminal(width: int) -> None:
    titles = ("NODE", "ABOUT", "FOUND", "RECORDED", "MEND")
    row = [
        "gpu-01",
        "node-without-identity",
        "no certificate in force there " * 3,
        "in-service since then",
        MEND,
    ]
    out, _ = shown(titles, [row, row], width=width)

    assert re.findall(r"^MEND +(.+)$", out, re.MULTILINE) == [MEND, MEND]


def test_a_column_of_words_wraps_between_them_and_the_others_stay_whole() -> None:
    out, _ = shown(
        ("WHEN", "WHY"), [["2026-12-30T21:31:07Z", "the plan was confirmed by two people"]], width=52
    )

    assert out.splitlines()[1].split() == [
        "2026-12-30T21:31:07Z",
        "the",
        "plan",
        "was",
        "confirmed",
        "by",
        "two",
    ]
    assert out.splitlines()[2].split() == ["people"]


def test_wide_characters_count_for_two() -> None:
    row = ["漢" * 20, "x" * 10]

    assert "漢" * 20 + "  " + "x" * 10 in shown(("NAME", "WHY"), [row], width=52)[0]
    assert "NAME  " + "漢" * 20 + "\n" in shown(("NAME", "WHY"), [row], width=51)[0]


def test_what_could_steer_a_terminal_stays_visible_in_either_form() -> None:
    for width in (20, 200):
        out, _ = shown(("NAME", "WHY"), [["gpu-01", "\x1b[2Jgone " * 3]], width=width)
        assert "\\x1b[2Jgone" in out
