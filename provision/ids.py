"""VM ids for the nodes of one run: drawn in turn, and claimed by the clone only."""

import threading

from inventory.errors import OtherSide
from provision.hypervisor import Hypervisor
from provision.spec import VmIds

_SPAN = 1000  # how far above the first free id one is looked for, where the site file names no range


class Ids:
    """Draws ids that look free; no two nodes of this run get the same one.

    Args:
        vmids: the range of the site file.
        taken: ids that are on record for other nodes.
    """

    def __init__(self, vmids: VmIds | None, *, taken: frozenset[int]) -> None:
        """Nothing is asked yet."""
        self._vmids = vmids
        self._passed = set(taken)
        self._candidates: range | None = None
        self._lock = threading.Lock()

    def draw(self, hypervisor: Hypervisor, name: str) -> int:
        """The next id that looks free, for the node `name`; it is not reserved at Proxmox.

        Raises:
            OtherSide: there is none.
        """
        with self._lock:
            if self._candidates is None:
                self._candidates = self._all_candidates(hypervisor)
                if self._vmids is None and (first := self._candidates.start) not in self._passed:
                    self._passed.add(first)  # Proxmox has just called it free
                    return first
            for candidate in self._candidates:
                if candidate not in self._passed:
                    self._passed.add(candidate)
                    if hypervisor.free_id(candidate) is not None:
                        return candidate
            raise OtherSide(
                f"no VM id is free for {name}",
                why=f"every id from {self._candidates.start} to {self._candidates.stop - 1} is taken",
                next_step="widen vmids in the site file, or retire a node",
            )

    def _all_candidates(self, hypervisor: Hypervisor) -> range:
        if self._vmids is None:
            first = hypervisor.free_id() or 100
            return range(first, first + _SPAN)
        self._passed |= {guest.vmid for guest in hypervisor.guests()}
        return range(self._vmids.first, self._vmids.last + 1)
