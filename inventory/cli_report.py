"""The verb of node-inventory that writes a page to look at: report."""

from pathlib import Path
from typing import Annotated

import typer

from inventory.cli import app
from inventory.console import Console
from inventory.errors import BadInput
from inventory.options import InventoryUrl, verb


@verb(app, "report")
def report(
    nodes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NODES",
            help="Whose sections to write, as gpu-[01-16] (default: all).",
            show_default=False,
        ),
    ] = None,
    *,
    html: Annotated[
        Path, typer.Option("--html", metavar="FILE", help="The page; written whole or not at all.")
    ],
    title: Annotated[
        str, typer.Option("--title", metavar="TEXT", help="What the page is called.")
    ] = "The fleet",
    inventory: InventoryUrl = None,
    console: Console,
) -> None:
    """Write one page of HTML: the fleet at a glance, and every node's road.

    It holds no script and loads nothing. The fleet's part is always of the
    whole fleet. Of more than 500 nodes those that are not in service get a
    section, unless NODES are named.

    Example: node-inventory report --html fleet.html
    """
    from inventory.files import write_whole
    from inventory.nodeset import expand
    from inventory.report import facts, gather
    from inventory.report.markup import count
    from inventory.report.page import page
    from inventory.store import Store, utc_now

    try:
        named = expand(nodes or ())
    except ValueError as error:
        raise BadInput(
            "nothing was written", why=str(error), next_step="name nodes like gpu-07 or gpu-[01-16]"
        ) from error
    store = Store.open(inventory)
    rows = gather.rows(store)
    gather.check_names(named, rows)
    sections = facts.chosen(rows, named)
    text = page(rows, gather.wholes(store, sections), sections=sections, now=utc_now(), title=title)
    try:
        write_whole(html, text, mode=0o644)
    except OSError as error:
        raise BadInput(
            f"the page {html} was not written",
            why=error.strerror or str(error),
            next_step="give another --html FILE",
        ) from error
    console.document(
        {"ok": True, "file": str(html), "bytes": len(text), "nodes": len(rows), "sections": list(sections)}
    )
    console.data(str(html))
    console.say(f"{count(len(rows), 'node')}, {len(sections)} of them with a section, {len(text):,} bytes")
