"""node-inventory: what is known of every node."""

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from inventory.command import run
from inventory.console import Console
from inventory.options import InventoryUrl, new_app, verb

app = new_app(
    """What is known of every node: its state, whose move it is, its history, its ticket.

    Examples:

        node-inventory list

        node-inventory show gpu-07

        node-inventory ticket gpu-07 > gpu-07.ticket

        node-inventory import gpu-07.receipt

        node-inventory import nodes.yaml --dry-run

        node-inventory export --format csv -o nodes.csv

        node-inventory check --site site.yaml

        node-inventory passport gpu-07 -o gpu-07.passport.json

        node-inventory report --html fleet.html
    """
)


Name = Annotated[str, typer.Argument(metavar="NAME", help="The node's name.")]


def _states() -> list[str]:
    from inventory.listing import STATES

    return list(STATES)


def _turns() -> list[str]:
    from inventory.listing import TURNS

    return list(TURNS)


@verb(app, "list")
def list_nodes(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NODES", help="Nodes, as gpu-[01-16] (default: all).")
    ] = None,
    *,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", metavar="STATE", help="Only those in this state; repeatable.", autocompletion=_states
        ),
    ] = None,
    turn: Annotated[
        str | None,
        typer.Option(
            "--next",
            metavar="WHO",
            help="Only those where infra (security, nobody) acts.",
            autocompletion=_turns,
        ),
    ] = None,
    expiring: Annotated[
        str | None,
        typer.Option(
            "--expiring", metavar="TIME", help="Only those whose certificate ends within 14d (36h)."
        ),
    ] = None,
    inventory: InventoryUrl = None,
    console: Console,
) -> None:
    """List every node: its state, whose move it is, when its certificate ends.

    Example: node-inventory list 'gpu-[01-16]' --next security --expiring 14d
    """
    from inventory import show
    from inventory.listing import absent, asked, chosen
    from inventory.store import Store, utc_now
    from inventory.store.place import place_of

    wanted = asked(names, states=state, turn=turn, expiring=expiring, now=utc_now())
    store = Store.open(inventory)
    found = chosen(store, wanted)
    if console.json_output:
        console.documents("nodes", map(show.summary, found))
    elif (first := next(found, None)) is not None:
        console.table(show.TITLES, map(show.row, chain((first,), found)), spare=show.SPARE)
    else:
        none = f"no node is on record in {place_of(inventory).where}; provision-node NAME puts one there"
        console.say("no such node" if wanted.narrowed else none)
    if gone := absent(store, wanted.names):
        console.warn(f"not on record: {gone}")


@verb(app, "show")
def show_node(
    name: Name,
    *,
    inventory: InventoryUrl = None,
    console: Console,
) -> None:
    """Show all that is known of one node.

    Example: node-inventory show gpu-07
    """
    from inventory import show
    from inventory.store import Store

    store = Store.open(inventory)
    node, lease = show.need_node(store, name), store.lease_of(name)
    console.document({"node": {**show.whole(node), "lease": None if lease is None else show.lease(lease)}})
    for title, text in (*show.lines(node), *show.lease_lines(lease)):
        console.data(f"{title}\t{text}")


@verb(app, "history")
def history(
    name: Name,
    *,
    inventory: InventoryUrl = None,
    console: Console,
) -> None:
    """Show what happened to one node: when, who, where, from, to, why.

    Example: node-inventory history gpu-07
    """
    from inventory import show
    from inventory.store import Store

    store = Store.open(inventory)
    show.need_node(store, name)
    events = store.history(name)
    console.document({"node": name, "events": [show.event(event) for event in events]})
    console.table(show.EVENT_TITLES, [show.event_row(event) for event in events])


@verb(app, "ticket")
def ticket(
    name: Name,
    *,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the ticket to this file ('-' is stdout).")
    ] = None,
    inventory: InventoryUrl = None,
    console: Console,
) -> None:
    """Print the signed ticket of a node, to be carried to the CA host.

    Example: node-inventory ticket gpu-07 --output gpu-07.ticket
    """
    from inventory import show
    from inventory.files import write_whole
    from inventory.store import Store

    text = show.need_ticket(show.need_node(Store.open(inventory), name))
    console.document({"node": name, "ticket": text})
    if out is None or str(out) == "-":
        console.data(text.rstrip("\n"))
    else:
        write_whole(out, text.encode(), mode=0o644)
        console.say(f"the ticket of {name} is in {out}")


def main() -> None:
    """The console script."""
    run(app)


from inventory import cli_check as _cli_check  # noqa: E402, F401 - its verb needs what stands above
from inventory import cli_export as _cli_export  # noqa: E402, F401 - its verbs need what stands above
from inventory import cli_import as _cli_import  # noqa: E402, F401 - its verb needs what stands above
from inventory import cli_passport as _cli_passport  # noqa: E402, F401 - likewise
from inventory import cli_report as _cli_report  # noqa: E402, F401 - likewise
from inventory import cli_shared as _cli_shared  # noqa: E402, F401 - likewise
