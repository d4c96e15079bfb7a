"""docs/inventory-check.md has a row for each disagreement there is, and each mend can be typed."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from inventory.checking import Checker, Kind, discover

PAGE = Path(__file__).parents[1] / "docs" / "inventory-check.md"
MODULES = {
    "provision-node": "provision.cli",
    "onboard-node": "onboard.cli",
    "verify-node": "verify.cli",
    "node-ca": "ca.cli",
    "node-inventory": "inventory.cli",
}
_COMMAND = re.compile(rf"\b({'|'.join(MODULES)})\b((?: (?:--?[a-z-]+|[A-Za-z0-9{{}}_./-]+))*)")


def checkers() -> list[Checker]:
    return [offer.checker() for offer in discover()]


def row(kind: Kind) -> str:
    """A line of the page's table."""
    mend = re.sub(r"{(\w+)}", lambda found: found[1].upper(), kind.mend.replace("{node}", "NODE"))
    return f"| `{kind.about}` | {kind.severity} | {kind.meaning} | {mend} |"


def rows_of(page: str, source: str) -> list[str]:
    section = page.partition(f"\n## {source}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("checker", checkers(), ids=lambda checker: str(checker.source))
def test_the_page_tells_every_disagreement_and_its_mend(checker: Checker) -> None:
    assert rows_of(PAGE.read_text(), checker.source) == [row(kind) for kind in checker.kinds]


def test_the_page_has_a_section_for_each_source_and_no_other() -> None:
    found = re.findall(r"^## ([a-z]+)$", PAGE.read_text(), flags=re.MULTILINE)

    assert found == [checker.source for checker in checkers()]


def command(words: list[str]) -> Any:
    """What these words call."""
    found: Any = typer.main.get_command(__import__(MODULES[words[0]], fromlist=["app"]).app)
    return found.commands[words[1]] if hasattr(found, "commands") else found


@pytest.mark.parametrize(
    "kind", [kind for checker in checkers() for kind in checker.kinds], ids=lambda kind: str(kind.about)
)
def test_every_command_of_a_mend_is_there_with_its_options(kind: Kind) -> None:
    for name, rest in _COMMAND.findall(kind.mend):
        called = command([name, *rest.split()])
        known = {option for parameter in called.params for option in parameter.opts}

        assert {word for word in rest.split() if word.startswith("-")} <= known


def test_most_mends_are_commands() -> None:
    kinds = [kind for checker in checkers() for kind in checker.kinds]

    assert sum(bool(_COMMAND.search(kind.mend)) for kind in kinds) > 0.7 * len(kinds)
