"""The parts of a profile in site.yaml that stand by themselves: addresses, networks, PCI devices, NUMA, sources."""

from collections.abc import Mapping
from ipaddress import ip_address, ip_interface
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Discriminator, Field, PositiveFloat, PositiveInt, Tag, model_validator

from inventory.document import Model
from provision.fields import Bridge, CpuSet, FabricName, HostAddress, ImageUrl, Ip, Sha256, Volume, Word

MAX_PCI = 16  # hostpci0 to hostpci15
Queues = Annotated[int, Field(ge=1, le=64)]
Vlan = Annotated[int, Field(ge=1, le=4094)]


class Addresses(Model):
    """Static addresses of one network, each with its prefix length; both ends belong to the range."""

    first: HostAddress = Field(alias="from")
    """The first one."""
    last: HostAddress = Field(alias="to")
    """The last one."""

    @model_validator(mode="after")
    def _one_network(self) -> "Addresses":
        first, last = ip_interface(self.first), ip_interface(self.last)
        if first.network != last.network:
            raise ValueError(f"from {self.first} and to {self.last} are not in one network")
        if int(first.ip) > int(last.ip):
            raise ValueError(f"from {first.ip} is above to {last.ip}")
        return self


class RoutedAddresses(Addresses):
    """Static addresses and the way out of their network."""

    gateway: Ip | None = None
    """The router; it lies in the same network."""

    @model_validator(mode="after")
    def _gateway_is_near(self) -> "RoutedAddresses":
        network = ip_interface(self.first).network
        if self.gateway is not None and ip_address(self.gateway) not in network:
            raise ValueError(f"gateway {self.gateway} is outside of {network}")
        return self


Lease = Literal["dhcp", "dhcp6", "auto"]


def _lease_or_range(value: Any) -> str | None:  # noqa: ANN401 - whatever the file holds
    if isinstance(value, Mapping | RoutedAddresses):
        return "range"
    return "lease" if value in get_args(Lease) else None


class NetworkPart(Model):
    """The management network."""

    bridge: Bridge
    """The host's bridge."""
    vlan: Vlan | None = None
    """The VLAN's tag."""
    queues: Queues | None = None
    """Of the virtio NIC."""
    address: Annotated[
        Annotated[RoutedAddresses, Tag("range")] | Annotated[Lease, Tag("lease")],
        Discriminator(
            _lease_or_range,
            custom_error_type="address",
            custom_error_message="should be dhcp, dhcp6 or auto, or a mapping with from, to and gateway",
        ),
    ]
    """A range of static addresses; or dhcp (IPv4), dhcp6, or auto (what routers announce, IPv6)."""

    @property
    def addresses(self) -> RoutedAddresses | None:
        """The range of static addresses, if there is one."""
        return self.address if isinstance(self.address, RoutedAddresses) else None

    @property
    def lease(self) -> Lease:
        """How an address is come by where none is static."""
        return "dhcp" if isinstance(self.address, RoutedAddresses) else self.address


class GpusPart(Model):
    """GPUs by resource mapping."""

    mapping: Word
    """The resource mapping."""
    count: Annotated[int, Field(ge=1, le=MAX_PCI)]
    """How many; each takes one hostpci."""


class FabricPart(Model):
    """One fast network, over a bridge or by a passed virtual function (resource mapping)."""

    name: FabricName
    """What agent.yaml calls it too."""
    bridge: Bridge | None = None
    """The host's bridge; this or a mapping."""
    mapping: Word | None = None
    """The resource mapping of the virtual functions."""
    vlan: Vlan | None = None
    """The VLAN's tag; needs a bridge."""
    queues: Queues | None = None
    """Of the virtio NIC; needs a bridge."""
    mtu: Annotated[int, Field(ge=576, le=65520)] | None = None
    """The largest packet; from 576 to what Proxmox gives a `netN`."""
    rate_gbps: PositiveFloat | None = None
    """Its speed, told to the agent."""
    addresses: Addresses | None = None
    """Static addresses on it."""

    @model_validator(mode="after")
    def _one_way(self) -> "FabricPart":
        if (self.bridge is None) == (self.mapping is None):
            raise ValueError(f"fabric {self.name} needs either a bridge or a mapping")
        if self.mapping is not None and (self.vlan or self.queues):
            raise ValueError(
                f"vlan and queues of fabric {self.name} need a bridge: a passed function has the host's"
            )
        return self


class NumaPart(Model):
    """One NUMA node of the guest."""

    cpus: CpuSet
    """The guest's CPUs."""
    memory_mib: PositiveInt
    """Its memory."""
    host_node: Annotated[int, Field(ge=0, le=9)] | None = None
    """The host's NUMA node; Proxmox takes one digit."""


class ImagePart(Model):
    """A cloud image: fetched from a url and checked by its sha256, or a volume that Proxmox has already."""

    url: ImageUrl | None = None
    """Where it is fetched from."""
    sha256: Sha256 | None = None
    """Of what is fetched, in hex."""
    volume: Volume | None = None
    """The volume that has it already."""

    @model_validator(mode="after")
    def _one_kind(self) -> "ImagePart":
        if (self.url is None) == (self.volume is None):
            raise ValueError("an image is either a url with its sha256, or a volume")
        if (self.url is None) != (self.sha256 is None):
            raise ValueError("url and sha256 belong together: an image that nobody checked is not started")
        return self


class TagPart(Model):
    """A template by its tag: the nearest one that has it."""

    tag: Word
    """The tag."""


def _kind(value: Any) -> str | None:  # noqa: ANN401 - whatever the file holds
    if isinstance(value, Mapping | TagPart):
        return "tag"
    if isinstance(value, str):
        return "name"
    return "id" if isinstance(value, int) and not isinstance(value, bool) else None


def _named(name: str) -> str:
    if not name.strip():
        raise ValueError("the template's name is empty")
    return name


def _in_range(vmid: int) -> int:
    if not 100 <= vmid <= 999_999_999:
        raise ValueError(f"{vmid} is not between 100 and 999999999")
    return vmid


Template = Annotated[
    Annotated[int, BeforeValidator(_in_range), Tag("id")]
    | Annotated[str, BeforeValidator(_named), Tag("name")]
    | Annotated[TagPart, Tag("tag")],
    Discriminator(
        _kind,
        custom_error_type="template",
        custom_error_message="a template is given by its VM id, by its name, or as a mapping with its tag",
    ),
]
