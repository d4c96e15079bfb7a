"""What is told of a node outside: all that is useful elsewhere, nothing of how a command goes on."""

from typing import Any

from inventory.lifecycle import next_command, unadopted, whose_turn
from inventory.model import Fabric, Node
from inventory.ticket import iso

Facts = dict[str, Any]


def facts(node: Node) -> Facts:
    """A node's facts in a stable order; None or [] where nothing is known."""
    return {
        "name": node.name,
        "state": str(node.state),
        "next": whose_turn(node),
        "command": next_command(node),
        "reason": node.reason,
        "site": node.site,
        "profile": node.profile,
        "proxmox_node": node.proxmox_node,
        "vmid": node.vmid,
        "uuid": node.uuid,
        "machine_id": node.machine_id,
        "address": None if node.address is None else node.address.ip,
        "prefix": None if node.address is None else node.address.prefix,
        "address_source": None if node.address is None else node.address.source,
        "ssh_port": node.ssh_port,
        "user": node.user,
        "macs": list(node.macs),
        "host_keys": [
            {"type": key.type, "base64": key.base64, "fingerprint": key.fingerprint} for key in node.host_keys
        ],
        "fabrics": [fabric(each) for each in node.fabrics],
        "certificate_not_after": None if node.not_after is None else iso(node.not_after),
        "verified_at": None if node.verified_at is None else iso(node.verified_at),
        "adopted": not unadopted(node),
        "has_ticket": node.ticket is not None,
        "has_receipt": node.receipt is not None,
        "spec_hash": node.spec_hash,
        "version": node.version,
    }


def fabric(each: Fabric) -> Facts:
    """One fast network of a node."""
    return {
        "name": each.name,
        "interface": each.interface,
        "mac": each.mac,
        "mtu": each.mtu,
        "rate_gbps": each.rate_gbps,
        "address": each.address,
    }
