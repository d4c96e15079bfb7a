"""`node-ca status`: every check there is, also those that take their time, and also where the authority is broken."""

import contextlib
import ipaddress
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import NoReturn

from cryptography import x509

from ca.audit import check_head
from ca.authority import Authority
from ca.custody import check_issuing_key, is_on_token
from ca.health import Check, Severity
from ca.judge import Wanted, faults_of_authority, faults_of_chain
from ca.layout import Layout, check_folder, damaged, read_certificate
from ca.ledger import NO_HASH, Entry, Ledger
from ca.policy import NodeProfile, Policy
from ca.profile import pem, timestamp
from ca.record import Record
from ca.rotation import ACTIVATED, named
from inventory.document import load
from inventory.errors import BadInput, Damaged, ExitCode, MusterError, Refused

BACKUP_OLD = timedelta(days=30)
_ERRORS: dict[ExitCode, type[MusterError]] = {ExitCode.DAMAGED: Damaged, ExitCode.REFUSED: Refused}
"""What is raised for the worst check; in this order."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found. authority: None where it cannot be opened; broken: the error that says why."""

    folder: Path
    checks: tuple[Check, ...]
    authority: Authority | None = None
    broken: MusterError | None = None

    @property
    def worst(self) -> Severity:
        """The severity of the worst check."""
        return max(check.severity for check in self.checks)

    def refuse(self) -> None:
        """End the command where something is critical.

        Raises:
            Damaged: parts of the authority contradict themselves.
            Refused: something has expired, or others may reach what they must not.
            BadInput: the policy has faults.
        """
        if self.broken is not None:
            raise self.broken
        critical = [check for check in self.checks if check.severity is Severity.CRITICAL]
        for code, error in _ERRORS.items():
            if any(check.code is code for check in critical):
                _fail(error, critical)
        if critical:
            _fail(BadInput, critical)


def examine(folder: Path, *, now: datetime, expect: str | None = None) -> Examination:
    """Look at everything; `expect` is a head of the audit that was kept elsewhere.

    Raises:
        BadInput: there is no authority, or `expect` is no head.
    """
    if expect is not None:
        expect = check_head(expect)
    if not os.access(Layout(folder).audit, os.F_OK):  # not there, or not to be reached
        check_folder(folder)
    try:
        authority = Authority.open(folder, now=now)
    except MusterError as error:
        found = tuple(_parts(_layout(folder), []))
        if all(check.severity is not Severity.CRITICAL for check in found):
            found = (*found, _critical("authority", error))
        return Examination(folder, found, broken=error)
    read: list[_Audit] = []
    parts = [*_parts(authority.layout, read)]
    return Examination(folder, (*parts, *_whole(authority, read, now, expect)), authority)


def _layout(folder: Path) -> Layout:
    """Where the certificates and the key lie that are used, as far as the audit can be read."""
    generation = ""
    with contextlib.suppress(MusterError, KeyError):
        for item in Ledger(Layout(folder).audit).read_on():
            if isinstance(item, Entry) and item.kind == ACTIVATED:
                generation = str(item.body["id"])
    return Layout(folder, generation)


def _parts(layout: Layout, read: list["_Audit"]) -> Iterator[Check]:
    """Each part by itself: where one is broken, the others are still looked at; `read` gets the audit."""
    yield _tried(
        "folder", f"{layout.folder} can be changed by its owner alone", lambda: check_folder(layout.folder)
    )
    where = "in a token" if is_on_token(layout) else f"in {layout.issuing_key}"
    yield _tried(
        "key",
        f"the issuing key lies {where}, which others cannot reach, and is the certificate's",
        lambda: check_issuing_key(layout, read_certificate(layout.issuing)),
    )
    yield _tried(
        "chain", "the root signed itself and the issuing authority; openssl agrees", lambda: _chain(layout)
    )
    yield _tried("policy", f"{layout.policy} has no faults", lambda: load(layout.policy, Policy))
    yield _tried(
        "audit", "every line of the audit follows from the one before", lambda: read.append(_read(layout))
    )


