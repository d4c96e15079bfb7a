"""Reports for tests: a node's findings made of plain values, one fact varied per test."""

from typing import Any

from inventory.errors import MusterError, NotVerified, OtherSide
from verify import events
from verify.report import NodeReport
from verify.runner import Findings

from .names import NODE, SPIFFE_ID

ERROR = NotVerified("gpu-01 did not pass muster", why="killed-rank: too late", next_step="look at the node")
LOST = OtherSide("gpu-01 could not be reached", why="no answer within 20 s", next_step="look at its power")


def check(name: str = "expiry", verdict: str = "pass", **other: Any) -> events.Check:
    facts: dict[str, Any] = {"event": "check", "expected": "all", "found": "it", "next": None, "why": "so"}
    return events.Check(**{**facts, "name": name, "verdict": verdict, **other})


def scenario(name: str = "assemble", *, ok: bool = True, **other: Any) -> events.ScenarioResult:
    facts: dict[str, Any] = {
        "event": "scenario",
        "kind": "positive",
        "seconds": 0.25,
        "expected": "all join",
        "detail": "all joined",
    }
    return events.ScenarioResult(**{**facts, "name": name, "ok": ok, **other})


def ranks(count: int) -> tuple[events.RankTimes, ...]:
    """Rank n starts at n ms, joins 10 ms later, has GO at 200 ms and ends at 300 + n ms."""
    return tuple(
        events.RankTimes(
            rank=rank, start_ms=rank * 1.0, joined_ms=rank + 10.0, go_ms=200.0, end_ms=300.0 + rank
        )
        for rank in range(count)
    )


def findings(**other: Any) -> Findings:
    facts: dict[str, Any] = {
        "probe": events.Began(
            event="probe", schema=1, pid=7, user="muster", python="3.11.2", openssl="OpenSSL 3"
        ),
        "identity": events.IdentityFacts(
            event="identity",
            fault=None,
            notes=(),
            node_clock="2026-11-30T12:00:00Z",
            spiffe_id=SPIFFE_ID,
            serial="ab12",
            not_after="2026-12-30T12:00:00Z",
        ),
        "scenarios": (scenario(), scenario("killed-rank", kind="negative")),
        "not_checked": ("GPUs", "between nodes"),
        "seconds": 1.5,
        "probe_sha256": "ab" * 32,
        "phases": (
            events.Phase(name="start", ms=99.0),
            events.Phase(name="go", ms=200.0),
            events.Phase(name="teardown", ms=110.0),
        ),
        "checks": (check(), check("open-files", "warning", next="LimitNOFILE=65536")),
        "ranks": ranks(8),
    }
    return Findings(**{**facts, **other})


def report(*, name: str = NODE, error: MusterError | None = None, **other: Any) -> NodeReport:
    """A node that passed; `error` is why it did not, the rest are its findings."""
    found = None if error is LOST else findings(**other)
    return NodeReport(name, 8, "00" * 16, "in-service", found, error, f"verify-node {name}")
