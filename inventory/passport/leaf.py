"""What others say of a node's certificate, whoever read it, and what a check found (pure)."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate's own words. serial: hex, lower case. uris, names, addresses: its subject alternative names."""

    serial: str
    uris: tuple[str, ...]
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    not_before: datetime
    not_after: datetime


@dataclass(frozen=True, slots=True)
class Listed:
    """What a revocation list says of one certificate.

    made_at: of the list. due: when the list ends; None where it is the ledger itself. revoked_at: None if it is not.
    """

    made_at: datetime
    due: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's outcome; a note is worth knowing and speaks against nothing."""

    kind: Literal["holds", "broken", "unchecked", "note"]
    text: str
