"""What the guest tells through its agent, waited for: address, cloud-init's end, host keys, machine-id."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_interface
from typing import Any

from inventory.errors import OtherSide
from inventory.model import Address, Fabric, HostKey
from provision import guest
from provision.config import mac_of
from provision.hypervisor import Unreachable
from provision.parts import Lease
from provision.plan import MachineFound
from provision.tasks import Tools
from provision.wanted import NodeSpec

# Without a static address, only one of the family that was asked for counts: by DHCP (ip=dhcp) that is IPv4, and
# one that the network announces for IPv6 is often there sooner.
_FAMILIES: Mapping[Lease, guest.Family] = {"dhcp": 4, "dhcp6": 6, "auto": 6}


@dataclass(frozen=True, slots=True)
class Facts:
    """Who the machine is. macs: lower case, the management NIC's first."""

    address: Address
    macs: tuple[str, ...]
    host_keys: tuple[HostKey, ...]
    machine_id: str | None
    fabrics: tuple[Fabric, ...]
    warnings: tuple[str, ...]


def read_facts(tools: Tools, spec: NodeSpec, machine: MachineFound) -> Facts:
    """Everything that the ticket says of the machine, read in the order that makes it true.

    The host keys come last: cloud-init makes them anew.

    Raises:
        OtherSide: a wait gave up (it says what it saw), or cloud-init failed.
    """
    macs = [mac for index in range(len(spec.fabrics) + 1) if (mac := mac_of(machine.config, index))]
    interfaces, address = _wait_for_address(tools, spec, machine, macs)
    warnings = list(_wait_for_cloud_init(tools, machine))
    keys, machine_id = _wait_for_keys(tools, machine)
    if machine_id is None:
        warnings.append(f"VM {machine.vmid} has no {guest.MACHINE_ID}")
    return Facts(
        address=address,
        macs=tuple(macs),
        host_keys=keys,
        machine_id=machine_id,
        fabrics=_fabrics(spec, machine, interfaces),
        warnings=tuple(warnings),
    )


def _wait_for_address(
    tools: Tools, spec: NodeSpec, machine: MachineFound, macs: list[str]
) -> tuple[Sequence[Mapping[str, Any]], Address]:
    wanted = None if spec.address is None else str(ip_interface(spec.address).ip)
    family = _FAMILIES[spec.lease]
    if not macs:
        raise OtherSide(
            f"the address of VM {machine.vmid} cannot be known",
            why="its config has no net0 with a MAC",
            next_step="look at its hardware in Proxmox",
        )
    state = "the guest agent was not asked yet"
    timeout_s = tools.patience.agent_s
    with tools.console.waiting(
        f"guest agent and address of VM {machine.vmid}", timeout_s=timeout_s
    ) as waiting:
        for _ in tools.tries(timeout_s):
            try:
                found = tools.hypervisor.interfaces(machine.host, machine.vmid)
            except Unreachable as error:
                state, found = error.why, None
            else:
                if found is None:
                    state = "the guest agent does not answer (is it installed and enabled in the template?)"
            if found is not None:
                if seen := guest.management_address(found, macs[0], wanted=wanted, family=family):
                    source = spec.address is not None
                    return found, Address(seen.ip, seen.prefix, "static" if source else "leased")
                state = (
                    f"no {wanted or f'IPv{family} address'} on {macs[0]} yet; {guest.addresses_seen(found)}"
                )
            waiting.update(state)
    raise OtherSide(
        f"VM {machine.vmid} did not tell its address in {timeout_s:.0f} s",
        why=state,
        next_step="look at its console in Proxmox, mend the template or the network, then run the command again",
    )


def _wait_for_cloud_init(tools: Tools, machine: MachineFound) -> tuple[str, ...]:
    """Warnings of a cloud-init that has ended well enough."""
    state = "nothing yet"
    timeout_s = tools.patience.cloud_init_s
    began = tools.clock()
    with tools.console.waiting(f"cloud-init of VM {machine.vmid}", timeout_s=timeout_s) as waiting:
        for _ in tools.tries(timeout_s):
            try:
                found = _cloud_init(tools, machine)
            except Unreachable as error:
                state = error.why
                waiting.update(state)
                continue
            if found is None and tools.clock() - began >= tools.patience.no_cloud_init_s:
                return ("cloud-init has left no result here; what follows was read without it",)
            if found is not None and found.errors:
                raise OtherSide(
                    f"cloud-init failed in VM {machine.vmid}",
                    why="\n".join(found.errors),
                    next_step="look at /var/log/cloud-init.log there, mend the template, then run the command again",
                )
            if found is not None and found.done:
                return tuple(f"cloud-init: {warning}" for warning in found.warnings)
            state = "it runs" if found else "it has left nothing yet"
            waiting.update(state)
    raise OtherSide(
        f"cloud-init did not end in VM {machine.vmid} in {timeout_s:.0f} s",
        why=state,
        next_step="look at its console in Proxmox, then run the command again",
    )


def _cloud_init(tools: Tools, machine: MachineFound) -> guest.CloudInit | None:
    result = tools.hypervisor.read_file(machine.host, machine.vmid, guest.CLOUD_INIT_RESULT)
    status = tools.hypervisor.read_file(machine.host, machine.vmid, guest.CLOUD_INIT_STATUS)
    return guest.cloud_init(result, status)


def _wait_for_keys(tools: Tools, machine: MachineFound) -> tuple[tuple[HostKey, ...], str | None]:
    """The host keys (ed25519 first), and the machine-id, which is not waited for as long."""
    state = "no key yet"
    timeout_s = tools.patience.host_keys_s
    began = tools.clock()
    with tools.console.waiting(f"SSH host keys of VM {machine.vmid}", timeout_s=timeout_s) as waiting:
        for _ in tools.tries(timeout_s):
            try:
                texts = [
                    tools.hypervisor.read_file(machine.host, machine.vmid, path) for path in guest.HOST_KEYS
                ]
                machine_id = guest.machine_id(
                    tools.hypervisor.read_file(machine.host, machine.vmid, guest.MACHINE_ID)
                )
            except Unreachable as error:
                state = error.why
            else:
                keys = tuple(key for text in texts if (key := guest.host_key(text)))
                patient = tools.clock() - began < tools.patience.no_cloud_init_s
                if keys and (machine_id or not patient):
                    return keys, machine_id
                state = "no machine-id yet" if keys else "no host key yet"
            waiting.update(state)
    raise OtherSide(
        f"VM {machine.vmid} showed no SSH host key in {timeout_s:.0f} s",
        why=f"{state}; looked for {', '.join(guest.HOST_KEYS)}",
        next_step="install and enable an SSH server in the template, then run the command again",
    )


def _fabrics(
    spec: NodeSpec, machine: MachineFound, interfaces: Sequence[Mapping[str, Any]]
) -> tuple[Fabric, ...]:
    found = []
    for index, fabric in enumerate(spec.fabrics, start=1):
        mac = mac_of(machine.config, index)
        found.append(
            Fabric(
                name=fabric.name,
                interface=None if mac is None else guest.interface_of(interfaces, mac),
                mac=mac,
                mtu=fabric.mtu,
                rate_gbps=fabric.rate_gbps,
                address=fabric.address,
            )
        )
    return tuple(found)
