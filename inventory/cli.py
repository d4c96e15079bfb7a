"""node-inventory: what is known of every node."""

from pathlib import Path
from typing import Annotated, Any

import typer

from inventory.command import (
    InventoryUrl,
    Json,
    NoColour,
    NoInput,
    Quiet,
    Verbose,
    Version,
    console_for,
    new_app,
    run,
)

app = new_app(
    """What is known of every node: its state, whose move it is, its history, its ticket.

    Examples:

        node-inventory list

        node-inventory show gpu-07

        node-inventory ticket gpu-07 > gpu-07.ticket
    """
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The node's name.")]


@app.callback()
def _common(*, version: Version = False) -> None:
    pass


@app.command("list")
def list_nodes(
    *,
    inventory: InventoryUrl = None,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    no_input: NoInput = False,  # noqa: ARG001 - nothing is asked here
    no_color: NoColour = False,
) -> None:
    """List every node with its state and whose move it is.

    Example: node-inventory list --json
    """
    from inventory import show
    from inventory.store import Store

    console = console_for(json_output=json_output, quiet=quiet, verbose=verbose, no_color=no_color)
    nodes = Store.open(inventory).all()
    console.document({"nodes": [show.summary(node) for node in nodes]})
    console.table(show.TITLES, [show.row(node) for node in nodes])
    if not nodes:
        console.say("no node is on record; provision-node NAME puts the first one there")


@app.command("show")
def show_node(
    name: Name,
    *,
    inventory: InventoryUrl = None,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    no_input: NoInput = False,  # noqa: ARG001 - nothing is asked here
    no_color: NoColour = False,
) -> None:
    """Show all that is known of one node.

    Example: node-inventory show gpu-07
    """
    from inventory import show
    from inventory.store import Store

    console = console_for(json_output=json_output, quiet=quiet, verbose=verbose, no_color=no_color)
    node = show.need_node(Store.open(inventory), name)
    console.document({"node": show.whole(node)})
    for title, text in show.lines(node):
        console.data(f"{title}\t{text}")


@app.command("history")
def history(
    name: Name,
    *,
    inventory: InventoryUrl = None,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    no_input: NoInput = False,  # noqa: ARG001 - nothing is asked here
    no_color: NoColour = False,
) -> None:
    """Show what happened to one node: when, who, where, from, to, why.

    Example: node-inventory history gpu-07
    """
    from inventory import show
    from inventory.store import Store

    console = console_for(json_output=json_output, quiet=quiet, verbose=verbose, no_color=no_color)
    store = Store.open(inventory)
    show.need_node(store, name)
    events: list[dict[str, Any]] = [show.event(event) for event in store.history(name)]
    console.document({"node": name, "events": events})
    console.table(show.EVENT_TITLES, [[str(value or "-") for value in event.values()] for event in events])


@app.command("ticket")
def ticket(
    name: Name,
    *,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the ticket to this file ('-' is stdout).")
    ] = None,
    inventory: InventoryUrl = None,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    no_input: NoInput = False,  # noqa: ARG001 - nothing is asked here
    no_color: NoColour = False,
) -> None:
    """Print the signed ticket of a node, to be carried to the CA host.

    Example: node-inventory ticket gpu-07 --output gpu-07.ticket
    """
    from inventory import show
    from inventory.files import write_whole
    from inventory.store import Store

    console = console_for(json_output=json_output, quiet=quiet, verbose=verbose, no_color=no_color)
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
