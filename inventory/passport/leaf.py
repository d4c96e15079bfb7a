"""What a node's certificate says of the node, whoever read it (pure)."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate's own words. serial: hex, lower case. uris: of its subject alternative name."""

    serial: str
    uris: tuple[str, ...]
    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime
