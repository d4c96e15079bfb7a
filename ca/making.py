"""Making an authority: built whole in a folder beside its place, then put there by one rename."""

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from ca.custody import InFile, NewKey
from ca.judge import judge_authority
from ca.keys import generate
from ca.keystore import Kdf, write_key
from ca.kinds import KeyType
from ca.layout import ROOT_CERTIFICATE, ROOT_KEY, Layout
from ca.ledger import Ledger
from ca.policy import Policy, minimal
from ca.profile import (
    BACKDATE,
    ISSUING_LIFETIME,
    MAX_COMMON_NAME,
    ROOT_LIFETIME,
    fingerprint,
    issuing,
    pem,
    root,
)
from ca.signer import KeySigner, Signer, sign_certificate
from inventory.document import dump, load, loads
from inventory.errors import BadFile, BadInput, Refused
from inventory.files import sync_folder, write_whole

DEFAULT_ORGANISATION = "Muster"
_ROOT_PARTS = (ROOT_KEY, ROOT_CERTIFICATE)
_CARRIED = {
    "ticket_signers": "one line for each infra operator, see ssh-keygen(1), ALLOWED SIGNERS",
    "ticket_revoked_keys": "public keys, or what ssh-keygen -k writes",
}
"""Files that a policy names and that come along with it, and what each is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an authority is to be.

    policy_file: None: a minimal policy is written for `trust_domain`; both: they must agree.
    organisation: stands in the authority's own names. root_out: where the root's key goes.
    """

    policy_file: Path | None = None
    trust_domain: str | None = None
    organisation: str = DEFAULT_ORGANISATION
    root_key: KeyType = KeyType.P384
    issuing_key: KeyType = KeyType.P256
    root_lifetime: timedelta = ROOT_LIFETIME
    issuing_lifetime: timedelta = ISSUING_LIFETIME
    root_out: Path | None = None


@dataclass(frozen=True, slots=True)
class Secrets:
    """The two passphrases of a new authority, and how strongly they are stretched."""

    issuing: bytes = field(repr=False)
    root: bytes = field(repr=False)
    kdf: Kdf

    def __repr__(self) -> str:
        return "Secrets('***')"


def make_authority(
    ca_dir: Path,
    plan: Plan,
    *,
    passphrases: Secrets,
    actor: str,
    now: datetime,
    new_key: NewKey | None = None,
    serials: Callable[[], int] = x509.random_serial_number,
) -> None:
    """Make root and issuing authority; `ca_dir` appears complete or not at all.

    `new_key` is the issuing key where it is made already, in a token; else it is made here.

    Raises:
        Refused: `ca_dir`, or a root key in `root_out`, exists, or the disk did not take it.
        BadInput: a file of the policy cannot be read, or the organisation is no name.
    """
    policy = look_before(ca_dir, plan)
    key = new_key or InFile.fresh(plan.issuing_key, passphrase=passphrases.issuing, kdf=passphrases.kdf)
    pair = _certify(policy, plan, key.signer, now=now, serials=serials)
    judge_authority(pair.issuing, root=pair.root, now=now)
    with built_whole(ca_dir) as (layout, strewn):
        write_policy(layout, plan, policy)
        write_whole(layout.root, pem(pair.root), mode=0o644)
        write_whole(layout.issuing, pem(pair.issuing), mode=0o644)
        key.keep(layout, pair.issuing)
        _write_root_key(pair, plan.root_out or layout.take_away, passphrases)
        if plan.root_out is not None:
            strewn += [plan.root_out / name for name in _ROOT_PARTS]
        place = (plan.root_out or Layout(ca_dir).take_away) / ROOT_KEY
        begin_audit(
            layout.audit,
            policy,
            root=pair.root,
            issuing=pair.issuing,
            root_key=str(place.absolute()),
            actor=actor,
            now=now,
        )


def begin_audit(
    file: Path,
    policy: Policy,
    *,
    root: x509.Certificate,
    issuing: x509.Certificate,
    root_key: str,
    actor: str,
    now: datetime,
) -> None:
    """The audit's first line; `root_key` is where the root's key was written to, empty where it is not ours."""
    body = {
        "trust_domain": policy.trust_domain,
        "root_sha256": fingerprint(root),
        "issuing_sha256": fingerprint(issuing),
        "root_key": root_key,
    }
    Ledger.create(file).append("init", now=now, actor=actor, body=body)


@contextmanager
def built_whole(ca_dir: Path) -> Iterator[tuple[Layout, list[Path]]]:
    """A private folder to build in, which takes the place of `ca_dir` by one rename if all goes well.

    Otherwise it is removed, and so is every file that was added to the list, which lies elsewhere.

    Raises:
        Refused: the disk did not take it, or `ca_dir` was made meanwhile.
    """
    beside: Path | None = None
    strewn: list[Path] = []
    try:
        ca_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{ca_dir.name}.", dir=ca_dir.parent))
        layout = Layout(beside)
        for folder in (layout.issued, layout.receipts):
            folder.mkdir(mode=0o700)
        yield layout, strewn
        beside.rename(ca_dir)  # fails where another run has made one meanwhile (rename(2): not empty)
    except BaseException as error:
        if beside is not None and beside.exists():  # else the rename was done, and all of it stays
            shutil.rmtree(beside, ignore_errors=True)
            for file in strewn:
                file.unlink(missing_ok=True)
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
    """A root with its key, and the authority below it."""

    root: x509.Certificate
    root_key: KeySigner
    issuing: x509.Certificate


