"""What a kept verification says, read with care: its document came from a node, and any part may be absent or false."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inventory.model import KeptReport

MAX_ITEMS = 512
MAX_TEXT = 1000
_MAX_NUMBER = 1e9


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of the run: milliseconds since the run began; None where it came to nothing."""

    rank: int
    start_ms: float | None
    joined_ms: float | None
    go_ms: float | None
    end_ms: float | None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario's verdict. ok: None where the document does not say."""

    name: str
    kind: str
    ok: bool | None
    seconds: float | None
    expected: str
    detail: str


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the machine. verdict: pass, info, warning, critical, unknown, or whatever was written there."""

    name: str
    verdict: str
    found: str
    next: str


@dataclass(frozen=True, slots=True)
class Verification:
    """One verification of a node.

    passed: as the record keeps it. outcome: where it did not pass, the document's own word for it.
    ranks: how many ranks were asked for. phases: name and milliseconds. unread: the document held no verification.
    """

    node: str
    at: datetime
    passed: bool
    outcome: str
    why: str
    seconds: float | None
    ranks: int | None
    probe_sha256: str
    identity: tuple[tuple[str, str], ...]
    phases: tuple[tuple[str, float], ...]
    time_line: tuple[Rank, ...]
    scenarios: tuple[Scenario, ...]
    checks: tuple[Check, ...]
    not_checked: tuple[str, ...]
    unread: bool

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the scenarios that failed, then of the critical checks."""
        names = [each.name for each in self.scenarios if each.ok is False]
        return (*names, *(each.name for each in self.checks if each.verdict == "critical"))


def read(kept: KeptReport) -> Verification:
    """The verification in a kept report; nothing in its document makes this fail."""
    document = _mapping(kept.document)
    run = _mapping(document.get("verification"))
    error = _mapping(document.get("error"))
    identity = _mapping(document.get("identity"))
    return Verification(
        node=kept.node,
        at=kept.at,
        passed=kept.passed,
        outcome="passed" if kept.passed else _outcome(document),
        why=_text(error.get("why")),
        seconds=_number(document.get("seconds")),
        ranks=_count(run.get("ranks")),
        probe_sha256=_text(document.get("probe_sha256")),
        identity=tuple(
            (key, _text(identity.get(key)))
            for key in ("spiffe_id", "serial", "not_before", "not_after", "key_owner", "key_mode")
            if identity.get(key) is not None
        ),
        phases=tuple(
            (_text(each.get("name")), ms)
            for each in _mappings(run.get("phases"))
            if (ms := _number(each.get("ms"))) is not None and _text(each.get("name"))
        ),
        time_line=tuple(
            Rank(
                rank,
                _number(each.get("start_ms")),
                _number(each.get("joined_ms")),
                _number(each.get("go_ms")),
                _number(each.get("end_ms")),
            )
            for each in _mappings(run.get("time_line"))
            if (rank := _count(each.get("rank"))) is not None
        ),
        scenarios=tuple(
            Scenario(
                name=_text(each.get("name")) or "unnamed",
                kind=_text(each.get("kind")),
                ok=ok if isinstance(ok := each.get("ok"), bool) else None,
                seconds=_number(each.get("seconds")),
                expected=_text(each.get("expected")),
                detail=_text(each.get("detail")),
            )
            for each in _mappings(run.get("scenarios"))
        ),
        checks=tuple(
            Check(
                _text(each.get("name")) or "unnamed",
                _text(each.get("verdict")),
                _text(each.get("found")),
                _text(each.get("next")),
            )
            for each in _mappings(run.get("checks"))
        ),
        not_checked=tuple(filter(None, map(_text, _items(run.get("not_checked"))))),
        unread=not run,
    )


def _outcome(document: Mapping[str, Any]) -> str:
    told = _text(document.get("outcome"))
    return "failed" if told in ("", "passed") else told


def short(text: str, limit: int = MAX_TEXT) -> str:
    """A text that cannot fill the page: what is over the limit is left off, and said to be."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> list[Any]:
    return list(value[:MAX_ITEMS]) if isinstance(value, list | tuple) else []


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    return (each for each in _items(value) if isinstance(each, Mapping))


def _text(value: object) -> str:
    """A text or a number as text; what is neither, and what is absent, is nothing."""
    if isinstance(value, str):
        return short(value)
    if isinstance(value, float):
        return str(value) if math.isfinite(value) else ""
    if isinstance(value, int):
        return str(value) if abs(value) <= _MAX_NUMBER else ""
    return ""


def _number(value: object) -> float | None:
    """A duration: finite and not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and value > _MAX_NUMBER:
        return None
    return float(value) if math.isfinite(value) and 0 <= value <= _MAX_NUMBER else None


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= 1_000_000 else None
