"""The machine around the identity: clock, guest agent, and the limits that engines run into."""

from __future__ import annotations

import os
import re
from typing import Any, Mapping

from .machine import Machine
from .tools import Answer, Tool
from .verdicts import CRITICAL, INFO, PASS, UNKNOWN, WARNING, check

_LATE_S = 5.0
_WRONG_S = 60.0
_NOFILE = 65536
_SHM = 1 << 30
_READS = ("guest-file-open", "guest-file-read", "guest-exec")
_AGENT_FILES = ("/etc/qemu/qemu-ga.conf", "/etc/default/qemu-guest-agent", "/etc/sysconfig/qemu-ga")


def tools(machine: Machine) -> dict[str, Tool]:
    """Who is asked whether the clock is kept."""
    timedatectl = machine.tool("timedatectl")
    if timedatectl is None:
        return {}
    return {"timedatectl": Tool([timedatectl, "show", "--property=NTPSynchronized", "--value"], 5.0)}


def checks(
    about: Mapping[str, Any], answers: Mapping[str, Answer], machine: Machine, *, skew_s: float | None
) -> list[dict[str, Any]]:
    """Everything of the machine but its identity, fabrics and GPUs.

    skew_s: how far the node's clock was ahead of the controller's; None where no controller told its own.
    """
    found = [_clock(skew_s)] if skew_s is not None else []
    found.append(_ntp(answers.get("timedatectl"), machine))
    found += [_guest_agent(machine), _open_files(machine), _shared_memory(machine)]
    found += [_huge_pages(about.get("hugepages"), machine), _numa(machine)]
    return found


def _clock(skew_s: float) -> dict[str, Any]:
    off = abs(skew_s)
    return check(
        "clock",
        PASS if off <= _LATE_S else WARNING if off <= _WRONG_S else CRITICAL,
        expected=f"within {_LATE_S:g} s of the controller's clock",
        found=f"{off:.1f} s {'ahead of' if skew_s >= 0 else 'behind'} it",
        why="certificates and revocation lists begin and end by this clock",
        advice="timedatectl; chronyc tracking; let chrony or systemd-timesyncd step the clock",
    )


def _ntp(answer: Answer | None, machine: Machine) -> dict[str, Any]:
    verdict, found = UNKNOWN, "nobody here tells whether the clock is kept"
    if machine.exists("/run/systemd/timesync/synchronized"):
        verdict, found = PASS, "systemd-timesyncd has synchronised the clock"
    elif answer is not None and answer.trouble:
        found = answer.trouble
    elif answer is not None and answer.status == 0:
        kept = answer.out.strip() == "yes"
        verdict, found = (PASS if kept else WARNING), f"NTPSynchronized={answer.out.strip()[:20]}"
    return check(
        "clock-kept",
        verdict,
        expected="the clock is synchronised over the network",
        found=found,
        why="a clock that is right today drifts until certificates are not yet, or no longer, valid",
        advice="install chrony or enable systemd-timesyncd; timedatectl",
    )


def _guest_agent(machine: Machine) -> dict[str, Any]:
    """The hypervisor's way in: file reads run as root, past every mode of the key."""
    running = list(machine.processes("qemu-ga"))
    verdict, found = PASS, "no guest agent runs"
    if running:
        settings = "\n".join(filter(None, (machine.word(file) for file in _AGENT_FILES)))
        left = _open_calls(" ".join(running[0]), settings)
        verdict = WARNING if left else PASS
        found = f"qemu-ga runs and allows {', '.join(left)}" if left else "qemu-ga runs and allows no reads"
    return check(
        "guest-agent",
        verdict,
        expected="a guest agent, where one runs, cannot read files or run commands",
        found=found,
        why="who administers the hypervisor can read the node's key through it",
        advice=f"block-rpcs = {','.join(_READS)} under [general] in {_AGENT_FILES[0]},"
        " then systemctl restart qemu-guest-agent",
    )


