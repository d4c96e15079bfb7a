"""Where two answers of the Proxmox API differ in form; what changes from run to run is left out."""

import re
from collections.abc import Iterator
from typing import Any

# Numbers that must be the same; of all others only that they are numbers.
EXACT = frozenset(
    {
        "n", "total", "vmid", "cores", "cpus", "template", "onboot", "protection", "kvm", "enabled", "managed",
        "maxcpu", "maxmem", "maxdisk", "serial", "agent", "active", "shared", "propagate", "delete", "bytes-read",
    }
)  # fmt: skip
_KEYS = ("n", "key", "vmid", "volid", "storage", "upid", "network", "node", "name")
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_CHANGING = (
    (re.compile(r"UPID:([^:]+):[0-9A-F]{8}:[0-9A-F]{8,9}:[0-9A-F]{8}:"), r"UPID:\1:*:"),
    (re.compile(_UUID), "<uuid>"),
    (re.compile(r"BC:24:11(:[0-9A-F]{2}){3}", re.IGNORECASE), "<mac>"),
    (re.compile(r"\b[0-9a-f]{40}\b"), "<sha1>"),
    (re.compile(r"\b([0-9A-F]{2}:){31}[0-9A-F]{2}\b"), "<sha256>"),
    (re.compile(r"creation-qemu=[\d.]+,ctime=\d+"), "creation-qemu=*,ctime=*"),
    (re.compile(r"at byte \d+"), "at byte *"),
    (re.compile(r"^[0-9a-f]{16}$"), "<hash>"),
)


# Progress, and what the recorded host's own Perl complained of.
_NOISE = re.compile(r"transferred |Prototype mismatch: |for my \(\.\.\.\) is experimental")


def plain(value: Any, key: str = "") -> Any:
    """A value without what changes from run to run."""
    if isinstance(value, dict):
        found = {name: plain(item, name) for name, item in value.items()}
        if "total" in value and not _is_log(value.get("data")):
            found["total"] = "<number>"
        return found
    if isinstance(value, list):
        return [plain(item, key) for item in _without_progress(value)]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return value if key in EXACT else "<number>"
    for changing, instead in _CHANGING:
        value = changing.sub(instead, value)
    return ",".join(sorted(value.split(","))) if key == "content" else value


def _without_progress(rows: list[Any]) -> list[Any]:
    """A task's log without the lines of qemu-img that tell how far it is."""
    if not all(isinstance(row, dict) and "t" in row for row in rows):
        return rows
    kept = [row["t"] for row in rows if not _NOISE.match(row["t"])]
    return [{"n": n, "t": text} for n, text in enumerate(kept, 1)] if len(kept) < len(rows) else rows


def _is_log(rows: object) -> bool:
    """Whether these are all lines of a task's log, none of them noise, so that they can be counted."""
    return isinstance(rows, list) and all("t" in row and not _NOISE.match(row["t"]) for row in rows)


def differences(real: Any, ours: Any, where: str = "") -> Iterator[str]:
    """Pointers to what is not the same."""
    if isinstance(real, dict) and isinstance(ours, dict):
        for key in sorted({*real, *ours}):
            here = f"{where}.{key}" if where else key
            if key not in real or key not in ours:
                yield f"{here} {'missing' if key in real else 'too much'}"
            else:
                yield from differences(real[key], ours[key], here)
    elif isinstance(real, list) and isinstance(ours, list):
        by_real, by_ours = _by_key(real), _by_key(ours)
        yield from differences(by_real, by_ours, where)
    elif real != ours or isinstance(real, bool) != isinstance(ours, bool):
        yield where


def _by_key(rows: list[Any]) -> dict[str, Any]:
    found = {}
    for position, row in enumerate(rows):
        name = next((key for key in _KEYS if isinstance(row, dict) and key in row), None)
        found[f"[{row[name]}]" if name else f"[{position}]"] = row
    return found
