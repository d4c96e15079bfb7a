"""What counts no more: a signer's key, by a file of revoked keys; a certificate, by a list or by the ledger."""

import base64
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from inventory import signature
from inventory.errors import Refused
from inventory.passport.leaf import Finding, Listed
from inventory.passport.sshsig import SshSig
from inventory.passport.statement import Certificate
from inventory.ticket import TICKET_NAMESPACE, iso

_AHEAD = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Where to look; None: nowhere.

    keys: a KRL, or public keys one a line (ssh-keygen(1)), of whoever signs anything in a passport.
    ticket_keys: another such file, for tickets alone. certificates: whether one is revoked; ValueError: unknown.
    """

    keys: Path | None = None
    ticket_keys: Path | None = None
    certificates: Callable[[Certificate], Listed] | None = None

    def revoked_in(self, message: str, armour: str, *, namespace: str) -> Path | None:
        """The file that has the key of a signature as revoked; of a signature that holds.

        Raises:
            BadInput: the file is absent.
        """
        files = (self.keys, self.ticket_keys if namespace == TICKET_NAMESPACE else None)
        for file in files:
            if file is not None and _revoked(message, armour, namespace, file):
                return file
        return None

    def revoked_of(self, text: str, *, namespace: str) -> Path | None:
        """The same of a signed text."""
        line, newline, armour = text.partition("\n")
        return self.revoked_in(line + newline, armour, namespace=namespace)


NOWHERE = Withdrawn()


def _revoked(message: str, armour: str, namespace: str, file: Path) -> bool:
    """A key is looked up where ssh-keygen looks it up: as a signer who would count but for this file."""
    key = SshSig.from_armour(armour).key
    kind = key[4 : 4 + int.from_bytes(key[:4], "big")].decode("ascii", "replace")
    with tempfile.TemporaryDirectory(prefix="muster-revoked-") as folder:
        signers = Path(folder) / "signers"
        signers.write_text(f"signer {kind} {base64.b64encode(key).decode()}\n")
        try:
            signature.check_detached(
                message, armour, signers=signers, namespace=namespace, what="it", revoked=file
            )
        except Refused:
            return True
    return False


def revocation(
    certificate: Certificate, *, needed: bool, withdrawn: Withdrawn, made_at: datetime, now: datetime
) -> Iterator[Finding]:
    """Whether a certificate was revoked, before the passport or since. needed: whether the node stood on it then."""
    if withdrawn.certificates is None:
        return
    try:
        told = withdrawn.certificates(certificate)
    except ValueError as error:
        yield Finding("unchecked", f"whether the certificate was revoked: {error}")
        return
    if told.revoked_at is not None:
        known = certificate.standing == "revoked"  # then the passport says so itself, and was judged by it
        lied = needed and told.revoked_at <= made_at and not known
        yield Finding("broken" if lied else "note", f"the certificate was revoked at {iso(told.revoked_at)}")
    elif told.due is not None and certificate.not_after < told.made_at:
        yield Finding(
            "unchecked",
            "whether the certificate was revoked: it ended before the list, which needs it no more",
        )
    elif (told.due is not None and told.due < now) or told.made_at > now + _AHEAD:
        yield Finding(
            "unchecked",
            f"whether the certificate was revoked: the list holds from {iso(told.made_at)}"
            + ("" if told.due is None else f" until {iso(told.due)}"),
        )
    else:
        yield Finding("holds", f"the certificate was not revoked by {iso(told.made_at)}")
