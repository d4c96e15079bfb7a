"""What an authority does about certificates that must not be trusted any more: it says so, in signed lists."""

import contextlib
import hashlib
import re
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509

from ca.census import (
    Holder,
    beginning_like,
    expiring,
    held_list,
    holders_of_older,
    newest_issued,
    revoked_count,
    standings,
    to_name,
    told,
)
from ca.crl import DEFAULT_DAYS, MAX_AHEAD_MONTHS, MONTH, Former, Lister, Slot, schedule
from ca.health import LEAF_WARN_BELOW, Check, Facts, Severity, checks
from ca.keys import is_ours
from ca.layout import damaged
from ca.lists import ANNOUNCED, INSTALLED, SIGNED, SignedSet
from ca.opened import OpenedAuthority
from ca.profile import BACKDATE, fingerprint, key_sha256, timestamp, whole_second
from ca.record import Record
from ca.rotation import Generation
from ca.signer import Keyring, Signer
from inventory.errors import BadInput, Damaged, Refused
from inventory.files import write_whole

_HEX = re.compile(r"[0-9a-f]+")
_NEVER = datetime.max.replace(tzinfo=UTC)
_ENOUGH_TO_GUESS = 6
"""Hex digits from which on the beginning of a number is taken for a hint at what was meant."""


