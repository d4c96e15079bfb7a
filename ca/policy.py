"""The policy: which names, addresses and lifetimes may be certified, and whose tickets count (pure)."""

import ipaddress
import posixpath
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ca.kinds import KeyType
from ca.names import (
    MAX_NAME,
    IPAddress,
    IPNetwork,
    base_domain,
    check_host_name,
    check_name_pattern,
    check_trust_domain,
    parse_network,
)
from inventory.document import Model, RelativePath
from inventory.errors import BadInput, Refused
from inventory.model import check_node_name, check_user
from inventory.nodeset import NodeSet

_SAFE_PATH = re.compile(r"/[A-Za-z0-9._/-]+")
MAX_COMMAND = 1024


def _check_network(text: str) -> str:
    return str(parse_network(text))


def _check_node_set(text: str) -> str:
    return NodeSet.parse(text).text


def _check_install_dir(text: str) -> str:
    if not _SAFE_PATH.fullmatch(text) or posixpath.normpath(text) != text or text == "/":
        raise ValueError(
            f"{text!r} is not an absolute folder on the node, plainly written with letters, digits, ._-/"
        )
    return text


def _check_command(text: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > MAX_COMMAND:
        raise ValueError(f"a command is one line of 1 to {MAX_COMMAND} printable characters")
    return text


def _check_no_repeats(items: tuple[str, ...]) -> tuple[str, ...]:
    repeated = sorted({item for item in items if items.count(item) > 1})
    if repeated:
        raise ValueError(f"{', '.join(repeated)} is there twice")
    return items


def _check_some(items: tuple[str, ...]) -> tuple[str, ...]:
    if not items:
        raise ValueError("at least one is needed here")
    return items


TrustDomain = Annotated[str, AfterValidator(check_trust_domain)]
"""1 to 255 of a-z, 0-9, '.', '-' and '_' (SPIFFE-ID, section 2.1)."""
NamePattern = Annotated[str, AfterValidator(check_name_pattern)]
"""A host name with {node} once in its first label."""
Network = Annotated[str, AfterValidator(_check_network)]
"""A range such as 10.0.0.0/16."""
NodeSetText = Annotated[str, AfterValidator(_check_node_set)]
"""A node set such as gpu-[01-64]."""
InstallDir = Annotated[str, AfterValidator(_check_install_dir)]
"""An absolute path of letters, digits, '.', '_', '-' and '/'."""
Command = Annotated[str, AfterValidator(_check_command)]
"""One line of 1 to 1024 printable characters."""
User = Annotated[str, AfterValidator(check_user)]
NoRepeats = AfterValidator(_check_no_repeats)
"""None twice."""
Some = AfterValidator(_check_some)
"""At least one."""


class Ssh(Model):
    """How the holder reaches a node."""

    key_file: RelativePath
    """The holder's own OpenSSH private key, or its .pub with the key in an agent."""


class Install(Model):
    """Where and how an identity is installed on a node."""

    dir: InstallDir = "/etc/muster"
    """The folder on the node."""
    owner: User = "muster"
    """Who owns the key there."""
    group: User = "muster"
    """The key's group."""
    check_command: Command | None = None
    """Run on the node before the swap; it must end with 0."""
    reload_command: Command | None = None
    """Run on the node after the swap."""


class Policy(Model):
    """policy.yaml, in the authority's folder: what may be certified, and whose tickets count."""

    trust_domain: TrustDomain
    """The SPIFFE trust domain of every identity."""
    names: Annotated[tuple[NamePattern, ...], Some, NoRepeats]
    """The DNS names that a node gets; {node} stands for its name."""
    addresses: Annotated[tuple[Network, ...], NoRepeats] = ()
    """Ranges in which a static address may be certified; none: no address is."""
    nodes: Annotated[tuple[NodeSetText, ...], Some, NoRepeats] | None = None
    """Node sets: which names there may be at all; none: any."""
    node_keys: Annotated[tuple[KeyType, ...], Some, NoRepeats] = (KeyType.P256, KeyType.P384)
    """The kinds of keys that a request may carry; ed25519 only where it is named here."""
    lifetime_days: Annotated[int, Field(ge=1, le=366)] = 30
    """Of a node's certificate."""
    ticket_signers: RelativePath | None = None
    """OpenSSH allowed signers, whose tickets count; none: no onboarding."""
    ticket_revoked_keys: RelativePath | None = None
    """Signers' keys that count no more: a KRL or public keys (ssh-keygen(1))."""
    max_ticket_age_h: Annotated[int, Field(ge=1, le=720)] = 72
    """How old a ticket may be, whatever it says itself."""
    max_clock_skew_s: Annotated[int, Field(ge=0, le=3600)] = 300
    """How far the node's clock may be from ours."""
    machine_uuid: Literal["required", "optional"] = "required"
    """Whether a node whose machine uuid cannot be read is refused; a wrong uuid always is."""
    unattended: bool = False
    """Whether onboard-node --yes may run without a person."""
    bootstrap_keys: Literal["remove", "keep"] = "remove"
    """Whether infra's login keys and sudo on the node are removed."""
    ssh: Ssh | None = None
    """How the holder reaches a node; --ssh-key goes before it."""
    install: Install = Field(default_factory=Install)
    """Where and how identities are installed."""

    @property
    def lifetime(self) -> timedelta:
        """How long a node's certificate lives."""
        return timedelta(days=self.lifetime_days)

    @property
    def networks(self) -> tuple[IPNetwork, ...]:
        """`addresses`, parsed."""
        return tuple(parse_network(text) for text in self.addresses)

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains below which all names lie, each once."""
        return tuple(dict.fromkeys(base_domain(pattern) for pattern in self.names))


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for: a node's name, and its address if that is static.

    names: those of the policy's names that are wanted; none: all of them. addresses: further ones.
    """

    node: str
    static_address: str | None = None
    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """What a node's certificate says; made by `allow` only.

    names: DNS names, lower-case LDH. addresses: for iPAddress entries. spiffe_id: the one URI.
    """

    node: str
    names: tuple[str, ...]
    addresses: tuple[IPAddress, ...]
    spiffe_id: str
    lifetime: timedelta


def allow(policy: Policy, request: Request) -> NodeProfile:
    """What the policy grants to a node; the names come from the policy, never from the node.

    Raises:
        Refused: it grants nothing to it; every reason is told at once.
    """
    reasons: list[str] = []
    try:
        check_node_name(request.node)
    except BadInput as error:
        reasons.append(f"{error.what}: {error.why}")
    if policy.nodes is not None and not any(request.node in NodeSet.parse(text) for text in policy.nodes):
        reasons.append(f"the policy's nodes ({', '.join(policy.nodes)}) do not include {request.node!r}")
    names = _names(policy, request, reasons) if not reasons else ()
    static = () if request.static_address is None else (request.static_address,)
    addresses = _addresses(policy, (*static, *request.addresses), reasons)
    if reasons:
        raise Refused(
            f"the policy grants no certificate to {request.node!r}",
            why="\n".join(reasons),
            next_step="correct the request, or have the security holder widen policy.yaml",
        )
    spiffe_id = f"spiffe://{policy.trust_domain}/node/{request.node}"
    return NodeProfile(request.node, names, addresses, spiffe_id, policy.lifetime)


def _names(policy: Policy, request: Request, reasons: list[str]) -> tuple[str, ...]:
    names = tuple(pattern.replace("{node}", request.node) for pattern in policy.names)
    for name in names:
        try:
            check_host_name(name)
        except ValueError:
            reasons.append(f"{name} is longer than a label (63) or a name ({MAX_NAME}) may be")
    for name in dict.fromkeys(request.names):
        if name not in names:
            reasons.append(f"{name!r} is none of the names that the policy gives it ({', '.join(names)})")
    return tuple(name for name in names if not request.names or name in request.names)


def _addresses(policy: Policy, texts: tuple[str, ...], reasons: list[str]) -> tuple[IPAddress, ...]:
    addresses: dict[IPAddress, None] = {}
    for text in texts:
        try:
            address = ipaddress.ip_address(text)
            if getattr(address, "scope_id", None):
                raise ValueError  # a zone (RFC 4007) has no place in a certificate
        except ValueError:
            reasons.append(f"{text!r} is not an IP address")
            continue
        if not any(address in network for network in policy.networks):
            allowed = ", ".join(policy.addresses) or "none"
            reasons.append(f"{address} is in none of the policy's addresses ({allowed})")
        addresses[address] = None
    return tuple(addresses)


def minimal(trust_domain: str) -> str:
    """The text of a policy for a trust domain, where none was written: one name for a node, private addresses.

    Raises:
        BadInput: no host name lies below this trust domain.
    """
    try:
        check_trust_domain(trust_domain)
        check_host_name(f"n.nodes.{trust_domain}")
    except ValueError as error:
        raise BadInput(
            f"{trust_domain!r} gives no policy",
            why=str(error),
            next_step="pass another --trust-domain, or a policy of your own with --policy FILE",
        ) from None
    return _MINIMAL.format(trust_domain=trust_domain)


_MINIMAL = """\
# What this authority may certify; node-ca init wrote it, for it was given a trust domain and no policy.
# It may be narrowed at any time. The authority's own certificate forbids what goes beyond these names
# and addresses, so that widening them needs a new authority.
trust_domain: "{trust_domain}"
names: ["{{node}}.nodes.{trust_domain}"]
# The ranges that are routed by nobody (RFC 1918, RFC 4193); better only those that the nodes have.
addresses: [10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, "fc00::/7"]
lifetime_days: 30
"""
