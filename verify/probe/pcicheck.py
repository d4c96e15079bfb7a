"""May GPUs of one node write into each other's memory? What of the PCI bus and the IOMMU stands in their way."""

from __future__ import annotations

from typing import Any

from .machine import Machine
from .verdicts import PASS, UNKNOWN, WARNING, check

_DEVICES = "/sys/bus/pci/devices"
_BRIDGE = "0x0604"
# who is not root reads no more than this of a device's configuration
_HEADER = 64
# PCI Express base specification, extended capabilities and ACS; linux/pci_regs.h has the same numbers
_EXTENDED, _ACS, _CONTROL, _REDIRECTS = 0x100, 0x000D, 6, 0x04 | 0x08
_MOST_LISTED = 5


def peer_check(gpus: list[str], machine: Machine) -> dict[str, Any]:
    """One check for all GPUs, given by their PCI addresses."""
    bridges = {
        name: machine.data(f"{_DEVICES}/{name}/config")
        for name in machine.names(_DEVICES)
        if (machine.word(f"{_DEVICES}/{name}/class") or "").startswith(_BRIDGE)
    }
    away = [name for name, config in bridges.items() if config and redirects(config)]
    dark = [name for name, config in bridges.items() if config is None or len(config) <= _HEADER]
    modes = {name: machine.word(f"{_DEVICES}/{name}/iommu_group/type") for name in gpus}
    translated = [f"{name} ({mode})" for name, mode in modes.items() if mode and mode != "identity"]
    faults = []
    if away:
        faults.append(f"ACS sends peer traffic up to the root at {_some(away)}")
    if translated:
        faults.append(f"the IOMMU translates {_some(translated)}")
    verdict, found = PASS, "no bridge redirects peer traffic, no IOMMU translates it"
    if faults:
        verdict, found = WARNING, "; ".join(faults)
    elif not bridges:
        verdict, found = UNKNOWN, "no PCI bridge is to be seen: in a VM its host decides"
    elif dark:
        verdict, found = UNKNOWN, f"only root may read the settings of {_some(dark)}"
    return check(
        "gpu-peer-access",
        verdict,
        expected="GPUs reach each other without a detour",
        found=found,
        why="with ACS or an IOMMU between them an all-reduce hangs, is wrong, or is slow",
        advice="try the job with NCCL_P2P_DISABLE=1; then boot with iommu=pt, and turn ACS off in the firmware",
    )


def redirects(config: bytes) -> bool:
    """Does a bridge's configuration space have ACS redirect requests or completions between peers?"""
    at, seen = _EXTENDED, set()
    while at >= _EXTENDED and at + 8 <= len(config) and at not in seen:
        seen.add(at)
        head = int.from_bytes(config[at : at + 4], "little")
        if head & 0xFFFF == _ACS:
            control = config[at + _CONTROL : at + _CONTROL + 2]
            return bool(int.from_bytes(control, "little") & _REDIRECTS)
        at = head >> 20 & 0xFFC
    return False


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more
