"""The console: stdout is data, stderr is talk; colour, tables and spinners are for terminals only."""

import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from inventory.errors import MusterError, OtherSide

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

SCHEMA = 1
_PLAIN_PROGRESS_EVERY_S = 10.0


def printable(text: str) -> str:
    """`text` without what could steer a terminal: control characters become visible escapes."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in text)


def unwritten(error: OSError) -> OtherSide:
    """What to say when stdout leads to a place that takes no more."""
    return OtherSide(
        "the output was not written",
        why=f"standard output: {error.strerror}",
        next_step="see where it leads and whether that disk is full, then run the command again",
    )


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
        self._out = _Stream(stdout or sys.stdout, colour=colour, environ=environ)
        self._err = _Stream(stderr or sys.stderr, colour=colour, environ=environ, talk=True)

    def data(self, text: str) -> None:
        """One line of data on stdout; nothing with --json, where `document` speaks."""
        if self.json_output:
            return
        self._out.line(text)

    def document(self, document: Mapping[str, Any]) -> None:
        """The one JSON document of a command, with its schema number first; only with --json."""
        if self.json_output:
            with self._out.written():
                self._out.file.write(json.dumps({"schema": SCHEMA, **document}, ensure_ascii=False) + "\n")
                self._out.file.flush()

    def documents(self, key: str, items: Iterable[Mapping[str, Any]]) -> None:
        """The same where the document is a long list under `key`: one item after the other, none of them kept."""
        if not self.json_output:
            return
        out, between = self._out.file, ""
        with self._out.written():
            out.write(f'{{"schema": {SCHEMA}, {json.dumps(key)}: [')
            for item in items:
                out.write(between + json.dumps(item, ensure_ascii=False))
                between = ", "
            out.write("]}\n")
            out.flush()

    def table(
        self, titles: Sequence[str], rows: Iterable[Sequence[str]], *, spare: Sequence[str] = ()
    ) -> None:
        """Rows of data: a table on a terminal, else one tab-separated record a line under one title line.

        spare: columns that a narrow terminal goes without, the first of them first; it is told which.
        """
        if self.json_output:
            return
        terminal = self._out.terminal
        if terminal is None:
            for row in itertools.chain((titles,), rows):
                self._out.line("\t".join(cell.replace("\t", " ") for cell in row))
            return
        from inventory import columns

        told = [[printable(cell) for cell in row] for row in rows]
        if dropped := columns.show(terminal, titles, told, spare=spare):
            self.say(f"no room for {', '.join(dropped)}: widen the terminal, or see --json")

    def say(self, text: str) -> None:
        """Talk: what is being done, or what changed."""
        if not self.quiet:
            self._err.line(text)

    def detail(self, text: str) -> None:
        """Talk for -v."""
        if self.verbose and not self.quiet:
            self._err.line(text, style="dim")

    def warn(self, text: str) -> None:
        """A warning; -q does not silence it."""
        self._err.line(text, lead="warning: ", lead_style="yellow")

    def error(self, error: MusterError) -> None:
        """The three lines of a foreseen failure."""
        self._err.line(error.what, lead="error: ", lead_style="bold red")
        for line in error.why.splitlines():
            self._err.line(line, lead="  why: ")
        self._err.line(error.next_step, lead=" next: ")

    def trouble(self, text: str) -> None:
        """One plain line of an unforeseen failure, or of an interruption."""
        self._err.line(text)

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
        elif (terminal := self._err.terminal) is not None:
            from rich.text import Text

            with terminal.status(Text(printable(headline))) as status:
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


class _Stream:
    """One of the two streams; rich is loaded for a terminal alone, for it takes a quarter of a command's start."""

    def __init__(
        self, file: IO[str], *, colour: bool | None, environ: Mapping[str, str], talk: bool = False
    ) -> None:
        self.file = file
        self._talk = talk
        self._colour = colour
        self._environ = environ

    @functools.cached_property
    def terminal(self) -> "RichConsole | None":
        """The terminal that the stream goes to; None where it goes to a pipe or a file."""
        # Rich has the last word; it calls nothing a terminal that is none of these three.
        told = any(name in self._environ for name in ("FORCE_COLOR", "TTY_COMPATIBLE"))
        if not (told or _is_a_tty(self.file)):
            return None
        from rich.console import Console as RichConsole

        terminal = RichConsole(
            file=self.file,
            markup=False,
            emoji=False,
            highlight=False,
            soft_wrap=True,
            no_color=True if self._colour is False else None,
            _environ=self._environ,
        )
        return terminal if terminal.is_terminal else None

    @contextmanager
    def written(self) -> Iterator[None]:
        """Around each write: talk that its place does not take is lost, data that it does not take is an error.

        Raises:
            OtherSide: the data are not written.
        """
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            if not self._talk:
                raise unwritten(error) from error

    def line(self, text: str, *, style: str = "", lead: str = "", lead_style: str = "") -> None:
        """One line: what leads it in is ours, `text` may come from anywhere."""
        if self.terminal is None:
            try:
                with self.written():
                    self.file.write(f"{lead}{printable(text)}\n")
            except BrokenPipeError as gone:
                raise SystemExit(1) from gone  # as rich does; `run` knows it for a reader who has read enough
            return
        from rich.text import Text

        self.terminal.print(Text(lead, style=lead_style) + Text(printable(text), style=style))


def _is_a_tty(file: IO[str]) -> bool:
    try:
        return file.isatty()
    except (AttributeError, ValueError):  # closed already
        return False
