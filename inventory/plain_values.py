"""What was typed, as values of Python: without pydantic where a word is a string, a path or a number as it stands."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

_DIGITS = 9


class PlainCommand(TyperCommand):
    """A command whose parameters load pydantic, a third of its start, only for what needs it or has to be refused."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - typer keeps its types to itself
        """All that it takes."""
        return _plain(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """The same of a command that has verbs."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - typer keeps its types to itself
        """All that it takes before its verb."""
        return _plain(super().get_params(ctx))


def _plain(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if type(parameter) is TyperOption:
            parameter.__class__ = _PlainOption
        elif type(parameter) is TyperArgument:
            parameter.__class__ = _PlainArgument
    return parameters


class _PlainOption(TyperOption):
    def get_runtime_param(self) -> Any:  # noqa: ANN401 - typer keeps its type to itself
        return _Plain(super().get_runtime_param)


class _PlainArgument(TyperArgument):
    def get_runtime_param(self) -> Any:  # noqa: ANN401 - typer keeps its type to itself
        return _Plain(super().get_runtime_param)


class _Plain:
    """Does what typer's own way does, and takes that way for all that it is not sure of; an older typer has neither."""

    def __init__(self, whole_way: Callable[[], Any]) -> None:
        self._whole_way = whole_way

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever another typer asks of it
        return getattr(self._whole_way(), name)

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401 - anything that was typed
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        kind, limits = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        try:
            if not several and kind in _PLAIN:
                return _PLAIN[kind](value, limits)
            if several and kind in _LISTS and isinstance(value, list | tuple):
                return [_PLAIN[_LISTS[kind]](each, limits) for each in value]
        except _Unsure:
            pass
        return self._whole_way().coerce(value, param=param, ctx=ctx)


class _Unsure(Exception):
    """Typer's own way is to be taken."""


def _text(value: Any, limits: Any) -> str:  # noqa: ANN401 - anything that was typed
    # What is not printable may be bytes that are not UTF-8, which pydantic refuses.
    if type(value) is not str or not value.isprintable() or limits.parser is not None:
        raise _Unsure
    return value


def _path(value: Any, limits: Any) -> Path:  # noqa: ANN401 - anything that was typed
    bound = limits.exists or limits.writable or limits.resolve_path or limits.path_type
    if bound or not (limits.file_okay and limits.dir_okay and limits.readable):
        raise _Unsure
    path = Path(_text(str(value) if isinstance(value, Path) else value, limits))
    # Typer refuses a path that is there and cannot be read.
    if not os.access(path, os.R_OK) and os.path.lexists(path):
        raise _Unsure
    return path


def _number(value: Any, limits: Any) -> int:  # noqa: ANN401 - anything that was typed
    if type(value) is str and value.isascii() and value.isdecimal() and len(value) <= _DIGITS:
        value = int(value)
    if type(value) is not int or limits.clamp or limits.parser is not None:
        raise _Unsure
    if (limits.min is not None and value < limits.min) or (limits.max is not None and value > limits.max):
        raise _Unsure
    return value


_PLAIN: dict[Any, Callable[..., Any]] = {str: _text, Path: _path, int: _number}
_LISTS = {list[str]: str, list[Path]: Path}
