"""Which nodes a run is for: by name or node set, by ticket, or by what their certificates and lists have come to."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

from inventory import nodeset
from inventory.errors import BadInput
from inventory.model import check_node_name
from inventory.signature import MAX_BYTES
from inventory.span import parse_span
from inventory.store import Store
from inventory.ticket import peek_ticket
from onboard import service, upkeep
from onboard.desk import Desk


def named(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The names of node sets like gpu-[01-16], each once.

    Raises:
        BadInput: one is no node set, or no node can have that name.
    """
    try:
        names = nodeset.expand(texts)
    except ValueError as error:
        raise BadInput(
            "no node was named", why=str(error), next_step="name nodes like gpu-07 or gpu-[01-16]"
        ) from None
    return tuple(check_node_name(name) for name in names)


def tickets(
    names: tuple[str, ...], files: tuple[Path, ...], store: Store
) -> list[tuple[str, Callable[[], str]]]:
    """How to get the ticket of each node, under the name or file that it was asked for by."""
    by_name = [(name, partial(_of_name, store, name)) for name in names]
    return [*by_name, *((str(file), partial(_of_file, file)) for file in dict.fromkeys(files))]


def expiring(desk: Desk, names: tuple[str, ...], *, within: timedelta) -> tuple[str, ...]:
    """The nodes, of those that are named or of all, whose certificate has ended or ends within that time.

    Of all, those that are not in service are left out: they are kept up by nobody.
    """
    by = desk.clock() + within
    newest = upkeep.names_in(desk.authority)
    due = [name for name, record in sorted(newest.items()) if record.not_after <= by]
    if names:
        return tuple(name for name in names if name in due or name not in newest)
    return tuple(name for name in due if upkeep.is_kept_up(name, desk))


def parse_time(text: str) -> timedelta:
    """A time like 14d or 36h.

    Raises:
        BadInput: it is none.
    """
    try:
        return parse_span(text)
    except ValueError as error:
        raise BadInput(f"{text!r} is no time", why=str(error), next_step="pass --expiring 14d") from None


def holding_older(desk: Desk) -> tuple[str, ...]:
    """The nodes that have an older revocation list than the one that is due, or another trust bundle."""
    now = desk.clock()
    lists = {holder.node for holder in desk.authority.holding_older_crl(now)}
    bundles = {holder.node for holder in desk.authority.holding_older_bundle(now)}
    return tuple(name for name in sorted(lists | bundles) if upkeep.is_kept_up(name, desk))


def _of_name(store: Store, name: str) -> str:
    """The record is not believed: a ticket for another node under this one's name is a mistake or worse."""
    text = service.ticket_of(store, name)
    told = peek_ticket(text).node
    if told != name:
        raise BadInput(
            f"the ticket on record for {name} is not its own",
            why=f"it is for {told}",
            next_step=f"ask infra for: provision-node {name} --reissue-ticket",
        )
    return text


def _of_file(file: Path) -> str:
    try:
        with file.open("rb") as source:
            return source.read(MAX_BYTES + 1).decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(
            f"{file} is no ticket", why="it is not text", next_step="pass the file that infra handed over"
        ) from None
    except OSError as error:
        raise BadInput(
            f"{file} cannot be read",
            why=error.strerror or str(error),
            next_step="pass the file that infra handed over",
        ) from error
