"""Making an authority: built whole in a folder beside its place, then put there by one rename."""

import json
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from ca.judge import judge_authority
from ca.keystore import Kdf, write_key
from ca.layout import ROOT_CERTIFICATE, ROOT_KEY, Layout
from ca.ledger import Ledger
from ca.policy import Policy
from ca.profile import BACKDATE, MAX_COMMON_NAME, fingerprint, issuing, pem, root
from ca.signer import KeySigner, sign_certificate
from inventory.document import dump, load, loads
from inventory.errors import BadFile, BadInput, Refused
from inventory.files import sync_folder, write_whole

DEFAULT_ORGANISATION = "Muster"
_TAKEN_AWAY = (ROOT_KEY, ROOT_CERTIFICATE)


@dataclass(frozen=True, slots=True)
class Secrets:
    """The two passphrases of a new authority, and how strongly they are stretched."""

    issuing: bytes
    root: bytes
    kdf: Kdf

    def __repr__(self) -> str:
        return "Secrets('***')"


def make_authority(
    ca_dir: Path,
    *,
    policy_file: Path,
    passphrases: Secrets,
    organisation: str,
    root_out: Path | None,
    actor: str,
    now: datetime,
    serials: Callable[[], int] = x509.random_serial_number,
) -> None:
    """Make root and issuing authority; `ca_dir` appears complete or not at all.

    Raises:
        Refused: `ca_dir`, or a root key in `root_out`, exists, or the disk did not take it.
        BadInput: a file of the policy cannot be read, or the organisation is no name.
    """
    policy = look_before(ca_dir, policy_file=policy_file, root_out=root_out, organisation=organisation)
    pair = _certify(policy, organisation=organisation, now=now, serials=serials)
    judge_authority(pair.issuing, root=pair.root, now=now)
    beside: Path | None = None
    away: Path | None = None
    try:
        ca_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{ca_dir.name}.", dir=ca_dir.parent))
        layout = Layout(beside)
        for folder in (layout.issued, layout.receipts):
            folder.mkdir(mode=0o700)
        write_whole(layout.policy, _carry_policy(policy_file, policy, beside).encode())
        write_whole(layout.root, pem(pair.root), mode=0o644)
        write_whole(layout.issuing, pem(pair.issuing), mode=0o644)
        _write_keys(pair, layout.issuing_key, root_out or layout.take_away, passphrases)
        away = root_out
        body = {
            "trust_domain": policy.trust_domain,
            "root_sha256": fingerprint(pair.root),
            "issuing_sha256": fingerprint(pair.issuing),
            "root_key": str(((root_out or Layout(ca_dir).take_away) / ROOT_KEY).absolute()),
        }
        Ledger.create(layout.audit).append("init", now=now, actor=actor, body=body)
        beside.rename(ca_dir)  # fails where another run has made one meanwhile (rename(2): not empty)
    except BaseException as error:
        if beside is not None and beside.exists():  # else the rename was done, and all of it stays
            shutil.rmtree(beside, ignore_errors=True)
            if away is not None:
                for name in _TAKEN_AWAY:
                    (away / name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise Refused(
                "no authority was made",
                why=f"{error.filename or ca_dir}: {error.strerror or error}",
                next_step="mend that, then run the command again; nothing of it was left behind",
            ) from error
        raise
    sync_folder(ca_dir.parent)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A root and the authority below it, with their keys."""

    root: x509.Certificate
    root_key: KeySigner
    issuing: x509.Certificate
    issuing_key: KeySigner


def _certify(policy: Policy, *, organisation: str, now: datetime, serials: Callable[[], int]) -> _Pair:
    backdate = max(BACKDATE, timedelta(seconds=policy.max_clock_skew_s))
    root_key = KeySigner(ec.generate_private_key(ec.SECP384R1()))
    issuing_key = KeySigner(ec.generate_private_key(ec.SECP256R1()))
    top = root(root_key.public_key, organisation=organisation, now=now, serial=serials(), backdate=backdate)
    root_certificate = sign_certificate(top, root_key)
    below = issuing(
        issuing_key.public_key,
        issuer=root_certificate,
        policy=policy,
        organisation=organisation,
        now=now,
        serial=serials(),
        backdate=backdate,
    )
    return _Pair(root_certificate, root_key, sign_certificate(below, root_key), issuing_key)


def _write_keys(pair: _Pair, issuing_file: Path, away: Path, passphrases: Secrets) -> None:
    write_key(
        issuing_file,
        pair.issuing_key.key,
        certificate=pair.issuing,
        passphrase=passphrases.issuing,
        kdf=passphrases.kdf,
    )
    away.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(away / ROOT_CERTIFICATE, pem(pair.root), mode=0o644)
    write_key(
        away / ROOT_KEY,
        pair.root_key.key,
        certificate=pair.root,
        passphrase=passphrases.root,
        kdf=passphrases.kdf,
    )


def look_before(ca_dir: Path, *, policy_file: Path, root_out: Path | None, organisation: str) -> Policy:
    """Everything that can be refused before a passphrase is asked for; the checked policy comes back.

    Raises:
        Refused: `ca_dir`, or a root key in `root_out`, exists: nothing is overwritten, by no flag.
        BadInput: a file of the policy cannot be read, or the organisation is no name.
    """
    policy = load(policy_file, Policy)
    if not organisation.isprintable() or not 1 <= len(organisation.encode()) <= MAX_COMMON_NAME:
        raise BadInput(
            "no authority was made",
            why=f"an organisation's name has 1 to {MAX_COMMON_NAME} octets, all printable",
            next_step="pass another --organisation",
        )
    places = [ca_dir, *(root_out / name for name in _TAKEN_AWAY if root_out)]
    there = [place for place in places if _exists(place)]
    if there:
        raise Refused(
            "no authority was made",
            why=f"{there[0]} exists, and nothing of an authority is ever overwritten",
            next_step="choose another place, or move that one away yourself",
        )
    if policy.ticket_signers is not None:
        _read_signers(policy.ticket_signers, policy_file)
    return policy


def _read_signers(file: Path, policy_file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{file} cannot be read",
            why=f"{error.strerror or error}; {policy_file} names it as ticket_signers",
            next_step="make it (one line for each infra operator, see ssh-keygen(1), ALLOWED SIGNERS)",
        ) from error


def _exists(place: Path) -> bool:
    return place.is_symlink() or place.exists()


def _carry_policy(policy_file: Path, policy: Policy, folder: Path) -> str:
    """The policy's text for the authority's folder, its comments kept where they can be.

    The file of ticket signers comes along under its own name; the holder's SSH key stays where it is.
    """
    text, anew, meant = policy_file.read_text(encoding="utf-8"), policy, policy
    if policy.ticket_signers is not None:
        name = policy.ticket_signers.name
        if name in Layout(folder).taken_names:
            name = f"ticket-signers-{name}"
        write_whole(folder / name, _read_signers(policy.ticket_signers, policy_file))
        text = _point(text, "ticket_signers", name)
        anew = anew.model_copy(update={"ticket_signers": Path(name)})
        meant = meant.model_copy(update={"ticket_signers": folder / name})
    if policy.ssh is not None:
        key_file = policy.ssh.key_file.absolute()
        text = _point(text, "key_file", str(key_file))
        ssh = {"ssh": policy.ssh.model_copy(update={"key_file": key_file})}
        anew, meant = anew.model_copy(update=ssh), meant.model_copy(update=ssh)
    try:
        as_meant = loads(text, Policy, name=str(policy_file), base=folder) == meant
    except BadFile:
        as_meant = False
    # There are ways to write YAML in which a value cannot be replaced in place; then it is written anew.
    return text if as_meant else dump(anew)


def _point(text: str, key: str, path: str) -> str:
    """The text with the value of `key` replaced, its comment kept."""
    value = re.compile(rf"""(\b{key}\s*:\s*)("[^"\n]*"|'[^'\n]*'|[^\s,#}}"']+)""")
    return value.sub(lambda found: found[1] + (path if _is_plain(path) else json.dumps(path)), text)


def _is_plain(path: str) -> bool:
    return re.fullmatch(r"[A-Za-z/_.][A-Za-z0-9/_.-]*", path) is not None
