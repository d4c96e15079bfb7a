"""docs/files.md, every key of every file of ours, written from the models: `python -m tests.reference`.

Types, defaults and limits are the models' own; meanings are the docstrings under their fields. They are read from
the source, so that a command which is in a hurry does not pay for them.
"""

import ast
import enum
import functools
import importlib
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from onboard.checking import MODELS

FILE = Path(__file__).parents[1] / "docs" / "files.md"
UNITS = {
    "_gib": "GiB",
    "_mib": "MiB",
    "_gbps": "10^9 bit/s",
    "_days": "days",
    "_h": "hours",
    "_s": "seconds",
    "mtu": "octets",
}
_FORMS = (
    "provision.fields",
    "provision.parts",
    "ca.policy",
    "ca.ceremony",
    "inventory.agent_config",
    "inventory.importing",
)
_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}
_PLURALS = {
    "text": "texts",
    "whole number": "whole numbers",
    "number": "numbers",
    "path": "paths",
    "mapping": "mappings",
}
_FOREIGN = {"pydantic.main", "builtins", "inventory.document"}
_TITLES = ("key", "type", "unit", "default", "limits", "meaning")
_HEAD = """\
# The files, key by key

`python -m tests.reference` wrote this page from the models that the commands load the files with.

All are YAML 1.2. An unknown key is an error at every depth, and so is a number in quotes; every fault is told at once,
with its line and column. A relative path is relative to the file that it stands in.
`onboard-node --check FILE` says which of these files it is and what is wrong with it; it needs no authority and no
network, and takes tickets, receipts and a profile's cloud-init user-data as well.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for kind, model in MODELS.items():
        parts += [f"## {kind}.yaml\n", *_sections(model)]
    return "\n".join(parts)


def _sections(model: type[BaseModel]) -> Iterator[str]:
    """The tables of a file: its own keys, then those of each mapping in it."""
    for at, path in parts_of(model).items():
        if path:
            yield f"### {path}\n"
        yield f"{inspect.cleandoc(at.__doc__ or '')}\n"
        rows = [_TITLES, ("---",) * len(_TITLES), *(row(at, name) for name in at.model_fields)]
        yield "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def parts_of(model: type[BaseModel]) -> dict[type[BaseModel], str]:
    """Every mapping of a file, with the path that leads to it; a part that is there twice counts once."""
    found, todo = {model: ""}, [model]
    while todo:
        at = todo.pop(0)
        for name, field in at.model_fields.items():
            for inner, step in _models_in(field.annotation):
                if inner not in found:
                    found[inner] = f"{found[at]}.{_key(name, field)}{step}".lstrip(".")
                    todo.append(inner)
    return found


def row(model: type[BaseModel], name: str) -> tuple[str, ...]:
    """One key's cells."""
    field = model.model_fields[name]
    key = _key(name, field)
    unit = next((unit for end, unit in UNITS.items() if key.endswith(end)), "")
    cells = (
        f"`{key}`",
        type_words(field.annotation),
        unit,
        _default(field),
        _limits(model, name),
        meaning(model, name),
    )
    return tuple(cell.replace("|", "\\|") for cell in cells)


def meaning(model: type[BaseModel], name: str) -> str:
    """The docstring under a field."""
    for owner in model.__mro__:
        if name in inspect.get_annotations(owner):
            module = inspect.getmodule(owner)
            assert module is not None
            return _docstrings(module.__name__).get(f"{owner.__name__}.{name}", "")
    return ""


def type_words(annotation: Any) -> str:
    """What kind of value is written there."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return type_words(inner[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in {typing.Union, types.UnionType}:
        return " or ".join(dict.fromkeys(type_words(each) for each in inner if each is not types.NoneType))
    if origin in {list, tuple}:
        words = type_words(inner[0])
        return f"list of {_PLURALS.get(words, words)}"
    if origin is dict:
        return f"mapping of {_PLURALS[type_words(inner[1])]} by name"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return " or ".join(f"`{member.value}`" for member in annotation)
    return _WORDS[annotation]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "its keys' defaults"
    if isinstance(value, tuple | list):
        return ", ".join(f"`{item}`" for item in value) or "none"
    if value is None or value == {}:
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _limits(model: type[BaseModel], name: str) -> str:
    """Bounds from the checks of the field and its items; forms from the docstring under the type's own name."""
    words = []
    for check in _checks(model.model_fields[name]):
        match check:
            case annotated_types.Ge(ge=low):
                words.append(f"at least {low}")
            case annotated_types.Gt(gt=low):
                words.append(f"above {low}")
            case annotated_types.Le(le=high):
                words.append(f"at most {high}")
            case annotated_types.MinLen(min_length=low) if low == 1:
                words.append("not empty")
            case annotated_types.MaxLen(max_length=high):
                words.append(f"at most {high} long")
    words += [form for named in _names(model, name) if (form := _forms().get(named))]
    return "; ".join(dict.fromkeys(word.removesuffix(".") for word in words))


def _checks(field: FieldInfo) -> Iterator[object]:
    yield from field.metadata
    todo = [field.annotation]
    while todo:
        at: Any = todo.pop()
        if typing.get_origin(at) is Annotated:
            for check in at.__metadata__:
                yield from check.metadata if isinstance(check, FieldInfo) else (check,)
        if typing.get_origin(at) is not Literal:
            todo += typing.get_args(at)


def _names(model: type[BaseModel], name: str) -> list[str]:
    """The types that a field's annotation names, as the source has them."""
    for owner in model.__mro__:
        for node in ast.walk(ast.parse(inspect.getsource(owner))) if owner.__module__ not in _FOREIGN else ():
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.target.id == name
            ):
                return [part.id for part in ast.walk(node.annotation) if isinstance(part, ast.Name)]
    return []


@functools.cache
def _forms() -> dict[str, str]:
    """What stands under a type's own name, in the modules that have such types."""
    return {name: text for module in _FORMS for name, text in _docstrings(module).items() if "." not in name}


@functools.cache
def _docstrings(module: str) -> dict[str, str]:
    """The docstrings under the names of a module and of its classes."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    found = dict(_under("", tree.body))
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found.update(_under(f"{node.name}.", node.body))
    return found


def _under(prefix: str, body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for node, after in itertools.pairwise(body):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            for target in targets:
                if isinstance(target, ast.Name):
                    yield f"{prefix}{target.id}", " ".join(str(after.value.value).split())


def _models_in(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    """The mappings of ours that an annotation names, and what their path gets: `[]` in a list, `.NAME` by name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, ""
        return
    origin = typing.get_origin(annotation)
    step = "[]" if origin in {list, tuple} else ".NAME" if origin is dict else ""
    if origin is not Literal:
        for inner in typing.get_args(annotation):
            for found, more in _models_in(inner):
                yield found, step + more


def _key(name: str, field: FieldInfo) -> str:
    return field.alias or name


def main() -> int:
    """Write the page; with --check only say whether it is as it would be written."""
    if sys.argv[1:] == ["--check"]:
        return int(FILE.read_text(encoding="utf-8") != page())
    FILE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
