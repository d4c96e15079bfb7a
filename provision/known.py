"""Who has which addresses: of every node on record so much as that, read anew only when something has happened."""

import threading

from inventory.model import Node
from inventory.store import Store


class Known:
    """The nodes of the record by name, state and addresses; all threads of a run share it."""

    def __init__(self, store: Store) -> None:
        """Nothing is read yet."""
        self._store = store
        self._lock = threading.Lock()
        self._nodes: tuple[Node, ...] = ()
        self._as_of: int | None = None

    def nodes(self, *, anew: bool = False) -> tuple[Node, ...]:
        """Every node, without what is not asked for; a fleet's tickets and receipts would fill the memory.

        anew: as it is now, for what another run has begun before our last look may have ended after it.
        """
        with self._lock:
            newest = self._store.last_event()
            if anew or newest != self._as_of:
                self._nodes = tuple(map(_placed, self._store.each()))
                self._as_of = newest
            return self._nodes


def _placed(node: Node) -> Node:
    return Node(node.name, node.state, address=node.address, fabrics=node.fabrics)
