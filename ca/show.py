"""How node-ca shows an authority and its certificates, to people and as JSON."""

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ca.authority import Authority
from ca.health import Severity
from ca.issue import Issued
from ca.profile import fingerprint, timestamp
from ca.record import Record
from inventory.console import Console
from inventory.errors import BadInput, Refused
from inventory.files import write_whole

if TYPE_CHECKING:
    from ca.status import Examination

TITLES = ("serial", "node", "state", "not-after", "names", "addresses")


def row(record: Record, now: datetime) -> tuple[str, ...]:
    """One line of `node-ca list`, under TITLES."""
    return (
        record.serial,
        record.node,
        record.state(now),
        timestamp(record.not_after),
        ",".join(record.names),
        ",".join(record.addresses) or "-",
    )


FIELDS = ("field", "value")


def record_rows(records: Sequence[Record], authority: Authority, now: datetime) -> Iterator[tuple[str, str]]:
    """All of each record, under FIELDS; each begins with its serial number."""
    for record in records:
        for key, value in record.to_json(now).items():
            text = ", ".join(str(item) for item in value) if isinstance(value, list) else value
            yield key, str(text) if text not in (None, "", {}) else "-"
        if record.fingerprint_sha256 is not None:
            yield "file", str(authority.layout.issued / f"{record.serial}.pem")


CHECKS = ("check", "severity", "found", "next")


def check_rows(found: "Examination") -> list[tuple[str, ...]]:
    """Each check of `node-ca status`, under CHECKS."""
    return [(check.name, str(check.severity), check.text, check.next_step or "-") for check in found.checks]


def status(found: "Examination", now: datetime) -> dict[str, Any]:
    """What `node-ca status` found, as --json shows it."""
    checks = {
        "ca_dir": str(found.folder),
        "ok": found.worst is not Severity.CRITICAL,
        "worst": str(found.worst),
        "checks": [check.to_json() for check in found.checks],
    }
    authority = found.authority
    if authority is None:
        return checks
    return {
        **checks,
        "trust_domain": authority.policy.trust_domain,
        "fingerprint_sha256": authority.fingerprint_sha256,
        "root": {"not_after": timestamp(authority.root.not_valid_after_utc)},
        "issuing": {
            "subject": authority.issuing.subject.rfc4514_string(),
            "fingerprint_sha256": fingerprint(authority.issuing),
            "not_after": timestamp(authority.issuing.not_valid_after_utc),
        },
        "certificates": authority.count(now),
        "open": [record.serial for record in authority.open_intents],
        "audit": {"head": authority.head, "entries": authority.entries},
        "warnings": list(authority.warnings(now)),
    }


def grant(record: Record) -> dict[str, Any]:
    """What a certificate would say; without the serial number, which nobody has yet."""
    return {
        "node": record.node,
        "vm_uuid": record.vm_uuid,
        "names": list(record.names),
        "addresses": list(record.addresses),
        "spiffe_id": record.spiffe_id,
        "not_before": timestamp(record.not_before),
        "not_after": timestamp(record.not_after),
        "key_sha256": record.key_sha256,
    }


def grant_lines(record: Record) -> Iterator[str]:
    """What a certificate would say, for people."""
    for key, value in grant(record).items():
        text = ", ".join(value) if isinstance(value, list) else value
        yield f"{key.replace('_', ' ')}: {text or '-'}"


def refuse_to_overwrite(out: Path | None) -> None:
    """A certificate never replaces another file; looked at before anything is signed.

    Raises:
        Refused: cert.pem or bundle.pem is in `out`.
        BadInput: `out` is not a folder that can be written to, and cannot become one.
    """
    if out is None:
        return
    for name in ("cert.pem", "bundle.pem"):
        if (out / name).is_symlink() or (out / name).exists():
            raise Refused(
                "nothing was signed",
                why=f"{out / name} exists",
                next_step="choose another --out, or move that file away",
            )
    there = next(place for place in (out.absolute(), *out.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = f"{there} is not a folder that you can write to"
        raise BadInput("nothing was signed", why=why, next_step="choose another --out")


def hand_over(console: Console, issued: Issued, authority: Authority, out: Path | None) -> None:
    """A certificate leaves: into `out`, or its chain to stdout."""
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            write_whole(out / "cert.pem", issued.chain_pem, mode=0o644)
            write_whole(out / "bundle.pem", authority.bundle_pem, mode=0o644)
        except OSError as error:
            kept = authority.layout.issued / f"{issued.serial}.pem"
            raise Refused(
                f"certificate {issued.serial} was issued, but not handed over",
                why=f"{out}: {error.strerror or error}",
                next_step=f"take it from {kept}, and the root from {authority.layout.root}",
            ) from error
        console.data(issued.serial)
        console.say(f"{out / 'cert.pem'} holds leaf and issuing authority, {out / 'bundle.pem'} the root")
    else:
        console.data(issued.chain_pem.decode().rstrip("\n"))
    console.document(
        {
            "serial": issued.serial,
            "spiffe_id": issued.spiffe_id,
            "names": list(issued.names),
            "addresses": list(issued.addresses),
            "not_before": timestamp(issued.not_before),
            "not_after": timestamp(issued.not_after),
            "fingerprint_sha256": issued.fingerprint_sha256,
            "out": str(out) if out is not None else None,
            "chain_pem": issued.chain_pem.decode(),
        }
    )
