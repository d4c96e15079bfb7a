"""What the holder of an authority should see to, told at the end of every command."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from cryptography import x509

from ca.judge import wider
from ca.layout import ROOT_KEY, Layout
from ca.policy import Policy
from ca.profile import timestamp
from ca.record import Record

_WARN_BELOW = 0.2
"""Warn where less than this part of a life is left."""


def warnings(
    layout: Layout,
    *,
    policy: Policy,
    root: x509.Certificate,
    issuing: x509.Certificate,
    root_key: Path,
    unfinished: Sequence[Record],
    now: datetime,
) -> Iterator[str]:
    """Each concern as a sentence; `root_key` is where the root's key was written to."""
    for place in dict.fromkeys([root_key, (layout.take_away / ROOT_KEY).absolute()]):
        if place.exists():
            yield f"the root's key is still on this host: take away {place.parent}"
    yield from _of_life("root", root, now)
    yield from _of_life("issuing authority", issuing, now)
    if unfinished:
        count = "1 certificate was" if len(unfinished) == 1 else f"{len(unfinished)} certificates were"
        yield f"{count} announced and not issued; the next issue closes that"
    for reason in wider(policy, issuing):
        yield f"policy.yaml is wider than this authority: {reason}"
    if policy.ticket_signers is not None and not policy.ticket_signers.exists():
        yield f"policy.yaml names ticket signers in {policy.ticket_signers}, which does not exist"


def _of_life(name: str, certificate: x509.Certificate, now: datetime) -> Iterator[str]:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now >= end:
        yield f"the {name} has expired ({timestamp(end)})"
    elif end - now < (end - begin) * _WARN_BELOW:
        yield f"the {name} expires in {(end - now).days} days ({timestamp(end)}); plan its successor"
