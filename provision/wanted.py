"""The VM that one node wants: its profile, with the addresses that it gets."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from ipaddress import ip_interface
from pathlib import Path

from inventory.errors import BadFile, BadInput, Fault, Refused
from inventory.model import HostKey, Node, State
from provision.parts import Addresses, Lease, TagPart
from provision.spec import NodePart, Profile, Site
from provision.user_data import UserData, read_user_data


@dataclass(frozen=True, slots=True)
class WantedFabric:
    """One fast network. mtu: octets. rate_gbps: 10^9 bit/s. address: CIDR; None where nobody gives it one.

    bridge: None for a passed virtual function, whose `mapping` it then has.
    """

    name: str
    bridge: str | None
    mtu: int | None = None
    rate_gbps: float | None = None
    address: str | None = None
    mapping: str | None = None
    vlan: int | None = None
    queues: int | None = None


@dataclass(frozen=True, slots=True)
class WantedNuma:
    """One NUMA node of the guest. cpus: ranges, `;` between them. host_node: the host's that it is bound to."""

    cpus: str
    memory_mib: int
    host_node: int | None = None


@dataclass(frozen=True, slots=True)
class WantedImage:
    """A cloud image. url and sha256: to be fetched and checked; volume: Proxmox has it."""

    url: str | None = None
    sha256: str | None = None
    volume: str | None = None


@dataclass(frozen=True, slots=True)
class WantedSeed:
    """User-data beside our own, on a disc that lies in `storage` until the first boot is over."""

    storage: str
    user_data: UserData


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The VM that one node wants; None leaves a thing as its template has it.

    template: VM id or name; None where `tag` or `image` is the source. linked: share the template's disk.
    host: the Proxmox node to stand on; None leaves it to the template's.
    memory_mib: MiB. disk_gib: GiB. ssh_keys: public key lines. address: CIDR; None means one by `lease`.
    """

    name: str
    profile: str
    template: int | str | None
    host: str | None
    storage: str
    pool: str | None
    cores: int
    memory_mib: int
    disk_gib: int
    user: str
    ssh_port: int
    ssh_keys: tuple[str, ...]
    bridge: str
    vlan: int | None = None
    address: str | None = None
    gateway: str | None = None
    gpu_mapping: str | None = None
    gpu_count: int = 0
    fabrics: tuple[WantedFabric, ...] = ()
    tag: str | None = None
    image: WantedImage | None = None
    linked: bool = False
    sockets: int | None = None
    queues: int | None = None
    machine: str | None = None
    bios: str | None = None
    secure_boot: bool = False
    cpu: str | None = None
    numa: tuple[WantedNuma, ...] = ()
    hugepages_mib: int | None = None
    affinity: str | None = None
    lease: Lease = "dhcp"
    seed: WantedSeed | None = None

    @property
    def mappings(self) -> dict[str, int]:
        """How many devices of each PCI mapping it wants: GPUs, and passed functions for fabrics."""
        counts = {self.gpu_mapping: self.gpu_count} if self.gpu_mapping else {}
        for fabric in self.fabrics:
            if fabric.mapping is not None:
                counts[fabric.mapping] = counts.get(fabric.mapping, 0) + 1
        return counts

    @property
    def hash(self) -> str:
        """SHA-256 (hex) of the canonical JSON of all of this."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()


def want(
    site: Site, name: str, profile_name: str, *, ssh_keys: tuple[str, ...], nodes: Iterable[Node]
) -> NodeSpec:
    """The VM that the node `name` wants; `nodes` are all on record, whose addresses are not given twice.

    An address is the node's own of the site file, else the recorded one, else the first that is free.

    Raises:
        BadInput: the node's own address lies outside of the profile's network, there is no such profile, or its
            user-data is unfit.
        Refused: no address is left.
    """
    profile = site.profile(profile_name)
    own = site.nodes.get(name, NodePart())
    others = [node for node in nodes if node.name != name and node.state is not State.RETIRED]
    recorded = next((node for node in nodes if node.name == name), None)
    used = set(_used(site, name, others))
    routed = profile.network.addresses
    gateway = routed.gateway if routed else None
    before = (
        recorded.address if recorded and recorded.address and recorded.address.source == "static" else None
    )
    return NodeSpec(
        name=name,
        profile=profile_name,
        template=None if isinstance(profile.template, TagPart) else profile.template,
        tag=profile.template.tag if isinstance(profile.template, TagPart) else None,
        image=WantedImage(**profile.image.model_dump()) if profile.image else None,
        linked=profile.linked,
        host=None if profile.node == "auto" else profile.node,
        storage=profile.storage,
        pool=site.proxmox.pool,
        cores=profile.cores,
        memory_mib=profile.memory_mib,
        disk_gib=profile.disk_gib,
        user=profile.user,
        ssh_port=profile.ssh_port,
        ssh_keys=ssh_keys,
        bridge=profile.network.bridge,
        vlan=profile.network.vlan,
        address=_address(
            f"nodes.{name}.address",
            own.address,
            routed,
            before=f"{before.ip}/{before.prefix}" if before else None,
            used=used | ({gateway} if gateway else set()),
        ),
        gateway=gateway,
        gpu_mapping=profile.gpus.mapping if profile.gpus else None,
        gpu_count=profile.gpus.count if profile.gpus else 0,
        fabrics=tuple(_fabrics(name, profile, own, recorded, used)),
        sockets=profile.sockets,
        queues=profile.network.queues,
        machine=profile.machine,
        bios=profile.bios,
        secure_boot=profile.secure_boot,
        cpu=profile.cpu,
        numa=tuple(
            WantedNuma(part.cpus.replace(",", ";"), part.memory_mib, part.host_node) for part in profile.numa
        ),
        hugepages_mib=profile.hugepages_mib,
        affinity=profile.affinity,
        lease=profile.network.lease,
        seed=_seed(profile),
    )


