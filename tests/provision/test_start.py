"""What making a node loads, and a run that finds it made: nothing of other roads, and no second of what is needed."""

import json
import os
import subprocess
import sys

from tests.provision.kit import Place

_TOLD = """
import atexit, json, os, sys
atexit.register(lambda: os.write(int(os.environ["TOLD"]), json.dumps(sorted(sys.modules)).encode()))
from provision.cli import main
main()
"""
ELSEWHERE = {
    "alembic", "cryptography", "paramiko", "psycopg", "pycdlib", "rich", "sqlalchemy.orm", "typer._adapters",
    "typer.rich_utils", "provision.adopt", "provision.allowance", "provision.leave", "provision.retire",
    "provision.rollback", "provision.seed",
}  # fmt: skip


def modules_of(place: Place, *arguments: str) -> set[str]:
    """All that the command has loaded when it ends; it must end well."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as told:
        done = subprocess.run(
            [sys.executable, "-c", _TOLD, *place.command(*arguments)[3:]],
            env={**os.environ, "TOLD": str(writing)},
            pass_fds=(writing,),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        os.close(writing)
        assert done.returncode == 0, done.stderr
        return set(json.loads(told.read()))


def test_neither_a_first_run_nor_a_second_loads_what_only_other_roads_need(place: Place) -> None:
    first, second = modules_of(place, "gpu-01", "--yes"), modules_of(place, "gpu-01")

    assert {"provision.road", "inventory.store"} <= first & second
    assert first & ELSEWHERE == set()
    assert second & ELSEWHERE == set()
