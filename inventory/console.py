"""The console: stdout is data, stderr is talk; colour, tables and spinners are for terminals only."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

from rich.console import Console as RichConsole
from rich.table import Table
from rich.text import Text

from inventory.errors import MusterError

SCHEMA = 1
_PLAIN_PROGRESS_EVERY_S = 10.0


def printable(text: str) -> str:
    """`text` without what could steer a terminal: control characters become visible escapes."""
    return "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in text)


class Waiting:
    """One wait in progress: what it waits for, and until when."""

    def __init__(self, show: Callable[[str], None]) -> None:
        """`show` is called with each new state of the wait."""
        self._show = show

    def update(self, state: str) -> None:
        """Say what the wait sees now (shown in place on a terminal, seldom elsewhere)."""
        self._show(printable(state))


class Console:
    """Where a command's data and talk go.

    Args:
        json_output: stdout is to be one JSON document, written by `document`.
        quiet: no talk; data, warnings and errors stay.
        verbose: how many -v were given; 1 shows `detail`.
        no_input: nobody may be asked.
        colour: False switches colour off; None judges each stream (NO_COLOR, TERM=dumb, FORCE_COLOR).
    """

    def __init__(
        self,
        *,
        json_output: bool = False,
        quiet: bool = False,
        verbose: int = 0,
        no_input: bool = False,
        colour: bool | None = None,
        stdout: IO[str] | None = None,
        stderr: IO[str] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Make the two streams once; nothing else in Muster makes a console."""
        self.json_output = json_output
        self.quiet = quiet
        self.verbose = verbose
        self.no_input = no_input
        self._out = self._rich(stdout or sys.stdout, colour=colour, environ=environ)
        self._err = self._rich(stderr or sys.stderr, colour=colour, environ=environ)

    @staticmethod
    def _rich(stream: IO[str], *, colour: bool | None, environ: Mapping[str, str]) -> RichConsole:
        return RichConsole(
            file=stream,
            markup=False,
            emoji=False,
            highlight=False,
            soft_wrap=True,
            no_color=True if colour is False else None,
            _environ=environ,
        )

    def data(self, text: str) -> None:
        """One line of data on stdout; nothing with --json, where `document` speaks."""
        if self.json_output:
            return
        if self._out.is_terminal:
            self._out.print(Text(printable(text)))
        else:
            # Straight to the stream: rich would make blanks of the tabs that part the fields.
            self._out.file.write(printable(text) + "\n")

    def document(self, document: Mapping[str, Any]) -> None:
        """The one JSON document of a command, with its schema number first; only with --json."""
        if self.json_output:
            self._out.file.write(json.dumps({"schema": SCHEMA, **document}, ensure_ascii=False) + "\n")
            self._out.file.flush()

    def table(self, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Rows of data: a table on a terminal, else one tab-separated record a line under one title line."""
        if self.json_output:
            return
        if not self._out.is_terminal:
            for row in (titles, *rows):
                self._out.file.write("\t".join(printable(cell).replace("\t", " ") for cell in row) + "\n")
            return
        table = Table(box=None, pad_edge=False)
        for title in titles:
            table.add_column(title, overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self._out.print(table)

    def say(self, text: str) -> None:
        """Talk: what is being done, or what changed."""
        if not self.quiet:
            self._err.print(Text(printable(text)))

    def detail(self, text: str) -> None:
        """Talk for -v."""
        if self.verbose and not self.quiet:
            self._err.print(Text(printable(text), style="dim"))

    def warn(self, text: str) -> None:
        """A warning; -q does not silence it."""
        self._err.print(Text("warning: ", style="yellow") + Text(printable(text)))

    def error(self, error: MusterError) -> None:
        """The three lines of a foreseen failure."""
        self._err.print(Text("error: ", style="bold red") + Text(printable(error.what)))
        for line in error.why.splitlines():
            self._err.print(Text("  why: " + printable(line)))
        self._err.print(Text(" next: " + printable(error.next_step)))

    def trouble(self, text: str) -> None:
        """One plain line of an unforeseen failure, or of an interruption."""
        self._err.print(Text(printable(text)))

    @contextmanager
    def waiting(
        self, what: str, *, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> Iterator[Waiting]:
        """A wait that says at once what it waits for and for how long at most.

        A terminal gets a spinner; elsewhere a plain line at the start, and one every ten seconds.
        """
        headline = f"waiting for {what} (at most {timeout_s:.0f} s)"
        if self.quiet:
            yield Waiting(lambda _state: None)
        elif self._err.is_terminal:
            with self._err.status(Text(printable(headline))) as status:
                yield Waiting(lambda state: status.update(Text(f"{printable(headline)}: {state}")))
        else:
            self.say(headline)
            began = last = clock()

            def show(state: str) -> None:
                nonlocal last
                if clock() - last >= _PLAIN_PROGRESS_EVERY_S:
                    last = clock()
                    self.say(f"still {headline}: {state}, {clock() - began:.0f} s so far")

            yield Waiting(show)
