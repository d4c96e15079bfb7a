"""What `node-inventory check` asks this floor: does the record agree with Proxmox? Its kinds, and the way there."""

from collections.abc import Iterable

from inventory.checking import Asked, Disagreement, Kind, NotChecked, Severity
from inventory.command import need
from inventory.errors import BadInput

SOURCE = "proxmox"


def _wrong(about: str, meaning: str, mend: str) -> Kind:
    return Kind(SOURCE, about, Severity.WRONG, meaning, mend)


GONE = _wrong(
    "vm-gone",
    "its VM is on Proxmox no more",
    "restore VM {vmid} from a backup; if it is gone for good: onboard-node {node} --decommission,"
    " then provision-node {node} --retire",
)
ANOTHER = _wrong(
    "vm-another",
    "another machine has its VM id: the uuid is not the node's",
    "leave VM {vmid} alone, it is not the node's; onboard-node {node} --decommission,"
    " then provision-node {node} --retire",
)
OTHER_ID = _wrong(
    "vm-other-id",
    "its VM is there under another id",
    "back VM {vmid} up on {host} and restore it as {own}, by which the record knows it: qmrestore ARCHIVE {own}",
)
TWICE = _wrong(
    "vm-double",
    "a second VM has the node's uuid, as a restored copy has",
    "see which of the two is the node, then on {host}: qm destroy {vmid}, if that is the copy",
)
STOPPED = _wrong(
    "vm-stopped", "its VM does not run, although its state says it should", "provision-node {node}"
)
NAME = _wrong("vm-name", "its VM has another name in Proxmox", "on {host}: qm set {vmid} --name {node}")
MAC = _wrong(
    "vm-mac",
    "the management NIC has another MAC than the one on record",
    "on {host}: set the MAC of VM {vmid} back to {mac}; or provision-node {node} --reissue-ticket",
)
DRIFT = _wrong(
    "vm-drift", "its VM differs from its profile in what the command mends", "provision-node {node}"
)
WAITS = Kind(
    SOURCE,
    "vm-pending",
    Severity.NOTICE,
    "what its profile wants was set, and waits for the VM's next stop and start",
    "when the node may be off for a while, on {host}: qm shutdown {vmid}, then qm start {vmid}",
)
DRIFT_STAYS = _wrong(
    "vm-drift-kept",
    "its VM differs from its profile in what would give the guest new host keys, so no command changes it",
    "set VM {vmid} right in Proxmox, or the profile; or accept it: provision-node {node} --reissue-ticket",
)
NO_PROFILE = _wrong(
    "profile-unknown",
    "the site file has no profile of the name on record",
    "write profile {profile} into the site file again; provision-node {node} --plan then shows what differs",
)
ORPHAN = _wrong(
    "vm-orphan",
    "a VM with our tag that no node on record has",
    "if it is a node: node-inventory import FILE, then provision-node NAME --adopt; if nobody needs it,"
    " on {host}: qm destroy {vmid}",
)
OF_RETIRED = _wrong(
    "vm-of-retired",
    "the node is retired, and its VM is still there",
    "after a look at it, on {host}: qm destroy {vmid} --purge",
)
MOVED = Kind(
    SOURCE,
    "vm-moved",
    Severity.NOTICE,
    "its VM stands on another Proxmox host than the one on record; every command finds it there",
    "if it should not be there, on {host}: qm migrate {vmid} {home}",
)


class ProxmoxChecker:
    """The record against the Proxmox of a site file; it only reads there."""

    source = SOURCE
    kinds = (
        *(GONE, ANOTHER, OTHER_ID, TWICE, STOPPED, NAME, MAC),
        *(DRIFT, WAITS, DRIFT_STAYS, NO_PROFILE, ORPHAN, OF_RETIRED, MOVED),
    )

    def was_asked(self, asked: Asked) -> bool:
        """Where a site file was named."""
        return asked.site is not None

    def check(self, asked: Asked) -> Iterable[Disagreement | NotChecked]:
        """What does not agree.

        Raises:
            BadInput: there is no site file, or it has faults, or our libraries are absent.
            OtherSide: Proxmox is out of reach, or refused the token.
        """
        if asked.site is None:
            raise BadInput(
                "Proxmox was not asked",
                why="neither --site nor MUSTER_SITE names a site file",
                next_step="give --site FILE",
            )
        need("provision", "proxmoxer", "requests")
        from provision.api_token import read_token
        from provision.compare import compare
        from provision.proxmox import Proxmox
        from provision.spec import load_site

        site = load_site(asked.site)
        token, warnings = read_token(site.proxmox.token_file)
        for warning in warnings:
            asked.console.warn(warning)
        asked.console.say(f"looking at the VMs of {site.name}")
        with Proxmox(
            url=site.proxmox.url,
            token=token,
            ca_file=site.proxmox.ca_file,
            fingerprint=site.proxmox.fingerprint,
        ) as proxmox:
            yield from compare(proxmox, site, asked)
