"""What one check of the node says, and which of its verdicts fail the node."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

PASS, INFO, WARNING, CRITICAL, UNKNOWN = "pass", "info", "warning", "critical", "unknown"
PASSED, NOT_JUDGED, FAILED = 0, 4, 5
_LONGEST, _LONGEST_NAME = 900, 150


def check(
    name: str,
    verdict: str,
    *,
    expected: str,
    found: str,
    why: str,
    advice: str | None = None,
    essential: bool = False,
) -> dict[str, Any]:
    """One fact of the node, judged.

    advice: what to do next; told only where there is something to do.
    essential: without an answer to it nothing can be said of the node.
    """
    quiet = verdict in (PASS, INFO)
    return {
        "name": _told(name, _LONGEST_NAME),
        "verdict": verdict,
        "expected": _told(expected),
        "found": _told(found),
        "why": _told(why),
        "next": None if quiet or advice is None else _told(advice),
        "essential": essential,
    }


def _told(text: str, longest: int = _LONGEST) -> str:
    """As the other side takes it: bounded, and without the halves of characters that a file name may hold."""
    return text[:longest].encode("utf-8", "replace").decode()


def status(checks: Iterable[Mapping[str, Any]]) -> int:
    """The exit code that the checks alone ask for: a critical one fails, an essential unknown one cannot be judged."""
    told = list(checks)
    if any(each["verdict"] == CRITICAL for each in told):
        return FAILED
    if any(each["verdict"] == UNKNOWN and each.get("essential") for each in told):
        return NOT_JUDGED
    return PASSED
