"""One authority on this host: it writes down each step before it takes it."""

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from ca.custody import refuse_on_token, unlock_issuing_key
from ca.issue import Issued, draft, sign
from ca.keystore import DEFAULT_KDF, Kdf, rewrite_key
from ca.layout import damaged, store
from ca.making import DEFAULT_ORGANISATION, Plan, Secrets, make_authority
from ca.profile import fingerprint, pem
from ca.record import Record, Standing, intent, issued
from ca.request import read_request
from ca.rotating import RotatingAuthority
from ca.rules import Machine, is_first_use, refuse_foreign, replaced_by
from ca.signer import Keyring, Signer
from inventory.errors import Damaged, Refused
from inventory.files import lock
from inventory.model import HostKey

__all__ = ["Authority", "Issued"]

LOCK_TIMEOUT_S = 60.0
_FORGOTTEN = "abandoned: the process ended between intent and issue"


class Authority(RotatingAuthority):
    """An authority that can be changed; `open` or `create` gives one. Each change holds the folder's lock."""

    @classmethod
    def create(
        cls,
        ca_dir: Path,
        *,
        policy_file: Path,
        passphrase: bytes,
        root_passphrase: bytes | None = None,
        now: datetime,
        kdf: Kdf = DEFAULT_KDF,
        root_out: Path | None = None,
        organisation: str = DEFAULT_ORGANISATION,
        actor: str = "node-ca",
    ) -> "Authority":
        """Make an authority in `ca_dir`, which must not exist; None as root passphrase means the same one.

        Raises:
            Refused: it exists.
            BadInput: the policy has faults, or a passphrase is empty.
        """
        make_authority(
            ca_dir,
            Plan(policy_file=policy_file, organisation=organisation, root_out=root_out),
            passphrases=Secrets(passphrase, passphrase if root_passphrase is None else root_passphrase, kdf),
            actor=actor,
            now=now,
        )
        return cls.open(ca_dir, now=now, kdf_floor=kdf)

    def unlock(self, passphrase: bytes) -> Signer:
        """The issuing key, ready to sign; where it is in a token, its PIN stands for the passphrase.

        Raises:
            BadInput: the passphrase is wrong.
            Refused: the key file is weakly protected, or others can reach it.
            Damaged: it is no key file, or not the certificate's.
        """
        own = unlock_issuing_key(self.layout, self.issuing, secret=passphrase, floor=self._kdf_floor)
        others = [each for each in self.rotation.listing if each != self.rotation.current]
        return Keyring(own, lambda owner: self._unlock_other(owner, passphrase)) if others else own

    def change_passphrase(
        self,
        old: bytes,
        new: bytes,
        *,
        root_key: Path | None = None,
        now: datetime,
        actor: str,
        kdf: Kdf = DEFAULT_KDF,
    ) -> None:
        """Seal the issuing key, or the root's in `root_key`, under another passphrase; recorded before it is done.

        Raises:
            BadInput: the old passphrase is wrong, the new one is empty or the same, or a token holds the key.
            Refused: the key file is weakly protected, or others can reach it, or a rotation is under way.
            Damaged: it is no key file, or another certificate's, or the change could not be recorded.
        """
        if root_key is None:
            refuse_on_token(self.layout)
            self.refuse_during_rotation()
        name = "root" if root_key is not None else "issuing"
        with self._changing(now):
            rewrite_key(
                root_key or self.layout.issuing_key,
                certificate=self.root if root_key is not None else self.issuing,
                passphrase=old,
                new_passphrase=new,
                floor=self._kdf_floor,
                kdf=kdf,
                before=lambda sha256: self._append(
                    "passphrase-changed", {"key": name, "file_sha256": sha256}, now=now, actor=actor
                ),
            )

    def use_ticket(
        self,
        ticket_id: str,
        *,
        node: str,
        vm_uuid: str | None,
        node_key_sha256: str,
        actor: str,
        now: datetime,
        host_keys: Sequence[HostKey] = (),
        machine_id: str | None = None,
        replace: bool = False,
        supersedes: Sequence[str] = (),
    ) -> None:
        """Bind a ticket to one node key, once; the same again is fine, so that a stopped run can go on.

        `supersedes` are the ids of the tickets that this one makes void.

        Raises:
            Refused: it was used for another node, machine or key, or is void; or the key, a host key or the machine-id
                was certified for another node.
        """
        machine = Machine(node, _uuid(vm_uuid), node_key_sha256, tuple(host_keys), machine_id)
        with self._changing(now):
            self._replaced_by(machine, now, replace=replace)
            self._use_ticket(ticket_id, machine, supersedes, actor=actor, now=now)

    def rehearse(
        self,
        csr_pem: bytes,
        *,
        node: str,
        vm_uuid: str | None,
        static_address: str | None,
        now: datetime,
        actor: str,
        replace: bool = False,
        names: Sequence[str] = (),
        addresses: Sequence[str] = (),
    ) -> Record:
        """What `issue` would announce; nothing is written, and its serial number is used by nobody.

        Raises:
            BadInput, Refused: as `issue` would.
        """
        key = read_request(csr_pem, allowed=self.policy.node_keys)
        machine = Machine(node, _uuid(vm_uuid), key.sha256)
        self._replaced_by(machine, now, replace=replace)
        asked = draft(
            key,
            machine,
            static_address=static_address,
            names=names,
            addresses=addresses,
            policy=self.policy,
            issuing=self.issuing,
            serial=x509.random_serial_number(),
            now=now,
            actor=actor,
        )
        return asked.record

    def issue(
        self,
        csr_pem: bytes,
        *,
        node: str,
        vm_uuid: str | None,
        static_address: str | None,
        signer: Signer,
        now: datetime,
        actor: str,
        ticket_id: str | None = None,
        host_keys: Sequence[HostKey] = (),
        machine_id: str | None = None,
        pin: Mapping[str, Any] | None = None,
        replace: bool = False,
        supersedes: Sequence[str] = (),
        serials: Callable[[], int] = x509.random_serial_number,
        names: Sequence[str] = (),
        addresses: Sequence[str] = (),
    ) -> Issued:
        """Certify a node: announced, signed, judged, stored, recorded, and only then returned.

        `pin` is what else was verified of the machine (address, port, user); `pinned` gives it back.
        `replace` lets a name pass to another machine, and revokes the certificates of the former one.
        `supersedes` are the ids of the tickets that this one makes void.
        `names` are those of the policy's names that are wanted (none: all), `addresses` further ones.

        Raises:
            BadInput: the request cannot be read.
            Refused: the policy, the authority's constraints or an earlier certificate forbids it, or a
                judge held the certificate back.
            Damaged: it could not be written down.
        """
        key = read_request(csr_pem, allowed=self.policy.node_keys)
        machine = Machine(node, _uuid(vm_uuid), key.sha256, tuple(host_keys), machine_id)
        self._check_signer(signer)
        with self._changing(now):
            self._close_forgotten(now)
            replaces = self._replaced_by(machine, now, replace=replace)
            asked = draft(
                key,
                machine,
                static_address=static_address,
                names=names,
                addresses=addresses,
                policy=self.policy,
                issuing=self.issuing,
                serial=self._new_serial(serials),
                now=now,
                actor=actor,
                ticket_id=ticket_id,
                pin=pin,
            )
            serial = asked.record.serial
            if ticket_id is not None:
                self._use_ticket(ticket_id, machine, supersedes, actor=actor, now=now)
            self._append("intent", intent(asked.record), now=now, actor=actor)
            with self._failing(serial, now=now, actor=actor):
                leaf = sign(asked, signer=signer, issuing=self.issuing, root=self.root, now=now)
                store(self.layout, serial, pem(leaf) + self.issuing_pem)
            self._append("issued", issued(serial, fingerprint(leaf), replaces), now=now, actor=actor)
            head = self.head
        return Issued.of(self.find(serial), leaf, self.issuing_pem, audit_head=head)

    def installed(self, serial: str, *, now: datetime, actor: str) -> Record:
        """Record that a certificate is on its node; a second time changes nothing.

        Raises:
            BadInput: no such certificate.
            Refused: it was never issued, or it was revoked.
        """
        with self._changing(now):
            record = self.find(serial)
            if record.standing is Standing.INSTALLED:
                return record
            if record.standing is not Standing.ISSUED:
                raise Refused(
                    f"{record.serial} is not recorded as installed",
                    why=f"it is {record.standing}",
                    next_step="issue a new certificate",
                )
            # With the certificate came the bundle that this authority gives out.
            body = {"serial": record.serial, "bundle_sha256": self.bundle_sha256}
            self._append("installed", body, now=now, actor=actor)
        return self.find(serial)

    def revoke(self, serial: str, *, reason: str, now: datetime, actor: str) -> Record:
        """Record that a certificate must not be trusted any more; a second time changes nothing.

        Raises:
            BadInput: no such certificate.
            Refused: it was never issued.
        """
        with self._changing(now):
            record = self.find(serial)
            if record.standing is Standing.REVOKED:
                return record
            if record.standing not in {Standing.ISSUED, Standing.INSTALLED}:
                raise Refused(
                    f"{record.serial} is not revoked",
                    why=f"it was never issued: {record.standing}",
                    next_step="nothing needs to be done; node-ca list shows every certificate",
                )
            self._append("revoked", {"serial": record.serial, "why": reason}, now=now, actor=actor)
        return self.find(serial)

    @contextlib.contextmanager
    def _changing(self, now: datetime) -> Iterator[None]:
        with lock(self.layout.lock, timeout_s=LOCK_TIMEOUT_S):
            if rest := self._index.catch_up():
                self._ledger.mend(rest, now=now)
                self._index.catch_up()
            yield

    def _append(self, kind: str, body: Mapping[str, Any], *, now: datetime, actor: str) -> None:
        self._append_all([(kind, body)], now=now, actor=actor)

    def _append_all(
        self, lines: Sequence[tuple[str, Mapping[str, Any]]], *, now: datetime, actor: str
    ) -> None:
        self._ledger.write(lines, now=now, actor=actor)
        self._index.catch_up()

    def _replaced_by(self, machine: Machine, now: datetime, *, replace: bool) -> tuple[str, ...]:
        """The serials that lose the name; raises Refused where the machine may not have it."""
        refuse_foreign(self._index.like(machine), machine, replace=replace)
        return replaced_by(self._index.live_of(machine.node, now), machine, now=now, replace=replace)

    def _use_ticket(
        self, ticket_id: str, machine: Machine, supersedes: Sequence[str], *, actor: str, now: datetime
    ) -> None:
        self.refuse_void(ticket_id, node=machine.node)
        if is_first_use(self._index.ticket(ticket_id), ticket_id, machine):
            body = {
                "ticket_id": ticket_id,
                "node": machine.node,
                "vm_uuid": machine.vm_uuid,
                "key_sha256": machine.key_sha256,
                "supersedes": list(supersedes),
            }
            self._append("ticket-used", body, now=now, actor=actor)

    def _close_forgotten(self, now: datetime) -> None:
        """With the lock held, whoever left an intent open is dead; what it signed never left.

        Raises:
            Refused: another process has activated a successor since this authority was opened.
        """
        self._refuse_overtaken()
        closed = [("failed", {"serial": record.serial, "why": _FORGOTTEN}) for record in self.open_intents]
        if closed:
            self._append_all(closed, now=now, actor="node-ca")

    def _new_serial(self, serials: Callable[[], int], taken: Container[int] = ()) -> int:
        for _ in range(8):
            serial = serials()
            if serial not in taken and not self._index.has(f"{serial:x}"):
                return serial
        raise damaged("random serial numbers repeat themselves, so this host's randomness is broken")

    @contextlib.contextmanager
    def _failing(self, *serials: str, now: datetime, actor: str) -> Iterator[None]:
        """Record a failure between intent and issue; what cannot even record it leaves the intent open."""
        try:
            yield
        except Exception as error:
            with contextlib.suppress(Damaged):
                why = " ".join(str(error).split()) or type(error).__name__
                failed = [("failed", {"serial": serial, "why": why}) for serial in serials]
                self._append_all(failed, now=now, actor=actor)
            raise


def _uuid(text: str | None) -> str | None:
    """Firmware and tools write a uuid in either case."""
    return text.lower() if text is not None else None
