"""Runs the probe as a child of the test, whole or broken, and looks for what it leaves behind."""

import secrets
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from verify.events import ScenarioResult
from verify.local import LocalExec, LocalProcess
from verify.probe.tls import Identity
from verify.runner import Findings, Order, run_probe
from verify.scenarios import NAMES

from .broken import STARTED
from .names import NODE

ROOT = Path(__file__).parents[2]


class Broken:
    """This machine, where the probe has one part broken."""

    def __init__(self, name: str) -> None:
        self._code = STARTED.format(root=str(ROOT), name=name)

    def start(self, command: str) -> LocalProcess:
        assert command.startswith("exec env -i ")
        return _Unpacked([sys.executable, "-B", "-W", "ignore", "-c", self._code])


class _Unpacked(LocalProcess):
    """The probe is imported from the source tree here: of what is sent first only the settings count."""

    _begun = False

    def send(self, data: bytes, *, timeout_s: float = 60.0) -> None:
        artefact = 0 if self._begun else 4 + int.from_bytes(data[:4], "big")
        self._begun = True
        super().send(data[artefact:], timeout_s=timeout_s)


class Recording(LocalExec):
    """This machine, and the process that was started last."""

    def __init__(self) -> None:
        super().__init__()
        self.process: LocalProcess | None = None

    def start(self, command: str) -> LocalProcess:
        self.process = super().start(command)
        return self.process


def order(identity: Identity, *scenarios: str, **other: Any) -> Order:
    """An order for the test's node, with one fact varied."""
    facts: dict[str, Any] = {
        "node": NODE,
        "run_id": secrets.token_hex(16),
        "ranks": 4,
        "scenarios": scenarios or NAMES,
        "identity": identity._asdict(),
        "spiffe_id": None,
        "deadline_s": 90.0,
    }
    return Order(**{**facts, **other})


def probe(identity: Identity, *scenarios: str, python: str = sys.executable, **other: Any) -> Findings:
    """Run the shipped artefact."""
    return run_probe(LocalExec(), order(identity, *scenarios, **other), python=shlex.quote(python))


def broken(name: str, identity: Identity, *scenarios: str, **other: Any) -> dict[str, ScenarioResult]:
    """Run the probe with one part broken; its verdicts by scenario."""
    findings = run_probe(Broken(name), order(identity, *scenarios, **other))
    return {result.name: result for result in findings.scenarios}


def left_of(session: int, *, grace_s: float = 60.0) -> list[int]:
    """The processes of a session that still run after a moment; zombies have ended."""
    until = time.monotonic() + grace_s
    while (found := _of_session(session)) and time.monotonic() < until:
        time.sleep(0.02)
    return found


def _of_session(session: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # proc(5), after the command's name: state, ppid, pgrp, session
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[3]) == session:
            found.append(int(folder.name))
    return found
