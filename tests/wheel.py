"""Builds the wheel, installs it in empty environments, and tries every command there from `/`.

From the root of the repository Python always finds the working tree, so a broken wheel would pass every other test.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

# The extra that each command asks for when it is really used, and a use that asks for it.
USES = {
    "provision-node": ("provision", ["gpu-01", "--site", "{site}", "--profile", "small", "--yes"]),
    "onboard-node": ("onboard", ["gpu-01", "--yes"]),
    "verify-node": ("verify", ["gpu-01", "--ssh-key", "{site}"]),
    "node-ca": ("onboard", ["status"]),
    "node-lab": ("lab", ["up"]),
}
COMMANDS = [*USES, "node-inventory"]
# The commands that an environment does not have the libraries for; onboard's libraries hold verify's, and the
# other way round, since paramiko brings cryptography.
WITHOUT = {
    "": list(USES),
    "provision": ["onboard-node", "verify-node", "node-ca", "node-lab"],
    "onboard": ["provision-node", "node-lab"],
    "hsm": ["provision-node", "node-lab"],
    "verify": ["provision-node", "node-lab"],
    "postgres": list(USES),
    "lab": [],
}


@dataclass(frozen=True, slots=True)
class Use:
    """One call of a command in an environment, and what must be seen.

    stderr: what standard error must hold; standard output is judged by `stdout`, a regular expression.
    """

    command: str
    arguments: list[str]
    exit_code: int
    stdout: str
    stderr: str = ""


def uses(extra: str, site: Path) -> Iterator[Use]:
    """Everything that is tried in the environment with `extra`."""
    for command in COMMANDS:
        yield Use(command, ["--version"], 0, rf"{command} {re.escape(VERSION)}\n")
        yield Use(command, ["--help"], 0, rf"(?s)\s*Usage: {command} .*Exit codes: .*")
    if "onboard-node" not in WITHOUT[extra]:  # it knows infra's file too, without infra's libraries
        yield Use("onboard-node", ["--check", str(site)], 0, rf"{re.escape(str(site))}\tsite\tOK\n")
    yield Use("node-inventory", ["check", "--only", "record"], 0, r"(?s).*")
    shared = ["list", "--inventory", "postgresql:///muster?host=/nowhere"]
    if extra == "postgres":
        yield Use("node-inventory", shared, 4, "", "did not answer")
    else:
        yield Use("node-inventory", shared, 2, "", "uv tool install 'passmuster[postgres]'")
    for command in WITHOUT[extra]:
        lacking, arguments = USES[command]
        install = f"uv tool install 'passmuster[{lacking}]'"
        yield Use(command, [word.format(site=site) for word in arguments], 2, "", install)


def main() -> int:
    """Build, install, try; the exit status is 1 if anything was not as it must be."""
    faults = tried = 0
    with tempfile.TemporaryDirectory(prefix="muster-wheel-") as name:
        folder = Path(name)
        checked([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", name], cwd=ROOT)
        (wheel,) = folder.glob("*.whl")
        say(f"built {wheel.name}, {wheel.stat().st_size / 1024:.0f} KiB")
        for extra in WITHOUT:
            environment = install(folder, wheel, extra)
            for use in uses(extra, site_file(folder)):
                tried += 1
                if fault := try_one(environment, use, home=folder):
                    faults += 1
                    say(f"FAULT: {fault}")
    say(f"{tried} uses in {len(WITHOUT)} environments, {faults} not as they must be")
    return 1 if faults else 0


def install(folder: Path, wheel: Path, extra: str) -> Path:
    """An environment that holds the wheel, what `extra` brings in the locked versions, and nothing else."""
    environment = folder / (extra or "bare")
    say(f"installing {'it bare' if not extra else f'it with the extra {extra}'}")
    constraints = folder / "constraints.txt"
    lock = (ROOT / "requirements/dev.txt").read_text(encoding="utf-8")
    constraints.write_text(re.sub(r"( \\\n)? +--hash=\S+", "", lock), encoding="utf-8")
    wanted = [f"passmuster{f'[{extra}]' if extra else ''} @ {wheel.as_uri()}", "-c", str(constraints)]
    if uv := shutil.which("uv"):
        checked([uv, "venv", "--quiet", "--python", sys.executable, str(environment)])
        checked([uv, "pip", "install", "--quiet", "--python", str(environment / "bin/python"), *wanted])
    else:
        checked([sys.executable, "-m", "venv", str(environment)])
        checked([str(environment / "bin/python"), "-m", "pip", "-qq", "install", *wanted])
    return environment


def site_file(folder: Path) -> Path:
    """The example of a site, so that nothing but the libraries is lacking."""
    site = folder / "site"
    shutil.copytree(ROOT / "examples", site, dirs_exist_ok=True)
    return site / "site.yaml"


def try_one(environment: Path, use: Use, *, home: Path) -> str:
    """What was not as it must be, or nothing."""
    line = " ".join([f"{environment.name}: {use.command}", *use.arguments])
    try:
        done = subprocess.run(
            [environment / "bin" / use.command, *use.arguments],
            cwd="/",
            env={
                "HOME": str(home),
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "LANG": "C.UTF-8",
                "COLUMNS": "80",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{line}: {error}"
    if done.returncode != use.exit_code:
        return f"{line}: exit {done.returncode} instead of {use.exit_code}\n{done.stdout}{done.stderr}"
    if not re.fullmatch(use.stdout, done.stdout):
        return f"{line}: stdout is {done.stdout!r}"
    if use.stderr not in done.stderr:
        return f"{line}: stderr lacks {use.stderr!r}: {done.stderr!r}"
    return ""


def checked(command: list[str], *, cwd: Path | None = None) -> None:
    """Run what must work; its words are shown if it does not."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        sys.exit(f"error: {' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")


def say(text: str) -> None:
    """Progress, a line at a time."""
    sys.stderr.write(f"wheel: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
