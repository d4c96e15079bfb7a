"""A ticket's fabrics, set against the network devices that the node has (pure)."""

from collections.abc import Mapping, Sequence

from inventory.model import Fabric


def contradictions(fabrics: Sequence[Fabric], interfaces: Mapping[str, str]) -> list[str]:
    """Why the node cannot have these fabrics; none: it has each, on a device of its own.

    The MAC is what infra gave the device, so it tells which one it is; a device that is named as well must be
    that very one.

    interfaces: the node's devices, name by MAC.
    """
    reasons = []
    used: dict[str, str] = {}
    for fabric in fabrics:
        found = None if fabric.mac is None else interfaces.get(fabric.mac)
        if fabric.mac is not None and found is None:
            named = f", nor is that of {fabric.interface}" if fabric.interface in interfaces.values() else ""
            reasons.append(f"the node has no interface with the MAC {fabric.mac} of {fabric.name}{named}")
        elif fabric.mac is None and fabric.interface is None:
            reasons.append(f"the ticket tells neither MAC nor interface of {fabric.name}")
        elif fabric.mac is None and fabric.interface not in interfaces.values():
            reasons.append(f"the node has no interface {fabric.interface}, which {fabric.name} is said to be")
        elif found is not None and fabric.interface not in {None, found}:
            reasons.append(
                f"{fabric.name} is said to be {fabric.interface}, but its MAC {fabric.mac} is that of {found}"
            )
        else:
            device = found or fabric.interface or ""
            if (other := used.setdefault(device, fabric.name)) != fabric.name:
                reasons.append(f"{other} and {fabric.name} are both {device}")
    return reasons
