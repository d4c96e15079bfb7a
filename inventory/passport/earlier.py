"""Does a passport still tell all that an earlier one of its node told? What was left out at the end shows here."""

from collections.abc import Iterator

from inventory.passport.leaf import Finding
from inventory.passport.statement import Move, Passport
from inventory.ticket import iso

_CUT = "receipts between"
"""What `missing` calls the receipts that a passport of very many leaves to the record."""


def continues(earlier: Passport, later: Passport) -> Iterator[Finding]:
    """Every check of a passport against an earlier one that was believed."""
    if earlier.node != later.node:
        yield Finding("broken", f"the earlier passport is that of {earlier.node}")
        return
    if earlier.made_at > later.made_at:
        yield Finding(
            "broken", f"the earlier passport is the later one: it was made at {iso(earlier.made_at)}"
        )
        return
    faults = [*_events(earlier, later), *_receipts(earlier, later), *_audit(earlier, later)]
    yield from (Finding("broken", fault) for fault in faults)
    if not faults:
        since = len(later.events) - len(earlier.events)
        yield Finding(
            "holds",
            f"all that the passport of {iso(earlier.made_at)} told is in it:"
            f" {len(earlier.events)} events, {len(earlier.receipts)} receipts; {since} events since",
        )


def _events(earlier: Passport, later: Passport) -> Iterator[str]:
    """A history only grows at its end."""
    for number, move in enumerate(earlier.events, 1):
        if number > len(later.events):
            yield f"{len(earlier.events) - number + 1} events of the earlier passport are gone, from {_told(move)}"
            return
        if _words(later.events[number - 1]) != _words(move):
            yield f"event {number} is another one than in the earlier passport, where it was {_told(move)}"
            return


def _receipts(earlier: Passport, later: Passport) -> Iterator[str]:
    """Those of one VM; a passport of very many receipts holds the first and the newest alone."""
    if earlier.vm.uuid != later.vm.uuid or any(each.what == _CUT for each in later.missing):
        return
    kept = {receipt.sha256 for receipt in later.receipts}
    gone = [number for number, each in enumerate(earlier.receipts, 1) if each.sha256 not in kept]
    if gone:
        yield f"of the earlier passport these receipts are gone: {', '.join(map(str, gone))}"


def _audit(earlier: Passport, later: Passport) -> Iterator[str]:
    """The audit of one authority only grows; between two different lengths only `node-ca audit` can judge."""
    before, after = earlier.certificate, later.certificate
    if before is None or after is None or before.audit_entries is None or after.audit_entries is None:
        return
    if before.chain[2] != after.chain[2]:
        return
    if after.audit_entries < before.audit_entries:
        yield (
            f"the authority's audit had {before.audit_entries} entries then and {after.audit_entries} now:"
            " it is an older copy"
        )
    elif after.audit_entries == before.audit_entries and after.audit_head != before.audit_head:
        yield f"the authority's audit has another head at entry {after.audit_entries} than it had then"


def _words(move: Move) -> tuple[object, ...]:
    """What a move is known by; role and login are added where a record moves into a shared database."""
    return (move.at, move.actor, move.host, move.before, move.after, move.why)


def _told(move: Move) -> str:
    return f"{move.before or 'nothing'} to {move.after} at {iso(move.at)}"
