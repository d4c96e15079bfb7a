"""The part of an authority that makes way for its successor, phase by phase."""

import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from cryptography import x509

from ca.bundled import BundledAuthority
from ca.census import (
    holders_of_lists_before,
    not_ended_below,
)
from ca.custody import is_on_token, unlock_issuing_key
from ca.external import read_signed, refuse_unfit, waiting_request
from ca.keystore import DEFAULT_KDF, Kdf, read_key
from ca.layout import Layout, damaged
from ca.phases import Phase
from ca.profile import fingerprint
from ca.rotation import (
    ACTIVATED,
    BEGUN,
    DISTRIBUTED,
    PREPARED,
    RETIRED,
    UNDONE,
    Facts,
    Plan,
    Stage,
    plan,
    refuse_blocked,
    remaining,
)
from ca.signer import KeySigner, Signer
from ca.successor import (
    WAITING,
    Keys,
    Successor,
    certify,
    clear_away,
    judge,
    keep,
    keep_waiting,
    organisation_of,
    write_root_key,
)
from inventory.errors import Refused
from inventory.files import write_whole


class RotatingAuthority(BundledAuthority):
    """Changes its issuing authority, or its root, without a moment in which two nodes cannot talk."""

    @abstractmethod
    def unlock(self, passphrase: bytes) -> Signer:
        """The issuing key, ready to sign."""

    def plan_rotation(self, now: datetime) -> Plan:
        """The next phase, and what blocks it."""
        return plan(self.rotation, self._facts(now))

    def left_over(self) -> Iterator[Path]:
        """What phases that were cut short did not take away: keys of the past, and parts of no successor."""
        there = {each.id for each in self.rotation.all}
        if self.rotation.stage is Stage.WAITING:
            there.add(WAITING)
        if self.layout.successors.exists():
            yield from (each for each in self.layout.successors.iterdir() if each.name not in there)
        for each in self.rotation.retired:
            of = Layout(self.layout.folder, each.id)
            yield from (file for file in (of.issuing_key, of.issuing_token) if file.exists())

    @property
    def has_left_over(self) -> bool:
        """Whether nothing is to be done but taking away what a phase left."""
        return self.rotation.stage is Stage.NONE and any(self.left_over())

    @property
    def nothing_to_distribute(self) -> bool:
        """Whether the bundle will not change before the successor is activated."""
        prepared = self.rotation.stage is Stage.PREPARED and not self.rotation.changes_root
        return prepared or self.rotation.stage is Stage.DISTRIBUTED

    def prepare(
        self,
        *,
        secret: bytes,
        root_key: Path,
        root_secret: bytes,
        new_root: bool = False,
        root_out: Path | None = None,
        now: datetime,
        actor: str,
        kdf: Kdf = DEFAULT_KDF,
        serials: Callable[[], int] = x509.random_serial_number,
    ) -> None:
        """Make the successor: announced, signed, judged, stored, recorded; nothing uses it yet.

        `secret` must open the issuing key of now, and will open the new one; a new root's key gets `root_secret`.
        Where revocation lists are in use they are signed anew, for both.

        Raises:
            BadInput: a passphrase is wrong.
            Refused: a rotation is under way, the key is in a token, or what was made would not count.
            Damaged: it could not be written down.
        """
        self.refuse_phase(Phase.PREPARE, now)
        old_root = read_key(root_key, certificate=self.root, passphrase=root_secret, floor=self._kdf_floor)
        self.unlock(secret)
        away = root_out or self.layout.take_away
        with self._changing(now):
            self._refuse_overtaken()
            if new_root:
                begun = self.rotation.begun or {}
                clear_away(away, begun.get("root_key_sha256"))
            keys = self._begin(new_root=new_root, waits=False, now=now, actor=actor)
            successor = certify(
                keys,
                root_signer=old_root,
                old_root=self.root,
                former=self.issuing,
                policy=self.policy,
                now=now,
                serials=serials,
            )
            place = self.rotation.current.root_key
            if new_root:
                written = write_root_key(away, successor, secret=root_secret, kdf=kdf)
                place = str(written.absolute())
            self._prepared(successor, place, secret=secret, kdf=kdf, now=now, actor=actor)
        self._list_anew(secret, now=now, actor=actor)

    def request_successor(
        self, request_out: Path, *, secret: bytes, now: datetime, actor: str, kdf: Kdf = DEFAULT_KDF
    ) -> None:
        """Ask a root that is kept elsewhere for the successor's certificate; `take_successor` goes on.

        Raises:
            BadInput: the passphrase is wrong.
            Refused: a rotation is under way, the key is in a token, or the request's file exists.
            Damaged: it could not be written down.
        """
        self.refuse_phase(Phase.PREPARE, now)
        if request_out.exists() or request_out.is_symlink():
            raise Refused(
                "nothing was prepared",
                why=f"{request_out} exists, and a request replaces no file",
                next_step="choose another place for the request, or move that file away yourself",
            )
        self.unlock(secret)
        with self._changing(now):
            self._refuse_overtaken()
            keys = self._begin(new_root=False, waits=True, now=now, actor=actor)
            text = keep_waiting(
                self.layout,
                keys,
                policy=self.policy,
                organisation=organisation_of(self.issuing),
                secret=secret,
                kdf=kdf,
            )
        write_whole(request_out, text, mode=0o644)

    def take_successor(
        self,
        certificate_file: Path,
        root_file: Path | None,
        *,
        secret: bytes,
        now: datetime,
        actor: str,
        kdf: Kdf = DEFAULT_KDF,
    ) -> None:
        """Take what a root kept elsewhere signed: the root of now (None), or another one.

        Raises:
            BadInput: a file cannot be read, or the passphrase is wrong.
            Refused: nothing waits for it, or it is not what was asked for; every fault is told.
        """
        waiting = Layout(self.layout.folder, WAITING)
        if self.rotation.stage is not Stage.WAITING or not waiting.request.exists():
            raise Refused(
                "nothing was prepared",
                why="no successor waits for its certificate",
                next_step="write a request first: node-ca rotate prepare --external-root CSR --do",
            )
        asked = waiting_request(waiting)
        issuing, root = read_signed(certificate_file, root_file or self.layout.root)
        refuse_unfit(issuing, root=root, asked=asked, policy=self.policy, now=now)
        key = read_key(waiting.waiting_key, certificate=asked, passphrase=secret, floor=self._kdf_floor)
        successor = Successor(issuing, root, key)
        judge(successor, old_root=self.root, policy=self.policy, now=now)
        with self._changing(now):
            self._refuse_overtaken()
            self._prepared(successor, "", secret=secret, kdf=kdf, now=now, actor=actor)
        self._list_anew(secret, now=now, actor=actor)

    def distribute(self, *, now: datetime, actor: str) -> None:
        """From now on the bundle holds the old root and the new one.

        Raises:
            Refused: it is not the turn of this phase.
        """
        self.refuse_phase(Phase.DISTRIBUTE, now)
        self._go_on(DISTRIBUTED, {}, now=now, actor=actor)

    def activate(self, *, secret: bytes, forced: Sequence[str] = (), now: datetime, actor: str) -> None:
        """From now on the successor issues; `forced` are nodes that may be left behind.

        Raises:
            BadInput: the passphrase does not open the successor's key.
            Refused: it is not the turn of this phase, or nodes would be left behind; they are named.
        """
        self.refuse_phase(Phase.ACTIVATE, now, forced)
        successor = self.rotation.next
        if successor is None:
            raise damaged("no successor is prepared")
        self._unlock_other(self.certificates_of(successor)[0], secret)
        self._close_open(now)
        self._go_on(ACTIVATED, {"forced": sorted(forced)}, now=now, actor=actor, phase=Phase.ACTIVATE)

    def retire(self, *, now: datetime, actor: str) -> None:
        """The former authority ends: its key is deleted, and its root, where that changed, leaves the bundle.

        Raises:
            Refused: it is not the turn of this phase, or something still depends on it.
        """
        if self.rotation.stage is Stage.NONE and self.rotation.retired:
            self.clear_left_over(now)
            return
        self.refuse_phase(Phase.RETIRE, now)
        self._go_on(RETIRED, {}, now=now, actor=actor, phase=Phase.RETIRE)
        self.clear_left_over(now)

    def undo_rotation(self, *, now: datetime, actor: str) -> None:
        """Take back what was prepared, and perhaps distributed, before it is activated.

        Raises:
            Refused: there is nothing to take back, or it is too late.
        """
        stage = self.rotation.stage
        if stage is Stage.ACTIVATED or (stage is Stage.NONE and self.rotation.begun is None):
            late = stage is Stage.ACTIVATED
            raise Refused(
                "nothing was taken back",
                why="the successor issues already" if late else "no rotation is under way",
                next_step="finish it, and rotate once more if need be: node-ca rotate"
                if late
                else "node-ca rotate",
            )
        self._go_on(UNDONE, {}, now=now, actor=actor)
        self.clear_left_over(now)

    def clear_left_over(self, now: datetime) -> None:
        """Take away what phases of the past have left."""
        with self._changing(now):
            self._refuse_overtaken()
            for each in [*self.left_over()]:
                if each.is_dir():
                    shutil.rmtree(each)
                else:
                    each.unlink(missing_ok=True)

    def refuse_phase(self, wanted: Phase, now: datetime, forced: Sequence[str] = ()) -> None:
        """Refuse a phase whose turn it is not, or that is blocked.

        Raises:
            Refused: with what blocks it, and what mends that.
        """
        planned = self.plan_rotation(now)
        if planned.phase is not wanted:
            raise Refused(
                f"nothing was done: it is not the turn of {wanted}",
                why=f"the rotation stands at {self.rotation.stage}, and {planned.phase} comes next",
                next_step="node-ca rotate shows where it stands",
            )
        if wanted is Phase.PREPARE and is_on_token(self.layout):
            raise Refused(
                "nothing was prepared",
                why="the issuing key is in a token, and only keys in files are rotated",
                next_step="make a new authority with a new object in the token, and onboard every node to it",
            )
        refuse_blocked(wanted, remaining(planned.blocks, forced))

    def refuse_during_rotation(self) -> None:
        """Until a rotation is finished, one passphrase opens each of its keys.

        Raises:
            Refused: one is under way.
        """
        if len(self.rotation.listing) > 1 or self.rotation.stage is Stage.WAITING:
            raise Refused(
                "the passphrase was not changed",
                why=f"a rotation is under way ({self.rotation.stage}), and its keys share one passphrase",
                next_step="finish it first, or take it back: node-ca rotate shows where it stands",
            )

    def _facts(self, now: datetime) -> Facts:
        standing, lists = self.rotation, self.lists
        lacks = standing.next is not None and lists is not None
        if lacks and standing.next is not None and lists is not None:
            lacks = standing.next.issuing_sha256 not in lists.issuers
        live: tuple[str, ...] = ()
        revoked, ends = 0, None
        if standing.former is not None:
            until = standing.until(standing.former)
            live, revoked, ends = not_ended_below(self._index, standing.former.since, until, now)
        older: tuple[str, ...] = ()
        if standing.next is not None and lists is not None:
            older = holders_of_lists_before(self._index, lists.slots[0].number, now)
        return Facts(
            lacking=tuple(each.node for each in self.holding_older_bundle(now)),
            lists_lack=lacks,
            holding_older=older,
            live_below=live,
            ends=ends,
            revoked_below=revoked,
        )

    def _begin(self, *, new_root: bool, waits: bool, now: datetime, actor: str) -> Keys:
        keys = Keys.fresh(self.issuing, self.root, new_root=new_root)
        self._append(BEGUN, {"waits": waits, **keys.to_body()}, now=now, actor=actor)
        self._reload()
        for each in [*self.left_over()]:  # of a run that stopped
            shutil.rmtree(each) if each.is_dir() else each.unlink(missing_ok=True)
        if waits:
            shutil.rmtree(self.layout.successors / WAITING, ignore_errors=True)
        return keys

    def _prepared(
        self, successor: Successor, root_key: str, *, secret: bytes, kdf: Kdf, now: datetime, actor: str
    ) -> None:
        shutil.rmtree(self.layout.successors / successor.id, ignore_errors=True)  # of a run that stopped
        keep(self.layout, successor, secret=secret, kdf=kdf)
        body = {
            "id": successor.id,
            "root_sha256": fingerprint(successor.root),
            "issuing_sha256": fingerprint(successor.issuing),
            "root_key": root_key,
        }
        self._append(PREPARED, body, now=now, actor=actor)
        self._reload()
        shutil.rmtree(self.layout.successors / WAITING, ignore_errors=True)

    def _list_anew(self, secret: bytes, *, now: datetime, actor: str) -> None:
        if self.lists is not None:
            self.sign_lists(signer=self.unlock(secret), now=now, actor=actor)

    def _close_open(self, now: datetime) -> None:
        with self._changing(now):
            self._close_forgotten(now)

    def _go_on(
        self, kind: str, more: dict[str, object], *, now: datetime, actor: str, phase: Phase | None = None
    ) -> None:
        """One line of the audit is the whole step; what blocks it is looked at once more, under the lock."""
        with self._changing(now):
            self._refuse_overtaken()
            if phase is not None:
                forced = [str(node) for node in _listed(more.get("forced"))]
                refuse_blocked(phase, remaining(self.plan_rotation(now).blocks, forced))
            about = self.rotation.next or self.rotation.former
            body = {"id": about.id if about else "", "bundle_sha256": self.bundle_sha256, **more}
            self._append(kind, body, now=now, actor=actor)
            self._reload()

    def _unlock_other(self, owner: x509.Certificate, passphrase: bytes) -> KeySigner | Signer:
        for each in self.rotation.listing:
            if each.issuing_sha256 == fingerprint(owner):
                layout = Layout(self.layout.folder, each.id)
                return unlock_issuing_key(layout, owner, secret=passphrase, floor=self._kdf_floor)
        raise damaged("no key of that authority is kept here")


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []
