"""An unfinished node undone: its VM goes, its record stays and is planned again, free to be made anew."""

from inventory.errors import MusterError, Refused
from inventory.lifecycle import anew
from inventory.model import Node, State
from inventory.store import Store
from provision.journal import Journal
from provision.tasks import Tools
from provision.unmake import Unmaking

_UNFINISHED = frozenset({State.PROVISIONING, State.PROVISION_FAILED})


class Rollback:
    """What the nodes of one run share while they are undone."""

    def __init__(self, store: Store, tools: Tools) -> None:
        """Nothing is asked or written yet."""
        self._store = store
        self._tools = tools

    def for_thread(self, tools: Tools) -> "Rollback":
        """The same for another thread, with tools of its own."""
        return Rollback(self._store, tools)

    def look(self, name: str) -> Node | None:
        """The record of a node that can be undone; None if there is nothing left to undo.

        Raises:
            Refused: it is finished, or was never begun.
        """
        node = self._store.get(name)
        if node is None:
            raise Refused(
                f"{name} was not undone", why="it is not on record", next_step="node-inventory list"
            )
        if node.state is State.PLANNED:
            return None
        if node.state not in _UNFINISHED:
            raise Refused(
                f"{name} was not undone",
                why=f"it is {node.state}; only a node whose making did not end can be undone",
                next_step=f"provision-node {name} --retire, once the holder has ended its identity",
            )
        return node

    def carry_out(self, node: Node) -> tuple[Node, tuple[str, ...]]:
        """Take the VM away; the record says so, without a VM. Also what a person should know.

        Raises:
            MusterError: a step failed; the record names the VM, and the same call goes on from there.
        """
        journal = Journal(self._store, node)
        configured = journal.configured
        if node.state is State.PROVISIONING:
            journal.move(State.PROVISION_FAILED, why="its making is undone: --rollback")
        unmaking = Unmaking(self._tools, journal, configured=configured)
        vm = f"VM {node.vmid} on {node.proxmox_node} (uuid {node.uuid})"
        try:
            was_there = unmaking.to_the_end(str(node.proxmox_node))
        except MusterError as error:
            again = f"provision-node {node.name} --rollback goes on from there"
            error.next_step = f"{error.next_step}\n{vm} may still be there; {again}"
            journal.fail(error, State.PROVISION_FAILED)
            raise
        why = f"undone: {vm} was destroyed" if was_there else "undone: there was no VM"
        # The next making gets a uuid of its own: this one was a VM's that is no more. Its addresses are free.
        journal.node = anew(journal.node)
        journal.move(State.PLANNED, why=why)
        return journal.node, tuple(unmaking.warnings)


def lines(node: Node) -> list[str]:
    """What goes, one line each, in Terraform's habit."""
    if node.vmid is None:
        return ["~ the record: its making is given up; there is no VM"]
    return [f"- VM {node.vmid} on {node.proxmox_node}, uuid {node.uuid}, as far as it was made"]
