"""What every command of the house shares, tried as a user meets it: a subprocess, its streams, its exit code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from inventory.errors import EXIT_MEANINGS, ExitCode

ROOT = Path(__file__).parents[1]
COMMANDS = ("provision-node", "onboard-node", "verify-node", "node-ca", "node-inventory", "node-lab")
MODULES = {
    "provision-node": "provision.cli",
    "onboard-node": "onboard.cli",
    "verify-node": "verify.cli",
    "node-ca": "ca.cli",
    "node-inventory": "inventory.cli",
    "node-lab": "lab.cli",
}


def run(command: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name(command)
    return subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "80", **environ},
        cwd="/",
    )


def tree(command: str) -> list[tuple[str, ...]]:
    """The command and each of its subcommands, as words."""
    module = __import__(MODULES[command], fromlist=["app"])
    found = typer.main.get_command(module.app)
    return [
        (command,),
        *((command, name) for name in (found.commands if isinstance(found, TyperGroup) else ())),
    ]


def parameters(words: tuple[str, ...]) -> list[Any]:
    """What the command takes; Typer carries its own click, whose types it does not export."""
    found: Any = typer.main.get_command(__import__(MODULES[words[0]], fromlist=["app"]).app)
    for word in words[1:]:
        found = found.commands[word]
    return list(found.params)


ALL = [words for command in COMMANDS for words in tree(command)]
NAMES = [" ".join(words) for words in ALL]


@pytest.mark.parametrize("command", COMMANDS)
def test_version_is_one_line_with_name_and_version(command: str) -> None:
    done = run(command, "--version")

    assert done.returncode == 0
    assert re.fullmatch(rf"{command} \d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.parametrize("words", ALL, ids=NAMES)
def test_help_is_short_lines_on_stdout_with_an_example_and_both_spellings(words: tuple[str, ...]) -> None:
    long, short = run(*words, "--help"), run(*words, "-h")

    assert (long.returncode, short.returncode) == (0, 0)
    assert long.stdout == short.stdout
    assert long.stderr == ""
    assert max(len(line) for line in long.stdout.splitlines()) <= 80
    assert re.search(rf"(?m)^\s*(Example: .*)?{words[0]}\b.*\S", long.stdout.partition("\n")[2])


@pytest.mark.parametrize("words", ALL, ids=NAMES)
def test_every_option_has_a_sentence_and_a_long_name(words: tuple[str, ...]) -> None:
    for parameter in parameters(words):
        if parameter.param_type_name == "option":
            assert any(name.startswith("--") for name in parameter.opts), parameter.name
            assert getattr(parameter, "help", None), f"{' '.join(words)} {parameter.opts}"


def test_a_short_option_means_the_same_everywhere() -> None:
    meanings: dict[str, set[str]] = {}
    for words in ALL:
        for parameter in parameters(words):
            for name in parameter.opts:
                if re.fullmatch(r"-[a-zA-Z]", name):
                    meanings.setdefault(name, set()).add(str(parameter.name))

    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}


@pytest.mark.parametrize("words", [words for words in ALL if len(words) == 2 or len(tree(words[0])) == 1])
def test_every_command_takes_the_options_of_the_house(words: tuple[str, ...]) -> None:
    names = {name for parameter in parameters(words) for name in parameter.opts}

    assert {
        "--json",
        "--quiet",
        "-q",
        "--verbose",
        "-v",
        "--no-input",
        "--no-color",
        "--show-settings",
    } <= names
    assert ("--yes" in names) <= ("--dry-run" in names or words == ("node-lab", "demo"))


def test_the_table_of_exit_codes_is_the_same_in_code_readme_and_help() -> None:
    readme = dict(re.findall(r"(?m)^\| (\d+) \| ([^|]+) \|$", (ROOT / "README.md").read_text()))
    told = {str(int(code)): meaning for code, meaning in EXIT_MEANINGS.items()}

    assert readme == told
    assert set(EXIT_MEANINGS) == set(ExitCode)
    for command in COMMANDS:
        shown = " ".join(run(command, "--help").stdout.split())
        assert all(f"{code} {meaning}" in shown for code, meaning in told.items())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistyped_option_is_answered_with_exit_2_and_an_empty_stdout(command: str) -> None:
    done = run(command, "--verison")

    assert (done.returncode, done.stdout) == (2, "")
    assert "--version" in done.stderr


@pytest.mark.parametrize("command", ["node-ca", "node-inventory", "node-lab"])
def test_a_mistyped_verb_is_answered_with_a_suggestion(command: str) -> None:
    verb = tree(command)[1][1]
    done = run(command, verb + verb[-1])

    assert (done.returncode, done.stdout) == (2, "")
    assert verb in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_and_version_work_without_home_settings_or_keys(command: str, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name(command)
    for flag in ("--help", "--version"):
        done = subprocess.run(
            [program, flag], env={}, cwd=tmp_path, capture_output=True, check=False, timeout=600
        )
        assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_completion_can_be_shown(command: str) -> None:
    done = run(command, "--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")

    assert done.returncode == 0
    assert "_COMPLETE" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_loads_no_heavy_library(command: str) -> None:
    heavy = (
        "cryptography",
        "paramiko",
        "requests",
        "proxmoxer",
        "sqlalchemy",
        "alembic",
        "psycopg",
        "fakepve",
        "asyncssh",
        "aiohttp",
    )
    program = (
        f"import sys; sys.argv = ['{command}', '--help']\n"
        f"from {MODULES[command]} import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600
    )

    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("words", [("list",), ("list", "--json"), ("--help",)], ids=" ".join)
def test_a_reader_who_has_read_enough_is_no_failure(words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    program = Path(sys.executable).with_name("node-inventory")
    with os.fdopen(writing, "wb") as cut:
        done = subprocess.run(
            [program, *words], stdout=cut, stderr=subprocess.PIPE, text=True, check=False, timeout=600
        )

    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_an_unforeseen_failure_is_one_line_and_a_private_file_without_values(tmp_path: Path) -> None:
    program = (
        "import typer; from inventory.command import run; from inventory.options import new_app\n"
        "app = new_app('x')\n"
        "@app.command()\n"
        "def broken() -> None:\n    secret = 'hunter2'; raise ValueError(f'bad {secret}')\n"
        "run(app)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )

    (kept,) = tmp_path.iterdir()
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert str(kept) in done.stderr
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "hunter2'" not in done.stderr
    assert "ValueError" in kept.read_text()


def test_json_of_a_refusal_stays_off_stdout() -> None:
    done = run("node-inventory", "show", "gpu-99", "--json")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: gpu-99 is not on record\n  why: ")
    assert "\n next: " in done.stderr


def test_json_of_a_list_is_one_document() -> None:
    done = run("node-inventory", "list", "--json")

    assert json.loads(done.stdout) == {"schema": 1, "nodes": []}