def login_keys(file: Path) -> tuple[str, ...]:
    """The public keys of a file, one a line; blank lines and comments are left out.

    Raises:
        BadInput: it cannot be read, holds no key, or a line that is not one.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{file} cannot be read",
            why=getattr(error, "strerror", None) or "it is not UTF-8",
            next_step="put both roles' public login keys there, one a line, or mend ssh_keys_file",
        ) from error
    keys: list[str] = []
    faults: list[Fault] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            HostKey.from_line(text)
        except ValueError as error:
            faults.append(Fault(f"{file}:{number}:1", f"not a public key line: {error}"))
        keys.append(text)
    if not keys:
        faults.append(Fault(str(file), "no public key in it: nobody could log in"))
    if faults:
        raise BadFile(str(file), faults)
    return tuple(keys)


def _seed(profile: Profile) -> WantedSeed | None:
    if profile.user_data_file is None:
        return None
    return WantedSeed(str(profile.seed_storage), read_user_data(profile.user_data_file, user=profile.user))


def _fabrics(
    name: str, profile: Profile, own: NodePart, recorded: Node | None, used: set[str]
) -> Iterator[WantedFabric]:
    before = {fabric.name: fabric.address for fabric in recorded.fabrics} if recorded else {}
    for fabric in profile.fabrics:
        yield WantedFabric(
            name=fabric.name,
            bridge=fabric.bridge,
            mapping=fabric.mapping,
            vlan=fabric.vlan,
            queues=fabric.queues,
            mtu=fabric.mtu,
            rate_gbps=fabric.rate_gbps,
            address=_address(
                f"nodes.{name}.fabrics.{fabric.name}",
                own.fabrics.get(fabric.name),
                fabric.addresses,
                before=before.get(fabric.name),
                used=used,
            ),
        )


def _used(site: Site, name: str, others: Iterable[Node]) -> Iterator[str]:
    for other, part in site.nodes.items():
        if other != name:
            for address in (part.address, *part.fabrics.values()):
                if address is not None:
                    yield str(ip_interface(address).ip)
    for node in others:
        if node.address is not None:
            yield node.address.ip
        for fabric in node.fabrics:
            if fabric.address is not None:
                yield str(ip_interface(fabric.address).ip)


def _address(
    key: str, own: str | None, addresses: Addresses | None, *, before: str | None, used: set[str]
) -> str | None:
    if own is not None:
        if addresses is not None and ip_interface(own).network != ip_interface(addresses.first).network:
            raise BadInput(
                f"{key} cannot be used",
                why=f"{own} is not in the profile's network {ip_interface(addresses.first).network}",
                next_step=f"mend {key} or the profile in the site file",
            )
        return own
    if addresses is None:
        return None
    first, last = ip_interface(addresses.first), ip_interface(addresses.last)
    if before is not None:
        known = ip_interface(before)
        if known.network == first.network and int(first.ip) <= int(known.ip) <= int(last.ip):
            return before
    for number in range(int(first.ip), int(last.ip) + 1):
        ip = type(first.ip)(number)
        if str(ip) not in used:
            return f"{ip}/{first.network.prefixlen}"
    raise Refused(
        f"there is no address left for {key.split('.')[1]}",
        why=f"every one from {first.ip} to {last.ip} is taken by a node on record or in the site file",
        next_step="widen the range in the site file, or retire a node",
    )
