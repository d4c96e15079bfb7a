"""What the node has, set against what it must have: steps to take, or reasons to refuse (pure)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeAlias

from ca.policy import Policy
from inventory.agent_config import AgentConfig, AgentFabric, Identity
from inventory.errors import Refused
from inventory.model import Fabric
from onboard.fabrics import contradictions
from onboard.facts import Facts
from onboard.scripts import Place


class Subject(Protocol):
    """What is said of a machine that gets an identity: by infra's ticket, or by our own ledger for a renewal.

    id: hex; the node keeps it beside the key that it makes, so that a stopped run finds that key again.
    """

    @property
    def id(self) -> str:
        """What it all is done for, once."""

    @property
    def node(self) -> str:
        """The node's name."""

    @property
    def vm_uuid(self) -> str:
        """The SMBIOS uuid, lower case."""

    @property
    def machine_id(self) -> str | None:
        """machine-id(5), where it is known."""

    @property
    def user(self) -> str:
        """Who logs in there."""

    @property
    def fabrics(self) -> tuple[Fabric, ...]:
        """Its fast networks."""


@dataclass(frozen=True, slots=True)
class MakeKey:
    """Have the node make its key and a CSR; `again`: it has made the key for this ticket already."""

    generation: int
    again: bool

    def __str__(self) -> str:
        if self.again:
            return f"use the key that the node made for this ticket (generation {self.generation})"
        return f"have the node make a P-256 key and a CSR (generation {self.generation})"


@dataclass(frozen=True, slots=True)
class Certify:
    """Sign the node's public key for the names that the policy grants."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    spiffe_id: str
    lifetime: timedelta

    def __str__(self) -> str:
        held = ", ".join((*self.names, *self.addresses))
        return f"sign {self.spiffe_id} ({held}) for {self.lifetime.days} days"


@dataclass(frozen=True, slots=True)
class Install:
    """Install the identity and agent.yaml as a generation, check them there, swap the link."""

    generation: int
    place: Place
    agent: AgentConfig

    def __str__(self) -> str:
        return f"install it in {self.place.dir}/generations/{self.generation}, owner {self.place.owner}, and swap"


@dataclass(frozen=True, slots=True)
class RemoveBootstrap:
    """Leave only the holder's key, and no more sudo than the identity's upkeep needs."""

    login: str
    owner: str

    def __str__(self) -> str:
        keys = f"remove every login key of {self.login} but yours"
        match self.owner:
            case "root":
                return f"{keys}; its sudo stays, for root owns the identity"
            case self.login:
                return f"{keys}, and its sudo but to read the machine's uuid"
            case _:
                return f"{keys}, and its sudo but to read the machine's uuid and to act as {self.owner}"


Step: TypeAlias = MakeKey | Certify | Install | RemoveBootstrap


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps in order, and what the holder should know before agreeing to them."""

    steps: tuple[Step, ...]
    warnings: tuple[str, ...]
    skew: timedelta


def place_of(policy: Policy) -> Place:
    """Where the policy wants identities to lie."""
    return Place(policy.install.dir, policy.install.owner, policy.install.group)


def agent_config(
    ticket: Subject, place: Place, interfaces: Mapping[str, str], *, crl: bool = False
) -> AgentConfig:
    """The agent.yaml of a node: its identity's files behind the link, its fabrics' interfaces found by MAC."""
    here = f"{place.dir}/current"
    fabrics = tuple(
        AgentFabric(
            name=fabric.name,
            interface=interfaces.get(fabric.mac or "") or fabric.interface or "",
            rate_gbps=fabric.rate_gbps,
            mtu=fabric.mtu,
        )
        for fabric in ticket.fabrics
    )
    files = {"cert_file": "chain.pem", "key_file": "key.pem", "ca_file": "bundle.pem"}
    if crl:
        files["crl_file"] = "crl.pem"
    identity = Identity.model_validate_json(
        json.dumps({key: f"{here}/{name}" for key, name in files.items()})
    )
    return AgentConfig(node=ticket.node, identity=identity, fabrics=fabrics)


