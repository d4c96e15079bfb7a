"""`--show-settings`: every setting of a command, its value, and what gave it: flag, variable, file or default."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

import typer

from inventory.command import ca_folder, default_url
from inventory.console import Console
from inventory.errors import BadInput

Given = Mapping[str, Any]
FromFile = Callable[[Given], tuple[object, str] | None]
"""What a file says where neither flag nor variable does: the value, and which file; None where it says nothing."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. origin: in words."""

    name: str
    value: object
    origin: str


def settings_of(context: typer.Context, given: Given, files: Mapping[str, FromFile]) -> tuple[Setting, ...]:
    """Every setting of the command that `context` has parsed, in the order of its help."""
    return tuple(
        _setting(context, parameter, given, files.get(parameter.name or ""))
        for parameter in context.command.params
        if parameter.name in given
    )


def show(console: Console, settings: tuple[Setting, ...]) -> None:
    """Tell them; nothing else is done."""
    console.document(
        {"settings": [{"name": s.name, "value": _plain(s.value), "from": s.origin} for s in settings]}
    )
    console.table(("SETTING", "VALUE", "FROM"), [(s.name, _text(s.value), s.origin) for s in settings])


def _setting(
    context: typer.Context,
    parameter: Any,  # noqa: ANN401 - click's, which typer does not name
    given: Given,
    from_file: FromFile | None,
) -> Setting:
    name = str(parameter.name)
    value = given[name]
    option = parameter.param_type_name == "option"
    label = max(parameter.opts, key=len) if option else parameter.metavar or name.upper()
    source = context.get_parameter_source(name)
    match source.name if source is not None else "DEFAULT":
        case "COMMANDLINE":
            origin = "the command line"
        case "ENVIRONMENT":
            origin = str(parameter.envvar)
        case _:
            if from_file is not None and (found := from_file(given)) is not None:
                return Setting(label, *found)
            if value is None and name in _DEFAULTS:
                value = _DEFAULTS[name]()
            origin = "default"
    if name == "inventory":
        _refuse_a_password(str(value))
    return Setting(label, value, origin)


def _refuse_a_password(url: str) -> None:
    parts = urlsplit(url)
    if parts.password is not None or "password=" in parts.query:
        raise BadInput(
            "the record's URL was refused",
            why="a URL is no place for a password: it shows in process lists and logs",
            next_step="leave it out: docs/shared-record.md tells where libpq looks for it",
        )


_DEFAULTS: dict[str, Callable[[], object]] = {
    "inventory": default_url,
    "ca_dir": lambda: ca_folder(None),
}


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value.value if isinstance(value, Enum) else value)


def _text(value: object) -> str:
    match _plain(value):
        case None | []:
            return "-"
        case bool(flag):
            return "yes" if flag else "no"
        case list(values):
            return " ".join(map(str, values))
        case plain:
            return str(plain)
