"""The verbs of node-ca that revoke, and that sign revocation lists and hand them out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ca.cli import _actor, _agree, _now, _open, _passphrase, _warn, app
from ca.reasons import Reason
from inventory.command import need
from inventory.console import Console
from inventory.errors import BadInput, MusterError
from inventory.options import CaDir, DryRun, PassphraseFile, Yes, verb

if TYPE_CHECKING:
    from datetime import datetime

    from ca.authority import Authority

_SHOWN = 10
"""Nodes that are named before the rest is counted."""

Target = Annotated[
    str,
    typer.Argument(
        metavar="NAME|SERIAL|FINGERPRINT", help="A node, a serial number or a SHA-256 fingerprint."
    ),
]


@verb(app, "crl")
def crl(
    *,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Gets the list that is due (- for stdout).")
    ] = None,
    days: Annotated[
        int | None, typer.Option("--days", metavar="N", help="How long each list is valid (default: 30).")
    ] = None,
    ahead: Annotated[
        int | None,
        typer.Option("--ahead", metavar="MONTHS", help="Sign lists for the months ahead too, 1 to 12."),
    ] = None,
    due: Annotated[
        bool,
        typer.Option("--due", help="Sign nothing; hand out the list that is due, without the passphrase."),
    ] = False,
    ca_dir: CaDir = None,
    passphrase_file: PassphraseFile = None,
    dry_run: DryRun = False,
    console: Console,
) -> None:
    """Sign a list of what is revoked, or hand out one signed before.

    Lists for the months ahead stay in the authority's folder until they
    are due; whenever one is signed, those still ahead are signed anew.

    Example: node-ca crl --ahead 6 --out crl.pem

    Example: node-ca crl --due --out crl.pem
    """
    need("onboard", "cryptography")
    from ca import show_crl
    from ca.custody import secret_of

    if due and (days is not None or ahead is not None or dry_run):
        raise BadInput(
            "nothing was done",
            why="--due signs nothing, so it takes no --days, --ahead or --dry-run",
            next_step="leave them out, or leave --due out",
        )
    show_crl.refuse_to_overwrite(out)
    authority, now = _open(ca_dir), _now()
    if not due:
        planned = authority.plan_lists(now=now, days=days, ahead_months=ahead)
        if dry_run:
            console.document({"dry_run": True, "would_sign": planned.to_body()["lists"]})
            console.table(show_crl.TITLES, show_crl.rows(planned))
            console.say("nothing was signed")
            return
        what = secret_of(authority.layout)
        signer = authority.unlock(_passphrase(passphrase_file, what=what, no_input=console.no_input))
        authority.sign_lists(signer=signer, now=now, actor=_actor(), days=days, ahead_months=ahead)
    show_crl.hand_over(console, authority, out, now, shown=_SHOWN, to_stdout=due or ahead is None)
    _warn(console, authority)


@verb(app, "revoke")
def revoke(
    target: Target,
    *,
    reason: Annotated[Reason, typer.Option("--reason", metavar="REASON", help=f"Why: {', '.join(Reason)}.")],
    later: Annotated[
        bool, typer.Option("--later", help="Record it only; do not sign the lists ahead anew now.")
    ] = False,
    ca_dir: CaDir = None,
    passphrase_file: PassphraseFile = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    console: Console,
) -> None:
    """Revoke a certificate, or each live one of a node.

    Where lists were signed for the months ahead, they are signed anew,
    which takes the passphrase; without it the revocation is recorded all
    the same, and the lists stay as they are.

    Example: node-ca revoke gpu-07 --reason key-compromise
    """
    need("onboard", "cryptography")
    authority = _open(ca_dir)
    found = authority.to_revoke(target)
    live = [record for record in found if record.live(_now())]
    for record in live:
        console.say(f"{'would revoke' if dry_run else 'revoking'} {record.serial} of {record.node}")
    failure: MusterError | None = None
    if live and not dry_run:
        _agree(console, f"revoke {len(live)}?", yes=yes)
        for record in live:
            authority.revoke(record.serial, reason=reason, now=_now(), actor=_actor())
        if not later:
            failure = _sign_anew(console, authority, passphrase_file)
    if not live:
        console.say(f"nothing of {target} is live; nothing was changed")
    console.document(
        {
            "dry_run": dry_run,
            "changed": bool(live) and not dry_run,
            "certificates": [authority.find(record.serial).to_json(_now()) for record in found],
            "crl": _standing(authority, _now()),
        }
    )
    _warn(console, authority)
    if failure is not None:
        raise failure


def _sign_anew(console: Console, authority: "Authority", passphrase_file: Path | None) -> MusterError | None:
    """Lists for a time to come must not stay without what was just revoked; a failure comes back, to be told last."""
    from ca import show_crl
    from ca.custody import secret_of

    now = _now()
    if authority.lists is None or not authority.lists.ahead(now):
        return None
    try:
        what = secret_of(authority.layout)
        secret = _passphrase(passphrase_file, what=what, no_input=console.no_input)
        signed = authority.sign_lists(signer=authority.unlock(secret), now=now, actor=_actor())
    except MusterError as error:
        console.warn(
            f"IT IS REVOKED AND RECORDED, BUT THE REVOCATION LISTS DO NOT SAY SO YET: {error.why}; "
            "sign them now: node-ca crl --out FILE"
        )
        # Who gave no passphrase knew that; who gave one expects that it served.
        return error if passphrase_file is not None else None
    console.say(
        f"{len(signed.slots)} revocation lists were signed anew; the one that is due: node-ca crl --due --out FILE"
    )
    show_crl.tell_holders(console, authority, now, shown=_SHOWN)
    return None


def _standing(authority: "Authority", now: "datetime") -> dict[str, Any] | None:
    """The list that is due, and how many revocations it does not name; None: there is none."""
    from ca import show_crl

    lists = authority.lists
    if lists is None:
        return None
    return {
        "number": lists.due(now).number,
        "missing": authority.unlisted,
        "holding_older": show_crl.holding(authority, now),
    }
