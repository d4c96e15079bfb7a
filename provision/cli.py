"""provision-node: the infra team's command; it makes VMs, learns who they are, and hands over tickets."""

from pathlib import Path
from typing import Annotated

import typer

from inventory.command import ask, need, run
from inventory.console import Console
from inventory.errors import BadInput
from inventory.model import check_node_name
from inventory.options import InventoryUrl, Yes, lone, new_app

HELP = """Make a node's VM on Proxmox, learn who it is, and sign a ticket for it.

The same command typed again finishes what an interrupted one began, and
changes nothing once all is as the site file wants it.

Examples:

  provision-node gpu-07 --site site.yaml --profile h100x8 --plan

  provision-node gpu-07 --site site.yaml --profile h100x8

  provision-node gpu-07 --site site.yaml --reissue-ticket --ticket-out .
"""

app = new_app(HELP)

Names = Annotated[list[str], typer.Argument(metavar="NAME", help="The nodes, such as gpu-07.")]
SiteFile = Annotated[
    Path | None,
    typer.Option("--site", envvar="MUSTER_SITE", metavar="FILE", help="The site file (site.yaml)."),
]
ProfileName = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="NAME", help="A profile of the site file; the record or a lone one tells it too."
    ),
]
PlanOnly = Annotated[
    bool, typer.Option("--plan", "--dry-run", "-n", help="Show what would be done; change nothing.")
]
Detailed = Annotated[
    bool, typer.Option("--detailed-exitcode", help="With --plan: exit 10 if there is something to do.")
]
TicketOut = Annotated[
    Path | None,
    typer.Option(
        "--ticket-out", metavar="FILE|DIR", help="Write the ticket there (in a folder: NAME.ticket)."
    ),
]
Reissue = Annotated[
    bool,
    typer.Option("--reissue-ticket", help="Read the facts again and sign a new ticket; no Proxmox write."),
]


@lone(app)
def provision_node(
    names: Names,
    *,
    console: Console,
    site_file: SiteFile = None,
    profile: ProfileName = None,
    dry_run: PlanOnly = False,
    detailed_exitcode: Detailed = False,
    ticket_out: TicketOut = None,
    reissue_ticket: Reissue = False,
    yes: Yes = False,
    inventory: InventoryUrl = None,
) -> None:
    """Make nodes' VMs, learn who they are, sign their tickets."""
    wanted = tuple(dict.fromkeys(names))
    _check_usage(
        wanted, plan_only=dry_run, detailed=detailed_exitcode, reissue=reissue_ticket, out=ticket_out
    )
    if site_file is None:
        raise BadInput(
            "there is no site file",
            why="neither --site nor MUSTER_SITE names one",
            next_step="give --site FILE (examples/site.yaml shows one)",
        )
    need("provision", "proxmoxer", "requests")
    from inventory.store import Store, utc_now
    from provision.api_token import read_token
    from provision.handover import check_signing_key
    from provision.proxmox import Proxmox
    from provision.road import Road
    from provision.run import Run, Wish, document, exit_code, rows
    from provision.spec import load_site
    from provision.tasks import Tools

    site = load_site(site_file)
    token, warnings = read_token(site.proxmox.token_file)
    check_signing_key(site)
    for warning in warnings:
        console.warn(warning)
    store = Store.open(inventory)
    with Proxmox(url=site.proxmox.url, token=token, ca_file=site.proxmox.ca_file) as proxmox:
        results = Run(
            Wish(wanted, profile, dry_run, reissue_ticket, ticket_out),
            site=site,
            road=Road(site, store, Tools(proxmox, console)),
            store=store,
            console=console,
            confirm=lambda question: ask(console, question, yes=yes),
            now=utc_now(),
        ).all()
    for result in results:
        for warning in result.warnings:
            console.warn(warning)
        if result.error is not None:
            console.error(result.error)
    console.document(document(results))
    if not dry_run:
        console.table(("NAME", "VMID", "ADDRESS", "STATE"), rows(results))
    raise typer.Exit(int(exit_code(results, detailed=detailed_exitcode)))


def _check_usage(
    names: tuple[str, ...], *, plan_only: bool, detailed: bool, reissue: bool, out: Path | None
) -> None:
    for name in names:
        check_node_name(name)
    if detailed and not plan_only:
        raise BadInput(
            "--detailed-exitcode was not understood",
            why="it tells of a plan, and none was asked for",
            next_step="add --plan",
        )
    if reissue and plan_only:
        raise BadInput(
            "--plan and --reissue-ticket do not go together",
            why="a new ticket needs no plan: Proxmox is not written to",
            next_step="leave one of them away",
        )
    if out is not None and len(names) > 1 and not out.is_dir():
        raise BadInput(
            f"{out} cannot take {len(names)} tickets",
            why="it is not a folder",
            next_step=f"mkdir {out}",
        )


def main() -> None:
    """The command."""
    run(app)


if __name__ == "__main__":
    main()
