"""Where things lie in the authority's folder."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from inventory.errors import BadInput, Damaged, Refused
from inventory.files import write_whole


@dataclass(frozen=True, slots=True)
class Layout:
    """The names in one authority's folder.

    generation: which successor's certificates and key are meant; empty for those that it began with.
    """

    folder: Path
    generation: str = ""

    @property
    def successors(self) -> Path:
        """Where the folders of those lie that took the place of what the authority began with, or will."""
        return self.folder / "successors"

    @property
    def home(self) -> Path:
        """Where this generation's certificates and key lie."""
        return self.successors / self.generation if self.generation else self.folder

    @property
    def cross(self) -> Path:
        """Certificates that lead from a former root to this generation, where there are some."""
        return self.home / "cross.pem"

    @property
    def policy(self) -> Path:
        """What may be certified."""
        return self.folder / "policy.yaml"

    @property
    def root(self) -> Path:
        """The root's certificate: what nodes trust."""
        return self.home / ROOT_CERTIFICATE

    @property
    def issuing(self) -> Path:
        """The issuing authority's certificate."""
        return self.home / "issuing.pem"

    @property
    def issuing_key(self) -> Path:
        """The issuing authority's encrypted key."""
        return self.home / "issuing-key.json"

    @property
    def issuing_token(self) -> Path:
        """In the key file's place: which token holds the issuing key."""
        return self.home / "issuing-token.json"

    @property
    def request(self) -> Path:
        """While a root elsewhere has yet to sign: the request for the issuing certificate."""
        return self.home / "issuing.csr"

    @property
    def waiting_key(self) -> Path:
        """While a root elsewhere has yet to sign: the encrypted key of that request."""
        return self.home / "waiting-key.json"

    @property
    def audit(self) -> Path:
        """The hash-chained lines of what was done."""
        return self.folder / "audit.jsonl"

    @property
    def index(self) -> Path:
        """What the audit adds up to, for quick questions; made anew from the audit where it is absent."""
        return self.folder / "index.db"

    @property
    def lock(self) -> Path:
        """Held around each change."""
        return self.folder / "lock"

    @property
    def issued(self) -> Path:
        """Each certificate that was issued, as SERIAL.pem."""
        return self.folder / "issued"

    @property
    def receipts(self) -> Path:
        """The signed receipts of onboarding, as NAME.receipt."""
        return self.folder / "receipts"

    @property
    def crls(self) -> Path:
        """Revocation lists that were signed, some of them for a time to come."""
        return self.folder / "crls"

    @property
    def take_away(self) -> Path:
        """The root's key, until it is taken away."""
        return self.folder / "root-take-away"

    @property
    def taken_names(self) -> frozenset[str]:
        """What a file that comes along with the policy must not be called."""
        own = (self.policy, self.root, self.issuing, self.issuing_key, self.audit, self.index, self.lock)
        born = (self.issuing_token, self.request, self.waiting_key)
        return frozenset(
            path.name
            for path in (*own, *born, self.issued, self.receipts, self.crls, self.take_away, self.successors)
        )


ROOT_KEY = "root-key.json"
ROOT_CERTIFICATE = "root.pem"


def check_folder(folder: Path) -> None:
    """Refuse a folder that is no authority's, or that others can change.

    Raises:
        BadInput: there is no authority.
        Refused: others may change it; the command that mends it is named.
    """
    try:
        found = folder.stat()
        Layout(folder).audit.lstat()
    except (FileNotFoundError, NotADirectoryError):
        if Layout(folder).request.exists():
            raise Refused(
                f"the authority in {folder} is not complete",
                why="it waits for the certificate that its root, kept elsewhere, has to sign",
                next_step=f"have {Layout(folder).request} signed there, then: "
                f"node-ca init --ca-dir {folder} --external-root-cert CERT --root ROOT",
            ) from None
        raise BadInput(
            f"there is no authority in {folder}",
            why="the folder, or the audit in it, does not exist",
            next_step=f"pass --ca-dir DIR, or make one: node-ca init --policy policy.yaml --ca-dir {folder}",
        ) from None
    except PermissionError:
        raise Refused(
            f"{folder} is not open to you",
            why="the authority belongs to another user",
            next_step=f"run the command as the owner of {folder}",
        ) from None
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise Refused(
            f"{folder} is not used",
            why=f"others may change it (mode {stat.S_IMODE(found.st_mode):04o})",
            next_step=f"chmod go-w {folder}",
        )
    if found.st_uid not in {0, os.geteuid()}:
        raise Refused(
            f"{folder} is not used",
            why="it belongs to another user",
            next_step=f"run the command as the owner of {folder}",
        )


def read_certificate(file: Path) -> x509.Certificate:
    """The first certificate of one of the authority's files.

    Raises:
        Damaged: there is none.
    """
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError) as error:
        raise damaged(f"{file} cannot be read as a certificate") from error


def store(layout: Layout, serial: str, chain_pem: bytes) -> None:
    """Keep a certificate as issued/SERIAL.pem.

    Raises:
        Damaged: the disk did not take it.
    """
    try:
        write_whole(layout.issued / f"{serial}.pem", chain_pem, mode=0o644)
    except OSError as error:
        raise Damaged(
            "the certificate was not issued",
            why=f"it could not be stored in {layout.issued}: {error.strerror or error}",
            next_step="make room on that disk, then run the command again",
        ) from error


def damaged(why: str) -> Damaged:
    """The authority's parts contradict themselves."""
    return Damaged(
        "the authority cannot be used",
        why=why,
        next_step="issue nothing; restore the authority's folder from its backup",
    )
