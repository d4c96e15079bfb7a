"""What every command shares: its common options, its way out, its signals, its word on an absent extra."""

import importlib
import importlib.metadata
import inspect
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from inventory.console import Console
from inventory.errors import EXIT_MEANINGS, BadInput, ExitCode, MusterError

DISTRIBUTION = "passmuster"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No talk on stderr; errors and data stay.")]
Verbose = Annotated[int, typer.Option("--verbose", "-v", count=True, help="More talk on stderr.")]
NoInput = Annotated[bool, typer.Option("--no-input", help="Never ask; fail where a question would be.")]
NoColour = Annotated[bool, typer.Option("--no-color", help="No colour, whatever the terminal says.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Answer the question before a change with yes.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be done; change nothing.")]
InventoryUrl = Annotated[
    str | None,
    typer.Option(
        "--inventory",
        envvar="MUSTER_INVENTORY",
        metavar="URL",
        help="Where the record is (default: sqlite in the state directory).",
    ),
]
CaDir = Annotated[
    Path | None,
    typer.Option(
        "--ca-dir",
        envvar="MUSTER_CA_DIR",
        metavar="DIR",
        help="The authority's folder.",
    ),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        envvar="MUSTER_PASSPHRASE_FILE",
        metavar="FILE",
        help="Holds the passphrase (- for stdin); else it is asked for.",
    ),
]
SshKey = Annotated[
    Path | None,
    typer.Option(
        "--ssh-key",
        envvar="MUSTER_SSH_KEY",
        metavar="FILE",
        help="The holder's SSH key for nodes and receipts.",
    ),
]


def exit_table() -> str:
    """The exit codes, as every command's help ends."""
    return "Exit codes: " + ", ".join(f"{int(code)} {text}" for code, text in EXIT_MEANINGS.items()) + "."


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - the signature typer calls
    if wanted:
        name = Path(sys.argv[0]).name
        typer.echo(f"{name} {importlib.metadata.version(DISTRIBUTION)}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print name and version."),
]


def new_app(help_text: str) -> typer.Typer:
    """A command of the house: plain help, -h, no boxed tracebacks; `help_text` holds examples."""
    return typer.Typer(
        help=f"{inspect.cleandoc(help_text)}\n\n{exit_table()}",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


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
                next_step=f"uv tool install '{DISTRIBUTION}[{extra}]'",
            ) from absent


def state_home(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_STATE_HOME/muster` (XDG Base Directory 0.8: a relative value is ignored)."""
    named = environ.get("XDG_STATE_HOME", "")
    if Path(named).is_absolute():
        return Path(named) / "muster"
    return Path(environ.get("HOME") or Path.home()) / ".local/state/muster"


def ask(console: Console, question: str, *, yes: bool, no_input: bool, flag: str = "--yes") -> bool:
    """Ask before a change: True for yes.

    Raises:
        BadInput: there is no terminal to ask on, or --no-input was given; the flag to pass is named.
    """
    if yes:
        return True
    if no_input or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput(
            "nothing was changed",
            why="this asks before it changes something, and there is no terminal to ask on",
            next_step=f"run it again with {flag}",
        )
    console.trouble(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def run(app: typer.Typer) -> NoReturn:
    """Run a command to its exit code: foreseen errors in three lines, unforeseen ones in a named file."""
    signal.signal(signal.SIGTERM, _terminated)
    console = Console(colour=False if "--no-color" in sys.argv else None)
    code: int | str | None = 0
    try:
        app()
    except MusterError as error:
        console.error(error)
        code = int(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except SystemExit as stop:
        code = stop.code
        if code == int(ExitCode.INTERRUPTED):
            console.trouble("interrupted; the same command typed again goes on from here")
    except KeyboardInterrupt:
        console.trouble("interrupted; the same command typed again goes on from here")
        code = int(ExitCode.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the one place where a bug ends in a sentence
        code = int(ExitCode.BUG)
        console.trouble(
            f"bug: {type(error).__name__}; please report it with {_keep_traceback()}, its traceback"
        )
    sys.stdout.flush()
    sys.exit(code)


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


def console_for(*, json_output: bool, quiet: bool, verbose: int, no_color: bool) -> Console:
    """The console that a command's common options ask for."""
    return Console(json_output=json_output, quiet=quiet, verbose=verbose, colour=False if no_color else None)


def ca_folder(given: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """The authority's folder: the one given, else /var/lib/muster/ca for root and the state directory's for others."""
    if given is not None:
        return given
    return Path("/var/lib/muster/ca") if os.geteuid() == 0 else state_home(environ) / "ca"
