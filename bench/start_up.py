"""What a command costs before it does anything: `--help` of each, against a hello in the same framework."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.row import Contest

COMMANDS = ("provision-node", "onboard-node", "verify-node", "node-ca", "node-inventory", "node-lab")
HELLO = """
import typer
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
@app.command()
def hello(name: str = "world") -> None:
    "Greet."
app()
"""


def contests() -> list[Contest]:
    """Each command's help against the least that typer can do; that one against an empty Python."""
    here = Path(sys.executable).parent
    if missing := [name for name in COMMANDS if not (here / name).exists()]:
        sys.exit(f"error: {', '.join(missing)} not installed in {here}; ./run bench installs them")
    hello = cpu_of([sys.executable, "-c", HELLO, "--help"])
    ours = [
        Contest(f"{name} --help", cpu_of([str(here / name), "--help"]), hello, "typer hello --help", "CPU s")
        for name in COMMANDS
    ]
    empty = cpu_of([sys.executable, "-c", "pass"])
    return [*ours, Contest("typer hello --help", hello, empty, "python -c pass", "CPU s")]


def cpu_of(command: list[str]) -> Callable[[], float]:
    """A run of `command` that returns the CPU seconds of its process tree; it must exit 0."""
    # Bytecode may be kept, as it is where a command is installed.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def run() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return run
