"""docs/renewal.md says what to type: each command line there is one that our commands take."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from ca.cli import app as node_ca
from onboard.cli import app as onboard_node

DOCS = Path(__file__).parents[2] / "docs" / "renewal.md"
COMMANDS = {"onboard-node": onboard_node, "node-ca": node_ca}


def typed() -> list[list[str]]:
    """Every command line of the page, without the brackets and dots that stand for what one chooses."""
    text = DOCS.read_text("utf-8")
    found = []
    for line in text.splitlines():
        pieces = re.findall(r"`([^`]+)`", line) + (
            [re.split(r"\s{2,}", line.partition("env ")[2] or line.strip())[0], *re.split(r"\s{2,}", line)]
            if line.startswith("    ")
            else []
        )
        for piece in pieces:
            words = piece.partition("ExecStart=/usr/bin/env ")[2] or piece
            if words.startswith(tuple(f"{name} " for name in COMMANDS)):
                found.append(shlex.split(words.replace("[NAME...]", "").replace("NAME...", "gpu-07")))
    return [list(words) for words in dict.fromkeys(map(tuple, found))]


def test_the_page_names_the_commands_of_a_nodes_later_life() -> None:
    said = {" ".join(words[:2]) for words in typed()}

    assert {"onboard-node --renew", "onboard-node --refresh", "node-ca crl", "node-ca status"} <= said


@pytest.mark.parametrize("words", typed(), ids=" ".join)
def test_every_command_of_the_page_is_one_that_is_there(words: list[str]) -> None:
    command = typer.main.get_command(COMMANDS[words[0]])
    context = command.make_context(words[0], words[1:], resilient_parsing=False)
    if words[0] == "node-ca":
        _, verb, rest = command.resolve_command(context, words[1:])  # type: ignore[attr-defined]  # a group's
        verb.make_context(words[1], rest, parent=context)
