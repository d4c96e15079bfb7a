"""Every check of the node, in one pass: files are read, tools are run side by side, all of it judged."""

from __future__ import annotations

from typing import Any, Mapping

from . import gpucheck, identitycheck, machinecheck, netcheck
from .loop import Loop
from .machine import Machine
from .naming import host_check
from .tls import Identity
from .tools import run_all
from .verdicts import check as _check

DISRUPTIVE = "dcgmi diag (it would disturb a node in service; --disruptive)"


def node_checks(
    identity: Identity,
    facts: Mapping[str, Any],
    about: Mapping[str, Any],
    loop: Loop,
    *,
    now: float,
    left_s: float,
    disruptive: bool = False,
    search: str | None = None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """The checks, and what was not checked.

    about: what the controller told: fabrics of agent.yaml, the certified uuid, its clock, the root to look under.
    left_s: what the whole verification has left; tools get a part of it.
    """
    machine = Machine(str(about.get("root") or "/"), search)
    asked = {
        **identitycheck.tools(identity, machine),
        **machinecheck.tools(machine),
        **gpucheck.tools(machine, disruptive=disruptive, left_s=left_s),
    }
    told = about.get("controller_clock")
    skew = None if told is None else now - float(told)
    answers = run_all(asked, loop)
    gpus = gpucheck.checks(about, answers, machine)
    host = host_check()
    checks = [
        *_config(about),
        *identitycheck.checks(identity, facts, about, answers, machine, now),
        *machinecheck.checks(about, answers, machine, skew_s=skew),
        _explained(host),
        *netcheck.checks(about, machine),
        *gpus,
    ]
    return checks, _not_checked(about, machine, gpus, skew=skew, disruptive=disruptive)


def _config(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the controller says of agent.yaml, which it reads, for YAML is not in the standard library."""
    unread = about.get("config_unread")
    fault = about.get("config_fault") or unread
    if fault is None and "fabrics" not in about:
        return []
    return [
        _check(
            "agent-config",
            "unknown" if unread else "critical" if fault else "pass",
            expected="the node's own agent.yaml can be read",
            found=str(fault) if fault else f"{len(about['fabrics'])} fabrics declared",
            why="the agent reads that very file, and it says what this node must have",
            advice="look at the file and who may read it; onboard-node writes it anew",
            essential=True,
        )
    ]


def _explained(host: Mapping[str, Any]) -> dict[str, Any]:
    why = "engines that advertise this name lead every other node to itself"
    return {**host, "why": why, "essential": False}


def _not_checked(
    about: Mapping[str, Any],
    machine: Machine,
    gpus: list[dict[str, Any]],
    *,
    skew: float | None,
    disruptive: bool,
) -> list[str]:
    missing = []
    if not about.get("fabrics"):
        missing.append("fabrics (none declared)" if "fabrics" in about else "fabrics")
    if not gpus:
        missing.append("GPUs (none here, none asked)")
    elif not disruptive and machine.tool("dcgmi"):
        missing.append(DISRUPTIVE)
    if skew is None:
        missing.append("clock against a controller")
    return [*missing, "inference engine", "between nodes"]
