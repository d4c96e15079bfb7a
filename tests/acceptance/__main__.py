"""Whether provision-node works on a Proxmox with a token: `python -m tests.acceptance --site FILE --profile NAME`."""

from pathlib import Path
from typing import Annotated

import typer

from inventory.command import need, run
from inventory.console import Console
from inventory.errors import BadInput, ExitCode
from inventory.options import lone, new_app

HELP = """Walk provision-node's whole road on the Proxmox that a site file names.

It makes five VMs with names of its own, kills the making of two of them,
resumes one and undoes the other, changes one and mends it, retires them. It touches nothing
that it did not make, and keeps a record of its own.

Example: ./run acceptance --site site.yaml --profile small
"""

app = new_app(HELP)


@lone(app)
def acceptance(
    *,
    console: Console,
    site_file: Annotated[
        Path | None,
        typer.Option("--site", envvar="MUSTER_SITE", metavar="FILE", help="The site file (site.yaml)."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="NAME", help="A profile of the site file.")
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="NAME", help="How the names of its VMs begin.")
    ] = "mustertest",
    own_addresses: Annotated[
        bool,
        typer.Option(
            "--own-addresses", help="The profile's static addresses are for this run alone; nobody has one."
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=10, help="The most for one command.")
    ] = 7200.0,
) -> None:
    """Walk the road, end with a table, exit 0 only if every step passed."""
    need("provision", "proxmoxer", "requests")
    from provision.api_token import read_token
    from provision.spec import load_site
    from tests.acceptance.looking import Looking
    from tests.acceptance.ours import begin
    from tests.acceptance.outcome import Outcomes
    from tests.acceptance.road import walk

    if site_file is None:
        raise BadInput(
            "there is no site file",
            why="neither --site nor MUSTER_SITE names one",
            next_step="give --site FILE; docs/acceptance.md says what must be in it",
        )
    site = load_site(site_file)
    token, warnings = read_token(site.proxmox.token_file)
    for warning in warnings:
        console.warn(warning)
    with Looking(
        url=site.proxmox.url,
        token=token,
        ca_file=site.proxmox.ca_file,
        fingerprint=site.proxmox.fingerprint,
    ) as looking:
        chosen = site.profile_for(asked=profile, recorded=None)
        ours = begin(
            site,
            site_file.absolute(),
            chosen,
            looking,
            prefix=prefix,
            own_addresses=own_addresses,
            timeout_s=timeout,
        )
        console.say(f"names: {', '.join(ours.names)}; record: {ours.url}")
        outcomes = Outcomes(console)
        try:
            walk(ours, outcomes)
        finally:
            left = outcomes.left
            console.table(("STEP", "VERDICT", "SECONDS", "FOUND"), outcomes.rows())
            console.document({"ok": outcomes.ok, "names": list(ours.names), **outcomes.as_json()})
            ours.close(keep=bool(left) or not outcomes.looked)
            if not outcomes.looked or left:
                console.warn(
                    f"look for VMs named {ours.prefix}-*; their record is kept, to go on by hand: "
                    f"provision-node NAME --site {site_file} --inventory {ours.url} --rollback (or --retire)"
                )
    raise typer.Exit(int(ExitCode.DONE if outcomes.ok else ExitCode.VERIFICATION))


def main() -> None:
    """The command."""
    run(app)


if __name__ == "__main__":
    main()