def _whole(authority: Authority, read: list["_Audit"], now: datetime, expect: str | None) -> Iterator[Check]:
    yield Check(
        "authority",
        Severity.INFO,
        f"{authority.policy.trust_domain}, {authority.issuing.subject.rfc4514_string()}, "
        f"root SHA-256 {authority.fingerprint_sha256}",
    )
    counts = ", ".join(f"{count} {state}" for state, count in sorted(authority.count(now).items()))
    yield Check("certificates", Severity.INFO, counts or "none yet")
    yield from authority.checks(now)
    yield from _list_files(authority, now)
    yield from _rotation(authority, now)
    for audit in read:
        yield _head(audit, expect)
        yield _index(authority, audit)
        yield _backup(audit, now)
    yield _newest(authority)


@dataclass(slots=True)
class _Audit:
    """What a reading of all lines found; `standings`: of each certificate."""

    entries: int = 0
    head: str = ""
    heads: set[str] = field(default_factory=set)
    standings: dict[str, str] = field(default_factory=dict)
    backup: Entry | None = None

    def take(self, entry: Entry) -> None:
        """Add one line."""
        self.entries, self.head = entry.seq, entry.sha256
        self.heads.add(entry.sha256)
        match entry.kind:
            case "intent":
                self.standings[entry.body["serial"]] = "open"
            case "issued":
                self.standings[entry.body["serial"]] = "issued"
                self.standings.update(dict.fromkeys(entry.body["replaces"], "revoked"))
            case "installed":
                if self.standings.get(entry.body["serial"]) == "issued":
                    self.standings[entry.body["serial"]] = "installed"
            case "failed" | "revoked":
                self.standings[entry.body["serial"]] = entry.kind
            case "backup":
                self.backup = entry


def _read(layout: Layout) -> _Audit:
    audit = _Audit()
    for item in Ledger(layout.audit).read_on():
        if isinstance(item, Entry):
            try:
                audit.take(item)
            except (KeyError, TypeError) as error:
                raise damaged(f"line {item.seq} of the audit makes no sense ({error})") from error
    return audit


def _chain(layout: Layout) -> None:
    root, issuing = read_certificate(layout.root), read_certificate(layout.issuing)
    # At an hour when both are valid: that one has expired is told by another check.
    at = min(root.not_valid_after_utc, issuing.not_valid_after_utc) - timedelta(seconds=1)
    if faults := [*faults_of_authority(issuing, root=root, now=at)]:
        raise Damaged(
            "root and issuing authority do not belong together",
            why="; ".join(faults),
            next_step="restore the authority's folder from its backup",
        )


def _head(audit: _Audit, expect: str | None) -> Check:
    told = f"{audit.entries} lines, head {audit.head}"
    if expect is None:
        return Check(
            "audit-head", Severity.INFO, f"{told}; compare it with one kept elsewhere: --expect HEAD"
        )
    if expect in audit.heads | {NO_HASH}:
        return Check("audit-head", Severity.OK, f"{told}; it goes on from the expected one")
    return Check(
        "audit-head",
        Severity.CRITICAL,
        f"{told}; the expected head is none of them: an older copy was put in its place, or another audit",
        "issue nothing; find the audit that has this head, and restore it",
        ExitCode.DAMAGED,
    )


def _index(authority: Authority, audit: _Audit) -> Check:
    from_audit = Counter(audit.standings.values())
    in_index = Counter(authority.standings())
    if authority.index_notes:
        return Check("index", Severity.WARNING, "; ".join(authority.index_notes))
    if from_audit != in_index and audit.entries == authority.entries:
        return Check(
            "index",
            Severity.CRITICAL,
            f"the index is not what the audit adds up to: {dict(in_index)} instead of {dict(from_audit)}",
            f"delete {authority.layout.index}; the next command makes it anew",
            ExitCode.DAMAGED,
        )
    return Check("index", Severity.OK, "the index is what the audit adds up to")


def _backup(audit: _Audit, now: datetime) -> Check:
    made = audit.backup
    if made is None:
        return Check("backup", Severity.WARNING, "no backup was ever made", "node-ca backup --out DIR")
    since = audit.entries - made.seq
    age = (now - made.at).days
    text = f"the last backup was made {age} days ago ({timestamp(made.at)}), {since} lines before the end"
    if since and now - made.at > BACKUP_OLD:
        return Check("backup", Severity.WARNING, text, "node-ca backup --out DIR")
    return Check("backup", Severity.INFO if since else Severity.OK, text)


