"""The probe: reads its settings, runs the scenarios, streams what it finds, and ends when its session is cut.

It is started as `python3 -I -S -c BOOT`, reads its settings from stdin (four bytes of length, then JSON) and keeps
stdin open: the end of that stream means that nobody is there any more. Events go out as JSON lines. The json module
is part of Debian's full python3, which cloud-init needs too, and not of python3-minimal.
"""

from __future__ import annotations

import json
import math
import os
import signal
import ssl
import sys
import time
from typing import Any, Callable, Mapping, NoReturn

from .checks import identity_facts, user_name
from .drills import DRILLS, CannotJudge, Drill, Finding, Stage
from .loop import READ, Loop
from .nodechecks import node_checks
from .rank import Parts
from .seats import Seat
from .tls import Identity, IdentityFault, load

SCHEMA = 1
DONE, CUT, BROKEN = 0, 3, 70
_MAX_SETTINGS = 65536
_OVERTIME_S = 3


class SessionCut(Exception):
    """Nobody reads what we find any more."""


def main(parts: Parts | None = None) -> NoReturn:
    """Run once and exit: 0 when everything asked was run and told, whatever was found."""
    status = BROKEN
    try:
        for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, _cut)
        settings = _settings(0)
        if "across" in settings:
            _across(settings, parts or Parts())
        else:
            probe = Probe(settings, parts or Parts(), _say)
            probe.leash(0)
            probe.run()
        status = DONE
    except (SessionCut, BrokenPipeError):
        status = CUT
    except Exception as error:  # noqa: BLE001 - whatever it is, it must be read on the other side
        _say({"event": "broken", "text": f"{type(error).__name__}: {error}"[:500]})
    os._exit(status)


