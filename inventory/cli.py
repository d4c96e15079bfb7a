"""node-inventory: what is known of every node."""

from pathlib import Path
from typing import Annotated, Any

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
    """
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The node's name.")]


@verb(app, "list")
def list_nodes(
    *,
    inventory: InventoryUrl = None,
    console: Console,
) -> None:
    """List every node with its state and whose move it is.

    Example: node-inventory list --json
    """
    from inventory import show
    from inventory.store import Store

    nodes = Store.open(inventory).all()
    console.document({"nodes": [show.summary(node) for node in nodes]})
    console.table(show.TITLES, [show.row(node) for node in nodes])
    if not nodes:
        console.say("no node is on record; provision-node NAME puts the first one there")


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

    node = show.need_node(Store.open(inventory), name)
    console.document({"node": show.whole(node)})
    for title, text in show.lines(node):
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
    events: list[dict[str, Any]] = [show.event(event) for event in store.history(name)]
    console.document({"node": name, "events": events})
    console.table(show.EVENT_TITLES, [[str(value or "-") for value in event.values()] for event in events])


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
