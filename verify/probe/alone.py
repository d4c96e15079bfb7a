"""The probe as one file with its settings inside, for a node's own timer: one JSON document, and an exit code.

The file starts itself anew from memory, isolated (`-I -S`), with an empty environment and as the owner of the node's
key: what the timer or the login brought along must not reach the ranks, and they need not be root.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Mapping, NoReturn

PASSED, NOT_JUDGED, FAILED = 0, 4, 5
_AGAIN = "MUSTER_PROBE"
_SYSTEM_PYTHON = "/usr/bin/python3"
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


def main() -> NoReturn:
    """Exit 0 when the node passed, 5 when it did not, 4 when nothing can be said."""
    try:
        if os.environ.get(_AGAIN) != "1" or not sys.flags.isolated:
            _start_anew()
        status = _run(_settings())
    except Exception as error:  # noqa: BLE001 - a timer's log must show whatever it is
        sys.stderr.write(f"muster: the node could not be verified: {type(error).__name__}: {error}\n")
        status = NOT_JUDGED
    os._exit(status)


def _start_anew() -> NoReturn:
    with open(sys.argv[0], "rb") as file:
        data = file.read()
    memory = os.memfd_create("muster-probe")
    with open(memory, "wb", closefd=False) as out:
        out.write(data)
    os.set_inheritable(memory, True)  # noqa: FBT003 - its only form
    become_owner(_settings()["identity"]["key_file"])
    # the owner may not reach what root's PATH has found
    python = sys.executable if os.access(sys.executable, os.X_OK) else _SYSTEM_PYTHON
    command = [python, "-I", "-S", f"/proc/self/fd/{memory}"]
    os.execve(python, command, {**_ENVIRONMENT, _AGAIN: "1"})


def become_owner(key_file: str) -> None:
    """Where root starts it: be the owner of the key, for good."""
    import pwd

    if os.geteuid() != 0:
        return
    about = os.stat(key_file)
    if about.st_uid == 0:
        return
    try:
        owner = pwd.getpwuid(about.st_uid)
        os.initgroups(owner.pw_name, owner.pw_gid)
        group = owner.pw_gid
    except KeyError:
        os.setgroups([])
        group = about.st_gid
    os.setgid(group)
    os.setuid(about.st_uid)


def _settings() -> dict[str, Any]:
    import zipimport

    settings: dict[str, Any] = json.loads(zipimport.zipimporter(sys.argv[0]).get_data("settings.json"))
    return settings


def _run(settings: dict[str, Any]) -> int:
    from .main import Probe
    from .rank import Parts
    from .verdicts import status

    settings["run_id"] = os.urandom(16).hex()
    told: list[Mapping[str, Any]] = []
    Probe(settings, Parts(), told.append).run()
    found = document(settings, told)
    sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")
    sys.stdout.flush()
    if not all(row["ok"] for row in found["scenarios"]):
        return FAILED
    return status(found["checks"])


def document(settings: Mapping[str, Any], told: list[Mapping[str, Any]]) -> dict[str, Any]:
    """What `verify-node --local --json` says at its top, from the probe's events."""
    from .verdicts import status

    def of(name: str) -> list[dict[str, Any]]:
        return [
            {key: event[key] for key in event if key != "event"} for event in told if event["event"] == name
        ]

    (done,), (phases,), (skipped,) = of("done"), of("phases"), of("not-checked")
    again = f"run {settings.get('command', 'this file')} again"
    return {
        "schema": 1,
        "ok": bool(done["ok"]) and status(of("check")) == PASSED,
        "node": settings["node"],
        "run_id": settings["run_id"],
        "ranks": settings["ranks"],
        "probe_sha256": settings["probe_sha256"],
        "seconds": done["seconds"],
        "phases": phases["items"],
        "scenarios": [
            {
                **{key: row[key] for key in ("name", "kind", "ok", "seconds", "expected")},
                "found": row["detail"],
                "next": None if row["ok"] else again,
            }
            for row in of("scenario")
        ],
        "checks": of("check"),
        "not_checked": skipped["items"],
    }
