"""node-ca: a private authority that certifies nodes, and writes down everything it does."""

import os
import pwd
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inventory.command import ask, ca_folder, need, run
from inventory.console import Console
from inventory.errors import BadInput, Refused
from inventory.options import CaDir, DryRun, PassphraseFile, Yes, new_app, verb

if TYPE_CHECKING:
    from ca.authority import Authority

app = new_app(
    """A private authority for nodes, kept in one folder and away from the network.

    Examples:

        node-ca init --policy policy.yaml

        node-ca status

        node-ca list --node gpu-07
    """
)

Target = Annotated[str, typer.Argument(metavar="SERIAL|NAME", help="A serial number, or a node's name.")]


class Reason(StrEnum):
    """Why a certificate is revoked (RFC 5280, section 5.3.1)."""

    UNSPECIFIED = "unspecified"
    KEY_COMPROMISE = "key-compromise"
    AFFILIATION_CHANGED = "affiliation-changed"
    SUPERSEDED = "superseded"
    CESSATION_OF_OPERATION = "cessation-of-operation"
    PRIVILEGE_WITHDRAWN = "privilege-withdrawn"


@verb(app, "init")
def init(
    *,
    policy: Annotated[
        Path, typer.Option("--policy", metavar="FILE", help="What may be certified; it is copied.")
    ],
    ca_dir: CaDir = None,
    passphrase_file: PassphraseFile = None,
    root_passphrase_file: Annotated[
        Path | None,
        typer.Option(
            "--root-passphrase-file", metavar="FILE", help="The root key's own passphrase (else the same)."
        ),
    ] = None,
    root_out: Annotated[
        Path | None,
        typer.Option("--root-out", metavar="DIR", help="Where the root key goes, such as a USB stick."),
    ] = None,
    organisation: Annotated[
        str, typer.Option("--organisation", metavar="NAME", help="Stands in the authority's own names.")
    ] = "Muster",
    dry_run: DryRun = False,
    console: Console,
) -> None:
    """Make root and issuing authority in a new folder.

    Example: node-ca init --policy policy.yaml --root-out /media/usb
    """
    need("onboard", "cryptography")
    from ca import show
    from ca.authority import Authority
    from ca.making import look_before

    folder = ca_folder(ca_dir)
    look_before(folder, policy_file=policy, root_out=root_out, organisation=organisation)
    if dry_run:
        console.document({"ca_dir": str(folder), "dry_run": True})
        console.say(f"would make an authority in {folder} from {policy}; nothing was changed")
        return
    _one_stdin(passphrase_file, root_passphrase_file)
    secret = _passphrase(passphrase_file, twice=True, no_input=console.no_input)
    root_secret = None
    if root_passphrase_file is not None:
        root_secret = _passphrase(root_passphrase_file, what="the root key", no_input=console.no_input)
    authority = Authority.create(
        folder,
        policy_file=policy,
        passphrase=secret,
        root_passphrase=root_secret,
        now=_now(),
        root_out=root_out,
        organisation=organisation,
        actor=_actor(),
    )
    console.document(show.made(authority, _now()))
    show.tell_made(console, authority)
    _warn(console, authority)


@verb(app, "status")
def status(
    *,
    ca_dir: CaDir = None,
    console: Console,
) -> None:
    """Verify folder and audit, and show how they stand.

    Example: node-ca status --json
    """
    need("onboard", "cryptography")
    from ca import show

    authority = _open(ca_dir)
    console.document(show.status(authority, _now()))
    console.table(show.FIELDS, [*show.status_rows(authority, _now())])
    _warn(console, authority)


