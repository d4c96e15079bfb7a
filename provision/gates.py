"""How many clones read from one storage at a time, over all threads of a run."""

import contextlib
import threading
from collections.abc import Iterator

CLONES_AT_ONCE = 4
"""More do not make a storage faster; and Proxmox waits 10 s for its lock, then fails (pve-storage Plugin.pm)."""


class Gates:
    """A gate for each storage; made as they are first asked for."""

    def __init__(self, at_once: int = CLONES_AT_ONCE) -> None:
        """All are open."""
        self._at_once = at_once
        self._lock = threading.Lock()
        self._gates: dict[str, threading.Semaphore] = {}

    @contextlib.contextmanager
    def through(self, storage: str, *, at_once: int | None = None) -> Iterator[None]:
        """Wait until fewer than `at_once` others are inside."""
        with self._lock:
            gate = self._gates.setdefault(storage, threading.Semaphore(at_once or self._at_once))
        with gate:
            yield
