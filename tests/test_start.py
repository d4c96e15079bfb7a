"""What a command loads, and leaves out, before it does its work: kept by names, for times differ from host to host."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer.main
from hypothesis import given
from hypothesis import strategies as st

from ca.authority import Authority
from inventory.console import Console
from inventory.options import new_app, verb
from tests.ca.material import CHEAP, PASSPHRASE, policy_text, request

NEVER = frozenset({"rich", "typer.rich_utils", "typer._adapters", "alembic", "sqlalchemy.orm", "paramiko"})
"""What no command needs whose output goes to a pipe, whose record is of today's form, and that dials no node."""
_TOLD = """
import atexit, json, os, sys
atexit.register(lambda: os.write(2, b"\\n" + json.dumps(sorted(sys.modules)).encode()))
sys.argv = sys.argv[1:]
__import__(sys.argv[0], fromlist=["main"]).main()
"""


def modules_of(module: str, *arguments: str) -> set[str]:
    """All that a command has loaded when it ends; it must end well."""
    done = subprocess.run(
        [sys.executable, "-c", _TOLD, module, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("module", ["provision.cli", "ca.cli", "inventory.cli", "onboard.cli", "verify.cli"])
def test_help_loads_neither_pydantic_nor_yaml_nor_a_database(module: str) -> None:
    loaded = modules_of(module, "--help")

    assert loaded & (NEVER | {"pydantic", "ruamel.yaml", "sqlalchemy", "sqlite3", "cryptography"}) == set()


def test_issuing_a_certificate_loads_no_network_no_big_record_and_nothing_of_other_verbs(
    tmp_path: Path,
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(policy_text())
    made = Authority.create(
        tmp_path / "ca", policy_file=policy, passphrase=PASSPHRASE, now=datetime.now(UTC), kdf=CHEAP
    )
    made.close()
    (tmp_path / "node.csr").write_bytes(request())

    loaded = modules_of(
        "ca.cli", "issue", "--csr", str(tmp_path / "node.csr"), "--name", "gpu-01", "--dry-run",
        "--dns", "gpu-01.nodes.lab.example", "--ca-dir", str(tmp_path / "ca"),
    )  # fmt: skip

    assert "ca.authority" in loaded
    assert loaded & (NEVER | {"sqlalchemy", "requests", "urllib3", "proxmoxer", "asyncio", "pkcs11"}) == set()
    assert loaded & {"ca.ceremony", "ca.backup", "ca.restore", "ca.status", "ca.export"} == set()


def takes(
    words: Annotated[list[str] | None, typer.Argument()] = None,
    *,
    text: Annotated[str | None, typer.Option("--text")] = None,
    path: Annotated[Path | None, typer.Option("--path")] = None,
    there: Annotated[Path | None, typer.Option("--there", exists=True)] = None,
    folder: Annotated[Path | None, typer.Option("--folder", file_okay=False)] = None,
    paths: Annotated[list[Path] | None, typer.Option("--paths")] = None,
    number: Annotated[int | None, typer.Option("--number")] = None,
    bounded: Annotated[int, typer.Option("--bounded", min=1, max=64)] = 32,
    seconds: Annotated[float, typer.Option("--seconds")] = 1.5,
    console: Console,
) -> None:
    """Take one of each kind."""


APP = new_app("A command.")
verb(APP, "take")(takes)
COMMAND: Any = typer.main.get_command(APP)
TAKE = COMMAND.commands["take"]
CONTEXT = TAKE.make_context("take", [])
PARAMETERS = {each.name: each for each in TAKE.get_params(CONTEXT)}
SINGLE = ("text", "path", "there", "folder", "number", "bounded", "seconds")
ODD = (
    "", "-", ".", "/", "/etc", "/etc/hostname", "/nowhere/at/all", "/etc/hostname/x", "a b", "é", "\udcff", "\n",
    "0", "-1", "1", "64", "65", "007", "+3", " 3 ", "1_0", "5.0", "٣", "9999999999", "nan", "1e3",
)  # fmt: skip
typed = st.sampled_from(ODD) | st.text(max_size=6) | st.integers(-2, 70).map(str)


def made_of(runtime: Any, name: str, value: object) -> tuple[str, str]:
    """What comes of `value`, or the words in which it is refused."""
    try:
        made = runtime.coerce(value, param=PARAMETERS[name], ctx=CONTEXT)
    except Exception as error:  # noqa: BLE001 - typer keeps its kinds to itself
        return type(error).__name__, str(getattr(error, "message", error))
    return type(made).__name__, repr(made)


def both_ways(name: str, value: object) -> tuple[tuple[str, str], tuple[str, str]]:
    """What our short way makes of `value`, and what typer's own makes of it."""
    parameter = PARAMETERS[name]
    typers = super(type(parameter), parameter).get_runtime_param()
    return made_of(parameter.get_runtime_param(), name, value), made_of(typers, name, value)


@pytest.mark.parametrize("value", [*ODD, None], ids=repr)
@pytest.mark.parametrize("name", SINGLE)
def test_what_was_typed_is_taken_or_refused_as_typer_would(name: str, value: str | None) -> None:
    short, whole = both_ways(name, value)

    assert short == whole


@given(st.sampled_from(SINGLE), typed)
def test_any_word_is_taken_or_refused_as_typer_would(name: str, value: str) -> None:
    short, whole = both_ways(name, value)

    assert short == whole


@given(st.sampled_from(["words", "paths"]), st.lists(typed, max_size=3).map(tuple))
def test_any_words_are_taken_or_refused_as_typer_would(name: str, values: tuple[str, ...]) -> None:
    short, whole = both_ways(name, values)

    assert short == whole


@pytest.mark.parametrize(
    ("name", "default"), [("bounded", 32), ("seconds", 1.5), ("number", 7), ("path", Path("x"))]
)
def test_a_default_is_taken_as_it_is(name: str, default: object) -> None:
    short, whole = both_ways(name, default)

    assert short == whole == (type(default).__name__, repr(default))


def test_a_path_that_may_not_be_read_is_refused_as_typer_would(tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    shut.touch(mode=0)

    short, whole = both_ways("path", str(shut))

    assert short == whole
    assert (short[0] == "BadParameter") == (os.geteuid() != 0)


def test_pydantic_loads_no_plugin_that_another_distribution_brings(tmp_path: Path) -> None:
    (tmp_path / "meddler.py").write_text("here = []\n")
    about = tmp_path / "meddler-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: meddler\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[pydantic]\nmeddler = meddler:here\n")
    program = (
        "import sys\n"
        "from inventory.command import run\n"
        "from inventory.options import new_app, verb\n"
        "app = new_app('x')\n"
        "@verb(app, 'read')\n"
        "def read() -> None:\n"
        "    'Read a file.'\n"
        "    from pathlib import Path\n"
        "    from ca.policy import Policy, minimal\n"
        "    from inventory.document import loads\n"
        "    loads(minimal('lab.example'), Policy, name='p', base=Path('/'))\n"
        "    print('meddler' in sys.modules)\n"
        "sys.argv = ['x', 'read']\n"
        "run(app)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )

    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_a_process_that_ends_does_not_take_itself_apart_first() -> None:
    program = (
        "import os, typer\n"
        "from inventory.command import run\n"
        "class Ring:\n"
        "    def __init__(self): self.own = self\n"
        "    def __del__(self): os.write(1, b'apart')\n"
        "kept = Ring()\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def nothing() -> None:\n    print('done')\n"
        "run(app)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=600
    )

    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
