"""The probe as it is shipped: one sum, the standard library of an old Python, and nothing left behind."""

import ast
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from inventory.errors import OtherSide
from tests.require import need_root
from verify import probe as package
from verify.artefact import BOOT, artefact, command, stdin_for
from verify.local import LocalExec, LocalProcess
from verify.probe.tls import Identity
from verify.scenarios import NAMES

from .probing import left_of, order, probe

MODULES = sorted(Path(package.__path__[0]).glob("*.py"))


def oldest_python() -> str:
    """The oldest Python that the probe promises to run under, of those on PATH; this one at the worst."""
    for minor in range(9, sys.version_info.minor):
        found = shutil.which(f"python3.{minor}")
        if found:
            asked = subprocess.run(
                [found, "-c", "import sys; print(sys.executable)"],
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            if asked.returncode == 0:
                return asked.stdout.strip()
    return sys.executable


def started(identity: Identity, *scenarios: str) -> LocalProcess:
    """The probe at work: it has said that it began its first scenario."""
    process = LocalExec().start(command(python=sys.executable))
    process.send(stdin_for(order(identity, *scenarios).settings()))
    for line in process.lines(timeout_s=60):
        if b"scenario-started" in line:
            return process
    raise AssertionError("the probe began nothing")


def test_the_artefact_holds_the_modules_and_nothing_else_and_its_sum_is_its_own() -> None:
    made = artefact()
    with zipfile.ZipFile(io.BytesIO(made.data)) as archive:
        names = archive.namelist()
        dates = {about.date_time for about in archive.infolist()}

    assert names == [f"probe/{module.name}" for module in MODULES]
    assert dates == {(1980, 1, 1, 0, 0, 0)}
    assert made.sha256 == hashlib.sha256(made.data).hexdigest()
    artefact.cache_clear()
    assert artefact() == made


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_a_module_of_the_probe_is_python_3_9_and_imports_the_standard_library_alone(module: Path) -> None:
    tree = ast.parse(module.read_text(), feature_version=(3, 9))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and node.level == 0
            else []
        )
    }

    assert imported <= sys.stdlib_module_names - {"asyncio", "dataclasses", "tomllib"}


def test_boot_fits_an_argument_and_is_old_python_too() -> None:
    ast.parse(BOOT, feature_version=(3, 9))

    assert len(BOOT) < 4096


def test_the_oldest_python_there_is_runs_every_scenario(good: Identity) -> None:
    findings = probe(good, python=oldest_python(), deadline_s=120.0)

    assert [(result.name, result.ok) for result in findings.scenarios] == [(name, True) for name in NAMES]


def test_what_the_login_shell_inherited_does_not_reach_the_probe(
    good: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "OPENSSL_CONF", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, "/nonexistent")

    assert probe(good, "assemble").scenarios[0].ok


def test_the_owner_of_the_key_runs_it_directly_or_by_sudo_and_root_needs_no_sudo() -> None:
    assert command(login="muster", owner="muster").startswith("exec env -i ")
    assert command(login="admin", owner="muster").startswith("exec sudo -n -u muster -- env -i ")
    assert command(login="root", owner="muster").startswith("exec setpriv --reuid=muster ")


def test_a_root_login_becomes_the_owner() -> None:
    need_root()
    line = command(python="id", login="root", owner="nobody").partition(" -I -S -c ")[0]
    done = subprocess.run(
        ["sh", "-c", f"{line} -un"], capture_output=True, text=True, timeout=600, check=False
    )

    assert done.stdout == "nobody\n"


@pytest.mark.parametrize("scenario", ["assemble", "missing-rank", "stranger"])
def test_a_cut_session_ends_the_probe_and_every_rank(good: Identity, scenario: str) -> None:
    process = started(good, scenario)
    process.close_stdin()
    list(process.lines(timeout_s=60))
    status = process.finish(timeout_s=60).exit_status

    assert status == 3
    assert left_of(process.pid) == []


def test_ranks_do_not_outlive_a_probe_that_is_killed(good: Identity) -> None:
    process = started(good, "missing-rank")
    os.kill(process.pid, signal.SIGKILL)
    process.finish(timeout_s=60)

    assert left_of(process.pid) == []


def test_a_probe_that_is_told_to_terminate_leaves_nothing(good: Identity) -> None:
    process = started(good, "missing-rank")
    os.kill(process.pid, signal.SIGTERM)
    status = process.finish(timeout_s=60).exit_status

    assert status == 3
    assert left_of(process.pid) == []


def test_a_probe_that_does_not_arrive_whole_says_so() -> None:
    process = LocalExec().start(command(python=sys.executable))
    process.send(b"\0\0\xff\xff" + b"half")
    process.close_stdin()
    ended = process.finish(timeout_s=60)

    assert ended.exit_status == 1
    assert b"did not arrive whole" in ended.stderr


def test_settings_of_another_schema_are_refused(good: Identity) -> None:
    settings = {**order(good, "assemble").settings(), "schema": 2}
    process = LocalExec().start(command(python=sys.executable))
    process.send(stdin_for(settings))
    lines = list(process.lines(timeout_s=60))
    process.finish(timeout_s=60)

    assert b"settings of schema 2" in lines[-1]


def test_a_local_child_that_does_not_end_is_left_at_its_deadline() -> None:
    process = LocalExec().start("sleep 600")
    with pytest.raises(OtherSide, match="no end within"):
        list(process.lines(timeout_s=0.2))
    with pytest.raises(OtherSide, match="no end within"):
        process.finish(timeout_s=0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.kill()


def test_a_line_without_end_is_refused() -> None:
    process = LocalExec().start("head -c 400000 /dev/zero")
    with pytest.raises(OtherSide, match="line longer than"):
        list(process.lines(timeout_s=60))
    process.kill()


def test_a_command_that_is_not_there_is_told() -> None:
    with pytest.raises(OtherSide, match="nowhere-to-be-found"):
        LocalExec().start("nowhere-to-be-found")
