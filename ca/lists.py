"""Revocation lists that were signed together, and how the audit's lines tell of them (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from ca.crl import Former, Slot, due_slot
from ca.ledger import moment
from ca.profile import timestamp

ANNOUNCED, SIGNED, INSTALLED = "crl", "crl-signed", "crl-installed"
"""The kinds of lines: lists are about to be signed; they were, and lie in the folder; a node has one."""


@dataclass(frozen=True, slots=True)
class SignedSet:
    """A list for now, and perhaps more for a time to come.

    days: how long each is valid. revoked: how many certificates had ever been revoked when they were signed.
    issuers: SHA-256 of the certificate of each authority that has one in every file.
    hashes: SHA-256 of each list's file, by its number; empty before they are signed.
    """

    signed_at: datetime
    days: int
    revoked: int
    slots: tuple[Slot, ...]
    hashes: Mapping[int, str] = field(default_factory=dict)
    issuers: tuple[str, ...] = ()

    @property
    def last(self) -> Slot:
        """The one with the highest number, which ends last."""
        return self.slots[-1]

    def due(self, now: datetime) -> Slot:
        """The list that is due; the first one where the clock went back since it was signed."""
        return due_slot(self.slots, now) or self.slots[0]

    def ahead(self, now: datetime) -> tuple[Slot, ...]:
        """Those that are not due yet."""
        return tuple(slot for slot in self.slots if slot.due > now)

    def former(self, now: datetime) -> Former:
        """What the next list to be signed comes after."""
        return Former(self.due(now).this_update, self.signed_at)

    def with_hashes(self, hashes: Mapping[int, str]) -> "SignedSet":
        """The same, once signed."""
        return replace(self, hashes=hashes)

    def to_body(self) -> dict[str, Any]:
        """As a line of the audit tells it."""
        return {
            "signed_at": timestamp(self.signed_at),
            "days": self.days,
            "revoked": self.revoked,
            "issuers": list(self.issuers),
            "lists": [
                {
                    "number": slot.number,
                    "due": timestamp(slot.due),
                    "this_update": timestamp(slot.this_update),
                    "next_update": timestamp(slot.next_update),
                    "sha256": self.hashes.get(slot.number),
                }
                for slot in self.slots
            ],
        }

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "SignedSet":
        """As it was told.

        Raises:
            KeyError, TypeError, ValueError: the body lacks what it must say.
        """
        items = body["lists"]
        if not items:
            raise ValueError("no lists")
        return cls(
            signed_at=moment(body["signed_at"]),
            days=int(body["days"]),
            revoked=int(body["revoked"]),
            slots=tuple(
                Slot(
                    int(item["number"]),
                    moment(item["due"]),
                    moment(item["this_update"]),
                    moment(item["next_update"]),
                )
                for item in items
            ),
            issuers=tuple(str(issuer) for issuer in body.get("issuers", ())),
            hashes={int(item["number"]): str(item["sha256"]) for item in items if item["sha256"]},
        )
