"""The verb `check` of node-inventory: the record against Proxmox, the ledger, the nodes and itself."""

from pathlib import Path
from typing import Annotated

import typer

from inventory.cli import app
from inventory.console import Console
from inventory.options import CaDir, InventoryUrl, JumpHost, JumpHostKey, SshKey, verb

TITLES = ("NODE", "SOURCE", "ABOUT", "SEVERITY", "FOUND", "RECORDED", "MEND")


@verb(app, "check")
def check(
    nodes: Annotated[
        list[str] | None,
        typer.Argument(metavar="NODES", help="Nodes, as gpu-[01-16] (default: all).", show_default=False),
    ] = None,
    *,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="SOURCE", help="Only this: record, proxmox, ledger, nodes; repeatable."
        ),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option("--site", envvar="MUSTER_SITE", metavar="FILE", help="The site file, for Proxmox."),
    ] = None,
    ca_dir: CaDir = None,
    ssh_key: SshKey = None,
    jump: JumpHost = None,
    jump_host_key: JumpHostKey = None,
    inventory: InventoryUrl = None,
    console: Console,
) -> None:
    """Compare the record with Proxmox, the ledger and the nodes; read only.

    Each disagreement comes with what to type to mend it. Ends with 0 where
    all agree, 3 where something is wrong, 4 where a source that was asked
    for, or a node, was out of reach, 6 where something is damaged.

    Example: node-inventory check "gpu-[01-16]" --site site.yaml
    """
    from inventory import checking_run

    outcome = checking_run.check(
        checking_run.Typed(
            nodes=tuple(nodes or ()),
            only=tuple(only or ()),
            site=site,
            ca_dir=ca_dir,
            ssh_key=ssh_key,
            jump=jump,
            jump_host_key=jump_host_key,
            inventory=inventory,
        ),
        console,
    )
    console.document(outcome.to_json())
    if outcome.disagreements:
        console.table(TITLES, checking_run.rows(outcome))
    for warning in checking_run.untold(outcome):
        console.warn(warning)
    console.say(checking_run.verdict(outcome))
    if outcome.bug is not None:
        raise outcome.bug
    raise typer.Exit(int(outcome.exit_code))
