"""onboard-node: the security holder's command, on the one host where the authority is."""

from pathlib import Path
from typing import Annotated

import typer

from inventory.command import need, run
from inventory.console import Console
from inventory.options import CaDir, DryRun, InventoryUrl, PassphraseFile, SshKey, Yes, lone, new_app

app = new_app(
    """Give nodes their identity: check the ticket, have the node make its key, sign it, install it, verify.

    Examples:

        onboard-node gpu-07

        onboard-node --ticket gpu-07.ticket --passphrase-file /run/ca.pass

        onboard-node gpu-07 --dry-run

        onboard-node gpu-07 --decommission
    """
)


@lone(app)
def onboard_node(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Nodes of the record.")] = None,
    *,
    console: Console,
    ticket: Annotated[
        list[Path] | None, typer.Option("--ticket", metavar="FILE", help="A ticket as a file; repeatable.")
    ] = None,
    ca_dir: CaDir = None,
    passphrase_file: PassphraseFile = None,
    ssh_key: SshKey = None,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not run verify-node when the identity is in force.")
    ] = False,
    decommission: Annotated[
        bool,
        typer.Option("--decommission", help="End the nodes' identity: revoke it, wipe it, sign a receipt."),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Let a rebuilt VM take over its name; the old identity ends.")
    ] = False,
    inventory: InventoryUrl = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Give nodes their identity: ticket checked, key made there, signed, installed, verified."""
    need("onboard", "cryptography", "paramiko")
    from onboard import job

    options = job.Options(
        ca_dir=ca_dir,
        passphrase_file=passphrase_file,
        ssh_key=ssh_key,
        inventory=inventory,
        verify=not no_verify,
        replace=replace,
        decommission=decommission,
        yes=yes,
        no_input=console.no_input,
        dry_run=dry_run,
    )
    raise typer.Exit(int(job.run(tuple(names or ()), tuple(ticket or ()), options, console)))


def main() -> None:
    """The console script."""
    run(app)
