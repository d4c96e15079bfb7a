"""How node-ca shows where a rotation stands, and what would be done next."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from ca.authority import Authority
from ca.profile import timestamp
from ca.rotation import Block, Generation, Plan, named
from inventory.console import Console
from inventory.errors import BadInput, Refused
from inventory.files import write_whole

FIELDS = ("field", "value")


def document(authority: Authority, planned: Plan, now: datetime, *, done: str | None) -> dict[str, Any]:
    """Where it stands, as --json shows it; `done` is what this run did."""
    standing = authority.rotation
    return {
        "done": done,
        "stage": str(standing.stage),
        "changes_root": standing.changes_root,
        "current": _generation(authority, standing.current),
        "next": _generation(authority, standing.next),
        "former": _generation(authority, standing.former),
        "bundle_sha256": authority.bundle_sha256,
        "holding_older_bundle": [
            {"node": holder.node, "sha256": holder.sha256} for holder in authority.holding_older_bundle(now)
        ],
        "next_phase": str(planned.phase),
        "would_do": list(planned.steps),
        "blocked_by": [_block(block) for block in planned.blocks],
        "left_over": [str(path) for path in authority.left_over()],
        "audit_head": authority.head,
    }


def rows(authority: Authority, planned: Plan, now: datetime) -> Iterator[tuple[str, str]]:
    """Where it stands, under FIELDS."""
    standing = authority.rotation
    yield "stage", str(standing.stage)
    named_ones = (("issuing", standing.current), ("successor", standing.next), ("former", standing.former))
    for title, generation in named_ones:
        if generation is not None:
            yield title, _told(authority, generation)
    yield "bundle SHA-256", authority.bundle_sha256
    older = authority.holding_older_bundle(now)
    if older:
        yield "other bundle", named([holder.node for holder in older])
    for path in authority.left_over():
        yield "left over", f"{path} (node-ca rotate retire --do takes it away)"
    yield "next phase", str(planned.phase)
    for step in planned.steps:
        yield f"{planned.phase} would", step
    for block in planned.blocks:
        yield "blocked", block.why + (f": {named(block.nodes)}" if block.nodes else "")
        yield "mend", block.mend


def refuse_to_overwrite(out: Path | None) -> None:
    """A bundle replaces another one, and nothing else.

    Raises:
        Refused: the file is there, and is no bundle of certificates.
        BadInput: it cannot be written there.
    """
    if out is None:
        return
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise BadInput(
            "nothing was done",
            why=f"{out} is no file in a folder that exists",
            next_step="name a file in a folder that exists",
        )
    try:
        if out.exists():
            x509.load_pem_x509_certificates(out.read_bytes())
    except (OSError, ValueError):
        raise Refused(
            "nothing was done",
            why=f"{out} exists, and is no bundle of certificates",
            next_step="choose another --out, or move that file away",
        ) from None


def hand_over(console: Console, authority: Authority, out: Path | None) -> None:
    """The bundle leaves, into `out`."""
    if out is not None:
        write_whole(out, authority.bundle_pem, mode=0o644)
        count = len(x509.load_pem_x509_certificates(authority.bundle_pem))
        console.say(f"{out} holds {count} {'root' if count == 1 else 'roots'}: what nodes trust")


def _told(authority: Authority, generation: Generation) -> str:
    issuing, root = authority.certificates_of(generation)
    return (
        f"{issuing.subject.rfc4514_string()}, until {timestamp(issuing.not_valid_after_utc)}, "
        f"SHA-256 {generation.issuing_sha256}; its root until {timestamp(root.not_valid_after_utc)}, "
        f"SHA-256 {generation.root_sha256}"
    )


def _generation(authority: Authority, generation: Generation | None) -> dict[str, Any] | None:
    if generation is None:
        return None
    issuing, root = authority.certificates_of(generation)
    return {
        "subject": issuing.subject.rfc4514_string(),
        "issuing_sha256": generation.issuing_sha256,
        "issuing_not_after": timestamp(issuing.not_valid_after_utc),
        "root_sha256": generation.root_sha256,
        "root_not_after": timestamp(root.not_valid_after_utc),
    }


def _block(block: Block) -> dict[str, Any]:
    return {"why": block.why, "next": block.mend, "nodes": list(block.nodes), "forcible": block.forcible}
