"""site.yaml: its model and its rules; a file that loads describes VMs that can be made."""

from collections.abc import Mapping
from contextvars import ContextVar
from ipaddress import ip_interface
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ModelWrapValidatorHandler, PositiveInt, field_validator, model_validator

from inventory.document import Model, RelativePath, load
from inventory.errors import BadFile, BadInput
from provision.fields import (
    Cpu,
    CpuSet,
    Fingerprint,
    HostAddress,
    Machine,
    NodeName,
    Pool,
    Url,
    User,
    VmId,
    Word,
)
from provision.parts import FabricPart, GpusPart, ImagePart, NetworkPart, NumaPart, Template
from provision.user_data import read_user_data

# The profiles as the file has them, for the rules that look from one profile at another. Pydantic tells a
# fault's place by the validator that raises it, so such a rule must stand at its own key.
_RAW: ContextVar[Mapping[str, Any]] = ContextVar("profiles of the site file being read")
_REQUIRED = ("storage", "cores", "memory_mib", "disk_gib", "user", "ssh_keys_file", "network")


class ProxmoxPart(Model):
    """How Proxmox is reached and trusted: by ca_file or fingerprint, one of the two."""

    url: Url
    """Where its API is."""
    token_file: RelativePath
    """One line, user@realm!name=secret."""
    ca_file: RelativePath | None = None
    """The CA that signed Proxmox's certificate (PEM)."""
    fingerprint: Fingerprint | None = None
    """SHA-256 of that certificate itself, in the place of a CA."""
    pool: Pool | None = None
    """Where new VMs belong, and through which rights may be granted."""

    @model_validator(mode="after")
    def _trusts_in_one_way(self) -> "ProxmoxPart":
        if (self.ca_file is None) == (self.fingerprint is None):
            given = "both are given" if self.ca_file else "neither is given"
            raise ValueError(
                f"either ca_file or fingerprint says whom to trust, and {given}; nothing is unverified"
            )
        return self


class TicketPart(Model):
    """The hand-off to the security holder."""

    signing_key: RelativePath
    """An OpenSSH private key, or its .pub with the key in an agent."""
    valid_h: PositiveInt = 72
    """How long a ticket holds."""


Bios = Literal["seabios", "ovmf"]
Hugepages = Literal[2, 1024]


class VmIds(Model):
    """Which VM ids may be taken; both ends belong to the range."""

    first: VmId = Field(alias="from")
    """The first one."""
    last: VmId = Field(alias="to")
    """The last one."""

    @model_validator(mode="after")
    def _ordered(self) -> "VmIds":
        if self.first > self.last:
            raise ValueError(f"from {self.first} is above to {self.last}")
        return self

    @property
    def range(self) -> range:
        """All of them."""
        return range(self.first, self.last + 1)


class Profile(Model):
    """What the VMs of one kind are like, whole; None leaves a thing as its template has it.

    template, image: one of the two. memory_mib: MiB. disk_gib: GiB of the boot disk. cores: of each socket.
    secure_boot: whether a new EFI disk gets Microsoft's keys. affinity: the host's CPUs.
    user_data_file: cloud-init user-data beside our own, for the first boot. seed_storage: where its disc lies then.
    """

    template: Template | None
    image: ImagePart | None
    linked: bool
    node: Word
    storage: Word
    cores: int
    sockets: int | None
    memory_mib: int
    disk_gib: int
    user: User
    ssh_port: int
    ssh_keys_file: RelativePath
    network: NetworkPart
    gpus: GpusPart | None
    fabrics: list[FabricPart]
    machine: Machine | None
    bios: Bios | None
    secure_boot: bool
    cpu: Cpu | None
    numa: list[NumaPart]
    hugepages_mib: Hugepages | None
    affinity: CpuSet | None
    user_data_file: RelativePath | None
    seed_storage: Word | None