class RevokingAuthority(OpenedAuthority):
    """The part of an authority that deals with revocation lists."""

    @abstractmethod
    def _changing(self, now: datetime) -> AbstractContextManager[None]: ...

    @abstractmethod
    def _append(self, kind: str, body: Mapping[str, Any], *, now: datetime, actor: str) -> None: ...

    @property
    def lists(self) -> SignedSet | None:
        """The revocation lists that were signed last."""
        return self._told(SIGNED)

    @property
    def unfinished_lists(self) -> SignedSet | None:
        """Lists that were announced and, by a crash or a full disk, not finished; their numbers are used up."""
        announced, signed = self._told(ANNOUNCED), self.lists
        finished = announced is None or (signed is not None and signed.last.number >= announced.last.number)
        return None if finished else announced

    @property
    def unlisted(self) -> int:
        """How many revocations the newest lists do not know of."""
        return revoked_count(self._index) - (self.lists.revoked if self.lists else 0)

    def checks(self, now: datetime) -> tuple[Check, ...]:
        """What the holder should see to, whatever was found; cheap enough for the end of every command."""
        facts = Facts(
            layout=self.layout,
            policy=self.policy,
            root=self.root,
            issuing=self.issuing,
            root_key=self.root_key,
            unfinished=len(self.open_intents),
            lists=self.lists,
            announced=self.unfinished_lists,
            unlisted=self.unlisted,
            expiring=expiring(self._index, now, now + self.policy.lifetime * LEAF_WARN_BELOW),
            rotation=self.rotation,
            last_line=self._ledger.place.at,
        )
        return tuple(checks(facts, now))

    @property
    def index_notes(self) -> tuple[str, ...]:
        """What the index has to say of itself; nothing where all is well."""
        return tuple(self._index.notes)

    def standings(self) -> dict[str, int]:
        """How many certificates stand at each standing, whether they have ended or not."""
        return standings(self._index)

    @property
    def newest_issued(self) -> Record | None:
        """The certificate that was announced last among those that were issued."""
        serial = newest_issued(self._index)
        return self._index.one(serial) if serial else None

    def warnings(self, now: datetime) -> tuple[str, ...]:
        """The sentences of those checks that found something amiss, and what the index has to say."""
        amiss = (check.text for check in self.checks(now) if check.severity >= Severity.WARNING)
        return (*amiss, *self.index_notes)

    def plan_lists(
        self, *, now: datetime, days: int | None = None, ahead_months: int | None = None
    ) -> SignedSet:
        """What `sign_lists` would sign.

        Raises:
            BadInput, Refused: as `sign_lists`.
        """
        if ahead_months is not None and not 1 <= ahead_months <= MAX_AHEAD_MONTHS:
            raise BadInput(
                "no revocation list was signed",
                why=f"lists are signed for 1 to {MAX_AHEAD_MONTHS} months ahead, not {ahead_months}",
                next_step="pass another --ahead",
            )
        current, announced = self.lists, self._told(ANNOUNCED)
        until = None
        if ahead_months is not None:
            until = now + ahead_months * MONTH
        elif current is not None and current.ahead(now):
            # Lists for a time to come keep their end; else the next of the old ones would have a lower
            # number than the one that is signed now.
            until, days = current.last.next_update, days if days is not None else current.days
        length = days if days is not None else DEFAULT_DAYS
        slots = schedule(
            self.issuing,
            first_number=max(announced.last.number + 1 if announced else 1, _number_of(now)),
            now=now,
            backdate=max(BACKDATE, timedelta(seconds=self.policy.max_clock_skew_s)),
            days=length,
            until=until,
            not_before=current.former(now).this_update if current else None,
        )
        issuers = tuple(each.issuing_sha256 for each in self.rotation.listing)
        return SignedSet(whole_second(now), length, revoked_count(self._index), slots, issuers=issuers)

    def sign_lists(
        self,
        *,
        signer: Signer,
        now: datetime,
        actor: str,
        days: int | None = None,
        ahead_months: int | None = None,
    ) -> SignedSet:
        """Sign a list for now, and those for the months ahead; where there are such, they are signed anew.

        Announced in the audit, signed, judged, stored, recorded. A run that ends on the way has used up
        its numbers; the lists of before stay as they are until the next run.

        Raises:
            BadInput: `days` or `ahead_months` is out of range.
            Refused: the authority has expired, or a list was held back.
            Damaged: it could not be written down, or the signer is not this authority's.
        """
        if key_sha256(signer.public_key) != _key_of(self.issuing):
            raise damaged("the signer's key is not that of the issuing authority")
        with self._changing(now):
            planned = self.plan_lists(now=now, days=days, ahead_months=ahead_months)
            before = self.lists.former(now) if self.lists else None
            self._refuse_overtaken()
            issuers = [self._lister(each, before, signer) for each in self.rotation.listing]
            self._append(ANNOUNCED, planned.to_body(), now=now, actor=actor)
            hashes: dict[int, str] = {}
            for slot in planned.slots:
                data = b"".join(each.sign(slot, before) for each in issuers)
                self._store_list(slot, data)
                hashes[slot.number] = hashlib.sha256(data).hexdigest()
                before = Former(slot.this_update, _NEVER)
            signed = planned.with_hashes(hashes)
            self._append(SIGNED, signed.to_body(), now=now, actor=actor)
            self._clear_lists(signed.slots)
        return signed

    def due_list(self, now: datetime) -> tuple[Slot, bytes]:
        """The list that is due, in PEM form; no passphrase is needed for it.

        Raises:
            Refused: none was signed, or the last one has ended.
            Damaged: its file is gone, or is not the one that was signed.
        """
        current = self.lists
        if current is None:
            raise Refused(
                "there is no revocation list",
                why="none was signed yet",
                next_step="sign one: node-ca crl --out FILE, or some for the months ahead: node-ca crl --ahead 6",
            )
        slot = current.due(now)
        if now >= slot.next_update:
            raise Refused(
                f"revocation list {slot.number} is not handed out",
                why=f"it ended at {timestamp(slot.next_update)}: every node would refuse every other one",
                next_step="sign a new one: node-ca crl --out FILE, or some for the months ahead: node-ca crl --ahead 6",
            )
        return slot, self.read_list(slot)

    def read_list(self, slot: Slot) -> bytes:
        """One of the lists that were signed last, in PEM form.

        Raises:
            Damaged: its file is gone, or is not the one that was signed.
        """
        file = self.list_file(slot)
        try:
            data = file.read_bytes()
        except OSError as error:
            raise _spoilt(file, error.strerror or str(error)) from error
        if self.lists is None or hashlib.sha256(data).hexdigest() != self.lists.hashes.get(slot.number):
            raise _spoilt(file, "it is not the list that was signed")
        return data

    def list_file(self, slot: Slot) -> Path:
        """Where a signed list lies."""
        return self.layout.crls / f"{slot.number}-{slot.this_update:%Y%m%dT%H%M%SZ}.pem"

    def crl_installed(self, node: str, number: int, *, now: datetime, actor: str) -> None:
        """Record that a node has a list; the same again changes nothing.

        Raises:
            BadInput: no list of that number was signed.
        """
        with self._changing(now):
            signed = self.lists
            if signed is None or not 0 < number <= signed.last.number:
                raise BadInput(
                    f"revocation list {number} is not recorded as installed on {node}",
                    why="no list of that number was signed",
                    next_step="name the number that node-ca crl showed",
                )
            if held_list(self._index, node) != number:
                self._append(INSTALLED, {"node": node, "number": number}, now=now, actor=actor)

    def holding_older_crl(self, now: datetime) -> tuple[Holder, ...]:
        """The nodes in service whose list is not the one that is due; none where no list was signed."""
        return holders_of_older(self._index, self.lists.due(now).number, now) if self.lists else ()

    def to_revoke(self, target: str) -> tuple[Record, ...]:
        """The certificates meant by a node's name, a serial number or a SHA-256 fingerprint, oldest first.

        Raises:
            BadInput: there is none; what begins like it is named.
            Refused: it is an authority's, or it means more than one.
        """
        named, number = self.records(target), _number(target)
        self._refuse_authority("" if named else target, number)
        numbered = self._index.one(number.lstrip("0")) or self._index.one(number)
        if named and numbered is not None and numbered not in named:
            raise Refused(
                f"{target} may mean two things",
                why=f"it is a node's name, with {len(named)} certificates, and the number of certificate "
                f"{numbered.serial} of {numbered.node}",
                next_step="put a colon into the number, or give the serial number of the node's certificate: "
                + " or ".join(record.serial for record in named[-2:]),
            )
        found = named or ((numbered,) if numbered is not None else ())
        if not found:
            hints: tuple[str, ...] = ()
            if len(number) >= _ENOUGH_TO_GUESS:
                hints = tuple(f"{serial} of {node}" for serial, node in beginning_like(self._index, number))
            raise BadInput(
                f"no certificate {target!r} is known",
                why="no node has that name, and no certificate that serial number or SHA-256 fingerprint"
                + (f"; it begins like {', '.join(hints)}" if hints else ""),
                next_step="write the number whole" if hints else "node-ca list shows every certificate",
            )
        return found

    def _refuse_overtaken(self) -> None:
        """With the lock held: what this object took up when it was opened must still be so.

        Raises:
            Refused: another process has changed which authority issues.
        """
        if told(self._index) != self.rotation:
            raise Refused(
                "nothing was signed",
                why="another process went on with the rotation of this authority meanwhile",
                next_step="run the command again",
            )

    def _lister(self, generation: Generation, before: Former | None, signer: Signer) -> Lister:
        issuing, root = self.certificates_of(generation)
        until = self.rotation.until(generation)
        revoked = to_name(self._index, before, since=generation.since, until=until)
        if generation == self.rotation.current:
            return Lister(issuing, root, signer, revoked)
        if generation == self.rotation.next:
            revoked = ()  # it issued nothing yet
        if not isinstance(signer, Keyring):
            raise Refused(
                "no revocation list was signed",
                why="during a rotation each set speaks for two authorities, and only one key was opened",
                next_step="run the command again",
            )
        return Lister(issuing, root, signer.other(issuing), revoked)

    def _refuse_authority(self, target: str, number: str) -> None:
        def means(certificate: x509.Certificate, word: str) -> bool:
            own = {f"{certificate.serial_number:x}", fingerprint(certificate)}
            return target == word or (bool(number) and bool(own & {number, number.lstrip("0")}))

        if means(self.root, "root"):
            raise Refused(
                "the root cannot revoke itself",
                why="a list that says so would be signed by the very key that is not to be trusted, "
                "and verifiers do not look for one: trust in a root is a node's bundle, not a signature",
                next_step="make a new root, bring it to every node, and take the old one out of their bundles: "
                "node-ca rotate prepare --new-root",
            )
        if means(self.issuing, "issuing"):
            raise Refused(
                "the issuing authority is not revoked here",
                why="only the root can revoke it, and the root's key is away; nodes are given no list of the root's",
                next_step="give it a successor and a new root; each node stops trusting this one when its root "
                "leaves the node's bundle: node-ca rotate prepare --new-root",
            )

    def _told(self, kind: str) -> SignedSet | None:
        body = self._index.latest(kind)
        try:
            return SignedSet.from_body(body) if body is not None else None
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(f"the audit's last line of kind {kind} makes no sense ({error})") from error

    def _store_list(self, slot: Slot, data: bytes) -> None:
        try:
            self.layout.crls.mkdir(mode=0o700, exist_ok=True)
            write_whole(self.list_file(slot), data, mode=0o644)
        except OSError as error:
            raise Damaged(
                "the revocation lists were not signed",
                why=f"one could not be stored in {self.layout.crls}: {error.strerror or error}",
                next_step="make room on that disk, then run the command again",
            ) from error

    def _clear_lists(self, slots: tuple[Slot, ...]) -> None:
        """Take away the lists that these replace; what cannot be taken away is never handed out."""
        kept = {self.list_file(slot) for slot in slots}
        with contextlib.suppress(OSError):
            for file in self.layout.crls.iterdir():
                if file not in kept:
                    file.unlink()


def _number_of(now: datetime) -> int:
    """The least number that a list signed now may have, as in the serial numbers of DNS: 202611301200.

    Were they counted from 1, an old copy of the authority's folder would give numbers out a second time.
    """
    return int(now.astimezone(UTC).strftime("%Y%m%d%H%M"))


def _key_of(certificate: x509.Certificate) -> str | None:
    key = certificate.public_key()
    return key_sha256(key) if is_ours(key) else None


def _number(text: str) -> str:
    """A serial number or fingerprint as people write it: in either case, with or without colons or 0x."""
    plain = text.strip().lower().removeprefix("sha256:").removeprefix("0x").replace(":", "")
    return plain if _HEX.fullmatch(plain) else ""


def _spoilt(file: Path, why: str) -> Damaged:
    return Damaged(
        f"the revocation list {file} cannot be handed out",
        why=why,
        next_step="sign it anew: node-ca crl --out FILE",
    )
