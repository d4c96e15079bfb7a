"""A network that loses one request or answer in ten: no VM is lost, none is made twice."""

import os
import random
from typing import Any

from inventory.errors import MusterError
from inventory.model import State
from provision.hypervisor import Unanswered, Unreachable
from provision.proxmox import Proxmox
from tests.provision.kit import Place

COUNT = int(
    os.environ.get("PROVISION_FLAKY", "40")
)  # as many as one has time for: each takes a second or two


class Flaky(Proxmox):
    """The adapter on a bad line: a request does not arrive, or is carried out and its answer is lost."""

    def __init__(self, inner: Proxmox, chance: random.Random) -> None:
        self.__dict__.update(inner.__dict__)
        self._chance = chance
        self.lost = 0

    def _call(self, method: str, path: tuple[str | int, ...], **params: Any) -> Any:
        turn = self._chance.random()
        if turn >= 0.1:
            return super()._call(method, path, **params)
        self.lost += 1
        if turn >= 0.05:
            super()._call(method, path, **params)
        kind = Unreachable if method == "GET" else Unanswered
        raise kind(f"{method} was lost", why="a bad line", next_step="again")


def test_nodes_are_each_made_once_over_a_bad_line(place: Place) -> None:
    chance = random.Random(4)  # noqa: S311 - no secret
    left = [f"n{number:03}" for number in range(COUNT)]
    lost = 0
    for _ in range(40):
        for name in list(left):
            lines: list[Flaky] = []
            road = place.road(adapter=lambda inner, lines=lines: line(inner, chance, lines))  # type: ignore[misc]  # the loop's own list
            try:
                road.carry_out(road.prepare(name, profile=None))
            except MusterError:
                assert unrecorded(place) == []
            else:
                left.remove(name)
            lost += lines[0].lost
            place.adapters.pop().close()
        if not left:
            break

    nodes = place.store.all()
    vms = {vm.vmid: vm for vm in place.pve.vms if vm.vmid != 9000}
    assert left == []
    assert lost > COUNT
    assert {node.state for node in nodes} == {State.AWAITING_IDENTITY}
    assert sorted(vms) == sorted(int(node.vmid or 0) for node in nodes)
    assert all(f"uuid={node.uuid}" in vms[int(node.vmid or 0)].config["smbios1"] for node in nodes)
    assert len(vms) == COUNT


def line(inner: Proxmox, chance: random.Random, lines: list[Flaky]) -> Flaky:
    lines.append(Flaky(inner, chance))
    return lines[-1]


def unrecorded(place: Place) -> list[int]:
    """VMs that no record names: lost ones."""
    known = {node.vmid for node in place.store.all()}
    return [vm.vmid for vm in place.pve.vms if vm.vmid not in known | {9000}]