class ProfilePart(Model):
    """A profile as the file has it: what it leaves out comes from the one it extends.

    `null` says that it has none of it, whatever the extended profile has.
    """

    null_counts: ClassVar[bool] = True
    extends: str | None = None
    """The profile that gives what this one leaves out."""
    template: Template | None = None
    """What the VM is cloned from: a VM id, a name or a tag; this or an image, the nearer one counts."""
    image: ImagePart | None = None
    """What its disk is imported from, in the place of a template."""
    linked: bool = False
    """Whether the clone is linked, without a full copy of the template's disk."""
    node: Word = "auto"
    """The Proxmox node; auto: the one with the most room."""
    storage: Word | None = None
    """Where its disk lies; required, here or in a profile that this one extends, as the next six."""
    cores: PositiveInt | None = None
    """Of each socket."""
    sockets: Annotated[int, Field(ge=1, le=16)] | None = None
    """CPU sockets; none: as the template has it."""
    memory_mib: Annotated[int, Field(ge=16)] | None = None
    """Its memory."""
    disk_gib: PositiveInt | None = None
    """Its boot disk."""
    user: User | None = None
    """The login user, whom both roles' keys let in."""
    ssh_port: Annotated[int, Field(ge=1, le=65535)] = 22
    """Where its SSH server listens."""
    ssh_keys_file: RelativePath | None = None
    """Public keys that may log in, one a line."""
    network: NetworkPart | None = None
    """The management network."""
    gpus: GpusPart | None = None
    """Its GPUs."""
    fabrics: list[FabricPart] = Field(default_factory=list, max_length=31)
    """Its fast networks; no two have one name."""
    machine: Machine | None = None
    """The machine type; none: as the template has it."""
    bios: Bios | None = None
    """The firmware; none: as the template has it."""
    secure_boot: bool = False
    """Whether a new EFI disk gets Microsoft's keys."""
    cpu: Cpu | None = None
    """The CPU type; none: as the template has it."""
    numa: list[NumaPart] = Field(default_factory=list, max_length=8)
    """The guest's NUMA nodes."""
    hugepages_mib: Hugepages | None = None
    """Huge pages; no API token may set it, a clone keeps its template's."""
    affinity: CpuSet | None = None
    """The host's CPUs; no API token may set it, a clone keeps its template's."""
    user_data_file: RelativePath | None = None
    """Cloud-init user-data beside our own, for the first boot."""
    seed_storage: Word | None = None
    """Where the disc with user_data_file lies then: a storage with content iso."""

    @field_validator("extends")
    @classmethod
    def _known_and_not_in_a_circle(cls, name: str | None) -> str | None:
        _chain(_RAW.get(), name)
        return name

    @field_validator("fabrics")
    @classmethod
    def _names_are_unique(cls, fabrics: list[FabricPart]) -> list[FabricPart]:
        names = [fabric.name for fabric in fabrics]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two fabrics are called {', '.join(twice)}")
        return fabrics

    @field_validator("user_data_file")
    @classmethod
    def _user_data_is_fit(cls, file: Path | None) -> Path | None:
        if file is not None:
            try:
                read_user_data(file)
            except BadFile as error:
                raise ValueError("; ".join(map(str, error.faults))) from None
        return file

    @model_validator(mode="after")
    def _whole_in_the_end(self) -> "ProfilePart":
        raw = _RAW.get()
        if self.template is not None and self.image is not None:
            raise ValueError("a VM is made either from a template or from an image")
        merged: dict[str, Any] = {}
        for name in reversed(_chain(raw, self.extends)):
            merged = _over(merged, raw[name] if isinstance(raw[name], Mapping) else {})
        merged = _over(merged, {key: getattr(self, key) for key in self.model_fields_set})
        missing = [key for key in _REQUIRED if merged.get(key) is None]
        if merged.get("template") is None and merged.get("image") is None:
            missing.insert(0, "template")
        if missing:
            raise ValueError(f"{', '.join(missing)}: required, here or in a profile that this one extends")
        if merged.get("user_data_file") is not None and merged.get("seed_storage") is None:
            raise ValueError("user_data_file needs seed_storage, a storage with content iso for its disc")
        return self


_FIELDS = {key: field for key, field in ProfilePart.model_fields.items() if key != "extends"}


class NodePart(Model):
    """What one node has of its own: its addresses, with their prefix lengths."""

    address: HostAddress | None = None
    """On the management network."""
    fabrics: dict[str, HostAddress] = Field(default_factory=dict)
    """By the fabric's name: its address there."""

    @field_validator("fabrics")
    @classmethod
    def _fabrics_exist(cls, fabrics: dict[str, str]) -> dict[str, str]:
        known = {
            fabric.get("name")
            for profile in _RAW.get().values()
            if isinstance(profile, Mapping) and isinstance(profile.get("fabrics"), list)
            for fabric in profile["fabrics"]
            if isinstance(fabric, Mapping)
        }
        if unknown := sorted(set(fabrics) - known):
            raise ValueError(f"no profile has a fabric called {', '.join(unknown)}")
        return fabrics


