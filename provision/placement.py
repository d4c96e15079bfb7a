"""Which Proxmox node a VM stands on: by free memory, CPUs and mapped devices, less what this run placed (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from provision.wanted import NodeSpec

_MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True)
class Load:
    """What a Proxmox node has. memory_mib, used_mib: MiB; None where the token may not look (Sys.Audit)."""

    online: bool
    memory_mib: int | None = None
    used_mib: int | None = None
    cpus: int | None = None


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of one PCI mapping on one host. fault: why Proxmox would not pass any of them."""

    count: int
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A host that the VM could stand on.

    promised_mib, promised_cpus: of VMs that are to run there, and of those this run has placed there.
    waiting_mib: the part of promised_mib that the host's used memory does not show yet.
    devices: by mapping. held: how many of each are taken by running VMs and by this run.
    lacks: a reason from elsewhere why it cannot be this host.
    """

    host: str
    load: Load
    promised_mib: int = 0
    promised_cpus: int = 0
    waiting_mib: int = 0
    devices: Mapping[str, Devices] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    lacks: str | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the VM goes; None if it cannot go anywhere, and why not."""

    host: str | None
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def place(spec: NodeSpec, candidates: Sequence[Candidate]) -> Placed:
    """The host with the most memory that nobody was promised; of equal ones, that with the most CPUs.

    Memory that is only scarce is no reason against the one host that is possible, for Proxmox shares memory
    between VMs; under PCI passthrough or hugepages it is, for then all of it is pinned when the VM starts.
    """
    reasons = {candidate.host: why_not(spec, candidate) for candidate in candidates}
    fitting = [candidate for candidate in candidates if not reasons[candidate.host]]
    if fitting:
        best = min(fitting, key=lambda candidate: (_promises(candidate), candidate.host))
        return Placed(best.host)
    if len(candidates) == 1 and not pinned(spec):
        only = candidates[0]
        hard = [reason for reason in _reasons(spec, only) if reason != _memory(spec, only)]
        if not hard:
            told = f"{only.host}: {reasons[only.host]}; Proxmox decides when the VM starts"
            return Placed(only.host, warnings=(told,))
    told = "; ".join(f"{host}: {reason}" for host, reason in reasons.items()) or "there is no Proxmox node"
    return Placed(None, faults=(f"no Proxmox node can take {spec.name}: {told}",))


def why_not(spec: NodeSpec, candidate: Candidate) -> str:
    """Everything that speaks against a host; empty if nothing does."""
    return ", ".join(_reasons(spec, candidate))


def pinned(spec: NodeSpec) -> bool:
    """Whether all memory of the VM is taken from the host when it starts."""
    return bool(spec.mappings or spec.hugepages_mib)


def _reasons(spec: NodeSpec, candidate: Candidate) -> list[str]:
    if not candidate.load.online:
        return ["it is offline"]
    found = [candidate.lacks, _memory(spec, candidate), _cpus(spec, candidate), *_devices(spec, candidate)]
    return [reason for reason in found if reason]


def _memory(spec: NodeSpec, candidate: Candidate) -> str | None:
    load = candidate.load
    if load.memory_mib is None or load.used_mib is None:
        return None
    free = max(0, load.memory_mib - load.used_mib - candidate.waiting_mib)
    if free >= spec.memory_mib:
        return None
    return (
        f"{gib(free)} of its {gib(load.memory_mib)} of memory are free, and {gib(spec.memory_mib)} are wanted"
    )


def _cpus(spec: NodeSpec, candidate: Candidate) -> str | None:
    wanted, cpus = spec.cores * (spec.sockets or 1), candidate.load.cpus
    return None if cpus is None or wanted <= cpus else f"it has {cpus} CPUs, and {wanted} are wanted"


def _devices(spec: NodeSpec, candidate: Candidate) -> Iterable[str]:
    for mapping, wanted in spec.mappings.items():
        found = candidate.devices.get(mapping)
        if found is None:
            seen = ", ".join(sorted(candidate.devices)) or "none"
            yield f"PCI mapping {mapping} is not there, or hidden from this token (it sees: {seen})"
            continue
        if found.fault is not None:
            yield f"PCI mapping {mapping}: {found.fault}"
            continue
        free = max(0, found.count - candidate.held.get(mapping, 0))
        if free < wanted:
            yield f"{free} of its {found.count} {mapping} are free, and {wanted} are wanted"


def _promises(candidate: Candidate) -> tuple[int, int]:
    """The smaller, the better: memory and CPUs that nobody was promised, negated."""
    load = candidate.load
    memory = (load.memory_mib or 0) - max(
        candidate.promised_mib, (load.used_mib or 0) + candidate.waiting_mib
    )
    return -memory, candidate.promised_cpus - (load.cpus or 0)


def gib(mib: int) -> str:
    """MiB for people: 1.5 GiB."""
    return f"{mib / _MIB_PER_GIB:.4g} GiB"
