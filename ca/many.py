"""The part of an authority that certifies many nodes in one go."""

from abc import abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from cryptography import x509

from ca.batch import Asked, Batch, storing
from ca.issue import Issued, sign
from ca.keys import is_ours
from ca.layout import damaged
from ca.profile import fingerprint, key_sha256, pem
from ca.record import Record, intent, issued
from ca.revoking import RevokingAuthority
from ca.rules import Machine
from ca.signer import Signer


class ManyAuthority(RevokingAuthority):
    """Issues by the batch: everything is announced at once, and recorded at once."""

    @abstractmethod
    def _append_all(
        self, lines: Sequence[tuple[str, Mapping[str, Any]]], *, now: datetime, actor: str
    ) -> None: ...

    @abstractmethod
    def _close_forgotten(self, now: datetime) -> None: ...

    @abstractmethod
    def _replaced_by(self, machine: Machine, now: datetime, *, replace: bool) -> tuple[str, ...]: ...

    @abstractmethod
    def _new_serial(self, serials: Callable[[], int], taken: Container[int] = ()) -> int: ...

    @abstractmethod
    def _failing(self, *serials: str, now: datetime, actor: str) -> AbstractContextManager[None]: ...

    def issue_many(
        self,
        requests: Iterable[Asked],
        *,
        signer: Signer,
        now: datetime,
        actor: str,
        replace: bool = False,
        serials: Callable[[], int] = x509.random_serial_number,
    ) -> tuple[Issued, ...]:
        """Certify many nodes at once, all of them or none; as `issue`, but the disk is waited for three times.

        Raises:
            BadInput, Refused: as `issue`; every fault of every request is told, and nothing was written.
            Damaged: it could not be written down.
        """
        self._check_signer(signer)
        with self._changing(now):
            self._close_forgotten(now)
            batch = self._batch(requests, now=now, actor=actor, replace=replace, serials=serials)
            if not batch.drafts:
                return ()
            self._append_all([("intent", intent(d.record)) for d in batch.drafts], now=now, actor=actor)
            with (
                self._failing(*(d.record.serial for d in batch.drafts), now=now, actor=actor),
                storing(self.layout.issued) as put,
            ):
                leaves, above = [], self.issuing_pem
                for number, asked in enumerate(batch.drafts):
                    leaf = sign(
                        asked,
                        signer=signer,
                        issuing=self.issuing,
                        root=self.root,
                        now=now,
                        one_of_many=number > 0,
                    )
                    leaves.append(leaf)
                    put(f"{asked.record.serial}.pem", pem(leaf) + above)
            lines = [
                ("issued", issued(asked.record.serial, fingerprint(leaf), replaces))
                for asked, leaf, replaces in zip(batch.drafts, leaves, batch.replaced, strict=True)
            ]
            self._append_all(lines, now=now, actor=actor)
            head = self.head
        return tuple(
            Issued.of(asked.record, leaf, above, audit_head=head)
            for asked, leaf in zip(batch.drafts, leaves, strict=True)
        )

    def rehearse_many(
        self, requests: Iterable[Asked], *, now: datetime, actor: str, replace: bool = False
    ) -> tuple[Record, ...]:
        """What `issue_many` would announce; nothing is written.

        Raises:
            BadInput, Refused: as `issue_many` would.
        """
        batch = self._batch(
            requests, now=now, actor=actor, replace=replace, serials=x509.random_serial_number
        )
        return tuple(asked.record for asked in batch.drafts)

    def _batch(
        self,
        requests: Iterable[Asked],
        *,
        now: datetime,
        actor: str,
        replace: bool,
        serials: Callable[[], int],
    ) -> Batch:
        batch = Batch(
            self.policy,
            self.issuing,
            replaces=lambda machine: self._replaced_by(machine, now, replace=replace),
            serials=lambda taken: self._new_serial(serials, taken),
            replace=replace,
            now=now,
            actor=actor,
        )
        batch.add_all(requests)
        return batch

    def _check_signer(self, signer: Signer) -> None:
        own = self.issuing.public_key()
        if not is_ours(own) or key_sha256(signer.public_key) != key_sha256(own):
            raise damaged("the signer's key is not that of the issuing authority")
