"""What `node-inventory check` asks on the CA host: does the record agree with the ledger? No key is used."""

import os
from collections.abc import Iterable

from inventory.checking import Asked, Disagreement, Kind, NotChecked, Severity
from inventory.command import ca_folder, need
from inventory.errors import BadInput

SOURCE = "ledger"
_ANEW = "provision-node {node} --reissue-ticket, then onboard-node {node}"
_REVOKE = "node-ca revoke {serial} --reason cessation-of-operation"


def _wrong(about: str, meaning: str, mend: str) -> Kind:
    return Kind(SOURCE, about, Severity.WRONG, meaning, mend)


def _notice(about: str, meaning: str, mend: str) -> Kind:
    return Kind(SOURCE, about, Severity.NOTICE, meaning, mend)


OTHER_CA = _wrong(
    "receipt-of-another-ca",
    "its receipt names another authority than this one",
    "give that one with --ca-dir DIR; if this one took its place: " + _ANEW,
)
UNKNOWN = _wrong(
    "receipt-serial-unknown",
    "the ledger does not know the certificate that its receipt tells of",
    "node-ca status, for this folder may be an older copy; if it is the newest: " + _ANEW,
)
OLDER_COPY = _wrong(
    "audit-older-copy",
    "its receipt was made after a line of the audit that this audit does not have",
    "issue nothing here; node-ca status, then put the newer copy back: node-ca restore",
)
REVOKED = _wrong(
    "identity-revoked",
    "its state says that it has an identity in force, and the certificate was revoked",
    _ANEW + "; or, if it is to go: onboard-node {node} --decommission",
)
NONE_COUNTS = _wrong(
    "identity-missing",
    "its state says that it has an identity in force, and the ledger has no certificate for it that counts",
    _ANEW,
)
EXPIRY = _wrong(
    "expiry-differs",
    "its receipt tells another end of the certificate than the ledger",
    "believe the ledger, and ask who signed that receipt; onboard-node {node} --renew hands a new one back",
)
MACHINE = _wrong(
    "machine-differs",
    "its certificate was made for another machine than the record's",
    "provision-node {node} --reissue-ticket, then onboard-node {node} --replace",
)
HOST_KEYS = _wrong(
    "host-keys-differ",
    "none of the host keys on record is one that its certificate was made with",
    "see who answers at its address; if the VM was rebuilt: " + _ANEW,
)
NEWER = _wrong(
    "receipt-older",
    "the authority has a newer receipt than the record",
    "node-inventory import {file}",
)
BEHIND = _wrong(
    "receipt-behind",
    "the ledger has a newer certificate of the node in force than any receipt tells of",
    "onboard-node {node} --renew, which hands a new one back",
)
LOST = _wrong(
    "receipt-lost",
    "the authority has no receipt of a node whose identity is in force",
    "onboard-node {node} --renew, which keeps a new one",
)
OF_RETIRED = _wrong(
    "identity-of-retired", "the node leaves or has left, and a certificate of it still counts", _REVOKE
)
OF_UNKNOWN = _wrong(
    "identity-of-unknown",
    "a certificate counts that onboard-node made for a node which is not on record",
    "give the record that has {node} with --inventory URL; if nobody needs it: " + _REVOKE,
)
BY_HAND = _notice(
    "identity-by-hand",
    "a certificate counts that node-ca issue made for a name which is not on record",
    "nothing, if it is no node's; if nobody needs it: " + _REVOKE,
)
OPEN = _notice(
    "intent-open",
    "a certificate was announced in the audit, and has no end there: a run is at it, or was killed",
    "onboard-node {node}; the next signing closes what a killed run left",
)


class LedgerChecker:
    """The record against an authority's folder; no key of it is unlocked."""

    source = SOURCE
    kinds = (
        *(OTHER_CA, UNKNOWN, OLDER_COPY, REVOKED, NONE_COUNTS, EXPIRY, MACHINE, HOST_KEYS),
        *(NEWER, BEHIND, LOST, OF_RETIRED, OF_UNKNOWN, BY_HAND, OPEN),
    )

    def was_asked(self, asked: Asked) -> bool:
        """Where an authority's folder was named."""
        return asked.ca_dir is not None

    def check(self, asked: Asked) -> Iterable[Disagreement | NotChecked]:
        """What does not agree.

        Raises:
            BadInput: there is no authority here, or our libraries are absent.
            Refused, Damaged: it cannot be relied on.
        """
        need_authority(asked, "the ledger was not read")
        from ca.authority import Authority
        from onboard.ledger_compare import compare

        authority = Authority.open(ca_folder(asked.ca_dir), now=asked.now)
        try:
            yield from compare(authority, asked)
        finally:
            authority.close()


def need_authority(asked: Asked, what: str) -> None:
    """Go on only where an authority is on this host, and the libraries for it are.

    Raises:
        BadInput: it is not, or they are not.
    """
    folder = ca_folder(asked.ca_dir)
    if not os.path.lexists(folder):
        raise BadInput(
            what,
            why=f"there is no authority in {folder}",
            next_step="run it on the CA host, or give --ca-dir DIR",
        )
    need("onboard", "cryptography")
