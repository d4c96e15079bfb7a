"""What Proxmox's own words for a failed task mean, and what to do about it; pure."""

import re

_AGAIN = "then run the command again"
# The texts are those of qemu-server (PCI.pm, QemuServer.pm, Memory.pm), pve-storage and pve-cluster.
_CAUSES = tuple(
    (re.compile(text), f"{step}, {_AGAIN}")
    for text, step in (
        (
            r"PCI device '[^']+' already in use by VMID '(?P<name>\d+)'",
            "VM {name} holds the device: stop it, or ask for fewer devices",
        ),
        (
            r"could not find a free device for '(?P<name>hostpci\d+)'",
            "every device of the mapping that {name} names is in use: stop a VM that holds one, or choose another node",
        ),
        (
            r"PCI device mapping not found for '(?P<name>[^']+)'",
            "make the resource mapping {name} (Datacenter, Resource Mappings), or mend the profile",
        ),
        (
            r"PCI device mapping invalid \(hardware probably changed\)",
            "the mapping no longer fits the hardware: look at it under Datacenter, Resource Mappings, and save it anew",
        ),
        (
            r"hugepage allocation failed",
            "that NUMA node has too few free hugepages: reserve more when the host boots (hugepagesz=, hugepages=)",
        ),
        (r"bridge '(?P<name>[^']+)' does not exist", "make bridge {name} on that host, or mend the profile"),
        (
            r"MTU '?\d+'? is bigger than the bridge MTU '?(?P<name>\d+)'?",
            "raise the bridge's MTU above {name} on the host, or lower the profile's",
        ),
        (
            r"MAX (?P<name>\d+) vcpus allowed",
            "the host has {name} CPUs: lower the profile's, or choose another node",
        ),
        (
            r"KVM virtualisation configured, but not available",
            "switch virtualisation on in that host's firmware (VT-x, AMD-V)",
        ),
        (
            r"No space left on device|out of space",
            "free space on that storage, or choose another in the profile",
        ),
        (
            r"unable to activate storage '(?P<name>[^']+)'",
            "bring storage {name} back on that host, or choose another in the profile",
        ),
        (
            r"VM is locked \((?P<name>[^)]+)\)",
            "wait until its {name} has ended (its task is in Proxmox); the lock is never taken away here",
        ),
        (r"no quorum", "bring enough Proxmox nodes back for a majority"),
        (
            r"checksum mismatch",
            "the image is not the one whose SHA-256 the profile names: mend url or sha256",
        ),
    )
)


def next_step(outcome: str) -> str:
    """What to do about a task that ended with this text."""
    for pattern, step in _CAUSES:
        if found := pattern.search(outcome):
            return step.format(**found.groupdict())
    return f"mend what Proxmox names, {_AGAIN}"
