"""YAML files: read, checked, turned into values; every fault with file:line:col, all of them at once."""

import difflib
import io
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, to_jsonable_python
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from inventory.errors import BadFile, BadInput, Fault

MAX_BYTES = 1024 * 1024
_MAX_NODES = 50_000
_MAX_DEPTH = 64
_TAG = "tag:yaml.org,2002:"

Key = str | int
Path_ = tuple[Key, ...]
Marks = dict[Path_, tuple[int, int]]
Plain: typing.TypeAlias = "dict[str, Plain] | list[Plain] | str | int | float | bool | None"


class Model(BaseModel):
    """A file of ours, or a part of one: frozen, unknown keys refused, no guessing of types.

    A number in quotes is not a number here, for it is not one to the programs that read the same file.
    null_counts: whether `key: null` says something else than leaving the key out.
    """

    null_counts: ClassVar[bool] = False
    # Built when a file is first read into it: most commands read one or two kinds of files.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


def _against_the_file(path: Path, info: ValidationInfo) -> Path:
    base = (info.context or {}).get("base")
    return path if base is None else Path(base) / path


RelativePath = Annotated[Path, AfterValidator(_against_the_file)]
"""A path in a file; a relative one is relative to that file's folder."""

M = TypeVar("M", bound=Model)


def load(path: Path, model: type[M]) -> M:
    """The checked content of a YAML 1.2 file of at most 1 MiB.

    Raises:
        BadInput: the file cannot be read.
        BadFile: it has faults; every one is told with its place.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        text = raw.decode("utf-8")
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read",
            why=error.strerror or str(error),
            next_step=f"check the path and rights of {path}",
        ) from error
    except UnicodeDecodeError as error:
        raise BadFile(str(path), [Fault(str(path), f"not UTF-8 at byte {error.start}")]) from error
    if len(raw) > MAX_BYTES:
        raise BadFile(str(path), [Fault(str(path), f"larger than {MAX_BYTES} bytes")])
    return loads(text, model, name=str(path), base=path.absolute().parent)


def loads(text: str, model: type[M], *, name: str, base: Path) -> M:
    """The checked content of YAML text; `name` stands for the file, `base` is where relative paths begin.

    Raises:
        BadFile: the text has faults; every one is told with its place.
    """
    tree = _compose(text, name)
    marks: Marks = {}
    plain = _plain(tree, (), marks, name=name, count=[0])
    try:
        return model.model_validate_json(json.dumps(plain), context={"base": base})
    except ValidationError as error:
        faults = [_fault(detail, model, marks, name) for detail in error.errors()]
        raise BadFile(name, [fault for _, fault in sorted(faults, key=lambda item: item[0])]) from None


def places(text: str, *, name: str) -> Marks:
    """Line and column, from 1, of every key and item of a YAML text, by its path: for faults that a model cannot see.

    Raises:
        BadFile: the text is not YAML.
    """
    marks: Marks = {}
    _plain(_compose(text, name), (), marks, name=name, count=[0])
    return marks


def dump(model: Model) -> str:
    """A model as YAML text that `loads` reads back to an equal model; what was not given is not written.

    A default that is written out is no default any more: where one part of a file extends another, or forbids
    what stands beside it, that would be another file.
    """
    out = io.StringIO()
    yaml = YAML()
    yaml.dump(_given(model), out)
    return out.getvalue()


def _given(value: object) -> object:
    """What was given to a model, as plain values under the file's keys."""
    if isinstance(value, Model):
        told = {
            key: getattr(value, field)
            for field, key in ((name, info.alias or name) for name, info in type(value).model_fields.items())
            if field in value.model_fields_set
        }
        return {
            key: _given(item) for key, item in told.items() if item is not None or type(value).null_counts
        }
    if isinstance(value, Mapping):
        return {str(key): _given(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_given(item) for item in value]
    plain = to_jsonable_python(value)
    if isinstance(plain, str) and not plain.isprintable():
        return DoubleQuotedScalarString(plain)  # the one style that folds no line break, such as U+0085
    return plain


def _compose(text: str, name: str) -> Node:
    yaml = YAML(typ="safe", pure=True)
    try:
        tree: Node | None = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise BadFile(name, [Fault(place, f"not YAML: {error.problem or error.context}")]) from None
    except (YAMLError, ValueError) as error:
        raise BadFile(name, [Fault(name, f"not YAML: {' '.join(str(error).split())}")]) from None
    if tree is None:
        raise BadFile(name, [Fault(f"{name}:1:1", "the file is empty")])
    return tree


def _place(name: str, node: Node) -> str:
    return f"{name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _plain(node: Node, path: Path_, marks: Marks, *, name: str, count: list[int]) -> Plain:
    """The node as plain values; `marks` learns where each path stands (a key's place for mapping values)."""
    count[0] += 1
    if count[0] > _MAX_NODES or len(path) > _MAX_DEPTH:
        raise BadFile(
            name, [Fault(_place(name, node), "too deep or too large (do aliases refer to themselves?)")]
        )
    marks.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
    if isinstance(node, MappingNode):
        result: dict[str, Plain] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                raise BadFile(name, [Fault(_place(name, key), "a key must be a plain word")])
            if key.value in result:
                raise BadFile(
                    name, [Fault(_place(name, key), f"{_dotted((*path, key.value))}: the key is there twice")]
                )
            here = (*path, key.value)
            marks[here] = (key.start_mark.line + 1, key.start_mark.column + 1)
            result[key.value] = _plain(value, here, marks, name=name, count=count)
        return result
    if isinstance(node, SequenceNode):
        return [_plain(item, (*path, i), marks, name=name, count=count) for i, item in enumerate(node.value)]
    return _scalar(node, name)


def _scalar(node: Node, name: str) -> str | int | float | bool | None:
    text = str(node.value)
    match str(node.tag).removeprefix(_TAG):
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            return _integer(text)
        case "float":
            number = float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
            if not math.isfinite(number):
                raise BadFile(name, [Fault(_place(name, node), f"{text}: not a finite number")])
            return number
        case "str" | "timestamp":
            return text
        case other:
            raise BadFile(name, [Fault(_place(name, node), f"tag {other!r} is not allowed here")])


def _integer(text: str) -> int:
    digits = text.replace("_", "").lower()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    base = {"0x": 16, "0o": 8, "0b": 2}.get(digits[:2], 10)
    return sign * int(digits[2:] if base != 10 else digits, base)


def _fault(
    detail: ErrorDetails, model: type[Model], marks: Marks, name: str
) -> tuple[tuple[int, int], Fault]:
    path = _known_part(detail["loc"], marks)
    kind = detail["type"]
    if kind == "missing":
        wanted = (*path, detail["loc"][-1])
        mark, text = marks.get(path, (1, 1)), f"{_dotted(wanted)}: required key is missing"
    else:
        mark = marks.get(path, (1, 1))
        text = f"{_dotted(path)}: {words_of(detail)}" if path else words_of(detail)
        if kind == "extra_forbidden":
            near = difflib.get_close_matches(str(path[-1]), list(_keys_at(model, path[:-1])), n=1)
            text = f"{_dotted(path)}: unknown key" + (f" (did you mean {near[0]}?)" if near else "")
    return mark, Fault(f"{name}:{mark[0]}:{mark[1]}", text)


def _known_part(loc: tuple[Key, ...], marks: Marks) -> Path_:
    """The part of pydantic's location that names keys of the file (it also names members of unions)."""
    path: Path_ = ()
    for part in loc:
        if (*path, part) in marks:
            path = (*path, part)
    return path


def words_of(detail: ErrorDetails) -> str:
    """A fault that pydantic found, as our faults are worded."""
    text = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    text = text[:1].lower() + text[1:] if text.startswith("Input") else text
    if detail["type"] == "string_type":
        text += " (put it in quotes if it is meant as text)"
    return text.replace("input should be", "should be").replace("an object", "a mapping")


def _dotted(path: Path_) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _keys_at(model: type[BaseModel], path: Path_) -> Iterator[str]:
    """The keys that may stand in the mapping at `path`."""
    for found in _models_in(model, path):
        yield from _by_key(found)


def _models_in(annotation: Any, path: Path_) -> Iterator[type[BaseModel]]:  # noqa: ANN401 - any annotation
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        yield from _models_in(typing.get_args(annotation)[0], path)
    elif origin in {typing.Union, types.UnionType}:
        for member in typing.get_args(annotation):
            yield from _models_in(member, path)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not path:
            yield annotation
        elif path[0] in (fields := _by_key(annotation)):
            yield from _models_in(fields[str(path[0])].annotation, path[1:])
    elif path and (members := typing.get_args(annotation)):
        yield from _models_in(members[-1] if members[-1] is not Ellipsis else members[0], path[1:])


def _by_key(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The model's fields by the keys that the file has for them (`from` is no name in Python)."""
    return {field.alias or name: field for name, field in model.model_fields.items()}
