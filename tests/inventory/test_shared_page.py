"""docs/shared-record.md says what is so: its commands run, its numbers and names are the code's."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from inventory.errors import Refused
from inventory.model import State
from inventory.store import LEASE_S, Store
from inventory.store import database as place
from inventory.store import place as urls
from tests.inventory.records import author, node
from tests.postgres import Server
from tests.require import need_command

PAGE = (Path(__file__).parents[2] / "docs/shared-record.md").read_text(encoding="utf-8")


def test_its_commands_make_a_record_that_two_logins_share(postgres: Server) -> None:
    need_command("psql")
    name = postgres.fresh_database()
    for login in ("page_anna", "page_hugo"):
        postgres.create_login(login)
    (script,) = (
        block for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) if "migrate" in block
    )
    script = script.replace("postgresql://db.example/muster", f"'{postgres.url(name)}'")
    script = script.replace("infra=anna", "infra=page_anna").replace("holder=hugo", "holder=page_hugo")
    script = re.sub(r" muster$", f" -h {postgres.folder} -U postgres {name}", script, flags=re.MULTILINE)
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={**os.environ, "PATH": beside, "PGPORT": str(postgres.port)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )

    assert done.returncode == 0, done.stderr
    Store.open(postgres.url(name, user="page_anna")).add(node(), why="asked for")
    with pytest.raises(Refused, match="does not let page_hugo"):
        Store.open(postgres.url(name, user="page_hugo")).add(node("gpu-02"), why="asked for")


def test_its_states_are_infras() -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith("| a node's state"))

    assert re.findall(r"`([a-z-]+)`", row) == [str(state) for state in State if author(state) == "infra"]


def test_its_keys_are_those_that_a_url_takes() -> None:
    sentence = re.search(r"The keys are\n(.*?)\. Any", PAGE, re.DOTALL)

    assert sentence is not None
    told = set(re.findall(r"`([a-z_]+)`", sentence[1])) - {"libpq"}
    assert told == urls._QUERY - {"sslmode"}  # noqa: SLF001 - what is documented


def test_its_times_are_the_codes() -> None:
    assert f"A lease lasts {LEASE_S:.0f} s" in PAGE
    assert f"speaks up every {LEASE_S / 3:.0f} s" in PAGE
    limits = (place._CONNECT_S, place._BUSY_S, place._STATEMENT_S, place._SILENCE_S)  # noqa: SLF001 - likewise
    words = "a connection for {} s, another's row for {} s, a statement for {} s, "
    words += "a server that keeps silent for {:.0f} s"
    assert words.format(*limits) in " ".join(PAGE.split())
