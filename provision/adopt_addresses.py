"""What a profile wants of a VM that has its addresses already: just these; none is chosen for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_interface
from typing import Any

from inventory.model import Address, Fabric, Node, State
from provision.adopt_look import refused
from provision.config import mac_of
from provision.parts import Addresses
from provision.plan import MachineFound
from provision.spec import NodePart, Site
from provision.wanted import NodeSpec, want


@dataclass(frozen=True, slots=True)
class Seen:
    """What the guest tells of its NICs."""

    machine: MachineFound
    interfaces: Sequence[Mapping[str, Any]]

    def on(self, index: int) -> tuple[str, ...]:
        """The addresses on netN, with their prefix lengths where they are told."""
        mac = mac_of(self.machine.config, index)
        return tuple(
            f"{str(entry.get('ip-address', '')).partition('%')[0]}/{entry.get('prefix')}"
            for interface in self.interfaces
            if mac is not None and str(interface.get("hardware-address", "")).lower() == mac
            for entry in interface.get("ip-addresses") or ()
        )

    @property
    def ips(self) -> frozenset[str]:
        """Every address of the guest, on whichever NIC."""
        return frozenset(
            str(entry.get("ip-address", "")).partition("%")[0].lower()
            for interface in self.interfaces
            for entry in interface.get("ip-addresses") or ()
        )


def wanted_as_found(
    site: Site,
    name: str,
    profile: str,
    *,
    ssh_keys: tuple[str, ...],
    told: Node | None,
    found: Seen,
) -> NodeSpec:
    """The VM that the profile wants, with the addresses that the guest has.

    told: what is on record of the node, from a list.

    Raises:
        Refused: the profile or the site file has static addresses, and the VM has others.
        BadInput: there is no such profile.
    """
    part = site.profile(profile)
    ip, _, prefix = _in_range(found.on(0), part.network.addresses).partition("/")
    by_hand = {fabric.name: fabric.address for fabric in told.fabrics} if told else {}
    fabrics = tuple(
        Fabric(fabric.name, address=_in_range(found.on(index), fabric.addresses) or by_hand.get(fabric.name))
        for index, fabric in enumerate(part.fabrics, start=1)
    )
    address = Address(ip, int(prefix), "static") if ip else None
    as_found = Node(name, State.AWAITING_IDENTITY, address=address, fabrics=fabrics)
    spec = want(site, name, profile, ssh_keys=ssh_keys, nodes=(as_found,))
    _check_wanted(site, spec, found, by_hand)
    return spec


def addresses_of(spec: NodeSpec) -> set[str]:
    """The static addresses that the node gets, without their prefix."""
    return _bare(spec.address, *(fabric.address for fabric in spec.fabrics))


def static_addresses(node: Node) -> set[str]:
    """Those that a node on record has."""
    own = node.address.ip if node.address and node.address.source == "static" else None
    return _bare(own, *(fabric.address for fabric in node.fabrics))


def _bare(*addresses: str | None) -> set[str]:
    return {str(ip_interface(text).ip) for text in addresses if text is not None}


def _in_range(seen: Sequence[str], addresses: Addresses | None) -> str:
    """The first of these that lies in a range of the profile; empty if none does."""
    if addresses is None:
        return ""
    first, last = ip_interface(addresses.first), ip_interface(addresses.last)
    for text in seen:
        try:
            known = ip_interface(text)
        except ValueError:
            continue
        if known.network == first.network and int(first.ip) <= int(known.ip) <= int(last.ip):
            return str(known)
    return ""


def _check_wanted(site: Site, spec: NodeSpec, found: Seen, by_hand: Mapping[str, str | None]) -> None:
    own, part = site.nodes.get(spec.name, NodePart()), site.profile(spec.profile)
    if spec.address is not None and not _has(found.on(0), spec.address):
        whose = (
            f"that the site file says: {own.address}"
            if own.address
            else f"that profile {spec.profile} has a range for: {_range(part.network.addresses)}"
        )
        raise refused(
            spec.name,
            f"it has {', '.join(found.on(0)) or 'no address'} on net0, and not one {whose}",
            f"name the profile whose network has it (--profile), or mend nodes.{spec.name} in the site file",
        )
    for index, fabric in enumerate(spec.fabrics, start=1):
        if fabric.address is None or _has(found.on(index), fabric.address):
            continue
        said = {own.fabrics.get(fabric.name), by_hand.get(fabric.name)}
        # A passed function is no NIC that Proxmox knows, so a person's word must do.
        if fabric.bridge is not None or fabric.address not in said:
            static = _range(part.fabrics[index - 1].addresses) or fabric.address
            raise refused(
                spec.name,
                f"it has {', '.join(found.on(index)) or 'no address'} on net{index}, and {fabric.name} of profile"
                f" {spec.profile} has static addresses: {static}",
                f"name another profile, or its address as nodes.{spec.name}.fabrics.{fabric.name} in the site file",
            )


def _has(seen: Sequence[str], address: str) -> bool:
    return any(text.partition("/")[0] == address.partition("/")[0] for text in seen)


def _range(addresses: Addresses | None) -> str:
    return "" if addresses is None else f"{addresses.first} to {addresses.last}"
