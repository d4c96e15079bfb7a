"""Every command of the README is run, and every file that it points to is there."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.require import need_command

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = [block.splitlines() for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)]


def test_every_command_of_the_readme_is_one_that_some_test_runs() -> None:
    recipes = set(re.findall(r"(?m)^([a-z]+) ?[^:\n]*:(?!=)", (ROOT / "Justfile").read_text()))
    run, walk = BLOCKS

    assert [line.split()[1] for line in run] == ["demo", "test"]
    assert {line.split()[1] for line in run} <= recipes
    assert walk[0] == "node-lab up"
    assert walk[-1] == "node-lab down"


def test_the_walk_through_the_lab_goes_as_the_readme_says(tmp_path: Path) -> None:
    need_command("ssh-keygen")
    _, walk = BLOCKS
    bin_folder = Path(sys.executable).parent
    script = (
        "set -eu\ntrap 'node-lab down >&2' EXIT\n"
        + "\n".join(walk[:-1])
        + "\nnode-inventory show gpu-01 --json\n"
    )
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "XDG_STATE_HOME": str(tmp_path / "state"),
        },
    )

    assert done.returncode == 0, done.stderr
    assert '"state": "in-service"' in done.stdout
    assert not (tmp_path / "state" / "muster" / "lab" / "lab.json").exists()


def test_every_file_that_the_docs_point_to_is_there() -> None:
    for page in [
        ROOT / "README.md",
        ROOT / "SECURITY.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / "docs").glob("*.md"),
    ]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("https://"):
                assert (page.parent / target).exists(), f"{page.name} points to {target}"


def test_the_docs_that_the_readme_names_are_there() -> None:
    for name in re.findall(r"\b(docs/[a-z-]+\.md)\b", README):
        assert (ROOT / name).is_file(), name
