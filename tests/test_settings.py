"""`--show-settings` of every command: each setting with its value and where it came from, and nothing is done."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.test_commands import ALL, MODULES, parameters, tree

LEAVES = [words for words in ALL if len(words) == 2 or len(tree(words[0])) == 1]


HOUSE = {
    *("--json", "--quiet", "--verbose", "--no-input", "--no-color", "--show-settings"),
    *("--version", "--help", "--install-completion", "--show-completion"),
}
NEEDED = {"reason": "superseded"}  # values that are checked before anything else


def told(words: tuple[str, ...], *more: str, **environ: str) -> Result:
    """What a command answers, run in this process."""
    app: typer.Typer = __import__(MODULES[words[0]], fromlist=["app"]).app
    return CliRunner().invoke(app, [*words[1:], *more], env=environ)


def settings(words: tuple[str, ...], *more: str, **environ: str) -> dict[str, tuple[Any, str]]:
    """Value and origin of each setting, by its name."""
    done = told(words, *more, "--show-settings", "--json", **environ)
    assert done.exit_code == 0, done.output
    return {each["name"]: (each["value"], each["from"]) for each in json.loads(done.stdout)["settings"]}


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_tells_its_settings_and_does_nothing(words: tuple[str, ...], tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    needed: list[str] = []
    for each in parameters(words):
        if each.required and each.param_type_name == "argument":
            needed.append("x")
        elif each.required:
            needed += [max(each.opts, key=len), NEEDED.get(each.name, "x")]

    found = settings(words, *needed)

    own = {max(each.opts, key=len) for each in parameters(words) if each.param_type_name == "option"}
    assert {name for name in found if name.startswith("--")} == own - HOUSE
    assert sorted(tmp_path.rglob("*")) == before


def test_a_flag_goes_before_a_variable_and_a_variable_before_a_default(tmp_path: Path) -> None:
    words, url = ("node-inventory", "list"), f"sqlite:///{tmp_path}/a.db"

    assert settings(words)["--inventory"] == (
        f"sqlite:///{tmp_path}/.local/state/muster/inventory.db",
        "default",
    )
    assert settings(words, MUSTER_INVENTORY=url)["--inventory"] == (url, "MUSTER_INVENTORY")
    assert settings(words, "--inventory", url, MUSTER_INVENTORY="sqlite:///b.db")["--inventory"] == (
        url,
        "the command line",
    )
    assert settings(words, "--state", "retired", "gpu-[01-02]")["--state"] == (
        ["retired"],
        "the command line",
    )


def test_a_setting_that_a_file_gives_is_told_with_its_file(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("receipt_signers: allowed_signers\n")
    words = ("node-inventory", "import")

    assert settings(words, "x", "--site", str(site))["--receipt-signers"] == (
        str(tmp_path / "allowed_signers"),
        str(site),
    )
    assert settings(words, "x")["--receipt-signers"] == (None, "default")
    folder = tmp_path / "ca"
    folder.mkdir()
    (folder / "policy.yaml").write_text(
        'trust_domain: lab.example\nnames: ["{node}.lab.example"]\nssh: {key_file: id_holder}\n'
    )
    found = settings(("onboard-node",), "--ca-dir", str(folder))
    assert found["--ssh-key"] == (str(folder / "id_holder"), str(folder / "policy.yaml"))
    given = settings(("onboard-node",), "--ca-dir", str(folder), MUSTER_SSH_KEY="/k")
    assert given["--ssh-key"] == ("/k", "MUSTER_SSH_KEY")


def test_a_password_in_a_url_is_refused_and_told_nowhere() -> None:
    done = told(("node-inventory", "list"), "--show-settings", MUSTER_INVENTORY="postgresql://a:secret@b/c")

    assert done.exit_code != 0
    assert "secret" not in done.output + str(done.exception)


def test_people_read_a_line_for_each_setting() -> None:
    lines = told(("node-inventory", "list"), "--show-settings", "--state", "retired").stdout.splitlines()

    assert lines[0] == "SETTING\tVALUE\tFROM"
    assert "--state\tretired\tthe command line" in lines
    assert "--next\t-\tdefault" in lines
