"""provision-node: the infra team's command; it makes VMs, learns who they are, and hands over tickets."""

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from inventory.command import ask, need, run
from inventory.console import Console
from inventory.errors import BadInput
from inventory.options import InventoryUrl, Yes, lone, new_app
from provision.usage import check, names_of

if TYPE_CHECKING:
    from provision.run import Run

R = TypeVar("R", bound="Run")

HELP = """Make a node's VM on Proxmox, learn who it is, and sign a ticket for it.

The same command typed again finishes what an interrupted one began, and
changes nothing once all is as the site file wants it.

Examples:

  provision-node gpu-07 --site site.yaml --profile h100x8 --plan

  provision-node gpu-07 --site site.yaml --profile h100x8

  provision-node 'gpu-[01-16]' --site site.yaml --yes --ticket-out tickets/

  provision-node gpu-07 --site site.yaml --drift --detailed-exitcode

  provision-node gpu-07 --site site.yaml --reissue-ticket --ticket-out .

  provision-node gpu-21 --site site.yaml --profile h100x8 --adopt --vmid 121

  provision-node gpu-07 --site site.yaml --rollback

  provision-node gpu-07 --site site.yaml --retire --receipt gpu-07.receipt

  provision-node --site site.yaml --grants
"""

app = new_app(HELP)

Names = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help="The nodes, such as gpu-07 or 'gpu-[01-16]'.")
]
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
    bool,
    typer.Option("--detailed-exitcode", help="With --plan or --drift: exit 10 if there is something to do."),
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

AdoptOnly = Annotated[
    bool,
    typer.Option(
        "--adopt", help="Take on a VM that was made by hand: look, ask, sign a ticket; no Proxmox write."
    ),
]
AdoptId = Annotated[
    int | None, typer.Option("--vmid", metavar="N", min=100, help="With --adopt: the VM, by its id.")
]
AdoptUuid = Annotated[
    uuid.UUID | None,
    typer.Option("--uuid", metavar="UUID", help="With --adopt: the VM, by its uuid (default: the record's)."),
]
DriftOnly = Annotated[
    bool, typer.Option("--drift", help="Compare the VM with its profile, key by key; change nothing.")
]
RollbackOnly = Annotated[
    bool, typer.Option("--rollback", help="Undo a node whose making did not end: its VM is destroyed.")
]
RetireOnly = Annotated[
    bool, typer.Option("--retire", help="Destroy the VM of a node whose identity the holder has ended.")
]
Orphan = Annotated[
    bool,
    typer.Option("--orphan-identity", help="With --retire: without the receipt that the identity ended."),
]
ReceiptIn = Annotated[
    Path | None,
    typer.Option(
        "--receipt",
        metavar="FILE|DIR",
        help="With --retire: the holder's receipt (in a folder: NAME.receipt); else the record has it.",
    ),
]
GrantsOnly = Annotated[
    bool, typer.Option("--grants", help="Print what the token must be allowed; nobody is asked.")
]
Wait = Annotated[
    float | None,
    typer.Option("--wait", metavar="SECONDS", min=1, help="How long to wait for the guest agent (900)."),
]
AtOnce = Annotated[
    int, typer.Option("--at-once", metavar="N", min=1, max=64, help="How many nodes to work on at a time.")
]


