"""How node-ca shows revocation lists, and how one leaves."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from ca.authority import Authority
from ca.crl import lists_in
from ca.lists import SignedSet
from ca.profile import timestamp
from inventory.console import Console
from inventory.errors import BadInput, Refused
from inventory.files import write_whole

TITLES = ("number", "due", "this-update", "next-update")


def rows(lists: SignedSet) -> Sequence[tuple[str, ...]]:
    """Each list under TITLES."""
    return [
        (str(slot.number), timestamp(slot.due), timestamp(slot.this_update), timestamp(slot.next_update))
        for slot in lists.slots
    ]


def refuse_to_overwrite(out: Path | None) -> None:
    """A revocation list replaces another one, and nothing else; looked at before anything is signed.

    Raises:
        Refused: `out` is there, and is no revocation list.
        BadInput: it cannot be written there.
    """
    if out is None or str(out) == "-":
        return
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise BadInput(
            "nothing was done",
            why=f"{out} is a folder" if out.is_dir() else f"there is no folder {out.absolute().parent}",
            next_step="name a file in a folder that exists",
        )
    try:
        if out.exists():
            x509.load_pem_x509_crl(out.read_bytes())
    except (OSError, ValueError):
        raise Refused(
            "nothing was done",
            why=f"{out} exists, and is no revocation list",
            next_step="choose another --out, or move that file away",
        ) from None


def hand_over(
    console: Console, authority: Authority, out: Path | None, now: datetime, *, shown: int, to_stdout: bool
) -> None:
    """The list that is due leaves: into `out`, or to stdout where `to_stdout`; and who needs it is named."""
    slot, data = authority.due_list(now)
    lists = authority.lists
    ahead = lists.ahead(now) if lists is not None else ()
    count = sum(len(list(each)) for each in lists_in(data))
    if out is not None and str(out) != "-":
        write_whole(out, data, mode=0o644)
        console.data(str(slot.number))
        console.say(
            f"{out} is revocation list {slot.number}: {count} revoked, valid until {timestamp(slot.next_update)}"
        )
    elif out is not None or to_stdout:
        console.data(data.decode().rstrip("\n"))
    else:
        console.table(TITLES, rows(lists) if lists is not None else ())
    if ahead:
        console.say(
            f"{len(ahead)} more wait in {authority.layout.crls}, the next is due {timestamp(ahead[0].due)}: "
            "node-ca crl --due --out FILE"
        )
    console.document(
        {
            "number": slot.number,
            "this_update": timestamp(slot.this_update),
            "next_update": timestamp(slot.next_update),
            "entries": count,
            "missing": authority.unlisted,
            "out": str(out) if out is not None else None,
            "crl_pem": data.decode(),
            "lists": lists.to_body()["lists"] if lists is not None else [],
            "holding_older": holding(authority, now),
        }
    )
    tell_holders(console, authority, now, shown=shown)


def holding(authority: Authority, now: datetime) -> list[dict[str, Any]]:
    """The nodes that hold an older list than the one that is due, as --json shows them."""
    return [{"node": holder.node, "number": holder.number} for holder in authority.holding_older_crl(now)]


def tell_holders(console: Console, authority: Authority, now: datetime, *, shown: int) -> None:
    """Name the nodes that still hold an older list, or none."""
    holders = authority.holding_older_crl(now)
    if not holders:
        return
    named = [
        f"{holder.node} ({'none' if holder.number is None else holder.number})" for holder in holders[:shown]
    ]
    rest = f" and {len(holders) - shown} more" if len(holders) > shown else ""
    console.say(
        f"{len(holders)} node{' holds' if len(holders) == 1 else 's hold'} an older list, or none: "
        f"{', '.join(named)}{rest}; bring them this one: onboard-node --refresh {holders[0].node}"
    )
