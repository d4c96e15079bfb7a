"""What to do about a task that failed, by the words that Proxmox ended it with."""

import pytest

from provision.causes import next_step
from tests.provision.kit import Place, failure


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ("PCI device '0000:81:00.0' already in use by VMID '101'", "VM 101 holds the device"),
        (
            "could not find a free device for 'hostpci0'",
            "every device of the mapping that hostpci0 names is in use",
        ),
        ("PCI device mapping not found for 'h100'", "make the resource mapping h100"),
        ("PCI device mapping invalid (hardware probably changed): missing", "no longer fits the hardware"),
        (
            "start failed: hugepage allocation failed at /usr/share/perl5/x.pm line 1.",
            "too few free hugepages",
        ),
        ("bridge 'vmbr9' does not exist", "make bridge vmbr9 on that host"),
        ("netdev net1: MTU '9000' is bigger than the bridge MTU '1500'", "raise the bridge's MTU above 1500"),
        ("MAX 2 vcpus allowed per VM on this node", "the host has 2 CPUs"),
        ("KVM virtualisation configured, but not available. Either disable in VM", "VT-x, AMD-V"),
        ("clone failed: copy failed: No space left on device", "free space on that storage"),
        ("clone failed: unable to activate storage 'tiny' - directory is", "bring storage tiny back"),
        ("VM is locked (backup)", "wait until its backup has ended"),
        ("cluster not ready - no quorum?", "for a majority"),
        ("download failed: checksum mismatch: got 'ab' != expected 'cd'", "mend url or sha256"),
        ("something that nobody has seen yet", "mend what Proxmox names"),
    ],
)
def test_each_cause_has_its_mend(outcome: str, told: str) -> None:
    assert told in next_step(outcome)
    assert next_step(outcome).endswith(", then run the command again")


def test_a_failed_start_is_told_with_its_mend(place: Place) -> None:
    def taken(vm: object) -> object:
        vm.start_error = "PCI device '0000:81:00.0' already in use by VMID '101'"  # type: ignore[attr-defined]  # a fake's
        return place.new_agent(vm)

    place.pve.vms.agent_for = taken

    assert "VM 101 holds the device: stop it" in failure(place).next_step
