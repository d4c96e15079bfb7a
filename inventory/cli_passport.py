"""The verb of node-inventory that makes and checks passports."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inventory.cli import app
from inventory.console import Console
from inventory.errors import BadInput, Refused
from inventory.options import CaDir, InventoryUrl, SshKey, verb

if TYPE_CHECKING:
    from inventory.passport.desk import Given
    from inventory.passport.judging import Verdict


@verb(app, "passport")
def passport(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The node's name; with --verify: whose it must be."),
    ] = None,
    *,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the passport to this file ('-' is stdout).")
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option("--verify", metavar="FILE", help="Check this passport, offline ('-' is stdin)."),
    ] = None,
    signers: Annotated[
        Path | None,
        typer.Option(
            "--signers", metavar="FILE", help="Whose passports and receipts count (default: --ssh-key's)."
        ),
    ] = None,
    ticket_signers: Annotated[
        Path | None, typer.Option("--ticket-signers", metavar="FILE", help="Whose tickets count.")
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option("--ca", metavar="FILE", help="The authority's roots, PEM (default: of --ca-dir)."),
    ] = None,
    revoked: Annotated[
        Path | None,
        typer.Option("--revoked", metavar="FILE", help="Keys that count no more: a KRL, or public keys."),
    ] = None,
    crl: Annotated[
        Path | None,
        typer.Option(
            "--crl", metavar="FILE", help="The authority's revocation list, PEM (default: its ledger)."
        ),
    ] = None,
    earlier: Annotated[
        Path | None,
        typer.Option(
            "--earlier", metavar="FILE", help="With --verify: a former one; all it told must be here."
        ),
    ] = None,
    ssh_key: SshKey = None,
    ca_dir: CaDir = None,
    inventory: InventoryUrl = None,
    console: Console,
) -> None:
    """Write one signed document of a node's whole road, or check one.

    It holds who asked, the VM, the ticket, the receipts, the certificate,
    every drill of the last whole verification and every event, and says what
    is missing. docs/passport.md explains it, and how to check it by hand.

    Example: node-inventory passport gpu-07 -o gpu-07.passport.json

    Example: node-inventory passport --verify gpu-07.passport.json --signers holders --ca root.pem
    """
    from inventory.passport.desk import Given

    given = Given(signers, ssh_key, ticket_signers, ca, ca_dir, revoked, crl)
    if verify is not None and out is None:
        _check(verify, earlier, name, given, console)
    elif name is None or verify is not None or earlier is not None:
        why = "--output goes without --verify" if verify else "no node was named"
        raise BadInput(
            "no passport was made",
            why="--earlier goes with --verify" if earlier and not verify else why,
            next_step="node-inventory passport NAME -o FILE, or node-inventory passport --verify FILE",
        )
    else:
        _make(name, out, given, inventory, console)


def _make(
    name: str,
    out: Path | None,
    given: "Given",
    inventory: str | None,
    console: Console,
) -> None:
    from inventory.files import write_whole
    from inventory.passport import desk, making
    from inventory.store import Store, utc_now

    key, now = desk.need_key(given.ssh_key), utc_now()
    maker = desk.maker(key, now=now)
    told = making.known(Store.open(inventory), name)
    found = making.gather(told, certificate=desk.certificate(told, given.ca_dir, now=now), maker=maker)
    with desk.trust(given, now=now) as trust:
        text, _ = making.sign(found, key_file=key, trust=trust)
    missing = [{"what": each.what, "why": each.why} for each in found.missing]
    console.document({"node": name, "passport": text, "key": found.key, "missing": missing})
    if out is None or str(out) == "-":
        console.data(text.rstrip("\n"))
    else:
        try:
            write_whole(out, text.encode(), mode=0o644)
        except OSError as error:
            raise BadInput(
                "the passport was not written",
                why=f"{out}: {error.strerror or error}",
                next_step="give another --output",
            ) from None
        console.say(f"the passport of {name}, signed with {found.key}, is in {out}")
    for each in found.missing:
        console.say(f"missing in it: {each.what}: {each.why}")


def _check(
    file: Path,
    earlier: Path | None,
    name: str | None,
    given: "Given",
    console: Console,
) -> None:
    from inventory.passport import desk, judging
    from inventory.store import utc_now

    now = utc_now()
    text = desk.read(file)
    with desk.trust(given, now=now) as trust:
        if earlier is None:
            verdict = judging.judge(text, trust=trust, now=now)
        else:
            verdict = judging.judge_after(text, desk.read_earlier(earlier, file), trust=trust, now=now)
    if name is not None and verdict.passport.node != name:
        raise Refused(
            f"{file} is not the passport of {name}",
            why=f"it is that of {verdict.passport.node}",
            next_step=f"node-inventory passport {name}",
        )
    _tell(verdict, console)
    verdict.refuse(str(file))
    console.say(f"{file} holds: {verdict.passport.node} was {verdict.passport.state} when it was made")


def _tell(verdict: "Verdict", console: Console) -> None:
    from inventory.show import one_line

    words = {"holds": "holds", "broken": "BROKEN", "unchecked": "not checked", "note": "note"}
    rows = [(words[found.kind], one_line(found.text)) for found in verdict.findings]
    rows += [("missing", one_line(f"{each.what}: {each.why}")) for each in verdict.passport.missing]
    console.document(verdict.to_json())
    console.table(("VERDICT", "WHAT"), rows)
