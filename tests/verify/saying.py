"""A node that says what it is told to say: quick, and able to lie."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from verify.scenarios import NAMES

BEGAN = {
    "event": "probe",
    "schema": 1,
    "pid": 7,
    "user": "muster",
    "python": "3.11.2",
    "openssl": "OpenSSL 3",
}
IDENTITY: dict[str, Any] = {
    "event": "identity",
    "fault": None,
    "notes": [],
    "node_clock": "2026-11-30T12:00:00Z",
}


AGENT = b"""\
node: gpu-01
identity: {cert_file: chain.pem, key_file: key.pem, ca_file: bundle.pem}
"""
KNOWN = [b"machine_uuid=", b"installed_uuid=", b"== muster: agent.yaml ==", *AGENT.splitlines()]


@dataclass(frozen=True, slots=True)
class Ended:
    exit_status: int
    stderr: bytes


class Node:
    """Says exactly these lines, whatever it is asked, once it has said what it is measured against."""

    def __init__(
        self, lines: list[bytes], *, status: int = 0, stderr: bytes = b"", known: list[bytes] | None = None
    ) -> None:
        self._lines, self._ended = lines, Ended(status, stderr)
        self._known = KNOWN if known is None else known
        self.killed = False

    def start(self, command: str) -> "Node":
        return Node(self._known) if "product_uuid" in command else self

    def send(self, data: bytes, *, timeout_s: float = 60.0) -> None:
        """It does not listen."""

    def close_stdin(self) -> None:
        """It does not listen."""

    def lines(self, *, timeout_s: float) -> Iterator[bytes]:  # noqa: ARG002 - a port's signature
        yield from self._lines

    def finish(self, *, timeout_s: float) -> Ended:  # noqa: ARG002 - a port's signature
        return self._ended

    def kill(self) -> None:
        self.killed = True


def said(events: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(event).encode() for event in events]


def scenario(name: str, **other: Any) -> dict[str, Any]:
    facts = {"kind": "positive", "ok": True, "seconds": 0.1, "expected": "all", "detail": "8 ranks"}
    return {"event": "scenario", "name": name, **facts, **other}


def check(name: str, verdict: str, **other: Any) -> dict[str, Any]:
    facts = {"expected": "all", "found": f"{name} is {verdict}", "next": f"mend {name}", "why": "so"}
    return {"event": "check", "name": name, "verdict": verdict, **facts, **other}


def whole(
    names: Sequence[str] = NAMES,
    *,
    failing: Sequence[str] = (),
    checks: Sequence[dict[str, Any]] = (),
    **facts: Any,
) -> list[dict[str, Any]]:
    """A probe's whole report; `failing` scenarios failed, `facts` are the identity's."""
    results = [scenario(name, ok=name not in failing, detail=f"{name} was seen") for name in names]
    items = ["fabrics", "GPUs", "inference engine", "between nodes"]
    items += [f"scenario {name}" for name in NAMES if name not in names]
    return [
        BEGAN,
        {**IDENTITY, **facts},
        *checks,
        *results,
        {"event": "not-checked", "items": items},
        {"event": "done", "ok": not set(failing) & set(names), "seconds": 0.3},
    ]
