"""A machine made of files and fake tools, for the checks to look at."""

import time
from pathlib import Path
from typing import Any

from verify.probe.checks import identity_facts
from verify.probe.loop import Loop
from verify.probe.nodechecks import node_checks
from verify.probe.tls import Identity
from verify.probe.verdicts import status

from .names import NODE
from .test_tools import tool

UUID = "11111111-2222-3333-4444-555555555555"
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Host:
    """A machine made of files, and of tools that come before the real ones."""

    def __init__(self, folder: Path) -> None:
        self.root, self.tools = folder / "root", folder / "tools"
        self.tools.mkdir()
        self.file("/sys/class/dmi/id/product_uuid", UUID)
        self.file("/proc/meminfo", "HugePages_Total:      16\n")
        self.file(
            "/proc/self/limits", "Max open files            1024                 1048576              files\n"
        )
        self.file("/proc/net/tcp", "  sl  local_address rem_address   st\n")
        (self.root / "sys/devices/system/node/node0").mkdir(parents=True)
        self.tool("timedatectl", "echo yes")

    def file(self, path: str, text: str) -> None:
        place = self.root / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def tool(self, name: str, script: str) -> None:
        tool(self.tools, name, script)

    def gpus(self, count: int, *, driver: str = "570.124.06") -> None:
        for number in range(count):
            self.file(f"/sys/bus/pci/devices/0000:{number:02x}:00.0/vendor", "0x10de\n")
            self.file(f"/sys/bus/pci/devices/0000:{number:02x}:00.0/class", "0x030200\n")
        self.file("/proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX Module  {driver}  Tue\n")

    def look(
        self,
        made: Identity,
        *,
        disruptive: bool = False,
        ahead_s: float = 0.0,
        left_s: float = 60.0,
        **about: Any,
    ) -> "Seen":
        now = time.time()
        facts = identity_facts(made, node=NODE, expected_id=None, now=now)
        told = {"root": str(self.root), "controller_clock": now - ahead_s, "certified_uuid": UUID, **about}
        checks, missing = node_checks(
            made,
            facts,
            told,
            Loop(),
            now=now,
            left_s=left_s,
            disruptive=disruptive,
            search=f"{self.tools}:{SYSTEM}",
        )
        return Seen(checks, missing)


class Seen:
    """What was found, by name."""

    def __init__(self, checks: list[dict[str, Any]], missing: list[str]) -> None:
        self.checks, self.missing = {each["name"]: each for each in checks}, missing
        self.status = status(checks)

    def verdict(self, name: str) -> str:
        return str(self.checks[name]["verdict"])

    def found(self, name: str) -> str:
        return str(self.checks[name]["found"])
