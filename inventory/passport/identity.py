"""Certificates in a passport: who finds them, who judges them.

The ground floor knows no X.509. The authority offers itself through the entry-point group `muster.passport`; where
its extra is absent, `openssl` judges a chain, and where that is absent too, nobody does and the verdict says so.
"""

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, cast

from inventory.options import DISTRIBUTION
from inventory.passport import openssl
from inventory.passport.leaf import Leaf, Listed
from inventory.passport.statement import Certificate

GROUP = "muster.passport"
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----\n([A-Za-z0-9+/=\n]+)-----END CERTIFICATE-----\n?")


class Judge(Protocol):
    """What reads and judges certificates."""

    def leaf(self, pem: str) -> Leaf:
        """What a node's certificate says; ValueError: it is none."""

    def faults(self, chain: tuple[str, str, str], *, roots: str, at: datetime) -> tuple[str, ...]:
        """What speaks against leaf, issuing authority and root at a time, when only `roots` (PEM) are trusted."""

    def listed(self, chain: tuple[str, str, str], lists: str) -> Listed:
        """What the newest list of the leaf's issuer among `lists` (PEM) says of it; ValueError: there is none."""


class Identity(Judge, Protocol):
    """What the authority's floor offers."""

    def certificate(
        self, node: str, *, vm_uuid: str | None, serial: str | None, ca_dir: Path, now: datetime
    ) -> Certificate | None:
        """The certificate with that serial, else the newest of that VM; None where it never had one.

        Raises MusterError where there is no authority, or a damaged one.
        """

    def roots(self, ca_dir: Path, *, now: datetime) -> str:
        """What nodes trust, PEM; MusterError as `certificate`."""

    def standing(self, serial: str, *, ca_dir: Path, now: datetime) -> Listed:
        """Whether the ledger has a certificate as revoked; ValueError: it does not know it."""

    def revoked_ticket_keys(self, ca_dir: Path, *, now: datetime) -> Path | None:
        """The file of keys whose tickets count no more, by the policy; MusterError as `certificate`."""


@dataclass(frozen=True, slots=True)
class Absent:
    """Nobody offers anything. why: in a few words."""

    why: str


def offered() -> Identity | Absent:
    """The authority's offer, if its libraries are here."""
    for point in entry_points(group=GROUP, name="identity"):
        if point.dist is None or point.dist.name != DISTRIBUTION:
            continue  # who may add a distribution here need not be who may judge
        try:
            return cast("Identity", point.load())
        except ModuleNotFoundError as absent:
            return Absent(f"{absent.name} is not installed; it comes with the extra 'onboard'")
    return Absent("this installation offers no authority")


def judge() -> Judge | Absent:
    """Who judges chains on this host."""
    found = offered()
    if isinstance(found, Absent) and openssl.is_here():
        return cast("Judge", openssl)
    return found


def sha256_of(pem: str) -> str:
    """Of the one certificate in a PEM text, in DER form; needs no library of certificates.

    Raises:
        ValueError: it is not exactly one.
    """
    return hashlib.sha256(_der(pem)).hexdigest()


def all_sha256(bundle: str) -> set[str]:
    """Of every certificate in a PEM bundle, whatever else is written between them."""
    return {sha256_of(found[0]) for found in _PEM.finditer(bundle.replace("\r\n", "\n"))}


def _der(pem: str) -> bytes:
    found = _PEM.fullmatch(pem)
    if found is None:
        raise ValueError("it is not one certificate in PEM form")
    try:
        return base64.b64decode(found[1].replace("\n", ""), validate=True)
    except binascii.Error:
        raise ValueError("it is not one certificate in PEM form") from None
