"""node-ca: a private authority that certifies nodes, and writes down everything it does."""

import os
import pwd
from datetime import UTC, datetime
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


@verb(app, "status")
def status(
    *,
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="HEAD", help="A head that the audit must know, kept elsewhere."),
    ] = None,
    ca_dir: CaDir = None,
    console: Console,
) -> None:
    """Look at everything, and say how bad it is.

    Ends with 0 as long as nothing is critical. Else with 6 where the
    authority is damaged, 3 where something has expired or is open to
    others, 2 where the policy has faults.

    Example: node-ca status --json
    """
    need("onboard", "cryptography")
    from ca import show
    from ca.status import examine

    found = examine(ca_folder(ca_dir), now=_now(), expect=expect)
    console.document(show.status(found, _now()))
    console.table(show.CHECKS, show.check_rows(found))
    found.refuse()


@verb(app, "issue")
def issue(
    *,
    csr: Annotated[Path, typer.Option("--csr", metavar="FILE", help="The node's request (- for stdin).")],
    name: Annotated[str, typer.Option("--name", "--node", metavar="NAME", help="The node's name.")],
    vm_uuid: Annotated[
        str | None, typer.Option("--vm-uuid", metavar="UUID", help="The machine's uuid, where it has one.")
    ] = None,
    dns: Annotated[
        list[str] | None,
        typer.Option("--dns", metavar="NAME", help="One of the policy's names for it (again for more)."),
    ] = None,
    address: Annotated[
        list[str] | None,
        typer.Option("--ip", "--address", metavar="IP", help="A static address of it (again for more)."),
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

    Only the key comes from the request. The names are the policy's: all of them,
    or those that --dns picks.

    Example: node-ca issue --csr node.csr --name gpu-07 --out gpu-07
    """
    need("onboard", "cryptography")
    from ca import show
    from ca.custody import secret_of
    from ca.request import read_file

    _one_stdin(csr, passphrase_file)
    show.refuse_to_overwrite(out)
    authority, request = _open(ca_dir), read_file(csr)
    asked = authority.rehearse(
        request,
        node=name,
        vm_uuid=vm_uuid,
        static_address=None,
        names=dns or (),
        addresses=address or (),
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
    what = secret_of(authority.layout)
    signer = authority.unlock(_passphrase(passphrase_file, what=what, no_input=console.no_input))
    issued = authority.issue(
        request,
        node=name,
        vm_uuid=vm_uuid,
        static_address=None,
        names=dns or (),
        addresses=address or (),
        signer=signer,
        now=_now(),
        actor=_actor(),
        replace=replace,
    )
    show.hand_over(console, issued, authority, out)
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


from ca import cli_backup as _cli_backup  # noqa: E402, F401 - its verbs need what stands above
from ca import cli_crl as _cli_crl  # noqa: E402, F401 - likewise
from ca import cli_keys as _cli_keys  # noqa: E402, F401 - its verbs need what stands above
from ca import cli_many as _cli_many  # noqa: E402, F401 - likewise
from ca import cli_records as _cli_records  # noqa: E402, F401 - likewise
from ca import cli_rotate as _cli_rotate  # noqa: E402, F401 - likewise
