"""Every shipped example goes through the loader that production uses, and every key of it arrives."""

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from ca.ceremony import Ceremony
from ca.policy import Policy
from inventory.agent_config import AgentConfig
from inventory.document import Model, load, loads
from inventory.errors import BadFile
from inventory.importing import NodeList
from inventory.server_config import ServerConfig
from provision.spec import Site

EXAMPLES = Path(__file__).parents[1] / "examples"
MODELS: dict[str, type[Model]] = {
    "agent.yaml": AgentConfig,
    "ceremony.yaml": Ceremony,
    "ceremony-token.yaml": Ceremony,
    "nodes.yaml": NodeList,
    "policy.yaml": Policy,
    "server.yaml": ServerConfig,
    "site.yaml": Site,
    "site-pinned.yaml": Site,
}

Leaf = tuple[tuple[str | int, ...], Any]


def plain(file: str) -> Any:
    return YAML(typ="safe", pure=True).load((EXAMPLES / file).read_text())


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> list[Leaf]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key))]
    if isinstance(value, list):
        return [leaf for number, inner in enumerate(value) for leaf in leaves(inner, (*path, number))]
    return [(path, value)]


def mappings(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The path of every mapping, the whole file's too."""
    inner: list[tuple[str | int, ...]] = []
    if isinstance(value, dict):
        inner = [path]
        for key, part in value.items():
            inner += mappings(part, (*path, key))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            inner += mappings(part, (*path, number))
    return inner


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        value = value[part]
    return value


CHOSEN = {
    ("profiles",),
    ("nodes",),
    ("nodes", "gpu-07", "fabrics"),
}  # of site.yaml: keys that the user invents
CASES = [(file, path) for file in MODELS for path in mappings(plain(file)) if path not in CHOSEN]
IDS = [f"{file}:{'.'.join(map(str, path))}" for file, path in CASES]


def test_no_example_is_without_a_model_and_none_is_absent() -> None:
    cloud_inits = {"user-data.yaml"}
    tables = {"nodes.csv"}  # tests/inventory/test_import.py has each of its columns

    assert {file.name for file in EXAMPLES.iterdir() if file.is_file()} == {*MODELS, *cloud_inits, *tables}


@pytest.mark.parametrize("file", MODELS)
def test_every_key_of_an_example_arrives_with_its_value(file: str) -> None:
    loaded = json.loads(load(EXAMPLES / file, MODELS[file]).model_dump_json(by_alias=True))

    for path, wanted in leaves(plain(file)):
        arrived = at(loaded, path)
        as_path, as_none = str(EXAMPLES / str(wanted)), wanted == "dhcp" and arrived is None
        assert arrived in (wanted, as_path) or as_none, f"{file}: {path}"


@pytest.mark.parametrize("model", list(dict.fromkeys(MODELS.values())))
def test_the_examples_show_every_key_of_their_model(model: type[Model]) -> None:
    files = [file for file in MODELS if MODELS[file] is model]  # some keys stand in the place of others
    shown = {part for file in files for path in mappings(plain(file)) for part in at(plain(file), path)}

    assert not fields(model) - shown


def fields(model: type[Model]) -> set[str]:
    schema = model.model_json_schema(by_alias=True)
    parts = [schema, *schema.get("$defs", {}).values()]
    return {name for part in parts for name in part.get("properties", ())}


@pytest.mark.parametrize(("file", "path"), CASES, ids=IDS)
def test_a_misspelt_key_is_refused_with_its_line_at_every_depth(
    file: str, path: tuple[str | int, ...]
) -> None:
    content = plain(file)
    mapping = at(content, path)
    key = next(iter(mapping))
    mapping[f"{key}_misspelt"] = mapping.pop(key)
    text = json.dumps(content, indent=1)  # JSON is YAML, and has each key on a line of its own
    line = next(number for number, shown in enumerate(text.splitlines(), 1) if "_misspelt" in shown)

    with pytest.raises(BadFile) as refused:
        loads(text, MODELS[file], name=file, base=EXAMPLES)
    told = [str(fault) for fault in refused.value.faults]
    assert any(
        fault.startswith(f"{file}:{line}:") and f"{key}_misspelt: unknown key" in fault for fault in told
    ), told


@pytest.mark.parametrize("file", ["site.yaml", "site-pinned.yaml"])
def test_no_comment_of_the_site_file_names_a_key(file: str) -> None:
    comments = [line.partition("#")[2] for line in (EXAMPLES / file).read_text().splitlines() if "#" in line]

    for key in fields(MODELS["site.yaml"]):
        assert not [comment for comment in comments if f"{key}:" in comment or f"`{key}`" in comment]
