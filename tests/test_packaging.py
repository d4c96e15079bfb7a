"""What is packaged is whole: metadata, licences, locks, recipes, and the wheel's contents."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.require import need, need_command

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
COMMANDS = {"provision-node", "onboard-node", "verify-node", "node-ca", "node-inventory", "node-lab"}
# Written in halves, so that this file does not name them either.
REGISTRIES = [
    f"{a}{b}" for a, b in (("pypi.", "org"), ("python", "hosted"), ("pypi.python", ".org"), ("simple", "/"))
]


def source_files(*folders: str) -> list[Path]:
    """The files below `folders` that are not made by tools, relative to the root."""
    return [
        path.relative_to(ROOT)
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    ]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built without network."""
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    """The wheel's METADATA."""
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel.read(name).decode())


# The wheel


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert packed == {str(path) for path in source_files(*PACKAGES)}


def test_the_wheel_carries_both_licences_whole(wheel: zipfile.ZipFile, metadata: Message) -> None:
    licences = {
        name.partition("/licenses/")[2]: wheel.read(name) for name in wheel.namelist() if "/licenses/" in name
    }

    assert metadata["License-Expression"] == "Apache-2.0 AND AGPL-3.0-or-later"
    assert set(licences) == {"LICENSE", "LICENSES/AGPL-3.0-or-later.txt"}
    assert b"END OF TERMS AND CONDITIONS" in licences["LICENSE"]
    assert b"END OF TERMS AND CONDITIONS" in licences["LICENSES/AGPL-3.0-or-later.txt"]


def test_the_wheel_brings_the_six_commands(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    scripts = wheel.read(name).decode().partition("[console_scripts]\n")[2].partition("\n\n")[0]

    assert {line.partition(" = ")[0] for line in scripts.splitlines()} == COMMANDS


def test_the_heavy_libraries_come_only_through_extras(metadata: Message) -> None:
    requirements = metadata.get_all("Requires-Dist") or []
    heavy = [
        line
        for line in requirements
        if re.match(
            r"(paramiko|proxmoxer|psycopg|pycdlib|python-pkcs11|requests|cryptography|asyncssh|fakepve)\b",
            line,
        )
    ]

    assert set(metadata.get_all("Provides-Extra") or []) == {
        *("provision", "onboard", "hsm", "verify", "postgres", "lab")
    }
    assert heavy
    assert all("extra ==" in line for line in heavy)


def test_the_metadata_name_only_what_is_used(metadata: Message) -> None:
    bare = [line for line in metadata.get_all("Requires-Dist") or [] if "extra ==" not in line]

    assert declared_by(bare) == {
        "alembic",
        "pydantic",
        "rich",
        "ruamel-yaml",
        "sqlalchemy",
        "typer",
    }


def test_only_the_module_that_extends_fakepve_is_under_its_licence() -> None:
    marked = [
        str(path)
        for path in source_files(*PACKAGES)
        if path.suffix == ".py"
        and "SPDX-License-Identifier: AGPL" in (ROOT / path).read_text(encoding="utf-8")
    ]

    assert marked == ["lab/proxmox_api.py"]


def test_each_direct_dependency_has_its_line_in_the_docs() -> None:
    text = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    groups = (PROJECT["project"]["optional-dependencies"] | PROJECT["dependency-groups"]).values()
    listed = [*PROJECT["project"]["dependencies"], *(entry for group in groups for entry in group)]
    names = declared_by([entry for entry in listed if isinstance(entry, str)]) - {"passmuster"}

    assert {name for name in names if f"| {name} |" not in text} == set()


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("inventory", "verify"),  # reach speaks SSH, for the floors that bring it
        ("ca", "hsm"),
        ("provision", "provision"),
        ("onboard", "onboard"),
        ("verify", "verify"),
        ("lab", "lab"),
    ],
)
def test_a_package_imports_only_what_its_extra_declares(package: str, extra: str) -> None:
    declared = declared_by(PROJECT["project"]["dependencies"]) | extra_names(extra) | {"pydantic-core"}
    modules = {name.replace("-", "_"): name for name in declared} | {
        "ruamel": "ruamel-yaml",
        "pkcs11": "python-pkcs11",
    }

    for path in source_files(package):
        if path.suffix == ".py":
            foreign = imported_by(ROOT / path) - sys.stdlib_module_names - set(PACKAGES) - set(modules)
            assert foreign == set(), path


