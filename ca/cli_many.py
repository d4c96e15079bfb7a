"""The verb of node-ca that certifies many requests in one go."""

from pathlib import Path
from typing import Annotated

import typer

from ca.cli import _actor, _agree, _now, _open, _passphrase, _warn, app
from inventory.command import need
from inventory.console import Console
from inventory.options import CaDir, DryRun, PassphraseFile, Yes, verb


@verb(app, "issue-many")
def issue_many(
    place: Annotated[
        Path, typer.Argument(metavar="FOLDER|FILE", help="Has a NODE.csr for each, or lists the requests.")
    ],
    *,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Gets a folder for each node.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Take names from the machines that hold them now.")
    ] = False,
    ca_dir: CaDir = None,
    passphrase_file: PassphraseFile = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    console: Console,
) -> None:
    """Certify many requests, all of them or none.

    A list has more to say than file names (YAML; names and addresses as
    with node-ca issue): certificates: [{csr: a.csr, node: gpu-01,
    vm_uuid: .., names: [..], addresses: [..]}]

    Example: node-ca issue-many requests/ --out certified/

    Example: node-ca issue-many requests.yaml --out certified/ --dry-run
    """
    need("onboard", "cryptography")
    from ca import show, wishes
    from ca.custody import secret_of

    asked = wishes.read(place)
    wishes.look_before(asked, out)
    authority = _open(ca_dir)
    planned = authority.rehearse_many(asked, now=_now(), actor=_actor(), replace=replace)
    for record in planned:
        console.say(f"{record.node}: {', '.join([*record.names, *record.addresses])}")
    if dry_run:
        console.document({"dry_run": True, "would_issue": [show.grant(record) for record in planned]})
        console.say("nothing was signed")
        return
    _agree(console, f"certify {len(planned)}?", yes=yes)
    what = secret_of(authority.layout)
    signer = authority.unlock(_passphrase(passphrase_file, what=what, no_input=console.no_input))
    issued = authority.issue_many(asked, signer=signer, now=_now(), actor=_actor(), replace=replace)
    nodes = [each.node for each in asked]
    wishes.hand_over([*zip(nodes, issued, strict=True)], authority.bundle_pem, out)
    rows = [(node, each.serial, str(out / node)) for node, each in zip(nodes, issued, strict=True)]
    console.document(
        {
            "out": str(out),
            "audit_head": issued[0].audit_head,
            "certificates": [
                {"node": node, "serial": serial, "out": folder} for node, serial, folder in rows
            ],
        }
    )
    console.table(("node", "serial", "out"), rows)
    _warn(console, authority)
