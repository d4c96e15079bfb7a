"""A lab in the background, and the roles' commands run against it as a person would type them."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Lab:
    """A running lab and the environment in which the roles' commands work."""

    environ: dict[str, str]

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        program = Path(sys.executable).with_name(words[0])
        return subprocess.run(
            [program, *words[1:]],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            stdin=subprocess.DEVNULL,
            env={**self.environ, **more},
        )

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """A command that is not waited for."""
        program = Path(sys.executable).with_name(words[0])
        return subprocess.Popen(
            [program, *words[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environ,
        )

    def ask(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @property
    def folder(self) -> Path:
        return Path(self.environ["MUSTER_SITE"]).parent

    def node(self, name: str) -> Any:
        return self.ask("node-inventory", "show", name)["node"]


@contextmanager
def running_lab(state: Path, *words: str) -> Iterator[Lab]:
    """A lab that `node-lab up` and these words bring up, its own files in `state`; it is down afterwards."""
    empty = Lab({**os.environ, "XDG_STATE_HOME": str(state), "HOME": str(state)})
    try:
        up = empty.run("node-lab", "up", *words)
        assert up.returncode == 0, up.stderr
        lines = empty.run("node-lab", "env").stdout.splitlines()
        settings = dict(shlex.split(line)[1].split("=", 1) for line in lines)
        yield Lab({**empty.environ, **settings})
    finally:
        down = empty.run("node-lab", "down")
    assert down.returncode == 0, down.stderr
