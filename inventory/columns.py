"""Rows on a terminal: side by side where they fit, one under the other where a word would have to be broken."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console as Terminal

PROSE = 24
"""Columns of text that wraps between words get as many cells at least."""
_GAP = 2


def show(
    terminal: "Terminal", titles: Sequence[str], rows: Sequence[Sequence[str]], *, spare: Sequence[str] = ()
) -> tuple[str, ...]:
    """Print rows without a broken word; which columns had no room.

    spare: titles of columns that are left out for want of room, the first of them first.
    """
    least = [_least([title, *cells]) for title, *cells in zip(titles, *rows, strict=True)]
    left = list(range(len(titles)))
    dropped = []
    for title in spare:
        if _wide(left, least) > terminal.width:
            left.remove(titles.index(title))
            dropped.append(title)
    if _wide(left, least) > terminal.width and len(titles) > 1:
        _blocks(terminal, titles, rows)
        return ()
    table = Table(box=None, pad_edge=False)
    for at in left:
        prose = any(" " in row[at] for row in rows)
        table.add_column(titles[at], overflow="fold", no_wrap=not prose)
    for row in rows:
        table.add_row(*(Text(row[at]) for at in left))
    terminal.print(table)
    return tuple(dropped)


def _least(cells: Sequence[str]) -> int:
    """The cells that a column needs: all of it where nothing in it can be wrapped, else enough to read it."""
    whole = max(map(cell_len, cells))
    if not any(" " in cell for cell in cells):
        return whole
    return min(whole, max(PROSE, *(cell_len(word) for cell in cells for word in cell.split(" "))))


def _wide(left: Sequence[int], least: Sequence[int]) -> int:
    return sum(least[at] for at in left) + _GAP * (len(left) - 1)


def _blocks(terminal: "Terminal", titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A row's values one under the other; the terminal wraps them itself, so that what is copied is whole."""
    wide = max(map(cell_len, titles))
    for number, row in enumerate(rows):
        if number:
            terminal.print()
        for title, cell in zip(titles, row, strict=True):
            terminal.print(
                Text(f"{title:{wide}}  ", style="bold") + Text(cell, style="not bold"), soft_wrap=True
            )
