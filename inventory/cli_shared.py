"""The verbs of node-inventory for a record on a server, which its database's owner types: migrate, grants."""

from typing import Annotated

import typer

from inventory.cli import app
from inventory.console import Console
from inventory.options import DryRun, InventoryUrl, verb


@verb(app, "migrate")
def migrate(
    *,
    inventory: InventoryUrl = None,
    dry_run: DryRun = False,
    console: Console,
) -> None:
    """Make the record on a server, or bring it to the form that this Muster uses.

    A record in a file does so by itself. It is one transaction: done whole, or not at all.

    Example: node-inventory migrate --inventory postgresql:///muster
    """
    from inventory.store.database import Database
    from inventory.store.making import migrate as bring_on
    from inventory.store.making import stands_at
    from inventory.store.place import place_of

    database = Database(place_of(inventory))
    before, after = stands_at(database) if dry_run else bring_on(database)
    changed = before != after
    console.document({"ok": True, "dry_run": dry_run, "changed": changed, "from": before, "to": after})
    where = database.place.where
    if not changed:
        console.say(f"{where} is at {after} already")
    else:
        done = "would go" if dry_run else "went"
        console.say(f"{where} {done} from {before or 'nothing'} to {after}")
    if changed and not dry_run and database.place.shared:
        console.say("next, for its owner: node-inventory grants | psql -v ON_ERROR_STOP=1 DATABASE")


@verb(app, "grants")
def grants(
    *,
    inventory: InventoryUrl = None,
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="ROLE=LOGIN", help="Also make LOGIN a member: infra=anna, holder=hugo."),
    ] = None,
    console: Console,
) -> None:
    """Print the SQL that lets infra and the holder share the record, each within its role.

    Run it as the record's owner after every migration; again it changes nothing.

    Example: node-inventory grants --to infra=anna --to holder=hugo | psql -v ON_ERROR_STOP=1 muster
    """
    from inventory.store.grants import memberships, script, statements
    from inventory.store.making import need_shared
    from inventory.store.place import place_of

    schema = need_shared(place_of(inventory))
    members = memberships(to or ())
    console.document({"schema_name": schema, "statements": [*statements(schema), *members]})
    console.data(script(schema, members).rstrip("\n"))
