"""An authority as it lies in its folder: opened, verified and read; nothing here changes it."""

from datetime import datetime
from pathlib import Path
from typing import Self

from cryptography import x509

from ca.health import warnings
from ca.issue import Issued
from ca.keystore import KDF_FLOOR, Kdf, check_belongs, check_private
from ca.layout import Layout, check_folder, damaged, read_certificate
from ca.ledger import Ledger
from ca.policy import Policy
from ca.profile import fingerprint, pem, timestamp
from ca.record import Book, Pinned, Record, Standing
from inventory.document import load
from inventory.errors import BadInput, Refused


class OpenedAuthority:
    """Everything of an authority that needs no passphrase."""

    def __init__(
        self,
        layout: Layout,
        policy: Policy,
        *,
        root: x509.Certificate,
        issuing: x509.Certificate,
        kdf_floor: Kdf,
    ) -> None:
        """Use `open`, which verifies what it passes here."""
        self.layout = layout
        self.policy = policy
        self.root = root
        self.issuing = issuing
        self._kdf_floor = kdf_floor
        self._ledger = Ledger(layout.audit)
        self._book = Book()
        self._taken = 0

    @classmethod
    def open(cls, ca_dir: Path, *, now: datetime, kdf_floor: Kdf = KDF_FLOOR) -> Self:
        """Read and verify everything that needs no passphrase.

        Raises:
            BadInput: there is no authority, or its policy has faults.
            Refused: others could reach its key or change its files, or the clock stands before its birth.
            Damaged: its parts contradict themselves.
        """
        check_folder(ca_dir)
        layout = Layout(ca_dir)
        check_private(layout.issuing_key)
        root, issuing = read_certificate(layout.root), read_certificate(layout.issuing)
        check_belongs(layout.issuing_key, issuing)
        self = cls(layout, load(layout.policy, Policy), root=root, issuing=issuing, kdf_floor=kdf_floor)
        self._refresh()
        began = self._book.beginning
        if not began:
            raise damaged(f"the audit in {ca_dir} has no beginning")
        if (began["root_sha256"], began["issuing_sha256"]) != (fingerprint(root), fingerprint(issuing)):
            raise damaged(f"{ca_dir}: root.pem or issuing.pem is not the one that the audit began with")
        if now < issuing.not_valid_before_utc:
            raise Refused(
                f"{ca_dir} is not used",
                why=f"this host's clock says {timestamp(now)}, before the authority was made",
                next_step="set the clock of this host",
            )
        return self

    @property
    def bundle_pem(self) -> bytes:
        """What nodes trust: the root alone."""
        return pem(self.root)

    @property
    def issuing_pem(self) -> bytes:
        """The issuing authority's certificate."""
        return pem(self.issuing)

    @property
    def fingerprint_sha256(self) -> str:
        """Of the root's certificate, hex: how people name this authority to each other."""
        return fingerprint(self.root)

    @property
    def root_key(self) -> Path:
        """Where the root's key was written; the holder takes it away from there."""
        return Path(self._book.beginning["root_key"])

    @property
    def head(self) -> str:
        """The hash of the audit's last line, hex."""
        return self._ledger.head

    @property
    def entries(self) -> int:
        """How many lines the audit has."""
        return len(self._ledger.entries)

    @property
    def open_intents(self) -> tuple[Record, ...]:
        """What was about to be signed and has no end in the audit; the next issue closes it."""
        return self._book.open()

    def warnings(self, now: datetime) -> tuple[str, ...]:
        """What the holder should see to; for the end of every command."""
        return tuple(
            warnings(
                self.layout,
                policy=self.policy,
                root=self.root,
                issuing=self.issuing,
                root_key=self.root_key,
                unfinished=self.open_intents,
                now=now,
            )
        )

    def find(self, serial: str) -> Record:
        """The record of a serial number: hex in either case, with or without colons.

        Raises:
            BadInput: there is none.
        """
        wanted = serial.replace(":", "").lower().lstrip("0")
        if wanted not in self._book.records:
            raise BadInput(
                f"no certificate {serial!r} is known",
                why="the audit has no such serial number and no such node",
                next_step="node-ca list shows every certificate",
            )
        return self._book.records[wanted]

    def records(self, node: str | None = None) -> tuple[Record, ...]:
        """Every certificate, or those of a node's name, oldest first."""
        return tuple(record for record in self._book.records.values() if node is None or record.node == node)

    def look_up(self, target: str) -> tuple[Record, ...]:
        """The certificate of a serial number, or those of a node's name, oldest first.

        Raises:
            BadInput: there is neither.
        """
        return self.records(target) or (self.find(target),)

    def pinned(self, node: str) -> Pinned | None:
        """Who a node is, by its newest certificate that was issued and not revoked; None: none was."""
        kept = {Standing.ISSUED, Standing.INSTALLED}
        newest = [record for record in self.records(node) if record.standing in kept][-1:]
        return Pinned.of(newest[0]) if newest else None

    def load_issued(self, serial: str) -> Issued:
        """A certificate that was issued before, as it lies in the folder.

        Raises:
            BadInput: none was issued under this serial number.
            Damaged: its file is gone, or not the one that was recorded.
        """
        record = self.find(serial)
        if record.fingerprint_sha256 is None:
            raise BadInput(
                f"{record.serial} was never issued",
                why=f"its record ended as {record.standing}" + (f": {record.why}" if record.why else ""),
                next_step="issue a new certificate",
            )
        file = self.layout.issued / f"{record.serial}.pem"
        leaf = read_certificate(file)
        if fingerprint(leaf) != record.fingerprint_sha256:
            raise damaged(f"{file} is not the certificate that was recorded")
        return Issued.of(record, leaf, self.issuing)

    def _refresh(self) -> None:
        self._ledger.refresh()
        self._take()

    def _take(self) -> None:
        for entry in self._ledger.entries[self._taken :]:
            try:
                self._book.take(entry)
            except (KeyError, TypeError, ValueError) as error:
                raise damaged(f"line {entry.seq} of the audit makes no sense ({error})") from error
            self._taken += 1