class Probe:
    """One run: everything that its settings ask for.

    Args:
        say: takes each event.
    """

    def __init__(
        self, settings: Mapping[str, Any], parts: Parts, say: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._say = say
        self._node = str(settings["node"])
        self._run_id = bytes.fromhex(settings["run_id"])
        self._ranks = int(settings["ranks"])
        self._wanted = list(settings["scenarios"])
        self._identity = Identity(**settings["identity"])
        self._expected_id = settings.get("spiffe_id")
        self._parts = parts._replace(spawn=settings.get("spawn", "fork"))
        self._disruptive = bool(settings.get("disruptive", False))
        self._loop = Loop()
        self._began = self._loop.now()
        self._ends = self._began + float(settings["deadline_s"])
        self._clock = time.time()  # read beside the controller's, before anything takes its time
        self._about: Mapping[str, Any] = settings.get("about") or {}
        self._not_checked: list[str] = []
        # the last resort: whatever hangs, this process ends, and its ranks end when they see that
        signal.alarm(math.ceil(float(settings["deadline_s"])) + _OVERTIME_S)

    def leash(self, descriptor: int) -> None:
        """End when this stream ends: nobody is there any more."""

        def pulled(_events: int) -> None:
            if not os.read(descriptor, 4096):
                raise SessionCut

        self._loop.add(descriptor, READ, pulled)

    def run(self) -> None:
        """Everything, from who we are to what was not checked."""
        self._say(about())
        facts = identity_facts(
            self._identity, node=self._node, expected_id=self._expected_id, now=self._clock
        )
        self._say({"event": "identity", **facts})
        checks, self._not_checked = node_checks(
            self._identity,
            facts,
            self._about,
            self._loop,
            now=self._clock,
            left_s=self._ends - self._loop.now(),
            disruptive=self._disruptive,
        )
        for check in checks:
            self._say({"event": "check", **check})
        stage, fault = self._stage(facts)
        drills_began = self._loop.now()
        passed = [self._drill(drill, stage, fault) for drill in DRILLS if drill.name in self._wanted]
        skipped = [f"scenario {drill.name}" for drill in DRILLS if drill.name not in self._wanted]
        phases = [*(stage.phases if stage else ()), ("drills", (self._loop.now() - drills_began) * 1000)]
        self._engine()
        self._say({"event": "phases", "items": [{"name": name, "ms": round(ms, 3)} for name, ms in phases]})
        self._say({"event": "time-line", "ranks": stage.time_line if stage else []})
        self._say({"event": "not-checked", "items": [*self._not_checked, *skipped]})
        self._say(
            {
                "event": "done",
                "ok": bool(passed) and all(passed) and len(passed) == len(self._wanted),
                "seconds": round(self._loop.now() - self._began, 3),
            }
        )

    def _engine(self) -> None:
        """The engine's own collectives, where they are asked for and may be run."""
        if self._about.get("engine") != "torch":
            return
        if not self._disruptive:
            self._not_checked.append("torch all-reduce: the node is in service (--disruptive)")
            return
        from .torching import torch_check

        python = [
            str(name) for name in self._about.get("engine_python") or (sys.executable, "/usr/bin/python3")
        ]
        left_s = max(1.0, self._ends - self._loop.now() - 1.0)
        self._say({"event": "check", **torch_check(self._ranks, python=python, within_s=left_s)})

    def _stage(self, facts: Mapping[str, Any]) -> tuple[Stage | None, str]:
        if facts["fault"]:
            return None, f"the identity does not hold: {facts['fault']}"
        try:
            loaded = load(self._identity)
        except IdentityFault as error:
            return None, str(error)
        seats = (Seat(self._node, facts["spiffe_id"]),) * self._ranks
        return (
            Stage(self._loop, loaded, seats=seats, run_id=self._run_id, ends=self._ends, parts=self._parts),
            "",
        )

    def _drill(self, drill: Drill, stage: Stage | None, fault: str) -> bool:
        self._say({"event": "scenario-started", "name": drill.name})
        began = self._loop.now()
        finding = self._finding(drill, stage, fault)
        self._not_checked += finding.not_tried
        self._say(
            {
                "event": "scenario",
                "name": drill.name,
                "kind": drill.kind,
                "ok": finding.ok,
                "seconds": round(self._loop.now() - began, 3),
                "expected": drill.expected,
                "detail": finding.found[:1000],
            }
        )
        return finding.ok

    def _finding(self, drill: Drill, stage: Stage | None, fault: str) -> Finding:
        if stage is None:
            return Finding(ok=False, found=f"not run: {fault}")
        if stage.left_s < 1.0:
            return Finding(ok=False, found="not run: the deadline of the whole verification has passed")
        try:
            return drill.run(stage)
        except (CannotJudge, OSError) as error:
            return Finding(ok=False, found=f"could not be judged: {error}")


def about() -> dict[str, Any]:
    """The first event: what runs, and as whom."""
    return {
        "event": "probe",
        "schema": SCHEMA,
        "pid": os.getpid(),
        "user": user_name(os.geteuid()),
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "openssl": ssl.OPENSSL_VERSION,
    }


def _across(settings: Mapping[str, Any], parts: Parts) -> None:
    """This node's part of a run over several nodes."""
    from .across import Across

    signal.alarm(math.ceil(float(settings["deadline_s"])) + _OVERTIME_S)
    _say(about())
    Across(settings, parts, _say).run(0)


def _settings(descriptor: int) -> dict[str, Any]:
    length = int.from_bytes(_exactly(descriptor, 4), "big")
    if length > _MAX_SETTINGS:
        raise ValueError(f"settings of {length} bytes")
    settings = json.loads(_exactly(descriptor, length))
    if settings.get("schema") != SCHEMA:
        raise ValueError(f"settings of schema {settings.get('schema')}, this probe reads {SCHEMA}")
    return dict(settings)


def _exactly(descriptor: int, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = os.read(descriptor, length - len(data))
        if not piece:
            raise SessionCut
        data += piece
    return data


def _cut(_signum: int, _frame: object) -> None:
    raise SessionCut


def _say(event: Mapping[str, Any]) -> None:
    data = json.dumps(event).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]
