"""Questions to the index that revocation lists, warnings and status ask; none of them reads every record."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from ca.crl import Former, Revoked, entries, reason_in
from ca.index import Index
from ca.layout import damaged
from ca.ledger import moment
from ca.profile import timestamp
from ca.rotation import Standing as Rotation
from ca.rotation import standing

MANY = 1000
"""Where counting on would tell nobody more."""
_NO_END = 2**62


@dataclass(frozen=True, slots=True)
class Holder:
    """A node in service, and the number of the revocation list that it got last; None: it got none."""

    node: str
    number: int | None


@dataclass(frozen=True, slots=True)
class Expiring:
    """Live certificates that end soon and have no successor: how many (at most MANY), and the first."""

    count: int
    node: str
    not_after: datetime

    def __str__(self) -> str:
        many = f"{MANY} certificates or more end" if self.count >= MANY else f"{self.count} certificates end"
        what = f"the certificate of {self.node} ends" if self.count == 1 else many
        first = "" if self.count == 1 else f", {self.node} first"
        return f"{what} soon{first} ({timestamp(self.not_after)})"


def revoked_count(index: Index) -> int:
    """How many certificates were ever revoked."""
    return int(index.ask("SELECT count(*) FROM certificates WHERE standing = 'revoked'")[0][0])


@dataclass(frozen=True, slots=True)
class BundleHolder:
    """A node with a live certificate, and the SHA-256 of the bundle that it got last; None: not on record."""

    node: str
    sha256: str | None


def told(index: Index) -> Rotation:
    """Where a rotation stands.

    Raises:
        Damaged: a line that tells of it makes no sense.
    """
    lines = [
        (int(n), str(kind), json.loads(body))
        for n, kind, body in index.ask("SELECT n, kind, body FROM rotations WHERE n > 0 ORDER BY n")
    ]
    try:
        return standing(index.beginning, lines)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(f"the audit's lines on the rotation make no sense ({error})") from error


def holders_of_other_bundle(
    index: Index, sha256: str, now: datetime, *, presumed: str
) -> tuple[BundleHolder, ...]:
    """The nodes with a live certificate whose bundle is not `sha256`; one of none on record has `presumed`."""
    rows = index.ask(
        "SELECT DISTINCT c.node, h.sha256 FROM certificates c LEFT JOIN bundles_held h ON h.node = c.node"
        " WHERE standing IN ('issued', 'installed') AND not_after >= ? AND coalesce(h.sha256, ?) <> ?"
        " ORDER BY c.node",
        (timestamp(now), presumed, sha256),
    )
    return tuple(BundleHolder(node, held) for node, held in rows)


def held_bundle(index: Index, node: str) -> str | None:
    """The SHA-256 of the bundle that a node got last."""
    rows = index.ask("SELECT sha256 FROM bundles_held WHERE node = ?", (node,))
    return str(rows[0][0]) if rows else None


def holders_of_lists_before(index: Index, number: int, now: datetime) -> tuple[str, ...]:
    """The nodes with a live certificate that got a revocation list once, and none from `number` on."""
    rows = index.ask(
        "SELECT DISTINCT c.node FROM certificates c JOIN lists_held h ON h.node = c.node"
        " WHERE standing IN ('issued', 'installed') AND not_after >= ? AND h.number < ? ORDER BY c.node",
        (timestamp(now), number),
    )
    return tuple(str(row[0]) for row in rows)


def not_ended_below(
    index: Index, since: int, until: int | None, now: datetime
) -> tuple[tuple[str, ...], int, datetime | None]:
    """Of what was issued between two lines: nodes with live certificates, how many are revoked, the last end."""
    rows = index.ask(
        "SELECT node, standing, not_after FROM certificates WHERE +n > ? AND +n < ? AND not_after >= ?"
        " AND standing IN ('issued', 'installed', 'revoked') ORDER BY node",
        (since, until if until is not None else _NO_END, timestamp(now)),
    )
    live = tuple(dict.fromkeys(str(node) for node, at, _ in rows if at != "revoked"))
    revoked = sum(at == "revoked" for _, at, _ in rows)
    return live, revoked, max((moment(end) for _, _, end in rows), default=None)


def to_name(
    index: Index, former: Former | None, *, since: int = 0, until: int | None = None
) -> tuple[Revoked, ...]:
    """The revoked certificates that the list after `former` names, of those issued between two lines."""
    after = ("", "") if former is None else (timestamp(former.this_update), timestamp(former.signed_at))
    rows = index.ask(
        "SELECT serial, ended_at, why, not_after FROM certificates"
        " WHERE standing = 'revoked' AND (not_after >= ? OR ended_at >= ?)"
        " AND +n > ? AND +n < ?",  # not by their order, which would read them all
        (*after, since, until if until is not None else _NO_END),
    )
    found = (
        Revoked(int(serial, 16), moment(ended_at), reason_in(why), moment(not_after))
        for serial, ended_at, why, not_after in rows
    )
    return tuple(entries(found, former))


def holders_of_older(index: Index, number: int, now: datetime) -> tuple[Holder, ...]:
    """The nodes in service whose list is older than `number`, or that have none; by name."""
    rows = index.ask(
        "SELECT DISTINCT c.node, h.number FROM certificates c LEFT JOIN lists_held h ON h.node = c.node"
        " WHERE standing IN ('issued', 'installed') AND installed_at IS NOT NULL"
        " AND not_after >= ? AND coalesce(h.number, 0) < ?"
        " ORDER BY c.node",
        (timestamp(now), number),
    )
    return tuple(Holder(node, held) for node, held in rows)


def held_list(index: Index, node: str) -> int | None:
    """The number of the list that a node got last."""
    rows = index.ask("SELECT number FROM lists_held WHERE node = ?", (node,))
    return int(rows[0][0]) if rows else None


def expiring(index: Index, now: datetime, by: datetime) -> Expiring | None:
    """The live certificates that end until `by`, of names that have none which lives longer."""
    rows = index.ask(
        "SELECT node, not_after FROM certificates c INDEXED BY of_end"
        " WHERE standing IN ('issued', 'installed') AND not_after BETWEEN ? AND ?"
        " AND NOT EXISTS (SELECT 1 FROM certificates later WHERE later.node = c.node"
        " AND later.not_after > ? AND later.standing IN ('issued', 'installed'))"
        " ORDER BY not_after LIMIT ?",
        (timestamp(now), timestamp(by), timestamp(by), MANY),
    )
    return Expiring(len(rows), rows[0][0], moment(rows[0][1])) if rows else None


def beginning_like(index: Index, digits: str) -> Iterator[tuple[str, str]]:
    """Serial number and node of certificates whose number or fingerprint begins with hex `digits`; a few."""
    yield from index.ask(
        "SELECT serial, node FROM certificates WHERE serial >= ? AND serial < ? LIMIT 5",
        (digits, digits + "g"),
    )
    yield from index.ask(
        "SELECT serial, node FROM certificates WHERE fingerprint_sha256 >= ? AND fingerprint_sha256 < ? LIMIT 5",
        (digits, digits + "g"),
    )


def standings(index: Index) -> dict[str, int]:
    """How many certificates stand at each standing, whether they have ended or not."""
    return dict(index.ask("SELECT standing, count(*) FROM certificates GROUP BY standing"))


def newest_issued(index: Index) -> str | None:
    """The serial number of the certificate that was announced last among those that were issued."""
    rows = index.ask(
        "SELECT serial FROM certificates WHERE fingerprint_sha256 IS NOT NULL ORDER BY n DESC LIMIT 1"
    )
    return str(rows[0][0]) if rows else None