class Site(Model):
    """site.yaml, the infra team's: what it makes, and where."""

    proxmox: ProxmoxPart
    """How Proxmox is reached."""
    ticket: TicketPart | None = None
    """The hand-off; without it VMs are made with a warning, and nobody gives them an identity."""
    receipt_signers: RelativePath | None = None
    """OpenSSH allowed signers: whose receipts are believed."""
    vmids: VmIds | None = None
    """Which VM ids may be taken; none: what Proxmox offers."""
    profiles: Annotated[dict[Word, ProfilePart], Field(min_length=1)]
    """By a name of your own: a kind of VM."""
    nodes: dict[NodeName, NodePart] = Field(default_factory=dict)
    """By its name: what one node has of its own."""

    @model_validator(mode="wrap")
    @classmethod
    def _with_the_profiles_in_sight(cls, data: Any, handler: ModelWrapValidatorHandler["Site"]) -> "Site":  # noqa: ANN401
        profiles = data.get("profiles") if isinstance(data, Mapping) else None
        token = _RAW.set(profiles if isinstance(profiles, Mapping) else {})
        try:
            return handler(data)
        finally:
            _RAW.reset(token)

    @field_validator("nodes")
    @classmethod
    def _addresses_are_unique(cls, nodes: dict[str, NodePart]) -> dict[str, NodePart]:
        owner: dict[str, str] = {}
        for name, node in nodes.items():
            for address in (node.address, *node.fabrics.values()):
                if address is None:
                    continue
                ip = str(ip_interface(address).ip)
                if owner.setdefault(ip, name) != name:
                    raise ValueError(f"{owner[ip]} and {name} both have {ip}")
        return nodes

    @property
    def name(self) -> str:
        """What the record and the tickets call this site: the host and port of its Proxmox."""
        return self.proxmox.url.removeprefix("https://")

    def profile(self, name: str) -> Profile:
        """The profile called `name`, whole.

        Raises:
            BadInput: there is none.
        """
        if name not in self.profiles:
            raise BadInput(
                f"the site file has no profile {name!r}",
                why=f"its profiles are {', '.join(self.profiles)}",
                next_step="choose one of them with --profile",
            )
        merged = {key: field.get_default(call_default_factory=True) for key, field in _FIELDS.items()}
        for part in reversed(_chain(self.profiles, name)):
            given = self.profiles[part].model_fields_set - {"extends"}
            merged = _over(merged, {key: getattr(self.profiles[part], key) for key in given})
        return Profile.model_construct(**merged)

    def profile_for(self, *, asked: str | None, recorded: str | None) -> str:
        """The name of the profile to use: the one asked for, else the recorded one, else the only one.

        Raises:
            BadInput: none of these tells it.
        """
        name = asked or recorded or (next(iter(self.profiles)) if len(self.profiles) == 1 else None)
        if name is None:
            raise BadInput(
                "it is not clear which profile to use",
                why=f"the site file has {', '.join(self.profiles)}",
                next_step="choose one of them with --profile",
            )
        return name


def load_site(file: Path) -> Site:
    """The site that `file` describes.

    Raises:
        BadInput: it cannot be read, or has faults; every one is told with its place.
    """
    return load(file, Site)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """A profile over the one that it extends; of a template and an image, the nearer one counts."""
    merged = {**below, **above}
    for key, other in (("template", "image"), ("image", "template")):
        if above.get(key) is not None and above.get(other) is None:
            merged[other] = None
    return merged


def _chain(profiles: Mapping[str, Any], name: str | None) -> list[str]:
    """`name` and all that it extends, nearest first; ValueError if that does not end."""
    chain: list[str] = []
    while name is not None:
        if name not in profiles:
            known = ", ".join(map(str, profiles)) or "none"
            raise ValueError(f"there is no profile {name!r} (there are: {known})")
        if name in chain:
            raise ValueError(f"goes round in a circle: {' -> '.join([*chain, name])}")
        chain.append(name)
        part = profiles[name]
        above = part.get("extends") if isinstance(part, Mapping) else getattr(part, "extends", None)
        name = above if isinstance(above, str) else None
    return chain