def _certify(
    policy: Policy, plan: Plan, signer: Signer, *, now: datetime, serials: Callable[[], int]
) -> _Pair:
    backdate = max(BACKDATE, timedelta(seconds=policy.max_clock_skew_s))
    root_key = KeySigner(generate(plan.root_key))
    top = root(
        root_key.public_key,
        organisation=plan.organisation,
        now=now,
        serial=serials(),
        backdate=backdate,
        lifetime=plan.root_lifetime,
    )
    root_certificate = sign_certificate(top, root_key)
    below = issuing(
        signer.public_key,
        issuer=root_certificate,
        policy=policy,
        organisation=plan.organisation,
        now=now,
        serial=serials(),
        backdate=backdate,
        lifetime=plan.issuing_lifetime,
    )
    return _Pair(root_certificate, root_key, sign_certificate(below, root_key))


def _write_root_key(pair: _Pair, away: Path, passphrases: Secrets) -> None:
    away.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(away / ROOT_CERTIFICATE, pem(pair.root), mode=0o644)
    write_key(
        away / ROOT_KEY,
        pair.root_key.key,
        certificate=pair.root,
        passphrase=passphrases.root,
        kdf=passphrases.kdf,
    )


def look_before(ca_dir: Path, plan: Plan) -> Policy:
    """Everything that can be refused before a passphrase is asked for; the checked policy comes back.

    Raises:
        Refused: `ca_dir`, or a root key in `root_out`, exists: nothing is overwritten, by no flag.
        BadInput: a file of the policy cannot be read, it contradicts the trust domain, or the organisation
            is no name.
    """
    policy = _policy_of(plan)
    if not plan.organisation.isprintable() or not 1 <= len(plan.organisation.encode()) <= MAX_COMMON_NAME:
        raise BadInput(
            "no authority was made",
            why=f"an organisation's name has 1 to {MAX_COMMON_NAME} octets, all printable",
            next_step="pass another --organisation",
        )
    places = [ca_dir, *(plan.root_out / name for name in _ROOT_PARTS if plan.root_out)]
    there = [place for place in places if _exists(place)]
    if there:
        raise Refused(
            "no authority was made",
            why=f"{there[0]} exists, and nothing of an authority is ever overwritten",
            next_step="choose another place, or move that one away yourself",
        )
    for key in _CARRIED:
        if (file := getattr(policy, key)) is not None and plan.policy_file is not None:
            _read_named(file, key, plan.policy_file)
    return policy


def _policy_of(plan: Plan) -> Policy:
    if plan.policy_file is None:
        if plan.trust_domain is None:
            raise BadInput(
                "no authority was made",
                why="nothing says what it may certify",
                next_step="pass --trust-domain DOMAIN for a minimal policy, or --policy FILE",
            )
        return loads(minimal(plan.trust_domain), Policy, name="the minimal policy", base=Path.cwd())
    policy = load(plan.policy_file, Policy)
    if plan.trust_domain not in (None, policy.trust_domain):
        raise BadInput(
            "no authority was made",
            why=f"the trust domain is to be {plan.trust_domain}, but {plan.policy_file} says "
            f"{policy.trust_domain}",
            next_step="leave one of the two out, or make them agree",
        )
    return policy


def _read_named(file: Path, key: str, policy_file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{file} cannot be read",
            why=f"{error.strerror or error}; {policy_file} names it as {key}",
            next_step=f"make it ({_CARRIED[key]})",
        ) from error


def _exists(place: Path) -> bool:
    return place.is_symlink() or place.exists()


def write_policy(layout: Layout, plan: Plan, policy: Policy) -> None:
    """The policy's text, in the authority's folder."""
    if plan.policy_file is not None:
        text = _carry_policy(plan.policy_file, policy, layout.folder)
    else:
        text = minimal(policy.trust_domain)
    write_whole(layout.policy, text.encode())


def _carry_policy(policy_file: Path, policy: Policy, folder: Path) -> str:
    """The policy's text for the authority's folder, its comments kept where they can be.

    The files that say whose tickets count come along under their own names; the holder's SSH key stays
    where it is.
    """
    text, anew, meant = policy_file.read_text(encoding="utf-8"), policy, policy
    taken = set(Layout(folder).taken_names)
    for key in _CARRIED:
        file: Path | None = getattr(policy, key)
        if file is None:
            continue
        name = f"{key.replace('_', '-')}-{file.name}" if file.name in taken else file.name
        taken.add(name)
        write_whole(folder / name, _read_named(file, key, policy_file))
        text = _point(text, key, name)
        anew = anew.model_copy(update={key: Path(name)})
        meant = meant.model_copy(update={key: folder / name})
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
