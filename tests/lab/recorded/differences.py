"""Where the lab answers otherwise than the recorded host, on purpose; what is not listed here is a fault."""

from dataclasses import dataclass

_SIZE = ("maxcpu", "maxdisk", "maxmem")


@dataclass(frozen=True)
class Difference:
    """One difference.

    told: the words of docs/lab.md that name it, under "Where it still differs".
    where: number of the recorded call -> what of its answer differs.
    """

    told: str
    where: dict[int, frozenset[str]]


ACCEPTED = (
    Difference(
        "The host has four processors, 8 GiB of memory and 64 GiB of disk",
        {
            3: frozenset(f"data.[pve1].{key}" for key in _SIZE),
            8: frozenset({*(f"data.[pve1].{key}" for key in _SIZE), "data.[local].maxdisk"}),
            476: frozenset({"data.exitstatus"}),
            477: frozenset({"data.[2].t"}),
        },
    ),
    Difference(
        "A node that the cluster does not have is told as a name that no resolver knows",
        {51: frozenset({"message", "reason"}), 367: frozenset({"message", "reason"})},
    ),
    Difference(
        "Every `hostpciN` passes the check of parameters",
        {70: frozenset({"status", "reason", "data", "errors missing", "message missing"})},
    ),
    Difference("A password in the cloud-init dump is not hashed", {113: frozenset({"data"})}),
    Difference(
        "A guest always shuts down when it is asked to",
        {640: frozenset({"data.[1].t", "data.[2] missing", "total"})},
    ),
)
