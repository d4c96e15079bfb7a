"""docs/files.md tells every key of every file, as the models have them now."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from inventory.document import Model
from onboard.checking import MODELS
from tests.reference import FILE, meaning, page, parts_of, row

KEYS = [(part, name) for model in MODELS.values() for part in parts_of(model) for name in part.model_fields]


class Invented(Model):
    """A file of the tests' own."""

    wait_s: Annotated[int, Field(ge=1, le=9)] = 3
    """How long."""
    unsaid: str


def test_the_page_is_what_the_models_say_now() -> None:
    assert FILE.read_text(encoding="utf-8") == page(), "run: python -m tests.reference"


@pytest.mark.parametrize(("part", "name"), KEYS, ids=[f"{part.__name__}.{name}" for part, name in KEYS])
def test_every_key_has_a_meaning_in_its_model(part: type[Model], name: str) -> None:
    text = meaning(part, name)

    assert text.endswith("."), f"{part.__name__}.{name} has no docstring under it"


def test_a_key_is_told_with_type_unit_default_and_limits() -> None:
    assert row(Invented, "wait_s") == (
        "`wait_s`",
        "whole number",
        "seconds",
        "`3`",
        "at least 1; at most 9",
        "How long.",
    )
    assert row(Invented, "unsaid") == ("`unsaid`", "text", "", "required", "", "")


def test_a_file_within_a_file_is_told_once_with_its_path() -> None:
    paths = list(parts_of(MODELS["site"]).values())

    assert paths[0] == ""
    assert "profiles.NAME.fabrics[].addresses" in paths
    assert len(paths) == len(set(paths))


def test_the_command_says_whether_the_page_is_stale() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.reference", "--check"],
        cwd=Path(__file__).parents[1],
        timeout=600,
        check=False,
    )

    assert done.returncode == 0
