"""onboard-node: the security holder's command, on the one host where the authority is."""

import getpass
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from inventory.command import need, run
from inventory.console import Console
from inventory.options import (
    CaDir,
    DryRun,
    InventoryUrl,
    JumpHost,
    JumpHostKey,
    PassphraseFile,
    SshKey,
    Yes,
    lone,
    new_app,
)

app = new_app(
    """Give nodes their identity: check the ticket, have the node make its key, sign it, install it, verify.

    Examples:

        onboard-node gpu-07

        onboard-node --ticket gpu-07.ticket --passphrase-file /run/ca.pass

        onboard-node gpu-07 --dry-run

        onboard-node "gpu-[01-16]"

        onboard-node --renew --expiring 14d

        onboard-node --refresh

        onboard-node gpu-07 --decommission

        onboard-node --check site.yaml
    """
)


def _policys_key(given: Mapping[str, Any]) -> tuple[object, str] | None:
    """The key that the authority's policy names, where nobody names another."""
    from ca.layout import Layout
    from ca.policy import Policy
    from inventory.command import ca_folder
    from inventory.document import load

    file = Layout(ca_folder(given["ca_dir"])).policy
    if not file.is_file():
        return None
    ssh = load(file, Policy).ssh
    return None if ssh is None else (ssh.key_file, str(file))


@lone(app, files={"ssh_key": _policys_key})
def onboard_node(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Nodes, or node sets like gpu-[01-16].")
    ] = None,
    *,
    console: Console,
    ticket: Annotated[
        list[Path] | None, typer.Option("--ticket", metavar="FILE", help="A ticket as a file; repeatable.")
    ] = None,
    ca_dir: CaDir = None,
    passphrase_file: PassphraseFile = None,
    ssh_key: SshKey = None,
    jump: JumpHost = None,
    jump_host_key: JumpHostKey = None,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not run verify-node when the identity is in force.")
    ] = False,
    renew: Annotated[
        bool,
        typer.Option("--renew", help="Give nodes a new key and certificate for the names that they have."),
    ] = False,
    expiring: Annotated[
        str | None,
        typer.Option("--expiring", metavar="TIME", help="Renew those that end within TIME, like 14d or 36h."),
    ] = None,
    refresh: Annotated[
        bool,
        typer.Option(
            "--refresh", help="Bring nodes revocation list and bundle; without NAME, all that need it."
        ),
    ] = False,
    decommission: Annotated[
        bool,
        typer.Option("--decommission", help="End the nodes' identity: revoke it, wipe it, sign a receipt."),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Let a rebuilt VM take over its name; the old identity ends.")
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option("--check", metavar="FILE", help="Only look what is wrong with a file; any of ours."),
    ] = None,
    inventory: InventoryUrl = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Give nodes their identity: ticket checked, key made there, signed, installed, verified."""
    if check is not None:
        need("onboard", "cryptography")
        from onboard import checking

        raise typer.Exit(int(checking.report(checking.check_alone(check, names, ticket), console)))
    need("onboard", "cryptography", "paramiko")
    from inventory.jump import parse_jump
    from onboard import job
    from onboard.deed import deed
    from onboard.named import parse_time

    options = job.Options(
        ca_dir=ca_dir,
        passphrase_file=passphrase_file,
        ssh_key=ssh_key,
        jump=parse_jump(jump, jump_host_key, user=getpass.getuser()),
        inventory=inventory,
        verify=not no_verify,
        replace=replace,
        deed=deed(renew=renew, refresh=refresh, decommission=decommission),
        expiring=None if expiring is None else parse_time(expiring),
        yes=yes,
        no_input=console.no_input,
        dry_run=dry_run,
    )
    raise typer.Exit(int(job.run(tuple(names or ()), tuple(ticket or ()), options, console)))


def main() -> None:
    """The console script."""
    run(app)
