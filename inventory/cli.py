"""node-inventory: what is known of every node."""

from pathlib import Path
from typing import Annotated, Any

import typer

from inventory.command import run
from inventory.console import Console
from inventory.errors import MusterError, worst
from inventory.options import DryRun, InventoryUrl, new_app, verb

app = new_app(
    """What is known of every node: its state, whose move it is, its history, its ticket.

    Examples:

        node-inventory list

        node-inventory show gpu-07

        node-inventory ticket gpu-07 > gpu-07.ticket

        node-inventory import gpu-07.receipt
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
    console.table(
        show.EVENT_TITLES,
        [[show.one_line(str(value or "-")) for value in event.values()] for event in events],
    )


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


@verb(app, "import")
def import_receipts(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Receipts that the holder sent.")],
    *,
    receipt_signers: Annotated[
        Path | None,
        typer.Option(
            "--receipt-signers", metavar="FILE", help="Whose receipts count (default: the site file says)."
        ),
    ] = None,
    site: Annotated[
        Path | None, typer.Option("--site", envvar="MUSTER_SITE", metavar="FILE", help="The site file.")
    ] = None,
    inventory: InventoryUrl = None,
    dry_run: DryRun = False,
    console: Console,
) -> None:
    """Take the holder's signed receipts into the record; the nodes move on with them.

    Example: node-inventory import gpu-07.receipt --site site.yaml
    """
    from inventory import receipts, show
    from inventory.store import Store, utc_now

    signers, store = receipts.signers_file(receipt_signers, site), Store.open(inventory)
    told, codes = [], []
    for file in dict.fromkeys(files):
        try:
            taken = receipts.take(
                receipts.read_file(file), signers=signers, store=store, now=utc_now(), dry_run=dry_run
            )
        except MusterError as error:
            console.error(error)
            told.append({"name": str(file), "ok": False, "error": error.to_json()})
            codes.append(error.exit_code)
            continue
        told.append(taken.to_json())
        for line in show.taken(taken, dry_run=dry_run):
            console.say(line)
        console.data(f"{taken.receipt.node}\t{taken.state}\t{taken.receipt.kind} by {taken.signer}")
    console.document({"ok": not codes, "dry_run": dry_run, "receipts": told})
    raise typer.Exit(int(worst(codes)))


def main() -> None:
    """The console script."""
    run(app)
