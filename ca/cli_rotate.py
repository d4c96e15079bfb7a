"""The verb of node-ca that gives an authority its successor, phase by phase."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ca.cli import _actor, _now, _one_stdin, _open, _passphrase, _warn, app
from ca.phases import Phase
from inventory.command import need
from inventory.console import Console
from inventory.errors import BadInput
from inventory.options import CaDir, DryRun, PassphraseFile, verb

if TYPE_CHECKING:
    from ca.authority import Authority


@verb(app, "rotate")
def rotate(
    phase: Annotated[
        Phase | None,
        typer.Argument(metavar="[PHASE]", help="prepare, distribute, activate or retire; else: just show."),
    ] = None,
    *,
    do: Annotated[bool, typer.Option("--do", help="Do the phase; else it is only looked at.")] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take back what was prepared (with --do), until it is activated.")
    ] = False,
    new_root: Annotated[
        bool, typer.Option("--new-root", help="prepare: a new root, too; the old one signs it.")
    ] = False,
    root_key: Annotated[
        Path | None,
        typer.Option("--root-key", metavar="FILE", help="prepare: the root's key, brought back for this."),
    ] = None,
    root_passphrase_file: Annotated[
        Path | None,
        typer.Option("--root-passphrase-file", metavar="FILE", help="Its passphrase; else it is asked for."),
    ] = None,
    root_out: Annotated[
        Path | None,
        typer.Option("--root-out", metavar="DIR", help="prepare: where a new root's key goes."),
    ] = None,
    external_root: Annotated[
        Path | None,
        typer.Option(
            "--external-root", metavar="CSR", help="prepare: write the request for a root elsewhere."
        ),
    ] = None,
    external_root_cert: Annotated[
        Path | None,
        typer.Option("--external-root-cert", metavar="FILE", help="prepare: take what that root signed."),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option("--root", metavar="FILE", help="Its own certificate, where it is another root."),
    ] = None,
    carried: Annotated[
        list[str] | None,
        typer.Option(
            "--carried", metavar="NODE", help="distribute: it got the bundle by hand (again for more)."
        ),
    ] = None,
    force_with: Annotated[
        list[str] | None,
        typer.Option(
            "--force-with", metavar="NODE", help="activate: it may be left behind (again for more)."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Gets the bundle that nodes are to have.")
    ] = None,
    ca_dir: CaDir = None,
    passphrase_file: PassphraseFile = None,
    dry_run: DryRun = False,
    console: Console,
) -> None:
    """Give the authority its successor, phase by phase.

    No two nodes cease to talk on the way. Alone it shows where that stands,
    and what the next phase would do and needs. A phase is done with --do
    only. A new issuing authority takes the limits of policy.yaml as it is
    now; --new-root changes the root too.

    Example: node-ca rotate

    Example: node-ca rotate prepare --root-key /media/usb/root-key.json --do
    """
    need("onboard", "cryptography")
    from ca import show_rotation as shown

    does = do and not dry_run
    if do and phase is None and not undo:
        raise _bad("--do needs the phase that is to be done", "node-ca rotate shows which one comes next")
    if undo and phase not in (None, Phase.PREPARE):
        raise _bad(f"--undo takes back what was prepared, and is no part of {phase}", "leave the phase out")
    shown.refuse_to_overwrite(out)
    _one_stdin(passphrase_file, root_passphrase_file)
    authority, now = _open(ca_dir), _now()
    done = "undo" if undo else str(phase) if phase else None
    match phase:
        case _ if undo:
            if does:
                authority.undo_rotation(now=now, actor=_actor())
        case Phase.PREPARE if external_root is not None or external_root_cert is not None:
            _prepare_elsewhere(
                console,
                authority,
                passphrase_file,
                request=external_root,
                certificate=external_root_cert,
                root=root,
                does=does,
            )
        case Phase.PREPARE:
            key = _root_key(authority, root_key)
            authority.refuse_phase(Phase.PREPARE, now)
            if does:
                what = "the root key"
                root_secret = _passphrase(root_passphrase_file, what=what, no_input=console.no_input)
                authority.prepare(
                    secret=_passphrase(passphrase_file, no_input=console.no_input),
                    root_key=key,
                    root_secret=root_secret,
                    new_root=new_root,
                    root_out=root_out,
                    now=now,
                    actor=_actor(),
                )
        case Phase.DISTRIBUTE if carried:
            for node in carried if does else ():
                authority.bundle_installed(node, authority.bundle_sha256, now=now, actor=_actor())
        case Phase.DISTRIBUTE if authority.nothing_to_distribute:
            done = None
            console.say("the bundle stays as it is, or holds both roots already: nothing was changed")
        case Phase.DISTRIBUTE:
            authority.refuse_phase(phase, now)
            if does:
                authority.distribute(now=now, actor=_actor())
        case Phase.ACTIVATE:
            authority.refuse_phase(phase, now, force_with or ())
            if does:
                secret = _passphrase(passphrase_file, no_input=console.no_input)
                authority.activate(secret=secret, forced=force_with or (), now=now, actor=_actor())
        case Phase.RETIRE:
            if not authority.has_left_over:
                authority.refuse_phase(phase, now)
            if does:
                authority.retire(now=now, actor=_actor())
    planned = authority.plan_rotation(now)
    console.document(shown.document(authority, planned, now, done=done if does else None))
    console.table(shown.FIELDS, [*shown.rows(authority, planned, now)])
    shown.hand_over(console, authority, out)
    if not does:
        console.say("nothing was changed" + ("; --do does it" if phase or undo else ""))
    elif new_root and phase is Phase.PREPARE:
        console.say(f"take {(root_out or authority.layout.take_away)} away: the new root's key lies there")
    _warn(console, authority)


def _prepare_elsewhere(
    console: Console,
    authority: "Authority",
    passphrase_file: Path | None,
    *,
    request: Path | None,
    certificate: Path | None,
    root: Path | None,
    does: bool,
) -> None:
    if request is not None and certificate is not None:
        raise _bad(
            "--external-root asks, and --external-root-cert takes the answer: one of them at a time",
            "leave one of them out",
        )
    authority.refuse_phase(Phase.PREPARE, _now())
    if not does:
        return
    secret = _passphrase(passphrase_file, no_input=console.no_input)
    if request is not None:
        authority.request_successor(request, secret=secret, now=_now(), actor=_actor())
        console.say(
            f"have the root sign {request}, with the extensions that it asks for; then: "
            "node-ca rotate prepare --external-root-cert CERT --do"
        )
    elif certificate is not None:
        authority.take_successor(certificate, root, secret=secret, now=_now(), actor=_actor())


def _root_key(authority: "Authority", given: Path | None) -> Path:
    """The root's key file, looked at as far as it goes without its passphrase."""
    from ca.keystore import check_belongs, check_private

    if given is None and authority.root_is_elsewhere:
        raise _bad(
            "the root's key is kept elsewhere, and was never on this host",
            "write a request for it: node-ca rotate prepare --external-root CSR --do",
        )
    key = given or authority.root_key
    if not key.exists():
        raise _bad(
            f"only the root can sign a successor, and its key is not at {key}",
            "bring it back for this, and pass --root-key FILE",
        )
    check_private(key)
    check_belongs(key, authority.root)
    return key


def _bad(why: str, next_step: str) -> BadInput:
    return BadInput("nothing was done", why=why, next_step=next_step)
