"""What a person sees of a VM that was made by hand before it is adopted; pure."""

from dataclasses import dataclass
from typing import Any

from inventory.errors import Refused
from inventory.lifecycle import unadopted
from inventory.model import HostKey, Node
from provision.drift import Drift
from provision.plan import MachineFound
from provision.wanted import NodeSpec

AGAIN = "run the command again"


def refused(name: str, why: str, next_step: str) -> Refused:
    """Why a VM is not adopted."""
    return Refused(f"{name} was not adopted", why=why, next_step=next_step)


@dataclass(frozen=True, slots=True)
class Look:
    """A VM as it was found. node: what is on record under the name. spec: what its profile wants, at its addresses.

    addresses: what the guest tells, for people; ips: the same by itself.
    user, ssh_port: where its ticket will send the holder.
    drift: what differs from the profile. silent: VMs whose uuid nobody tells at the moment.
    """

    name: str
    node: Node | None
    spec: NodeSpec
    machine: MachineFound
    uuid: str
    tags: tuple[str, ...]
    macs: tuple[str, ...]
    addresses: str
    ips: frozenset[str]
    machine_id: str | None
    host_keys: tuple[HostKey, ...]
    user: str
    ssh_port: int
    drift: Drift
    silent: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """Which VM, in a few words."""
        return f"VM {self.machine.vmid} '{self.machine.config.get('name', '')}' on {self.machine.host}"

    def lines(self) -> list[str]:
        """For people."""
        told = self.node is not None and unadopted(self.node)
        facts = [
            ("uuid", self.uuid),
            ("power", "running; its guest agent answers"),
            ("tags", ", ".join(self.tags) or "(none)"),
            ("macs", ", ".join(self.macs)),
            ("guest", self.addresses),
            *(("host key", f"{key.type} {key.fingerprint}") for key in self.host_keys),
            ("login", f"{self.user}, port {self.ssh_port}"),
            ("profile", f"{self.spec.profile}{'' if self.drift else ', which it is like'}"),
        ]
        lines = [f"= {title:<9} {text}" for title, text in facts]
        lines += [f"! {warning}" for warning in self.warnings()] if told or self.silent else []
        if self.drift.steps:
            lines.append(
                f"  differs; provision-node {self.name} without --adopt would mend these, if it is told to:"
            )
        return lines + self.drift.lines()

    def warnings(self) -> list[str]:
        """What a list told of it and is not so, and what could not be seen."""
        told = []
        if self.node is not None and unadopted(self.node):
            strange = [key for key in self.node.host_keys if key not in self.host_keys]
            told += [
                f"the list that it was imported from has another host key: {key.fingerprint}"
                for key in strange
            ]
            told += [
                f"the list has MAC {mac}, and it has not" for mac in self.node.macs if mac not in self.macs
            ]
            if self.node.vmid not in {None, self.machine.vmid}:
                told.append(f"the list has it as VM {self.node.vmid}")
            if self.node.proxmox_node not in {None, self.machine.host}:
                told.append(f"the list has it on {self.node.proxmox_node}")
            if self.node.address is not None and self.node.address.ip not in self.ips:
                told.append(f"the list has address {self.node.address.ip}, and it has not")
            if self.node.machine_id not in {None, self.machine_id}:
                told.append(f"the list has another machine-id: {self.node.machine_id}")
        if self.silent:
            told.append(f"whether another VM has this uuid too cannot be told of {', '.join(self.silent)}")
        return told

    def to_json(self) -> dict[str, Any]:
        """For --json."""
        return {
            "vmid": self.machine.vmid,
            "vm_name": self.machine.config.get("name"),
            "proxmox_node": self.machine.host,
            "uuid": self.uuid,
            "tags": list(self.tags),
            "macs": list(self.macs),
            "host_keys": [key.fingerprint for key in self.host_keys],
            "user": self.user,
            "ssh_port": self.ssh_port,
            "profile": self.spec.profile,
            "differs": self.drift.as_json(),
            "warnings": self.warnings(),
        }