def declared_by(requirements: list[str]) -> set[str]:
    """The names in a list of requirements."""
    return {re.split(r"[^\w.-]", entry)[0] for entry in requirements}


def extra_names(extra: str) -> set[str]:
    """What an extra brings, other extras that it includes resolved."""
    names = set()
    for entry in PROJECT["project"]["optional-dependencies"][extra]:
        if included := re.fullmatch(r"passmuster\[(.*)\]", entry):
            names |= set().union(*(extra_names(name) for name in included[1].split(",")))
        else:
            names |= declared_by([entry])
    return names


def imported_by(file: Path) -> set[str]:
    """The first part of every module that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


# The locks


@pytest.mark.parametrize("lock", LOCKS, ids=[lock.name for lock in LOCKS])
def test_every_locked_requirement_has_a_version_and_a_hash(lock: Path) -> None:
    entries = re.split(r"\n(?=\S)", re.sub(r"(?m)^\s*#.*\n", "", lock.read_text(encoding="utf-8")).strip())

    assert entries
    for entry in entries:
        assert re.match(r"[\w.-]+==\S+( ; [^\\]+)? \\\n", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}$", entry), entry


@pytest.mark.parametrize("lock", LOCKS, ids=[lock.name for lock in LOCKS])
def test_every_lock_agrees_with_the_development_set(lock: Path) -> None:
    assert pins(lock).items() <= pins(ROOT / "requirements/dev.txt").items()


def test_the_development_set_locks_every_direct_dependency() -> None:
    groups = (PROJECT["project"]["optional-dependencies"] | PROJECT["dependency-groups"]).values()
    listed = [*PROJECT["project"]["dependencies"], *(entry for group in groups for entry in group)]
    names = declared_by([entry for entry in listed if isinstance(entry, str)]) - {"passmuster"}

    assert {name.replace(".", "-") for name in names} <= set(pins(ROOT / "requirements/dev.txt"))


def test_no_file_names_a_package_registry() -> None:
    need_command("git")
    need((ROOT / ".git").exists(), "a git clone of Muster", "git clone it, instead of unpacking an archive")
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        env=os.environ
        | {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    texts = {
        name: (ROOT / name).read_text(encoding="utf-8", errors="replace")
        for name in done.stdout.split("\0")
        if name and (ROOT / name).is_file()
    }

    assert len(texts) > 20
    assert [(name, host) for name, text in texts.items() for host in REGISTRIES if host in text] == []


def pins(lock: Path) -> dict[str, str]:
    """Name and version of every requirement in a lock."""
    return dict(re.findall(r"(?m)^([\w.-]+)==(\S+)", lock.read_text(encoding="utf-8")))


# The recipes


def test_every_recipe_has_a_comment_and_keeps_the_house_format() -> None:
    lines = (ROOT / "Justfile").read_text(encoding="utf-8").splitlines()
    recipes = [number for number, line in enumerate(lines) if re.match(r"[a-z][\w-]*( \*\w+)?:$", line)]
    above = [
        next(line for line in reversed(lines[:number]) if not line.startswith("[")) for number in recipes
    ]

    assert len(recipes) >= 7
    assert all(re.match(r"# [A-Z]", line) for line in above), above


def test_the_list_of_recipes_is_what_just_shows_by_default() -> None:
    just = Path(sys.executable).with_name("just")
    done = subprocess.run([just], cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)

    assert {"demo", "test", "check", "bench", "fix", "lock", "wheel"} <= set(
        re.findall(r"(?m)^ +([\w-]+)", done.stdout)
    )


@pytest.mark.parametrize("shell", ["sh", "dash", "bash"])
def test_run_and_the_packages_scripts_are_clean_for_every_shell(shell: str) -> None:
    need_command(shell)
    scripts = [ROOT / "run", *(ROOT / path for path in source_files(*PACKAGES) if path.suffix == ".sh")]

    for script in scripts:
        done = subprocess.run([shell, "-n", script], capture_output=True, text=True, timeout=600, check=False)

        assert (done.returncode, done.stderr) == (0, ""), script


def test_run_can_be_run() -> None:
    assert (ROOT / "run").read_text(encoding="utf-8").startswith("#!/bin/sh\n")
    assert os.access(ROOT / "run", os.X_OK)
    assert os.access(ROOT / ".ci/run", os.X_OK)
