"""What a node is: frozen values, checked when they are made."""

import base64
import binascii
import hashlib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Literal

from inventory.errors import BadInput

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")
_KEY_TYPE = re.compile(r"(?:ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9-]+(?:@openssh\.com)?")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")

STRICT: dict[str, Any] = {"extra": "forbid", "strict": True}
"""For pydantic's TypeAdapter: what arrives as JSON is taken exactly or refused."""


def check_node_name(text: str) -> str:
    """A node's name: one lower-case DNS label of at most 63 octets (RFC 1123, section 2.1).

    Raises:
        BadInput: it is not.
    """
    if not _LABEL.fullmatch(text):
        raise BadInput(
            f"{text!r} cannot name a node",
            why="a name is 1 to 63 of a-z, 0-9 and '-', and neither begins nor ends with '-'",
            next_step="choose a name like gpu-07",
        )
    return text


def check_user(text: str) -> str:
    """A login user's name (useradd(8)): it is put into commands, so nothing else is taken.

    Raises:
        ValueError: it is not one.
    """
    if not _USER.fullmatch(text):
        raise ValueError(f"{text!r} is not a user name of a-z, 0-9, '_' and '-', at most 32 characters")
    return text


class State(StrEnum):
    """Where a node stands on its road; each moving state has a failed twin."""

    PLANNED = "planned"
    PROVISIONING = "provisioning"
    PROVISION_FAILED = "provision-failed"
    AWAITING_IDENTITY = "awaiting-identity"
    ONBOARDING = "onboarding"
    ONBOARD_FAILED = "onboard-failed"
    AWAITING_VERIFICATION = "awaiting-verification"
    VERIFYING = "verifying"
    VERIFY_FAILED = "verify-failed"
    IN_SERVICE = "in-service"
    DECOMMISSIONING = "decommissioning"
    DECOMMISSION_FAILED = "decommission-failed"
    AWAITING_RETIREMENT = "awaiting-retirement"
    RETIRING = "retiring"
    RETIRE_FAILED = "retire-failed"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class Address:
    """The management address of a node.

    ip: IPv4 or IPv6, in its canonical text.
    prefix: length of the network prefix in bits, where known.
    source: `static` if infra chose it, `leased` if a DHCP server did; only static ones are certified.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    ip: str
    prefix: int | None
    source: Literal["static", "leased"]

    def __post_init__(self) -> None:
        parsed = ipaddress.ip_address(self.ip)
        if "%" in self.ip:  # an interface of one host alone, which may be any text
            raise ValueError(f"{self.ip!r} has a zone")
        if str(parsed) != self.ip:
            raise ValueError(f"{self.ip!r} should be written {parsed}")
        if self.prefix is not None and not 0 <= self.prefix <= parsed.max_prefixlen:
            raise ValueError(f"prefix {self.prefix} is not between 0 and {parsed.max_prefixlen}")


@dataclass(frozen=True, slots=True)
class HostKey:
    """A public SSH host key.

    type: such as ssh-ed25519 (RFC 8709, section 4).
    base64: the key blob (RFC 4253, section 6.6).
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    type: str
    base64: str

    def __post_init__(self) -> None:
        if not _KEY_TYPE.fullmatch(self.type):
            raise ValueError(f"{self.type!r} is not a type of SSH key")
        try:
            blob = base64.b64decode(self.base64, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("the key is not base64") from None
        size = int.from_bytes(blob[:4], "big")
        if blob[4 : 4 + size] != self.type.encode():
            raise ValueError(f"the key's blob is not of type {self.type}")

    @classmethod
    def from_line(cls, line: str) -> "HostKey":
        """The key of a .pub file's line, whose comment is dropped.

        Raises:
            ValueError: it is not such a line.
        """
        parts = line.split()
        if len(parts) < 2:
            raise ValueError("not a public key line: type and key are needed")
        return cls(parts[0], parts[1])

    @property
    def line(self) -> str:
        """As a .pub file or known_hosts holds it."""
        return f"{self.type} {self.base64}"

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` prints it: SHA256:..."""
        digest = hashlib.sha256(base64.b64decode(self.base64)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class Fabric:
    """One fast network of a node.

    mac: lower case, colons. mtu: octets. rate_gbps: 10^9 bit/s. address: CIDR.
    interface: the name that the node gives it, where known.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    name: str
    interface: str | None = None
    mac: str | None = None
    mtu: int | None = None
    rate_gbps: float | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if self.mac is not None:
            check_mac(self.mac)


def check_mac(text: str) -> str:
    """A MAC address in lower case with colons.

    Raises:
        ValueError: it is not.
    """
    if not _MAC.fullmatch(text):
        raise ValueError(f"{text!r} is not a MAC address in lower case with colons")
    return text


@dataclass(frozen=True, slots=True)
class Event:
    """One move of a node, or what happened to it in a state (before and after are then the same).

    actor, host: as the command that wrote it gave them.
    role, db_user, recorded_at: a shared database's own word: `infra` or `holder`, the login that it knew the writer
    by, and its clock.
    """

    at: datetime
    actor: str
    host: str
    before: State | None
    after: State
    why: str
    role: str | None = None
    db_user: str | None = None
    recorded_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """The few facts of a node that a list shows.

    not_after: end of its newest certificate, as its receipt says. verified_at: when it passed last.
    unadopted: it was only told of, and nothing on record of it was read from its VM (`lifecycle.unadopted`).
    """

    name: str
    state: State
    uuid: str | None
    vmid: int | None
    proxmox_node: str | None
    address: str | None
    profile: str | None
    reason: str | None
    not_after: datetime | None
    verified_at: datetime | None
    unadopted: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """Who acts on a node now. what: the command. since, until: by the record's clock."""

    what: str
    actor: str
    host: str
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class KeptReport:
    """One verification of a node, as it was kept: `document` is the report's JSON (`verify.report`)."""

    node: str
    at: datetime
    passed: bool
    document: Mapping[str, Any]
    db_user: str | None = None


@dataclass(frozen=True, slots=True)
class KeptReceipt:
    """One receipt of the holder's that the record has: the signed text, for the VM with `uuid`."""

    node: str
    at: datetime
    uuid: str | None
    text: str
    db_user: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """What is known of one node.

    version: counts the saves of the record; a writer whose version is old is refused.
    uuid: the VM's SMBIOS uuid, chosen by us before the first write.
    vmid: 100 to 999999999.
    spec_hash: SHA-256 (hex) of the wanted VM it was made from.
    ticket, receipt: the signed texts, as they travel.
    reason: why the state is a failed one.
    journal: what an interrupted command needs to go on.
    not_after, verified_at: filled in by the record: end of the certificate that `receipt` tells of, last pass.
    """

    name: str
    state: State
    version: int = 0
    uuid: str | None = None
    vmid: int | None = None
    proxmox_node: str | None = None
    site: str | None = None
    profile: str | None = None
    spec_hash: str | None = None
    address: Address | None = None
    ssh_port: int = 22
    user: str | None = None
    macs: tuple[str, ...] = ()
    host_keys: tuple[HostKey, ...] = ()
    machine_id: str | None = None
    fabrics: tuple[Fabric, ...] = ()
    ticket: str | None = None
    receipt: str | None = None
    reason: str | None = None
    journal: Mapping[str, Any] = field(default_factory=dict)
    not_after: datetime | None = None
    verified_at: datetime | None = None
