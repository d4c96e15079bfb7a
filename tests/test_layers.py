"""The floors of the house hold, and each contract that keeps them can break."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
NAMES = {contract["id"]: contract["name"] for contract in SETTINGS["contracts"]}

# contract, the new module that breaks it, what this module imports
BREACHES = [
    ("floors", "provision", "import ca"),
    ("floors", "provision", "import onboard"),
    ("floors", "verify", "import provision"),
    ("floors", "ca", "import verify"),
    ("floors", "onboard", "import lab"),
    ("floors", "inventory", "import ca"),
    ("ca-offline", "ca", "import socket"),
    ("ca-offline", "ca", "from inventory import reach"),
    ("proxmoxer", "provision", "import proxmoxer"),
    ("paramiko", "onboard", "import paramiko"),
    ("fakepve", "lab", "import fakepve"),
    ("pkcs11", "ca", "import pkcs11"),
    ("pycdlib", "provision", "import pycdlib"),
    ("sqlalchemy", "provision", "import sqlalchemy"),
    ("sqlalchemy", "inventory", "import sqlalchemy"),
    ("alembic", "inventory.store", "import alembic"),
    ("probe", "verify.probe", "import rich"),
    ("probe", "verify.probe", "import tomllib"),
    ("probe", "verify.probe", "from inventory import errors"),
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages, and what their contracts need, in a folder of their own."""
    for package in SETTINGS["root_packages"]:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests").mkdir()
    for file in ("pyproject.toml", "tests/__init__.py", "tests/contract.py"):
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


@pytest.mark.parametrize(
    ("contract", "package", "forbidden"), BREACHES, ids=[f"{c}: {p}: {i}" for c, p, i in BREACHES]
)
def test_a_forbidden_import_breaks_exactly_its_contract(
    copy: Path, contract: str, package: str, forbidden: str
) -> None:
    (copy / package.replace(".", "/") / "intruder.py").write_text(f'"""Breaks a rule."""\n\n{forbidden}\n')

    status, verdicts = lint_imports(copy)

    assert status == 1
    assert {name for name, kept in verdicts.items() if not kept} == {NAMES[contract]}


def test_every_contract_is_kept(copy: Path) -> None:
    status, verdicts = lint_imports(copy)

    assert verdicts == dict.fromkeys(NAMES.values(), True)
    assert status == 0


def test_every_contract_has_a_breach() -> None:
    assert {contract for contract, _, _ in BREACHES} == set(NAMES)


def lint_imports(folder: Path) -> tuple[int, dict[str, bool]]:
    """The exit status of lint-imports in `folder`, and for each contract whether it was kept."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=folder,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    verdicts = {
        name: f"{name} KEPT" in done.stdout
        for name in NAMES.values()
        if re.search(rf"^{re.escape(name)} (KEPT|BROKEN)", done.stdout, re.MULTILINE)
    }
    assert set(verdicts) == set(NAMES.values()), done.stdout + done.stderr
    return done.returncode, verdicts