def plan(
    ticket: Subject,
    facts: Facts,
    policy: Policy,
    certify: Certify,
    *,
    now: datetime,
    crl: bool = False,
) -> Plan:
    """What to do with a node that its ticket describes and that told these facts at `now`.

    crl: whether there is a revocation list to be installed with the identity.

    Raises:
        Refused: the machine is not the ticket's, or cannot take an identity; every reason is told at once.
    """
    reasons: list[str] = []
    warnings: list[str] = []
    place = place_of(policy)
    _machine(ticket, facts, policy, reasons, warnings)
    skew = facts.clock - now.replace(microsecond=0)
    if abs(skew) > timedelta(seconds=policy.max_clock_skew_s):
        direction = "behind" if skew < timedelta(0) else "ahead"
        reasons.append(
            f"the node's clock is {abs(skew)} {direction} of ours; the policy allows {policy.max_clock_skew_s} s"
        )
    reasons.extend(f"the node lacks {tool}" for tool in facts.missing)
    if facts.owner_uid is None:
        reasons.append(f"the node has no user {place.owner}, the owner that the policy wants")
    if not facts.group_known:
        reasons.append(f"the node has no group {place.group}, the group that the policy wants")
    if facts.uid not in {0, facts.owner_uid}:
        said = f" (sudo -n says: {facts.sudo})" if facts.sudo else ""
        line = f"{ticket.user} ALL=(ALL) NOPASSWD: ALL"
        reasons.append(f"{ticket.user} may not become root there{said}: {_sudo_line(line)}")
    reasons.extend(contradictions(ticket.fabrics, facts.interfaces))
    if reasons:
        raise Refused(
            f"{ticket.node} gets no identity",
            why="\n".join(reasons),
            next_step="mend the node, or ask infra for a new ticket if it is another machine",
        )
    number, again = _generation(ticket, facts)
    steps: list[Step] = [
        MakeKey(number, again=again),
        certify,
        Install(number, place, agent_config(ticket, place, facts.interfaces, crl=crl)),
    ]
    if policy.bootstrap_keys == "remove":
        steps.append(RemoveBootstrap(ticket.user, place.owner))
    if facts.current is not None and not again:
        warnings.append(
            f"the node has an older identity (generation {facts.current}); it stays as the former one"
        )
    return Plan(tuple(steps), tuple(warnings), skew)


def _machine(ticket: Subject, facts: Facts, policy: Policy, reasons: list[str], warnings: list[str]) -> None:
    """Is it the machine that infra made? This catches mistakes and clones, not a hypervisor that lies."""
    if facts.machine_uuid is None:
        text = "the node's machine uuid could not be read (/sys/class/dmi/id/product_uuid)"
        if facts.uid != 0:
            line = f"{ticket.user} ALL=(root) NOPASSWD: {facts.cat} /sys/class/dmi/id/product_uuid"
            text += f"; only root may: {_sudo_line(line)}"
        (reasons if policy.machine_uuid == "required" else warnings).append(text)
    elif facts.machine_uuid != ticket.vm_uuid:
        reasons.append(f"the node's machine uuid is {facts.machine_uuid}, the ticket's is {ticket.vm_uuid}")
    if ticket.machine_id is not None and facts.machine_id != ticket.machine_id:
        told = facts.machine_id or "unknown"
        reasons.append(f"the node's machine-id is {told}, the ticket's is {ticket.machine_id}")


def _sudo_line(line: str) -> str:
    return f"it takes the line '{line}' in /etc/sudoers.d/muster (mode 0440)"


def _generation(ticket: Subject, facts: Facts) -> tuple[int, bool]:
    """The generation to install: the one made for this ticket if there is one, else the next number."""
    for generation in facts.generations:
        if generation.ticket == ticket.id:
            return generation.number, True
    return max((generation.number for generation in facts.generations), default=0) + 1, False