@verb(app, "issue")
def issue(
    *,
    csr: Annotated[Path, typer.Option("--csr", metavar="FILE", help="The node's request (- for stdin).")],
    name: Annotated[str, typer.Option("--name", "--node", metavar="NAME", help="The node's name.")],
    vm_uuid: Annotated[
        str | None, typer.Option("--vm-uuid", metavar="UUID", help="The machine's uuid, where it has one.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--ip", "--address", metavar="IP", help="Its static address.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Gets cert.pem and bundle.pem; else stdout gets the chain."
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the name from the machine that holds it now.")
    ] = False,
    ca_dir: CaDir = None,
    passphrase_file: PassphraseFile = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    console: Console,
) -> None:
    """Certify a request that was carried here by hand.

    The names come from the policy, and only the key from the request.

    Example: node-ca issue --csr node.csr --name gpu-07 --out gpu-07
    """
    need("onboard", "cryptography")
    from ca import show
    from ca.request import read_file

    _one_stdin(csr, passphrase_file)
    show.refuse_to_overwrite(out)
    authority, request = _open(ca_dir), read_file(csr)
    asked = authority.rehearse(
        request,
        node=name,
        vm_uuid=vm_uuid,
        static_address=address,
        now=_now(),
        actor=_actor(),
        replace=replace,
    )
    for line in show.grant_lines(asked):
        console.say(line)
    if dry_run:
        console.document({"dry_run": True, "would_issue": show.grant(asked)})
        console.say("nothing was signed")
        return
    _agree(console, f"certify {name}?", yes=yes)
    signer = authority.unlock(_passphrase(passphrase_file, no_input=console.no_input))
    issued = authority.issue(
        request,
        node=name,
        vm_uuid=vm_uuid,
        static_address=address,
        signer=signer,
        now=_now(),
        actor=_actor(),
        replace=replace,
    )
    show.hand_over(console, issued, authority, out)
    _warn(console, authority)


@verb(app, "list")
def list_certificates(
    *,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NAME", help="Only those of this node.")
    ] = None,
    ca_dir: CaDir = None,
    console: Console,
) -> None:
    """List every certificate, oldest first.

    Example: node-ca list --node gpu-07 --json
    """
    need("onboard", "cryptography")
    from ca import show

    authority = _open(ca_dir)
    records = authority.records(node)
    console.document({"certificates": [record.to_json(_now()) for record in records]})
    console.table(show.TITLES, [show.row(record, _now()) for record in records])
    _warn(console, authority)


@verb(app, "show")
def show(
    target: Target,
    *,
    ca_dir: CaDir = None,
    console: Console,
) -> None:
    """Show all that is known of a certificate or a node.

    Example: node-ca show gpu-07
    """
    need("onboard", "cryptography")
    from ca import show as shown

    authority = _open(ca_dir)
    records = authority.look_up(target)
    console.document({"certificates": [record.to_json(_now()) for record in records]})
    console.table(shown.FIELDS, [*shown.record_rows(records, authority, _now())])
    _warn(console, authority)


@verb(app, "revoke")
def revoke(
    target: Target,
    *,
    reason: Annotated[Reason, typer.Option("--reason", metavar="REASON", help=f"Why: {', '.join(Reason)}.")],
    ca_dir: CaDir = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    console: Console,
) -> None:
    """Revoke a certificate, or each live one of a node.

    Example: node-ca revoke gpu-07 --reason key-compromise
    """
    need("onboard", "cryptography")
    authority = _open(ca_dir)
    found = authority.look_up(target)
    live = [record for record in found if record.live(_now())]
    for record in live:
        console.say(f"{'would revoke' if dry_run else 'revoking'} {record.serial} of {record.node}")
    if live and not dry_run:
        _agree(console, f"revoke {len(live)}?", yes=yes)
        for record in live:
            authority.revoke(record.serial, reason=reason, now=_now(), actor=_actor())
    if not live:
        console.say(f"nothing of {target} is live; nothing was changed")
    console.document(
        {
            "dry_run": dry_run,
            "changed": bool(live) and not dry_run,
            "certificates": [authority.find(record.serial).to_json(_now()) for record in found],
        }
    )
    _warn(console, authority)


def main() -> None:
    """Run node-ca."""
    run(app)


def _open(ca_dir: Path | None) -> "Authority":
    from ca.authority import Authority

    return Authority.open(ca_folder(ca_dir), now=_now())


def _passphrase(
    file: Path | None, *, what: str = "the authority", twice: bool = False, no_input: bool
) -> bytes:
    from ca.passphrase import read_passphrase

    return read_passphrase(file, what=what, twice=twice, no_input=no_input)


def _one_stdin(*files: Path | None) -> None:
    if [str(file) for file in files].count("-") > 1:
        raise BadInput(
            "nothing was read",
            why="two things cannot both come from standard input",
            next_step="put one of them into a file",
        )


def _agree(console: Console, question: str, *, yes: bool) -> None:
    if not ask(console, question, yes=yes):
        raise Refused("nothing was changed", why="the answer was no", next_step="nothing needs to be done")


def _warn(console: Console, authority: "Authority") -> None:
    for warning in authority.warnings(_now()):
        console.warn(warning)


def _now() -> datetime:
    return datetime.now(UTC)


def _actor() -> str:
    """Who types this, and where: for the audit."""
    user = pwd.getpwuid(os.getuid()).pw_name
    behind = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    return f"{user}{f' (sudo by {behind})' if behind else ''}@{os.uname().nodename}"
