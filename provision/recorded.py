"""What a node's record says of its VM before there is one, and what a person is told of it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from inventory.errors import MusterError, Refused
from inventory.model import Address, Fabric, Node
from provision.config import Change
from provision.spec import Site
from provision.wanted import NodeSpec


def as_wanted(node: Node, spec: NodeSpec, site: Site) -> Node:
    """The record with what is known before the VM exists: its static addresses are taken from here on."""
    ip, _, prefix = (spec.address or "").partition("/")
    return replace(
        node,
        site=site.name,
        profile=spec.profile,
        spec_hash=spec.hash,
        address=Address(ip, int(prefix), "static") if spec.address else None,
        ssh_port=spec.ssh_port,
        user=spec.user,
        fabrics=tuple(_fabrics(spec)),
    )


def name_the_vm(error: MusterError, node: Node) -> None:
    """Make the error also say what stays behind and how to go on."""
    if node.vmid is not None:
        rest = f"VM {node.vmid} on {node.proxmox_node} (uuid {node.uuid}) is what there is of {node.name}"
        error.next_step = f"{error.next_step}\n{rest}; the same command goes on from there"


def not_adopted(name: str) -> Refused:
    """Why nothing is done with a node that was only told of."""
    return Refused(
        f"{name} was not changed",
        why="its VM was made by hand, and nobody has looked at it yet",
        next_step=f"provision-node {name} --adopt, which shows it and changes nothing in Proxmox",
    )


def stays_as_found(node: Node, changes: Iterable[Change]) -> str:
    """The warning beside a ticket that accepts a VM which is not as its profile wants it."""
    keys = ", ".join(change.key for change in changes)
    return (
        f"VM {node.vmid} keeps {keys} as found, although its profile wants otherwise; if the VM was not restarted since"
        " that was changed, it makes new SSH host keys at its next start, and this ticket is wrong then"
    )


def _fabrics(spec: NodeSpec) -> Iterator[Fabric]:
    for fabric in spec.fabrics:
        yield Fabric(name=fabric.name, mtu=fabric.mtu, rate_gbps=fabric.rate_gbps, address=fabric.address)
