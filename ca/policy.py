"""The policy: which names, addresses and lifetimes may be certified, and whose tickets count (pure)."""

import ipaddress
import posixpath
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

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
NamePattern = Annotated[str, AfterValidator(check_name_pattern)]
Network = Annotated[str, AfterValidator(_check_network)]
NodeSetText = Annotated[str, AfterValidator(_check_node_set)]
InstallDir = Annotated[str, AfterValidator(_check_install_dir)]
Command = Annotated[str, AfterValidator(_check_command)]
User = Annotated[str, AfterValidator(check_user)]
NoRepeats = AfterValidator(_check_no_repeats)
Some = AfterValidator(_check_some)


class Ssh(Model):
    """How the holder reaches a node.

    key_file: the holder's own OpenSSH private key, or its .pub with the key in an agent.
    """

    key_file: RelativePath


class Install(Model):
    """Where and how an identity is installed on a node.

    dir: absolute folder on the node. owner, group: who owns the key there.
    check_command: run on the node before the swap; it must end with 0. reload_command: run after it.
    """

    dir: InstallDir = "/etc/muster"
    owner: User = "muster"
    group: User = "muster"
    check_command: Command | None = None
    reload_command: Command | None = None


class Policy(Model):
    """policy.yaml, in the authority's folder.

    names: the DNS names a node gets; {node} stands for its name.
    addresses: ranges in which a static address may be certified; none: no address is.
    nodes: node sets; which names there may be at all; none: any.
    lifetime_days: of a node's certificate, 1 to 366.
    ticket_signers: OpenSSH allowed signers; none: no onboarding.
    max_ticket_age_h: 1 to 720. max_clock_skew_s: 0 to 3600, the node's clock against ours.
    """

    trust_domain: TrustDomain
    names: Annotated[tuple[NamePattern, ...], Some, NoRepeats]
    addresses: Annotated[tuple[Network, ...], NoRepeats] = ()
    nodes: Annotated[tuple[NodeSetText, ...], Some, NoRepeats] | None = None
    lifetime_days: Annotated[int, Field(ge=1, le=366)] = 30
    ticket_signers: RelativePath | None = None
    max_ticket_age_h: Annotated[int, Field(ge=1, le=720)] = 72
    max_clock_skew_s: Annotated[int, Field(ge=0, le=3600)] = 300
    machine_uuid: Literal["required", "optional"] = "required"
    unattended: bool = False
    bootstrap_keys: Literal["remove", "keep"] = "remove"
    ssh: Ssh | None = None
    install: Install = Install()

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
    """What is asked for: a node's name, and its address if that is static."""

    node: str
    static_address: str | None = None


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
    names = _names(policy, request.node, reasons) if not reasons else ()
    addresses = _addresses(policy, request.static_address, reasons)
    if reasons:
        raise Refused(
            f"the policy grants no certificate to {request.node!r}",
            why="\n".join(reasons),
            next_step="correct the request, or have the security holder widen policy.yaml",
        )
    spiffe_id = f"spiffe://{policy.trust_domain}/node/{request.node}"
    return NodeProfile(request.node, names, addresses, spiffe_id, policy.lifetime)


def _names(policy: Policy, node: str, reasons: list[str]) -> tuple[str, ...]:
    names = tuple(pattern.replace("{node}", node) for pattern in policy.names)
    for name in names:
        try:
            check_host_name(name)
        except ValueError:
            reasons.append(f"{name} is longer than a label (63) or a name ({MAX_NAME}) may be")
    return names


def _addresses(policy: Policy, text: str | None, reasons: list[str]) -> tuple[IPAddress, ...]:
    if text is None:
        return ()
    try:
        address = ipaddress.ip_address(text)
        if getattr(address, "scope_id", None):
            raise ValueError  # a zone (RFC 4007) has no place in a certificate
    except ValueError:
        reasons.append(f"{text!r} is not an IP address")
        return ()
    if not any(address in network for network in policy.networks):
        allowed = ", ".join(policy.addresses) or "none"
        reasons.append(f"{address} is in none of the policy's addresses ({allowed})")
    return (address,)
