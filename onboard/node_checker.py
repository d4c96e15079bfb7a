"""What `node-inventory check` asks the nodes themselves, over SSH pinned by the ledger; it only reads there."""

import os
from collections.abc import Iterable

from inventory.checking import Asked, Disagreement, Kind, NotChecked, Severity
from inventory.command import ca_folder, need
from inventory.errors import BadInput
from onboard.ledger_checker import need_authority

SOURCE = "nodes"
_ANEW = "provision-node {node} --reissue-ticket, then onboard-node {node}"
_REFRESH = "onboard-node {node} --refresh"


def _wrong(about: str, meaning: str, mend: str) -> Kind:
    return Kind(SOURCE, about, Severity.WRONG, meaning, mend)


def _notice(about: str, meaning: str, mend: str) -> Kind:
    return Kind(SOURCE, about, Severity.NOTICE, meaning, mend)


NO_CERTIFICATE = _wrong("node-without-identity", "the node has no certificate in force", _ANEW)
ANOTHER_CERTIFICATE = _wrong(
    "node-certificate",
    "the node has another certificate in force than the one that the ledger says was installed",
    "onboard-node {node} --renew",
)
HOST_KEY = _wrong(
    "node-host-key",
    "another machine answers at its address, or one in between: none of its SSH host keys is one that the ledger pins",
    "let nobody log in there; see which VM answers at {address}; if it is the node, rebuilt: "
    + _ANEW
    + " --replace",
)
UUID = _wrong(
    "node-machine-uuid",
    "the node's own SMBIOS uuid is another than the record's",
    "see which VM answers at its address; if it is the node: " + _ANEW + " --replace",
)
MACHINE_ID = _wrong(
    "node-machine-id", "the node's machine-id is another than the record's", _ANEW + ", after a look why"
)
AGENT = _wrong(
    "node-agent-config",
    "its agent.yaml is absent, faulty or another node's",
    "mend {file} there; or " + _ANEW,
)
FABRICS = _wrong(
    "node-fabrics",
    "its agent.yaml has other fabrics than the record",
    "mend {file} there, or the profile: provision-node {node} --drift",
)
CLOCK = _wrong(
    "node-clock",
    "its clock is further off than the policy allows",
    "set the clock there, and see why nothing keeps it (timedatectl)",
)
BUNDLE = _notice("node-bundle", "it has another trust bundle than the authority hands out", _REFRESH)
LIST = _notice("node-revocation-list", "its revocation list is older than the one that is due", _REFRESH)
PENDING = _notice("node-refresh-unfinished", "a refresh or renewal there has not come to its end", _REFRESH)


class NodeChecker:
    """The record and the ledger against what each node says of itself; nothing is changed there."""

    source = SOURCE
    kinds = (
        *(HOST_KEY, NO_CERTIFICATE, ANOTHER_CERTIFICATE, UUID, MACHINE_ID, AGENT, FABRICS, CLOCK),
        *(BUNDLE, LIST, PENDING),
    )

    def was_asked(self, asked: Asked) -> bool:
        """Where a key was named on a host that has the authority."""
        return asked.ssh_key is not None and (
            asked.ca_dir is not None or os.path.lexists(ca_folder(asked.ca_dir))
        )

    def check(self, asked: Asked) -> Iterable[Disagreement | NotChecked]:
        """What does not agree.

        Raises:
            BadInput: no SSH key was named, there is no authority here, or our libraries are absent.
            Refused, Damaged: the authority cannot be relied on.
        """
        if asked.ssh_key is None:
            raise BadInput(
                "no node was asked",
                why="neither --ssh-key nor MUSTER_SSH_KEY names a key to log in with",
                next_step="give --ssh-key FILE on the CA host",
            )
        need_authority(asked, "no node was asked: the ledger pins their host keys")
        need("onboard", "paramiko")
        from ca.authority import Authority
        from onboard.node_compare import compare

        authority = Authority.open(ca_folder(asked.ca_dir), now=asked.now)
        try:
            yield from compare(authority, asked, key_file=asked.ssh_key)
        finally:
            authority.close()
