"""GPUs and their driver, as the kernel and NVIDIA's own tools tell; a tool that hangs is a finding of its own."""

from __future__ import annotations

import re
from typing import Any, Mapping

from .machine import Machine
from .pcicheck import peer_check
from .tools import Answer, Tool
from .verdicts import CRITICAL, INFO, PASS, UNKNOWN, check

SMI_S = 10.0
DCGM_S = 120.0
_NVIDIA = "0x10de"
# PCI class codes: VGA and 3D controllers
_DISPLAY = ("0x0300", "0x0302")


def tools(machine: Machine, *, disruptive: bool, left_s: float) -> dict[str, Tool]:
    """What is asked: nvidia-smi; dcgmi, which runs work on the GPUs, only where that disturbs nobody."""
    asked = {}
    smi, dcgmi = machine.tool("nvidia-smi"), machine.tool("dcgmi")
    if smi is not None:
        asked["nvidia-smi"] = Tool([smi, "-L"], min(SMI_S, max(1.0, left_s / 3)))
    if dcgmi is not None and disruptive:
        asked["dcgmi"] = Tool([dcgmi, "diag", "-r", "1"], min(DCGM_S, max(1.0, left_s / 2)))
    return asked


def checks(about: Mapping[str, Any], answers: Mapping[str, Answer], machine: Machine) -> list[dict[str, Any]]:
    """Count, driver and diagnosis; nothing where there is no GPU and none is asked."""
    wanted, driver = about.get("gpus"), about.get("driver")
    addresses = _on_bus(machine)
    on_bus = len(addresses)
    smi = answers.get("nvidia-smi")
    if not wanted and not driver and not on_bus and smi is None and _driver(machine) is None:
        return []
    found = [_count(wanted, on_bus, smi, machine)]
    if driver or _driver(machine):
        found.append(_driver_check(driver, machine))
    if on_bus > 1:
        found.append(peer_check(addresses, machine))
    if "dcgmi" in answers:
        found.append(_diagnosis(answers["dcgmi"]))
    return found


def _count(wanted: int | None, on_bus: int, smi: Answer | None, machine: Machine) -> dict[str, Any]:
    by_driver = len(machine.names("/proc/driver/nvidia/gpus"))
    expected = (
        f"{wanted} GPUs" if wanted is not None else f"the {on_bus} GPUs on the PCI bus, all of them at work"
    )
    goal = on_bus if wanted is None else wanted
    if smi is not None and smi.trouble:
        verdict, found = UNKNOWN, smi.trouble
    elif smi is not None and smi.status != 0:
        verdict, found = CRITICAL, f"nvidia-smi ends with {smi.status}: {smi.last}"
    elif smi is None and not machine.exists("/proc/driver/nvidia"):
        verdict = CRITICAL if goal else INFO
        found = f"{on_bus} on the PCI bus, and no driver is loaded" if on_bus else "none"
    else:
        count = by_driver if smi is None else len(re.findall(r"^GPU \d+:", smi.out, re.MULTILINE))
        verdict = PASS if count == goal else CRITICAL
        found = f"{count} GPUs" + (f", {on_bus} on the PCI bus" if on_bus else "")
    return check(
        "gpus",
        verdict,
        expected=expected,
        found=found,
        why="a model that is cut for so many GPUs does not start with fewer",
        advice="nvidia-smi; journalctl -k --grep 'NVRM|Xid'; a GPU that fell off the bus needs a cold restart",
        essential=True,
    )


def _driver_check(wanted: str | None, machine: Machine) -> dict[str, Any]:
    has = _driver(machine)
    verdict = INFO if wanted is None else PASS if has is not None and _begins(has, wanted) else CRITICAL
    return check(
        "gpu-driver",
        verdict,
        expected=f"driver {wanted}" if wanted else "a driver is loaded",
        found=f"driver {has}" if has else "no driver is loaded",
        why="engines are built for a driver, and nodes of one replica must agree",
        advice="install the profile's driver in the template, then rebuild the node",
    )


def _diagnosis(answer: Answer) -> dict[str, Any]:
    failed = [line.strip(" |+") for line in answer.out.splitlines() if re.search(r"\bFail\b", line)]
    if answer.trouble:
        verdict, found = UNKNOWN, answer.trouble
    elif answer.status != 0 or failed:
        verdict, found = CRITICAL, "; ".join(failed[:5]) or f"it ends with {answer.status}: {answer.last}"
    else:
        verdict, found = PASS, "every test of level 1 passed or was skipped"
    return check(
        "dcgm-diagnosis",
        verdict,
        expected="dcgmi diag -r 1 passes",
        found=found,
        why="it finds what breaks a job later: driver, libraries, memory, PCIe",
        advice="dcgmi diag -r 1; then dcgmi diag -r 3 with the node out of service",
        essential=True,
    )


def _on_bus(machine: Machine) -> list[str]:
    """The PCI addresses of NVIDIA's display controllers."""
    folder = "/sys/bus/pci/devices"
    return [
        name
        for name in machine.names(folder)
        if machine.word(f"{folder}/{name}/vendor") == _NVIDIA
        and (machine.word(f"{folder}/{name}/class") or "").startswith(_DISPLAY)
    ]


def _driver(machine: Machine) -> str | None:
    """The loaded driver's version: the first number with dots of /proc/driver/nvidia/version."""
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", machine.word("/proc/driver/nvidia/version") or "")
    return found.group() if found else None


def _begins(version: str, wanted: str) -> bool:
    """570 stands for every 570.x.y."""
    return version == wanted or version.startswith(f"{wanted}.")
