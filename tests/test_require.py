"""The tests' own rules: skips are named, or failures where all is required; nothing is left behind."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run_tests(folder: Path, source: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `source` as a test module below a copy of these rules."""
    package = folder / "tests"
    package.mkdir()
    for name in ("__init__.py", "conftest.py", "require.py"):
        text = (ROOT / "tests" / name).read_text("utf-8")
        # the plugins bring fixtures, no rules
        (package / name).write_text(re.sub(r"(?m)^pytest_plugins = .*$", "", text), "utf-8")
    (folder / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (package / "test_it.py").write_text(textwrap.dedent(source))
    command = [sys.executable, "-m", "pytest", "--color=no", "--basetemp", str(folder / "tmp")]
    return subprocess.run(
        command,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"} | environ,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


NEEDS_A_COMMAND = """
    from tests.require import need_command

    def test_one() -> None:
        need_command("sh", "no-such-command")

    def test_two() -> None:
        need_command("no-such-command")
"""


@pytest.mark.parametrize("workers", ["", "-n 2"], ids=["one process", "workers"])
def test_skips_end_the_run_grouped_by_what_is_missing(tmp_path: Path, workers: str) -> None:
    done = run_tests(tmp_path, NEEDS_A_COMMAND, PYTEST_ADDOPTS=workers)

    assert done.returncode == 0, done.stdout
    assert "not run here" in done.stdout
    assert "2 tests for want of no-such-command: apt-get install no-such-command" in done.stdout


def test_a_missing_need_fails_where_all_is_required(tmp_path: Path) -> None:
    done = run_tests(tmp_path, NEEDS_A_COMMAND, MUSTER_REQUIRE="all")

    assert done.returncode == 1
    assert "2 failed" in done.stdout


@pytest.mark.parametrize(
    "source",
    [
        "import pytest\ndef test_it(): pytest.skip('no reason')",
        "import pytest\n@pytest.mark.skip(reason='no reason')\ndef test_it(): pass",
        "import pytest\npytest.skip('no reason', allow_module_level=True)",
    ],
    ids=["in the test", "by a mark", "the whole module"],
)
def test_any_other_skip_fails_too_where_all_is_required(tmp_path: Path, source: str) -> None:
    done = run_tests(tmp_path, source, MUSTER_REQUIRE="all")

    assert done.returncode in {1, 2}
    assert "MUSTER_REQUIRE=all, but" in done.stdout


def test_a_test_that_is_opt_in_may_be_skipped_anywhere(tmp_path: Path) -> None:
    source = "import pytest\n@pytest.mark.opt_in\ndef test_it(): pytest.skip('a real Proxmox: --proxmox URL')"

    done = run_tests(tmp_path, source, MUSTER_REQUIRE="all")

    assert done.returncode == 0, done.stdout
    assert "1 test for want of a real Proxmox: --proxmox URL" in done.stdout


def test_a_process_that_outlives_the_tests_is_named_and_ended(tmp_path: Path) -> None:
    source = """
        import subprocess

        def test_it() -> None:
            subprocess.run(["sh", "-c", "sleep 77.7 >/dev/null 2>&1 &"], check=True)
    """

    done = run_tests(tmp_path, source)

    assert done.returncode == 1
    assert "sleep 77.7" in done.stdout.partition("left behind")[2]


def test_settings_of_the_person_who_runs_the_tests_do_not_reach_them(tmp_path: Path) -> None:
    source = """
        import os

        def test_it(tmp_path) -> None:
            assert "MUSTER_SITE" not in os.environ
            assert "XDG_CONFIG_HOME" not in os.environ
            assert os.environ["HOME"] == str(tmp_path)
    """

    done = run_tests(tmp_path, source, MUSTER_SITE="site.yaml", XDG_CONFIG_HOME="/etc")

    assert done.returncode == 0, done.stdout
