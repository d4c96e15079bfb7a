"""An authority as it lies in its folder: opened, verified and read; nothing here changes it."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Self

from cryptography import x509

from ca.audit import unknown_heads
from ca.census import told
from ca.custody import check_issuing_key
from ca.index import Index, Which
from ca.issue import Issued
from ca.keystore import KDF_FLOOR, Kdf
from ca.layout import ROOT_KEY, Layout, check_folder, damaged, read_certificate
from ca.ledger import Ledger
from ca.policy import Policy
from ca.profile import fingerprint, pem, timestamp
from ca.record import Pinned, Record
from ca.rotation import Generation, Stage, Standing
from ca.rules import refuse_void
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
        self.rotation = Standing(Generation("", fingerprint(root), fingerprint(issuing), ""))
        self._kdf_floor = kdf_floor
        self._trusted: tuple[x509.Certificate, ...] = (root,)
        self._cross = b""
        self._ledger = Ledger(layout.audit)
        self._index = Index(layout.index, self._ledger)

    @classmethod
    def open(
        cls, ca_dir: Path, *, now: datetime, kdf_floor: Kdf = KDF_FLOOR, policy: Policy | None = None
    ) -> Self:
        """Read and verify everything that needs no passphrase.

        policy: the one that a run began with, where it opens the authority again.

        Raises:
            BadInput: there is no authority, or its policy has faults.
            Refused: others could reach its key or change its files, or the clock stands before its birth.
            Damaged: its parts contradict themselves.
        """
        check_folder(ca_dir)
        layout = Layout(ca_dir)
        root, issuing = read_certificate(layout.root), read_certificate(layout.issuing)
        policy = policy or load(layout.policy, Policy)
        self = cls(layout, policy, root=root, issuing=issuing, kdf_floor=kdf_floor)
        self._index.catch_up()
        self._reload()
        check_issuing_key(self.layout, self.issuing)
        if now < self.issuing.not_valid_before_utc:
            raise Refused(
                f"{ca_dir} is not used",
                why=f"this host's clock says {timestamp(now)}, before the authority was made",
                next_step="set the clock of this host",
            )
        return self

    def close(self) -> None:
        """Let go of the index."""
        self._index.close()

    @property
    def bundle_pem(self) -> bytes:
        """What nodes trust: the root alone, or the old one and the new one while the one takes the other's place."""
        return b"".join(pem(root) for root in self._trusted)

    @property
    def issuing_pem(self) -> bytes:
        """What follows a leaf in its chain: the issuing authority, and what leads to it from a former root."""
        return pem(self.issuing) + self._cross

    def issuer_of(self, leaf: x509.Certificate) -> tuple[x509.Certificate, x509.Certificate]:
        """The issuing authority of a certificate, and its root: those of now, or former ones.

        Raises:
            Damaged: it is none of them, or their files are not those that were recorded.
        """
        for generation in reversed(self.rotation.all):
            issuing, root = self.certificates_of(generation)
            if leaf.issuer == issuing.subject:
                return issuing, root
        raise damaged("a certificate in its folder was signed by no authority that the audit knows")

    def certificates_of(self, generation: Generation) -> tuple[x509.Certificate, x509.Certificate]:
        """Issuing authority and root of a generation.

        Raises:
            Damaged: their files are not those that were recorded.
        """
        layout = Layout(self.layout.folder, generation.id)
        issuing, root = read_certificate(layout.issuing), read_certificate(layout.root)
        if (fingerprint(root), fingerprint(issuing)) != (generation.root_sha256, generation.issuing_sha256):
            when = "was told of" if generation.id else "began with"
            raise damaged(f"{layout.home}: root.pem or issuing.pem is not the one that the audit {when}")
        return issuing, root

    @property
    def fingerprint_sha256(self) -> str:
        """Of the root's certificate, hex: how people name this authority to each other."""
        return fingerprint(self.root)

    @property
    def root_key(self) -> Path:
        """Where the root's key was written; the holder takes it away from there."""
        written = self.rotation.current.root_key
        return Path(written) if written else self.layout.take_away / ROOT_KEY

    @property
    def root_is_elsewhere(self) -> bool:
        """Whether the root's key was made and is kept elsewhere, and never was on this host."""
        return not self.rotation.current.root_key

    @property
    def head(self) -> str:
        """The hash of the audit's last line, hex."""
        return self._ledger.head

    def check_heads(self, heads: Iterable[str]) -> tuple[str, ...]:
        """Those of some heads, kept in node records, that the audit does not know: it is an older copy then.

        Raises:
            BadInput: one is no head.
        """
        return unknown_heads(self.layout.audit, heads)

    @property
    def entries(self) -> int:
        """How many lines the audit has."""
        return self._ledger.place.seq

    @property
    def open_intents(self) -> tuple[Record, ...]:
        """What was about to be signed and has no end in the audit; the next issue closes it."""
        return self._index.open()

    def refuse_void(self, ticket_id: str, *, node: str) -> None:
        """Refuse a ticket that a later one, used since, made void.

        Raises:
            Refused: there is such a later one.
        """
        refuse_void(self._index.voided_by(ticket_id, node), ticket_id, node)

    def find(self, serial: str) -> Record:
        """The record of a serial number or a fingerprint: hex in either case, with or without colons.

        Raises:
            BadInput: there is none.
        """
        wanted = serial.replace(":", "").lower()
        record = self._index.one(wanted.lstrip("0")) or self._index.one(wanted)
        if record is None:
            raise BadInput(
                f"no certificate {serial!r} is known",
                why="the audit has no such serial number, fingerprint or node",
                next_step="node-ca list shows every certificate",
            )
        return record

    def records(self, node: str | None = None) -> tuple[Record, ...]:
        """Every certificate, or those of a node's name, oldest first."""
        return tuple(self.select(Which())) if node is None else self._index.of_node(node)

    def select(self, which: Which, *, now: datetime | None = None) -> Iterator[Record]:
        """The certificates that are asked for, one by one; states and ends are those of `now`."""
        return self._index.select(which, now or self.issuing.not_valid_before_utc)

    def count(self, now: datetime) -> dict[str, int]:
        """How many certificates are in each state, by its name."""
        return self._index.count(now)

    def look_up(self, target: str) -> tuple[Record, ...]:
        """The certificate of a serial number or fingerprint, or those of a node's name, oldest first.

        Raises:
            BadInput: there is neither.
        """
        return self.records(target) or (self.find(target),)

    def pinned(self, node: str) -> Pinned | None:
        """Who a node is, by its newest certificate that was issued and not revoked; None: none was."""
        newest = self._index.newest_live(node)
        return Pinned.of(newest) if newest else None

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
        issuing, _ = self.issuer_of(leaf)
        above = self.issuing_pem if issuing == self.issuing else pem(issuing)
        return Issued.of(record, leaf, above)

    def _reload(self) -> None:
        """Take up which authority issues, and whom nodes trust, as the index tells it."""
        folder = self.layout.folder
        began = self._index.beginning
        if not began:
            raise damaged(f"the audit in {folder} has no beginning")
        self.rotation = told(self._index)
        current = self.rotation.current
        self.layout = Layout(folder, current.id)
        self.issuing, self.root = self.certificates_of(current)
        self._trusted = tuple(self.certificates_of(each)[1] for each in self.rotation.trusted)
        crossing = self.rotation.stage is Stage.ACTIVATED and self.layout.cross.exists()
        self._cross = self.layout.cross.read_bytes() if crossing else b""
