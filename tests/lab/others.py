"""Another user of this machine, who runs what a test gives him."""

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.nodes_kit import REPOSITORY
from tests.require import need, need_command

NOBODY = 65534
PYTHONS = (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")


@contextmanager
def own_home() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="muster-test-"))
    try:
        if os.geteuid() == 0:
            os.chown(home, NOBODY, NOBODY)
        yield home
    finally:
        shutil.rmtree(home)


def as_nobody() -> list[str]:
    if os.geteuid() != 0:
        return []
    need_command("setpriv")
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


@functools.cache
def shared_python() -> tuple[str, ...]:
    """A python that nobody can run too, with the libraries of this one."""
    packages = f"import sys; sys.path[:0] = [{sysconfig.get_path('purelib')!r}]"
    # setpriv still has root's rights when it becomes python; what python starts has not.
    trial = "import subprocess, asyncssh, paramiko, pytest; subprocess.check_call([sys.executable, '-c', ''])"
    python = next(filter(lambda python: nobody_runs(python, f"{packages}; {trial}"), PYTHONS), "")
    need(python, "a python that any user can run", "install python3 of the same version for all users")
    # `-m MODULE ARGUMENTS` follow: sys.argv is ['-c', '-m', MODULE, ...].
    run = "sys.argv.pop(1); runpy.run_module(sys.argv.pop(1), run_name='__main__')"
    return (python, "-c", f"{packages}; import runpy; {run}")


def nobody_runs(python: str, code: str) -> bool:
    tried = subprocess.run(
        [*as_nobody(), python, "-c", code], cwd=REPOSITORY, capture_output=True, timeout=600, check=False
    )
    return tried.returncode == 0
