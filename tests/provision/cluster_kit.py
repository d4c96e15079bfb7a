"""What a test's Proxmox has besides VMs: PCI mappings, bridges with an MTU, texts for cloud-init drives."""

from collections.abc import Mapping
from typing import Any

from lab import cloudinit
from tests.provision.kit import Place


class Answers:
    """Answers in the place of what the server makes up from the schema; the rest stays the server's."""

    def __init__(self, pve: Any) -> None:
        self._pve = pve
        self._usual = pve.answer
        self.dns: Mapping[str, str] = {}
        self.mappings: Mapping[str, Mapping[str, int]] = {}
        self.faults: Mapping[str, str] = {}
        self.bridges: Mapping[str, int | None] | None = None
        pve.answer = self

    async def __call__(self, request: Any, match: Any, params: Any, user: Any, call: Any = None) -> Any:
        usual = await self._usual(request, match, params, user, call)
        if request.path.endswith("/cloudinit/dump"):
            vm = self._pve.vm(int(request.path.split("/")[-3]))
            files = cloudinit.seed({**vm.config, **self.dns}, name=vm.config["name"])
            return {"meta": files.meta, "network": files.network, "user": files.user}[params["type"]]
        if request.path.endswith("/cluster/mapping/pci"):
            return self._mappings()
        if request.path.endswith("/network") and self.bridges is not None:
            rows = [(name, {} if mtu is None else {"mtu": str(mtu)}) for name, mtu in self.bridges.items()]
            return [{"iface": name, "type": "bridge", "active": 1, **more} for name, more in rows]
        return usual

    def _mappings(self) -> list[dict[str, Any]]:
        return [
            {
                "id": name,
                "type": "pci",
                "map": [
                    f"node={host},path=0000:{number:02x}:00,id=10de:2330"
                    for host, count in hosts.items()
                    for number in range(count)
                ],
                "checks": [{"severity": "error", "message": f"{self.faults[name]}\n"}]
                if name in self.faults
                else [],
            }
            for name, hosts in self.mappings.items()
        ]


def answers(place: Place) -> Answers:
    """The one of this test."""
    found = place.pve.answer
    return found if isinstance(found, Answers) else Answers(place.pve)
