"""What every command shares: its way out, its signals, its question, its word on an absent extra."""

import atexit
import gc
import importlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

import typer

from inventory.console import Console, unwritten
from inventory.errors import BadInput, ExitCode, MusterError

_GARBAGE = (50_000, 20, 100)
"""How much is made before garbage is looked for: imports make much, and none of it is garbage."""


def need(extra: str, *modules: str) -> None:
    """Refuse, with the line that mends it, when an extra's libraries are absent.

    Raises:
        BadInput: a module of `extra` cannot be imported.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as absent:
            raise BadInput(
                "this command lacks its libraries",
                why=f"{absent.name} is not installed; it comes with the extra '{extra}'",
                next_step=f"uv tool install 'passmuster[{extra}]'",
            ) from absent


def state_home(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_STATE_HOME/muster` (XDG Base Directory 0.8: a relative value is ignored)."""
    named = environ.get("XDG_STATE_HOME", "")
    if Path(named).is_absolute():
        return Path(named) / "muster"
    return Path(environ.get("HOME") or Path.home()) / ".local/state/muster"


def default_url() -> str:
    """The record in the state directory: `sqlite:///$XDG_STATE_HOME/muster/inventory.db`."""
    return f"sqlite:///{state_home() / 'inventory.db'}"


def ask(console: Console, question: str, *, yes: bool, flag: str = "--yes") -> bool:
    """Ask before a change: True for yes.

    Raises:
        BadInput: there is no terminal to ask on, or --no-input was given; the flag to pass is named.
    """
    if yes:
        return True
    if console.no_input or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput(
            "nothing was changed",
            why="this asks before it changes something, and there is no terminal to ask on",
            next_step=f"run it again with {flag}",
        )
    console.trouble(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def run(app: typer.Typer) -> NoReturn:
    """Run a command to its exit code: foreseen errors in three lines, unforeseen ones in a named file."""
    _spare_the_start()
    signal.signal(signal.SIGTERM, _terminated)
    _fill_streams()
    console = Console(colour=False if "--no-color" in sys.argv else None)
    code: int | str | None = 0
    try:
        app()
    except MusterError as error:
        console.error(error)
        code = int(error.exit_code)
    except SystemExit as stop:
        code = stop.code
        if isinstance(stop.__context__, BrokenPipeError):
            code = 0  # typer makes 1 of it; but a reader who has read enough, as head(1), is no failure
        elif code == int(ExitCode.INTERRUPTED):
            console.trouble("interrupted; the same command typed again goes on from here")
    except KeyboardInterrupt:
        console.trouble("interrupted; the same command typed again goes on from here")
        code = int(ExitCode.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the one place where a bug ends in a sentence
        if isinstance(error, OSError) and _holds_what_it_cannot_write(sys.stdout):
            console.error(unwritten(error))
            code = int(ExitCode.OTHER_SIDE)
        else:
            code = int(ExitCode.BUG)
            console.trouble(
                f"bug: {type(error).__name__}; please report it with {_keep_traceback()}, its traceback"
            )
    try:
        sys.stdout.flush()
    except OSError as error:
        if not (isinstance(error, BrokenPipeError) or code):
            console.error(unwritten(error))
            code = int(ExitCode.OTHER_SIDE)
        _to_nowhere(sys.stdout)
    try:
        sys.stderr.flush()
    except OSError:
        _to_nowhere(sys.stderr)
    sys.exit(code)


def _holds_what_it_cannot_write(stream: IO[str]) -> bool:
    try:
        stream.flush()
    except OSError:
        return True
    return False


def _to_nowhere(stream: IO[str]) -> None:
    """What lies in it still would be tried once more at the end, and make 120 of the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fill_streams() -> None:
    """Lead a standard stream that we were started without to nowhere; the next file would take its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115, PTH123


def _spare_the_start() -> None:
    """Most commands live for a moment: what that moment would be spent on is left out."""
    gc.set_threshold(*_GARBAGE)
    # At its end a process gives all memory back at once; taking classes and functions apart first is half its time.
    atexit.register(gc.freeze)
    # Pydantic would look for plugins in the metadata of all that is installed, and none has a say in our files.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")


def _terminated(_signum: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(int(ExitCode.TERMINATED))


def _keep_traceback() -> str:
    """Write the traceback (source lines, no values of variables) to a file only its owner can read."""
    descriptor, name = tempfile.mkstemp(prefix="muster-bug-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        kind, _, trace = sys.exc_info()
        out.writelines(traceback.format_tb(trace))
        out.write(f"{getattr(kind, '__name__', kind)}\n")
    return name


def ca_folder(given: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """The authority's folder: the one given, else /var/lib/muster/ca for root and the state directory's for others."""
    if given is not None:
        return given
    return Path("/var/lib/muster/ca") if os.geteuid() == 0 else state_home(environ) / "ca"
