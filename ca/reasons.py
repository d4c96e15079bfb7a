"""Why a certificate is revoked; by itself, for a command's help is shown before any library is loaded."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a certificate is revoked: what RFC 5280 (section 5.3.1) has for a node.

    Not here: certificateHold and removeFromCRL, for a revocation of ours is for ever, and cACompromise
    and aACompromise, which are no node's.
    """

    UNSPECIFIED = "unspecified"
    KEY_COMPROMISE = "key-compromise"
    AFFILIATION_CHANGED = "affiliation-changed"
    SUPERSEDED = "superseded"
    CESSATION_OF_OPERATION = "cessation-of-operation"
    PRIVILEGE_WITHDRAWN = "privilege-withdrawn"