@lone(app)
def provision_node(
    names: Names = None,
    *,
    console: Console,
    site_file: SiteFile = None,
    profile: ProfileName = None,
    dry_run: PlanOnly = False,
    detailed_exitcode: Detailed = False,
    ticket_out: TicketOut = None,
    reissue_ticket: Reissue = False,
    adopt: AdoptOnly = False,
    vmid: AdoptId = None,
    vm_uuid: AdoptUuid = None,
    drift: DriftOnly = False,
    rollback: RollbackOnly = False,
    retire: RetireOnly = False,
    orphan_identity: Orphan = False,
    receipt: ReceiptIn = None,
    grants: GrantsOnly = False,
    wait: Wait = None,
    at_once: AtOnce = 32,
    yes: Yes = False,
    inventory: InventoryUrl = None,
) -> None:
    """Make nodes' VMs, learn who they are, sign their tickets."""
    wanted = names_of(names or ())
    check(
        wanted,
        modes={
            "--grants": grants,
            "--reissue-ticket": reissue_ticket,
            "--adopt": adopt,
            "--drift": drift,
            "--rollback": rollback,
            "--retire": retire,
        },
        plan_only=dry_run,
        detailed=detailed_exitcode,
        orphan=orphan_identity,
        out=ticket_out,
        receipt=receipt,
        which={"--vmid": vmid is not None, "--uuid": vm_uuid is not None},
    )
    if site_file is None:
        raise BadInput(
            "there is no site file",
            why="neither --site nor MUSTER_SITE names one",
            next_step="give --site FILE (examples/site.yaml shows one)",
        )
    if grants:
        _show_grants(console, site_file, profile)
        return
    need("provision", "proxmoxer", "requests")
    from inventory.store import Store, utc_now
    from provision.api_token import read_token
    from provision.handover import check_signing_key
    from provision.many import Many
    from provision.proxmox import Proxmox
    from provision.road import Road
    from provision.run import Run, Wish, document, exit_code, rows, warnings_of
    from provision.spec import load_site
    from provision.tasks import Patience, Tools

    site = load_site(site_file)
    token, warnings = read_token(site.proxmox.token_file)
    if not (retire or rollback or drift):
        check_signing_key(site)
    for warning in warnings:
        console.warn(warning)
    store = Store.open(inventory)

    def session() -> Proxmox:
        return Proxmox(
            url=site.proxmox.url,
            token=token,
            ca_file=site.proxmox.ca_file,
            fingerprint=site.proxmox.fingerprint,
        )

    with session() as proxmox:
        tools = Tools(proxmox, console, Patience() if wait is None else Patience(agent_s=wait))
        many = Many(tools, session, at_once=at_once)
        # What takes nodes over or takes them away is not loaded to make them.
        if retire or rollback:
            from provision.leave import Leave, typed_name
            from provision.retire import Retiring
            from provision.rollback import Rollback

            leave = Leave(
                wanted,
                store=store,
                console=console,
                many=many,
                confirm=lambda name: typed_name(console, name, yes=yes),
            )
            results = (
                leave.retire(
                    Retiring(site, store, tools), orphan=orphan_identity, plan_only=dry_run, receipt=receipt
                )
                if retire
                else leave.roll_back(Rollback(store, tools), plan_only=dry_run)
            )
        else:

            def begin(kind: type[R]) -> R:
                return kind(
                    Wish(wanted, profile, dry_run, reissue_ticket, ticket_out, drift),
                    site=site,
                    road=Road(site, store, tools),
                    store=store,
                    console=console,
                    confirm=lambda question: ask(console, question, yes=yes),
                    now=utc_now(),
                    many=many,
                )

            if adopt:
                from provision.adopt import Adopting, Which
                from provision.adopt_run import Adoption

                which = Which(vmid, None if vm_uuid is None else str(vm_uuid))
                results = begin(Adoption).adopt(Adopting(site, store, tools), which)
            else:
                results = begin(Run).all()
    for warning in warnings_of(results):
        console.warn(warning)
    for result in results:
        if result.error is not None:
            console.error(result.error)
    console.document(document(results))
    if not (dry_run or drift):
        console.table(("NAME", "VMID", "ADDRESS", "STATE"), rows(results))
    raise typer.Exit(int(exit_code(results, detailed=detailed_exitcode)))


def _show_grants(console: Console, site_file: Path, profile: str | None) -> None:
    from provision.allowance import as_document, as_lines
    from provision.spec import load_site

    site = load_site(site_file)
    for line in as_lines(site, profile=profile):
        console.data(line)
    console.document(as_document(site, profile=profile))


def main() -> None:
    """The command."""
    run(app)


if __name__ == "__main__":
    main()
