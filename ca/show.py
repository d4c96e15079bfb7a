"""How node-ca shows an authority and its certificates, to people and as JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ca.authority import Authority
from ca.issue import Issued
from ca.layout import ROOT_KEY
from ca.profile import fingerprint, timestamp
from ca.record import Record
from inventory.console import Console
from inventory.errors import BadInput, Refused
from inventory.files import write_whole

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


def status(authority: Authority, now: datetime) -> dict[str, Any]:
    """How an authority stands, as --json shows it."""
    return {
        "ca_dir": str(authority.layout.folder),
        "trust_domain": authority.policy.trust_domain,
        "fingerprint_sha256": authority.fingerprint_sha256,
        "root": {"not_after": timestamp(authority.root.not_valid_after_utc)},
        "issuing": {
            "subject": authority.issuing.subject.rfc4514_string(),
            "fingerprint_sha256": fingerprint(authority.issuing),
            "not_after": timestamp(authority.issuing.not_valid_after_utc),
        },
        "certificates": dict(sorted(Counter(record.state(now) for record in authority.records()).items())),
        "open": [record.serial for record in authority.open_intents],
        "audit": {"head": authority.head, "entries": authority.entries},
        "warnings": list(authority.warnings(now)),
    }


def status_rows(authority: Authority, now: datetime) -> Iterator[tuple[str, str]]:
    """How an authority stands, under FIELDS."""
    said = status(authority, now)
    yield "folder", said["ca_dir"]
    yield "trust domain", said["trust_domain"]
    yield "root SHA-256", said["fingerprint_sha256"]
    yield "root ends", said["root"]["not_after"]
    yield "issuing authority", said["issuing"]["subject"]
    yield "issuing ends", said["issuing"]["not_after"]
    counts = [f"{count} {state}" for state, count in said["certificates"].items()]
    yield "certificates", ", ".join(counts) or "none"
    for record in authority.open_intents:
        yield "announced, not issued", f"{record.serial} for {record.node} since {timestamp(record.at)}"
    yield "audit", f"{said['audit']['entries']} lines"
    yield "audit head", said["audit"]["head"]


def made(authority: Authority, now: datetime) -> dict[str, Any]:
    """A new authority, as --json shows it."""
    return {
        "ca_dir": str(authority.layout.folder),
        "policy": str(authority.layout.policy),
        "root_key": str(authority.root_key),
        "fingerprint_sha256": authority.fingerprint_sha256,
        "not_after": timestamp(authority.issuing.not_valid_after_utc),
        "warnings": list(authority.warnings(now)),
    }


def tell_made(console: Console, authority: Authority) -> None:
    """A new authority, as people read it."""
    console.table(
        FIELDS,
        [
            ("root SHA-256", authority.fingerprint_sha256),
            ("folder", str(authority.layout.folder)),
            ("policy", str(authority.layout.policy)),
            ("root key", str(authority.root_key)),
        ],
    )
    console.say(
        f"the authority is made; take {authority.root_key.parent} away to a safe place now, "
        f"for {ROOT_KEY} there is not needed from day to day"
    )


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
        BadInput: `out` is not a folder, and cannot become one.
    """
    if out is None:
        return
    for name in ("cert.pem", "bundle.pem"):
        if (out / name).exists():
            raise Refused(
                "nothing was signed",
                why=f"{out / name} exists",
                next_step="choose another --out, or move that file away",
            )
    if out.exists() and not out.is_dir():
        raise BadInput("nothing was signed", why=f"{out} is not a folder", next_step="choose another --out")


def hand_over(console: Console, issued: Issued, authority: Authority, out: Path | None) -> None:
    """A certificate leaves: into `out`, or its chain to stdout."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / "cert.pem", issued.chain_pem, mode=0o644)
        write_whole(out / "bundle.pem", authority.bundle_pem, mode=0o644)
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