def _newest(authority: Authority) -> Check:
    record = authority.newest_issued
    if record is None:
        return Check("newest-certificate", Severity.INFO, "no certificate was issued yet")
    named = f"certificate {record.serial} of {record.node}"
    try:
        faults = _faults(authority, record)
    except MusterError as error:
        return _critical("newest-certificate", error)
    if faults:
        return Check(
            "newest-certificate",
            Severity.CRITICAL,
            f"{named}: {'; '.join(faults)}",
            "revoke it, and report these lines as a bug",
            ExitCode.DAMAGED,
        )
    return Check("newest-certificate", Severity.OK, f"{named} keeps every rule of the profile")


def _faults(authority: Authority, record: Record) -> list[str]:
    chain = authority.load_issued(record.serial).chain_pem
    profile = NodeProfile(
        record.node,
        record.names,
        tuple(ipaddress.ip_address(text) for text in record.addresses),
        record.spiffe_id,
        record.not_after - record.not_before,
    )
    wanted = Wanted(profile, record.key_sha256, int(record.serial, 16))
    leaf, *_ = x509.load_pem_x509_certificates(chain)
    issuing, root = authority.issuer_of(leaf)
    pair = pem(leaf) + pem(issuing)  # without what leads to it from a former root
    return [*faults_of_chain(pair, issuing=issuing, root=root, wanted=wanted, now=record.not_before)]


def _list_files(authority: Authority, now: datetime) -> Iterator[Check]:
    lists = authority.lists
    if lists is None:
        return
    try:
        for slot in (lists.due(now), *lists.ahead(now)):
            authority.read_list(slot)
    except MusterError as error:
        yield _critical("crl-files", error)
    else:
        yield Check(
            "crl-files", Severity.OK, f"the revocation lists lie unchanged in {authority.layout.crls}"
        )
    holders = authority.holding_older_crl(now)
    older = [holder for holder in holders if holder.number is not None]
    if older:
        text = f"nodes that hold an older revocation list: {len(older)}, {older[0].node} first"
        yield Check("crl-nodes", Severity.WARNING, text, f"onboard-node --refresh {older[0].node}")
    elif holders:
        text = f"nodes that have no revocation list: {len(holders)}, {holders[0].node} first"
        yield Check("crl-nodes", Severity.INFO, text, f"onboard-node --refresh {holders[0].node}")
    else:
        yield Check("crl-nodes", Severity.OK, "every node in service holds the list that is due")


def _rotation(authority: Authority, now: datetime) -> Iterator[Check]:
    if left := [*authority.left_over()]:
        text = f"a rotation that is over, or was cut short, left {left[0]}"
        mend = "node-ca rotate retire --do" if authority.has_left_over else "finish it: node-ca rotate"
        yield Check("rotation-left-over", Severity.WARNING, text, mend)
    for block in authority.plan_rotation(now).blocks:
        told = f": {named(block.nodes)}" if block.nodes else ""
        yield Check("rotation-blocked", Severity.INFO, f"{block.why}{told}", block.mend)
    holders = authority.holding_older_bundle(now)
    if holders:
        text = f"nodes whose bundle is not the one of now: {named([holder.node for holder in holders])}"
        yield Check("bundle-nodes", Severity.WARNING, text, f"onboard-node --refresh {holders[0].node}")
    else:
        yield Check("bundle-nodes", Severity.OK, "every node has the bundle of now, as far as is on record")


def _tried(name: str, well: str, look: Callable[[], object]) -> Check:
    try:
        look()
    except MusterError as error:
        return _critical(name, error)
    return Check(name, Severity.OK, well)


def _critical(name: str, error: MusterError) -> Check:
    why = "; ".join(error.why.splitlines())
    return Check(name, Severity.CRITICAL, f"{error.what}: {why}", error.next_step, error.exit_code)


def _fail(error: type[MusterError], critical: list[Check]) -> NoReturn:
    raise error(
        "the authority needs its holder",
        why="\n".join(f"{check.name}: {check.text}" for check in critical),
        next_step="; ".join(dict.fromkeys(check.next_step for check in critical if check.next_step))
        or "see the table",
    )
