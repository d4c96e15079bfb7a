"""The options that every command of the house takes, and how a command gets them: as the console they ask for."""

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inventory.console import Console
from inventory.errors import EXIT_MEANINGS
from inventory.plain_values import PlainCommand, PlainGroup

if TYPE_CHECKING:
    from inventory.settings import FromFile

DISTRIBUTION = "passmuster"

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
    typer.Option("--ca-dir", envvar="MUSTER_CA_DIR", metavar="DIR", help="The authority's folder."),
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

JumpHost = Annotated[
    str | None,
    typer.Option(
        "--jump",
        envvar="MUSTER_JUMP",
        metavar="[USER@]HOST[:PORT]",
        help="A host to go through to the nodes.",
    ),
]
JumpHostKey = Annotated[
    Path | None,
    typer.Option(
        "--jump-host-key",
        envvar="MUSTER_JUMP_HOST_KEY",
        metavar="FILE",
        help="The jump host's own public host key.",
    ),
]


def exit_table() -> str:
    """The exit codes, as every command's help ends."""
    return "Exit codes: " + ", ".join(f"{int(code)} {text}" for code, text in EXIT_MEANINGS.items()) + "."


def new_app(help_text: str) -> typer.Typer:
    """A command of the house: plain help, -h, --version, no boxed tracebacks; `help_text` holds examples."""
    app = typer.Typer(
        help=f"{inspect.cleandoc(help_text)}\n\n{exit_table()}",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    return app


def verb(
    app: typer.Typer, name: str, *, files: "Mapping[str, FromFile] | None" = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function the verb `name` of a command; it is handed `console` for the options of the house.

    files: settings that a file may give where neither flag nor variable does, by the parameter's name.
    """
    if app.registered_callback is None:
        # A callback makes verbs of the functions, also of a single one, and is where --version belongs.
        app.callback(cls=PlainGroup)(_with_options(_nothing, {"version": _VERSION}))

    def register(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name, cls=PlainCommand)(_with_options(function, _HOUSE, files))
        return function

    return register


def lone(
    app: typer.Typer, *, files: "Mapping[str, FromFile] | None" = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function all that the command does; otherwise as `verb`."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        app.command(help=app.info.help, cls=PlainCommand)(
            _with_options(function, {**_HOUSE, "version": _VERSION}, files)
        )
        return function

    return register


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - the signature typer calls
    if wanted:
        from importlib.metadata import version  # an e-mail parser comes with it

        typer.echo(f"{Path(sys.argv[0]).name} {version(DISTRIBUTION)}")
        raise typer.Exit


_VERSION = (
    False,
    Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print name and version."),
    ],
)
_HOUSE: dict[str, tuple[Any, Any]] = {
    "json_output": (
        False,
        Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")],
    ),
    "quiet": (
        False,
        Annotated[bool, typer.Option("--quiet", "-q", help="No talk on stderr; errors and data stay.")],
    ),
    "verbose": (0, Annotated[int, typer.Option("--verbose", "-v", count=True, help="More talk on stderr.")]),
    "no_input": (
        False,
        Annotated[bool, typer.Option("--no-input", help="Never ask; fail where a question would be.")],
    ),
    "show_settings": (
        False,
        Annotated[
            bool,
            typer.Option("--show-settings", help="Tell each setting and where it came from; do nothing."),
        ],
    ),
    "no_color": (
        False,
        Annotated[bool, typer.Option("--no-color", help="No colour, whatever the terminal says.")],
    ),
}


def _nothing() -> None:
    pass


def _with_options(
    function: Callable[..., None],
    options: dict[str, tuple[Any, Any]],
    files: "Mapping[str, FromFile] | None" = None,
) -> Callable[..., None]:
    """A function with these options besides its own, as Typer reads them: by signature and annotations."""
    own = inspect.signature(function)

    def called(muster_context: typer.Context, **given: Any) -> None:  # noqa: ANN401 - as Typer parsed them
        taken = {name: given.pop(name) for name in options}
        if "console" in own.parameters:
            given["console"] = Console(
                json_output=taken["json_output"],
                quiet=taken["quiet"],
                verbose=taken["verbose"],
                no_input=taken["no_input"],
                colour=False if taken["no_color"] else None,
            )
        if taken.get("show_settings"):
            from inventory import settings

            own_ones = {name: value for name, value in given.items() if name != "console"}
            settings.show(given["console"], settings.settings_of(muster_context, own_ones, files or {}))
            return
        function(**given)

    context = inspect.Parameter(
        "muster_context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    parameters = [
        context,
        *(
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in own.parameters.items()
            if name != "console"
        ),
    ]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (default, annotation) in options.items()
    ]
    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # functions take it
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    called.__doc__ = function.__doc__
    called.__name__ = function.__name__
    return called
