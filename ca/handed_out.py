"""The heads of the audit that receipts carry: kept by others, they tell an older copy of the authority."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from ca.audit import unknown_heads
from ca.layout import Layout
from inventory.errors import BadInput, Damaged
from inventory.ticket import peek_receipt

_MAX_BYTES = 65536


def heads(places: Iterable[Path]) -> dict[str, str]:
    """The head that each receipt carries, and the file that says so; a folder stands for its NAME.receipt files.

    Raises:
        BadInput: one cannot be read, or there is none.
        Refused: one is malformed. Who signed it is not judged: a false one can raise an alarm, and hide nothing.
    """
    found: dict[str, str] = {}
    for place in places:
        files = sorted(place.glob("*.receipt")) if place.is_dir() else [place]
        if not files:
            raise BadInput(
                "nothing was compared",
                why=f"there is no NAME.receipt in {place}",
                next_step="name the receipts that onboard-node and verify-node handed out",
            )
        for file in files:
            head = peek_receipt(_read(file)).audit_head
            if head is not None:
                found[head] = str(file)
    return found


def unknown(layout: Layout, found: Mapping[str, str]) -> list[str]:
    """The files whose heads the audit does not know.

    Raises:
        Damaged: the audit cannot be read.
    """
    return [found[head] for head in unknown_heads(layout.audit, found)] if found else []


def refuse(folder: Path, files: list[str]) -> None:
    """Nothing where every receipt is known.

    Raises:
        Damaged: some are not.
    """
    if files:
        raise Damaged(
            f"the audit in {folder} is an older copy, or another authority's",
            why=f"it does not know what {', '.join(files)} saw of it",
            next_step="issue nothing; find the newest copy of the folder",
        )


def _read(file: Path) -> str:
    try:
        with file.open("rb") as receipt:
            return receipt.read(_MAX_BYTES + 1).decode("utf-8", "replace")
    except OSError as error:
        raise BadInput(
            "nothing was compared",
            why=f"{file} cannot be read: {error.strerror or error}",
            next_step="name the receipts that onboard-node and verify-node handed out",
        ) from error
