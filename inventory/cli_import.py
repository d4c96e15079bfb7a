"""The verb of node-inventory that takes files in: receipts of the holder, and lists of nodes joined by hand."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inventory.cli import app
from inventory.console import Console
from inventory.errors import BadFile, BadInput, ExitCode, MusterError, worst
from inventory.options import DryRun, InventoryUrl, verb

if TYPE_CHECKING:
    from inventory.store import Store


def _sites_signers(given: Mapping[str, Any]) -> tuple[object, str] | None:
    """The signers that the site file names, where nobody names others."""
    from inventory import receipts

    site = given["site"]
    if site is None or (found := receipts.signers_of_site(site)) is None:
        return None
    return found, str(site)


@verb(app, "import", files={"receipt_signers": _sites_signers})
def import_files(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="The holder's receipts, or lists of nodes (YAML, CSV); '-' is stdin."
        ),
    ],
    *,
    receipt_signers: Annotated[
        Path | None,
        typer.Option(
            "--receipt-signers", metavar="FILE", help="Whose receipts count (default: the site file says)."
        ),
    ] = None,
    site: Annotated[
        Path | None, typer.Option("--site", envvar="MUSTER_SITE", metavar="FILE", help="The site file.")
    ] = None,
    inventory: InventoryUrl = None,
    dry_run: DryRun = False,
    console: Console,
) -> None:
    """Take the holder's signed receipts, or lists of nodes joined by hand, into the record.

    With a receipt its node moves on. A list gives no node an identity: it waits
    for provision-node --adopt, and nobody pins the host keys that stand there.

    Example: node-inventory import gpu-07.receipt --site site.yaml

    Example: node-inventory import nodes.yaml --dry-run

    Example: ssh ca-host cat gpu-07.receipt | node-inventory import -
    """
    from inventory import importing_record
    from inventory.importing import is_list
    from inventory.importing_files import read_texts
    from inventory.store import Store

    texts = read_texts(files)
    lists = [(name, text) for name, text in texts.items() if is_list(text)]
    signed = {name: text for name, text in texts.items() if not is_list(text)}
    signers = _signers(receipt_signers, site, signed) if signed else None
    entries = importing_record.read_lists(lists)
    store = Store.open(inventory)
    same = importing_record.compare(entries, store) if entries else {}
    nodes, codes = [], []
    for done in importing_record.put(entries, same, store, dry_run=dry_run):
        if done.error is not None:
            console.error(done.error)
            codes.append(done.error.exit_code)
        for line in importing_record.lines(done, dry_run=dry_run):
            console.say(line)
        if done.node is not None:
            what = "imported" if done.changed else "nothing to change"
            console.data(f"{done.entry.told.name}\t{done.node.state}\t{what}")
        nodes.append(done)
    if waiting := [done.node.name for done in nodes if done.changed and done.node is not None]:
        more = f", and the same for {len(waiting) - 1} more" if len(waiting) > 1 else ""
        console.say(f"next, for infra: provision-node {waiting[0]} --adopt{more}")
    told: list[dict[str, Any]] = []
    if signers is not None:
        told = _take(signed, signers, store, console, dry_run=dry_run, codes=codes)
    document: dict[str, Any] = {"ok": not codes, "dry_run": dry_run, "receipts": told}
    if lists:
        document["nodes"] = [done.to_json() for done in nodes]
    console.document(document)
    raise typer.Exit(int(worst(codes)))


def _signers(given: Path | None, site: Path | None, signed: Mapping[str, str]) -> Path:
    """Whose receipts count; where nobody says so, it is told what was taken for a receipt."""
    from inventory import receipts

    try:
        return receipts.signers_file(given, site)
    except BadInput as error:
        if isinstance(error, BadFile):
            raise  # the site file has faults, which is another matter
        raise BadInput(
            error.what,
            why=f"{error.why} (taken for receipts: {', '.join(signed)})",
            next_step=error.next_step,
        ) from error


def _take(
    signed: Mapping[str, str],
    signers: Path,
    store: "Store",
    console: Console,
    *,
    dry_run: bool,
    codes: list[ExitCode],
) -> list[dict[str, Any]]:
    """Tell the record what each receipt says; one that fails does not stop the others."""
    from inventory import receipts, show
    from inventory.store import utc_now

    told = []
    for name, text in signed.items():
        try:
            taken = receipts.take(text, signers=signers, store=store, now=utc_now(), dry_run=dry_run)
        except MusterError as error:
            console.error(error)
            told.append({"name": name, "ok": False, "error": error.to_json()})
            codes.append(error.exit_code)
            continue
        told.append(taken.to_json())
        for line in show.taken(taken, dry_run=dry_run):
            console.say(line)
        console.data(f"{taken.receipt.node}\t{taken.state}\t{taken.receipt.kind} by {taken.signer}")
    return told
