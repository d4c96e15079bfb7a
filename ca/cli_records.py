"""The verbs of node-ca that read the record: list, export, audit."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ca.cli import _now, _open, _warn, app
from inventory.command import ca_folder, need
from inventory.console import Console
from inventory.errors import BadInput
from inventory.nodeset import expand
from inventory.options import CaDir, verb
from inventory.span import parse_span

if TYPE_CHECKING:
    from ca.index import Which


class StateName(StrEnum):
    """What a certificate can be asked for by."""

    OPEN = "open"
    FAILED = "failed"
    ISSUED = "issued"
    INSTALLED = "installed"
    REVOKED = "revoked"
    EXPIRED = "expired"


class FormatName(StrEnum):
    """As `ca.export` knows them; that module is heavy."""

    JSON = "json"
    CSV = "csv"
    PEM = "pem"


Nodes = Annotated[
    list[str] | None,
    typer.Argument(metavar="NODES", help="Nodes, as gpu-[01-16] (default: all).", show_default=False),
]
NodeOption = Annotated[
    list[str] | None, typer.Option("--node", metavar="NODES", help="The same, as an option.")
]
StateOption = Annotated[
    list[StateName] | None,
    typer.Option("--state", metavar="STATE", help=f"Only those that are {', '.join(StateName)}."),
]
RevokedOption = Annotated[bool, typer.Option("--revoked", help="The same as --state revoked.")]
ExpiringOption = Annotated[
    str | None,
    typer.Option("--expiring", metavar="SPAN", help="Only live ones that end within 30d (12h, 4w)."),
]


@verb(app, "list")
def list_certificates(
    nodes: Nodes = None,
    *,
    node: NodeOption = None,
    state: StateOption = None,
    revoked: RevokedOption = False,
    expiring: ExpiringOption = None,
    ca_dir: CaDir = None,
    console: Console,
) -> None:
    """List certificates, oldest first, or the soonest to end.

    Example: node-ca list gpu-[01-16] --expiring 30d

    Example: node-ca list --revoked --json
    """
    need("onboard", "cryptography")
    from ca import show

    which = _which(nodes, node, state, revoked=revoked, expiring=expiring)
    authority = _open(ca_dir)
    records = [*authority.select(which, now=_now())]
    console.document({"certificates": [record.to_json(_now()) for record in records]})
    console.table(show.TITLES, [show.row(record, _now()) for record in records])
    _warn(console, authority)


@verb(app, "export")
def export(
    nodes: Nodes = None,
    *,
    form: Annotated[
        FormatName, typer.Option("--format", metavar="FORMAT", help=f"One of {', '.join(FormatName)}.")
    ] = FormatName.JSON,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where it goes, whole or not at all.")
    ] = None,
    node: NodeOption = None,
    state: StateOption = None,
    revoked: RevokedOption = False,
    expiring: ExpiringOption = None,
    ca_dir: CaDir = None,
    console: Console,
) -> None:
    """Write certificates as JSON, CSV or PEM.

    PEM has the certificates themselves, of those that were issued.

    Example: node-ca export --format csv --out certificates.csv

    Example: node-ca export --format pem gpu-[01-16] --state installed
    """
    need("onboard", "cryptography")
    from ca.export import Format, write
    from inventory.files import writing_whole

    if console.json_output and out is None and form is not FormatName.JSON:
        raise BadInput(
            "nothing was exported",
            why=f"--json wants one JSON document on stdout, and --format {form} is none",
            next_step="add --out FILE, or leave one of them out",
        )
    which = _which(nodes, node, state, revoked=revoked, expiring=expiring)
    authority = _open(ca_dir)
    now, kind = _now(), Format(str(form))
    records = authority.select(which, now=now)
    if out is None:
        write(kind, records, sys.stdout, layout=authority.layout, now=now)
    else:
        with writing_whole(out) as file:
            count = write(kind, records, file, layout=authority.layout, now=now)
        console.document({"out": str(out), "format": str(form), "certificates": count})
        console.say(f"{count} certificates are in {out}")
    _warn(console, authority)


@verb(app, "audit")
def audit(
    *,
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="HEAD", help="A head that was kept elsewhere, to be found in it."),
    ] = None,
    receipts: Annotated[
        list[Path] | None,
        typer.Option(
            "--receipt",
            metavar="FILE|DIR",
            help="Handed-out receipts, whose heads are to be found in it (again for more).",
        ),
    ] = None,
    ca_dir: CaDir = None,
    console: Console,
) -> None:
    """Verify every line, and each certificate's file.

    Ends with 6 where a line was changed, taken out or put in, where a
    certificate is not the one recorded, or where the expected head is
    unknown, which means that an older copy was put in its place.

    Example: node-ca audit --expect "$HEAD"

    Example: node-ca audit --receipt /media/infra/receipts
    """
    need("onboard", "cryptography")
    from ca import audit as auditing
    from ca import handed_out, show
    from ca.layout import Layout, check_folder

    folder = ca_folder(ca_dir)
    check_folder(folder)
    heads = handed_out.heads(receipts or [])
    found = auditing.audit(Layout(folder), expect=expect)
    unknown = handed_out.unknown(Layout(folder), heads) if found.ok else []
    told = found.to_json()
    if receipts:
        told |= {"ok": found.ok and not unknown, "unknown_receipts": unknown}
    console.document(told)
    rows = [("lines", str(found.entries)), ("head", found.head)]
    rows += [("lines since the expected head", str(found.since))] if found.since is not None else []
    console.table(show.FIELDS, rows)
    if found.unfinished:
        console.warn(
            f"{found.unfinished} bytes after the last line are no line yet: another process writes just now, "
            "or a crash left them; the next change mends that"
        )
    found.refuse(folder)
    handed_out.refuse(folder, unknown)
    console.say("every line follows from the one before, and every certificate is the one recorded")


def _which(
    nodes: list[str] | None,
    more: list[str] | None,
    states: list[StateName] | None,
    *,
    revoked: bool,
    expiring: str | None,
) -> "Which":
    from ca.index import Which

    wanted = [*(str(state) for state in states or ()), *(["revoked"] if revoked else [])]
    if wanted and expiring is not None:
        raise _bad("--expiring asks for live certificates, so it takes no --state and no --revoked")
    ends_by = None
    if expiring is not None:
        try:
            ends_by = _now() + parse_span(expiring)
        except ValueError as error:
            raise _bad(str(error)) from error
    try:
        names = expand([*(nodes or ()), *(more or ())])
    except ValueError as error:
        raise _bad(str(error)) from error
    return Which(names, tuple(dict.fromkeys(wanted)), ends_by)


def _bad(why: str) -> BadInput:
    return BadInput("nothing was listed", why=why, next_step="see node-ca list --help")
