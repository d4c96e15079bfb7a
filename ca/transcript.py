"""What a ceremony will do, and what it did: for the people who attend, and as JSON."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from ca.authority import Authority
from ca.ceremony import Ceremony
from ca.custody import is_on_token, token_uri
from ca.keys import kind_of
from ca.layout import ROOT_KEY, Layout
from ca.policy import Policy
from ca.profile import fingerprint, timestamp
from inventory.console import Console

FIELDS = ("field", "value")


def planned(ca_dir: Path, ceremony: Ceremony, policy: Policy) -> Iterator[tuple[str, str]]:
    """What would be made, under FIELDS."""
    yield "folder", str(ca_dir)
    yield "organisation", ceremony.organisation
    yield from _granted(policy)
    if ceremony.root.request_out is not None:
        yield "root", "kept elsewhere"
        yield "request for the root", str(ceremony.root.request_out)
    else:
        yield "root", f"{ceremony.root.key.spelling}, {ceremony.root.lifetime_days} days"
        yield "root key", str((ceremony.root.out or Layout(ca_dir).take_away) / ROOT_KEY)
    issuing = ceremony.issuing
    ends = f", {issuing.lifetime_days} days" if ceremony.root.request_out is None else ""
    yield "issuing authority", f"{issuing.key.spelling}{ends}"
    yield "issuing key", issuing.token or str(Layout(ca_dir).issuing_key)


def made_rows(authority: Authority) -> Iterator[tuple[str, str]]:
    """What was made, under FIELDS."""
    yield "root SHA-256", authority.fingerprint_sha256
    yield "root", _kind(authority.root)
    yield "issuing SHA-256", fingerprint(authority.issuing)
    yield "issuing authority", _kind(authority.issuing)
    yield "folder", str(authority.layout.folder)
    yield "policy", str(authority.layout.policy)
    yield from _granted(authority.policy)
    yield "issuing key", issuing_key(authority)
    yield "root key", "kept elsewhere" if authority.root_is_elsewhere else str(authority.root_key)
    yield "audit head", authority.head


def made(authority: Authority, now: datetime) -> dict[str, Any]:
    """What was made, as --json shows it."""
    return {
        "state": "complete",
        "ca_dir": str(authority.layout.folder),
        "policy": str(authority.layout.policy),
        "trust_domain": authority.policy.trust_domain,
        "names": list(authority.policy.names),
        "addresses": list(authority.policy.addresses),
        "root_key": None if authority.root_is_elsewhere else str(authority.root_key),
        "issuing_key": issuing_key(authority),
        "fingerprint_sha256": authority.fingerprint_sha256,
        "issuing_fingerprint_sha256": fingerprint(authority.issuing),
        "not_after": timestamp(authority.issuing.not_valid_after_utc),
        "audit_head": authority.head,
        "warnings": list(authority.warnings(now)),
    }


def tell_made(console: Console, authority: Authority) -> None:
    """What was made, as people read it, and what to do next."""
    console.table(FIELDS, [*made_rows(authority)])
    if authority.root_is_elsewhere:
        console.say("the authority is complete; its root stays where it is")
        return
    console.say(
        f"the authority is made; take {authority.root_key.parent} away to a safe place now, "
        f"for {ROOT_KEY} there is not needed from day to day"
    )


def waiting(ca_dir: Path, request_out: Path) -> dict[str, Any]:
    """An authority that waits for its root, as --json shows it."""
    asked = x509.load_pem_x509_csr(request_out.read_bytes())
    return {
        "state": "waiting",
        "ca_dir": str(ca_dir),
        "request": str(request_out),
        "request_sha256": fingerprint(asked),
        "subject": asked.subject.rfc4514_string(),
    }


def tell_waiting(console: Console, ca_dir: Path, request_out: Path) -> None:
    """An authority that waits for its root, as people read it, and what to do next."""
    said = waiting(ca_dir, request_out)
    console.table(
        FIELDS,
        [
            ("folder", said["ca_dir"]),
            ("request", said["request"]),
            ("request SHA-256", said["request_sha256"]),
            ("subject", said["subject"]),
        ],
    )
    console.say(
        "have the root sign the request, with the extensions that it asks for, "
        "and compare its SHA-256 there; then complete the authority: "
        f"node-ca init --ca-dir {ca_dir} --external-root-cert CERT --root ROOT"
    )


def issuing_key(authority: Authority) -> str:
    """Where the issuing key lies."""
    layout = authority.layout
    return token_uri(layout, authority.issuing) if is_on_token(layout) else str(layout.issuing_key)


def _granted(policy: Policy) -> Iterator[tuple[str, str]]:
    yield "trust domain", policy.trust_domain
    yield "names", ", ".join(policy.names)
    yield "addresses", ", ".join(policy.addresses) or "none"


def _kind(certificate: x509.Certificate) -> str:
    kind = kind_of(certificate.public_key())
    return f"{kind.spelling if kind else 'other key'}, until {timestamp(certificate.not_valid_after_utc)}"
