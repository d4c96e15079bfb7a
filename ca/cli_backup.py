"""The verbs of node-ca that keep an authority on another disk, and bring it back."""

from pathlib import Path
from typing import Annotated

import typer

from ca.cli import _actor, _now, _open, _warn, app
from inventory.command import ca_folder, need
from inventory.console import Console
from inventory.options import CaDir, DryRun, verb


@verb(app, "backup")
def backup(
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE|DIR", help="A new file, or a folder that gets one.")
    ],
    ca_dir: CaDir = None,
    dry_run: DryRun = False,
    console: Console,
) -> None:
    """Keep the whole authority, without the root's key, in one file.

    Its key stays encrypted, under the passphrase of today.

    Example: node-ca backup --out /media/usb
    """
    need("onboard", "cryptography")
    from ca.backup import back_up, place

    authority = _open(ca_dir)
    if dry_run:
        target = place(authority.layout, out, now=_now())
        console.document({"dry_run": True, "file": str(target)})
        console.say(f"would write {target}; nothing was changed")
        return
    made = back_up(authority.layout, out, now=_now(), actor=_actor())
    console.document(made.to_json())
    console.table(
        ("field", "value"), [(key.replace("_", " "), str(value)) for key, value in made.to_json().items()]
    )
    console.say("keep the head apart from the file: node-ca restore FILE --expect HEAD then proves it whole")
    if authority.layout.issuing_token.exists():
        console.warn("the issuing key lies on a token, so it is not in this backup")
    _warn(console, _open(ca_dir))


@verb(app, "restore")
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What node-ca backup wrote.")],
    *,
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="HEAD", help="A head that the backup's audit must know."),
    ] = None,
    ca_dir: CaDir = None,
    dry_run: DryRun = False,
    console: Console,
) -> None:
    """Bring an authority back from its backup, into a new folder.

    Every byte is checked first; --dry-run checks and leaves nothing.

    Example: node-ca restore /media/usb/ca.tar --expect HEAD
    """
    need("onboard", "cryptography")
    from ca.restore import restore as bring_back

    folder = ca_folder(ca_dir)
    told = bring_back(file, folder, expect=expect, now=_now(), actor=_actor(), rehearse=dry_run)
    console.document({"dry_run": dry_run, **told.to_json()})
    console.table(
        ("field", "value"),
        [(key.replace("_", " "), str(value)) for key, value in told.to_json().items() if value is not None],
    )
    for line in told.advice(_now()):
        console.warn(line)
    if dry_run:
        console.say("the backup is whole; nothing was changed")
        return
    console.say(f"{folder} stands as it did; node-ca status shows how")
    _warn(console, _open(ca_dir))
