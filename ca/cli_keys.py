"""node-ca's verbs about its keys: how they are made, and how they are locked."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ca.cli import _actor, _now, _one_stdin, _open, _warn, app
from ca.kinds import KeyType
from inventory.command import ca_folder, need
from inventory.console import Console
from inventory.errors import BadInput
from inventory.options import CaDir, DryRun, PassphraseFile, verb

if TYPE_CHECKING:
    from ca.ceremony import Ceremony


@verb(app, "init")
def init(
    *,
    trust_domain: Annotated[
        str | None,
        typer.Option("--trust-domain", metavar="DOMAIN", help="Whose nodes; alone, it makes a small policy."),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", metavar="FILE", help="What may be certified; it is copied."),
    ] = None,
    ceremony: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="A ceremony file, which says all of it."),
    ] = None,
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
        str | None,
        typer.Option("--organisation", metavar="NAME", help="Stands in the authority's own names."),
    ] = None,
    key_type: Annotated[
        KeyType | None,
        typer.Option("--key-type", metavar="TYPE", help="Issuing key: p256 (default), p384 or ed25519."),
    ] = None,
    root_key_type: Annotated[
        KeyType | None, typer.Option("--root-key-type", metavar="TYPE", help="Root key: p384 if not given.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="URI", help="Keep the issuing key in this token (RFC 7512)."),
    ] = None,
    pin_file: Annotated[
        Path | None,
        typer.Option("--pin-file", metavar="FILE", help="Holds its PIN (- for stdin); else it is asked for."),
    ] = None,
    external_root: Annotated[
        Path | None,
        typer.Option(
            "--external-root", metavar="CSR", help="The root is elsewhere: write the request for it."
        ),
    ] = None,
    external_root_cert: Annotated[
        Path | None,
        typer.Option("--external-root-cert", metavar="FILE", help="What that root signed; this completes."),
    ] = None,
    root: Annotated[
        Path | None, typer.Option("--root", metavar="FILE", help="That root's own certificate.")
    ] = None,
    dry_run: DryRun = False,
    console: Console,
) -> None:
    """Make root and issuing authority in a new folder.

    Example: node-ca init --trust-domain lab.example --root-out /media/usb
    """
    need("onboard", "cryptography")
    from ca.ceremony import of_options
    from inventory.document import load

    folder = ca_folder(ca_dir)
    options = {
        "--trust-domain": trust_domain,
        "--policy": policy,
        "--organisation": organisation,
        "--key-type": key_type,
        "--root-key-type": root_key_type,
        "--root-out": root_out,
        "--token": token,
        "--external-root": external_root,
    }
    given = [name for name, value in options.items() if value is not None]
    if external_root_cert is not None:
        _refuse_beside("the waiting authority's folder", [*given, *(["--from"] if ceremony else [])])
        _complete(console, folder, external_root_cert, root, pin_file or passphrase_file, dry_run=dry_run)
        return
    if ceremony is None:
        wanted = of_options(
            policy=policy,
            trust_domain=trust_domain,
            organisation=organisation,
            key_type=key_type,
            root_key_type=root_key_type,
            root_out=root_out,
            request_out=external_root,
            token=token,
        )
    else:
        _refuse_beside(str(ceremony), given)
        from ca.ceremony import Ceremony

        wanted = load(ceremony, Ceremony)
    if wanted.issuing.token is not None:
        need("hsm", "pkcs11")
        passphrase_file = None
    _make(console, folder, wanted, pin_file or passphrase_file, root_passphrase_file, dry_run=dry_run)


@verb(app, "passphrase")
def passphrase(
    *,
    root_key: Annotated[
        Path | None,
        typer.Option("--root-key", metavar="FILE", help="Of this root key file, not the issuing key."),
    ] = None,
    new_passphrase_file: Annotated[
        Path | None,
        typer.Option(
            "--new-passphrase-file", metavar="FILE", help="Holds the new one; else it is asked for."
        ),
    ] = None,
    ca_dir: CaDir = None,
    passphrase_file: PassphraseFile = None,
    console: Console,
) -> None:
    """Change the passphrase of the issuing key, or of the root's.

    Example: node-ca passphrase --root-key /media/usb/root-key.json
    """
    need("onboard", "cryptography")
    from ca.custody import refuse_on_token
    from ca.passphrase import read_passphrase

    _one_stdin(passphrase_file, new_passphrase_file)
    authority = _open(ca_dir)
    if root_key is None:
        refuse_on_token(authority.layout)
    what = "the root key" if root_key is not None else "the authority"
    old = read_passphrase(passphrase_file, what=what, no_input=console.no_input)
    new = _new_secret(
        console, new_passphrase_file, what=f"{what}, the new one", option="--new-passphrase-file"
    )
    authority.change_passphrase(old, new, root_key=root_key, now=_now(), actor=_actor())
    file = root_key or authority.layout.issuing_key
    console.document({"file": str(file), "audit_head": authority.head})
    console.say(f"{file} has the new passphrase; copies of it elsewhere, in backups too, keep the old one")
    _warn(console, authority)


def _make(
    console: Console,
    folder: Path,
    wanted: "Ceremony",
    secret_file: Path | None,
    root_secret_file: Path | None,
    *,
    dry_run: bool,
) -> None:
    from ca import transcript
    from ca.authority import Authority
    from ca.founding import found, look

    policy = look(folder, wanted)
    if dry_run:
        rows = [*transcript.planned(folder, wanted, policy)]
        console.document({"ca_dir": str(folder), "dry_run": True, "would_make": dict(rows)})
        console.table(transcript.FIELDS, rows)
        console.say("nothing was changed")
        return
    secret_file = wanted.secret_file or secret_file
    root_secret_file = wanted.root.passphrase_file or root_secret_file
    _one_stdin(secret_file, root_secret_file)
    secret = _secret(console, wanted, secret_file)
    root_secret = secret
    if wanted.root.request_out is None and (root_secret_file or wanted.issuing.token):
        root_secret = _new_secret(
            console, root_secret_file, what="the root key", option="--root-passphrase-file"
        )
    found(folder, wanted, secret=secret, root_secret=root_secret, actor=_actor(), now=_now())
    if wanted.root.request_out is not None:
        console.document(transcript.waiting(folder, wanted.root.request_out))
        transcript.tell_waiting(console, folder, wanted.root.request_out)
        return
    authority = Authority.open(folder, now=_now())
    console.document(transcript.made(authority, _now()))
    transcript.tell_made(console, authority)
    _warn(console, authority)


def _complete(
    console: Console,
    folder: Path,
    certificate: Path,
    root: Path | None,
    secret_file: Path | None,
    *,
    dry_run: bool,
) -> None:
    from ca import external, transcript
    from ca.authority import Authority
    from ca.custody import secret_of
    from ca.keystore import DEFAULT_KDF
    from ca.layout import Layout
    from ca.passphrase import read_passphrase

    layout = Layout(folder)
    external.look(layout, certificate_file=certificate, root_file=root, now=_now())
    if dry_run:
        console.document({"ca_dir": str(folder), "dry_run": True})
        console.say(f"{certificate} fits; nothing was changed")
        return
    secret = read_passphrase(secret_file, what=secret_of(layout), no_input=console.no_input)
    external.complete(
        folder,
        certificate_file=certificate,
        root_file=root,
        secret=secret,
        kdf=DEFAULT_KDF,
        actor=_actor(),
        now=_now(),
    )
    authority = Authority.open(folder, now=_now())
    console.document(transcript.made(authority, _now()))
    transcript.tell_made(console, authority)
    _warn(console, authority)


def _refuse_beside(source: str, given: list[str]) -> None:
    if given:
        raise BadInput(
            "no authority was made",
            why=f"{source} says all of it, and {', '.join(given)} would say it otherwise",
            next_step="leave that out, or change it there",
        )


def _secret(console: Console, wanted: "Ceremony", file: Path | None) -> bytes:
    """What will open the issuing key: a new passphrase, or the PIN that its token has already."""
    from ca.passphrase import read_passphrase

    if wanted.issuing.token is None:
        return _new_secret(console, file, what="the authority", option="--passphrase-file")
    return read_passphrase(file, what="the token (its PIN)", no_input=console.no_input, option="--pin-file")


def _new_secret(console: Console, file: Path | None, *, what: str, option: str) -> bytes:
    from ca.passphrase import read_passphrase, weakness

    secret = read_passphrase(file, what=what, twice=True, no_input=console.no_input, option=option)
    if weak := weakness(secret, what=what):
        console.warn(weak)
    return secret