def _open_calls(words: str, settings: str) -> list[str]:
    """The calls among the dangerous ones that neither the command line nor a file closes."""
    lines = [line.split("#")[0] for line in settings.splitlines()]
    text = "\n".join([words, *lines])
    pattern = r"(?:{})[\s=]+[\"']?([\w,\s-]*?)(?=[\"'\n]|\s--|\s-\w|$)"
    allowed = re.findall(pattern.format(r"--allow-rpcs|allow-?rpcs|\s-a"), text)
    if allowed:
        # an allow-list closes whatever it does not name
        return [call for call in _READS if any(call in _calls(each) for each in allowed)]
    blocked: set[str] = set()
    names = r"--block-rpcs|--blacklist|block-?rpcs|blacklist|BLACKLIST_RPC|BLOCK_RPCS|\s-b"
    for each in re.findall(pattern.format(names), text):
        blocked |= _calls(each)
    return [call for call in _READS if call not in blocked]


def _calls(text: str) -> set[str]:
    return {call for call in re.split(r"[,\s]+", text) if call}


def _open_files(machine: Machine) -> dict[str, Any]:
    row = re.search(r"^Max open files\s+(\S+)\s+(\S+)", machine.word("/proc/self/limits") or "", re.MULTILINE)
    verdict, found = UNKNOWN, "/proc/self/limits does not tell"
    if row:
        soft, hard = row.groups()
        enough = hard == "unlimited" or (hard.isdigit() and int(hard) >= _NOFILE)
        verdict, found = (PASS if enough else WARNING), f"{soft}, at most {hard}"
    return check(
        "open-files",
        verdict,
        expected=f"a process may have {_NOFILE} files open",
        found=found,
        why="engines hold sockets and shards open by the thousand",
        advice=f"LimitNOFILE={_NOFILE} in the engine's unit, nofile in /etc/security/limits.conf",
    )


def _shared_memory(machine: Machine) -> dict[str, Any]:
    try:
        about = os.statvfs(machine.place("/dev/shm"))
    except OSError as error:
        verdict, found = WARNING, f"/dev/shm: {error.strerror}"
    else:
        size = about.f_frsize * about.f_blocks
        verdict, found = (PASS if size >= _SHM else WARNING), f"{size / (1 << 20):.0f} MiB"
    return check(
        "shared-memory",
        verdict,
        expected="/dev/shm has 1024 MiB or more",
        found=found,
        why="ranks on one node pass tensors through it, and end with SIGBUS when it is full",
        advice="mount -o remount,size=50% /dev/shm, and the same in /etc/fstab",
    )


def _huge_pages(wanted: int | None, machine: Machine) -> dict[str, Any]:
    row = re.search(r"^HugePages_Total:\s+(\d+)", machine.word("/proc/meminfo") or "", re.MULTILINE)
    has = int(row.group(1)) if row else None
    verdict = UNKNOWN if has is None else INFO
    if has is not None and wanted is not None:
        verdict = PASS if has >= wanted else CRITICAL
    return check(
        "huge-pages",
        verdict,
        expected="any number" if wanted is None else f"{wanted} or more",
        found="/proc/meminfo does not tell" if has is None else f"{has} reserved",
        why="pinned host memory is taken from them where the profile asks for it",
        advice="sysctl vm.nr_hugepages; memory that is in pieces needs it on the kernel's command line",
    )


def _numa(machine: Machine) -> dict[str, Any]:
    nodes = [name for name in machine.names("/sys/devices/system/node") if re.fullmatch(r"node\d+", name)]
    return check(
        "numa-nodes",
        INFO if nodes else UNKNOWN,
        expected="any number",
        found=f"{len(nodes)}" if nodes else "/sys/devices/system/node does not tell",
        why="memory on the other socket halves the way to a GPU or a network device",
        advice="bind ranks to the node of their GPU (numactl)",
    )
