"""The script that makes .venv makes it once, mends an unfinished one, and passes arguments on as they are."""

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RECIPE = """
set positional-arguments

[no-exit-message]
demo *args:
    @printf '<%s>' "$@"; echo; pwd

[no-exit-message]
fail *args:
    @exit 5
"""
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "small"
version = "1"
[project.scripts]
small = "small:main"
[tool.hatch.build.targets.wheel]
packages = ["small"]
"""


@pytest.fixture(scope="module")
def lent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment made by someone else, which sees the libraries of ours and has a just."""
    environment = tmp_path_factory.mktemp("lent") / ".venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=600)
    (site,) = (environment / "lib").glob("python*/site-packages")
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (environment / "bin/just").symlink_to(Path(sys.executable).with_name("just"))
    return environment


@pytest.fixture
def clone(tmp_path: Path, lent: Path) -> Path:
    """A small project with our `run`, empty locks, and an environment that lends it our libraries."""
    root = tmp_path / "a clone"
    (root / "requirements").mkdir(parents=True)
    (root / "small").mkdir()
    (root / "small/__init__.py").write_text("def main() -> None:\n    print('small')\n")
    shutil.copy(ROOT / "run", root / "run")
    shutil.copytree(lent, root / ".venv", symlinks=True)
    (root / "Justfile").write_text(RECIPE)
    (root / "pyproject.toml").write_text(PROJECT)
    for name in ("demo", "dev"):
        (root / f"requirements/{name}.txt").write_text(f"# {name}\n")
    return root


def run(root: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Type ./run with these arguments, without uv and without a registry."""
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"])
    return subprocess.run(
        [root / "run", *arguments],
        cwd=cwd or root,
        env={"PATH": path, "HOME": os.environ["HOME"], "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_the_first_run_makes_the_environment_and_the_second_starts_at_once(clone: Path) -> None:
    first = run(clone, "demo", "--json", "two words", "-k", cwd=Path("/"))
    made = (clone / ".venv/muster-stamp").stat().st_mtime_ns
    second = run(clone, "demo", "--json")
    script = subprocess.run(
        [clone / ".venv/bin/small"], capture_output=True, text=True, check=True, timeout=600
    )

    assert (first.returncode, first.stdout) == (0, f"<--json><two words><-k>\n{clone}\n"), first.stderr
    assert "requirements/demo.txt" in first.stderr
    assert (second.returncode, second.stdout, second.stderr) == (0, f"<--json>\n{clone}\n", "")
    assert (clone / ".venv/muster-stamp").stat().st_mtime_ns == made
    assert script.stdout == "small\n"


def test_the_demo_environment_becomes_the_development_one_and_serves_the_demo_on(clone: Path) -> None:
    demo, fail, again = run(clone, "demo"), run(clone, "fail"), run(clone, "demo")

    assert demo.returncode == 0, demo.stderr
    assert fail.returncode == 5  # the recipe's own exit code
    assert "requirements/dev.txt" in fail.stderr
    assert (again.returncode, again.stderr) == (0, "")


def test_a_changed_lock_is_installed_before_anything_runs(clone: Path) -> None:
    run(clone, "demo")
    (clone / "requirements/demo.txt").write_text("no-such-library==1 --hash=sha256:" + "0" * 64 + "\n")

    done = run(clone, "demo")

    assert done.returncode == 4
    assert done.stdout == ""
    assert "requirements/demo.txt" in done.stderr
    assert " next: " in done.stderr


def test_an_unfinished_environment_is_made_anew(clone: Path) -> None:
    (clone / ".venv/muster-unfinished").touch()
    (clone / ".venv/half").touch()

    done = run(clone, "demo")

    assert "left unfinished" in done.stderr
    assert not (clone / ".venv/half").exists()
    assert (clone / ".venv/bin/python").exists()
    assert (
        done.returncode == 4
    )  # the new one has no hatchling: nothing lends it any, and there is no registry


def test_a_run_waits_for_another_that_is_making_the_environment(clone: Path) -> None:
    with (clone / "run").open() as script:
        fcntl.flock(script, fcntl.LOCK_EX)
        path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
        with subprocess.Popen(
            [clone / "run", "demo"],
            env={"PATH": path, "HOME": os.environ["HOME"], "PIP_NO_INDEX": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as waiting:
            assert waiting.stderr is not None
            said = waiting.stderr.readline()
            fcntl.flock(script, fcntl.LOCK_UN)
            out, _ = waiting.communicate(timeout=600)

    assert "waiting for another run" in said
    assert out.startswith("<")


def test_without_python_it_says_what_is_missing(clone: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "dirname", "readlink", "cat", "cksum", "id", "mkdir", "rm", "cut"):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)

    done = subprocess.run(
        [clone / "run", "demo"],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 2
    assert done.stdout == ""
    assert "no python3 of version 3.11 or newer" in done.stderr
    assert "apt-get install python3 python3-venv" in done.stderr
