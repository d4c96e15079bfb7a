"""A node that leaves for good: who may go, and its way to `retired`; its record stays, with its history."""

from dataclasses import dataclass, replace
from pathlib import Path

from inventory.errors import BadInput, MusterError, Refused
from inventory.lifecycle import only_told
from inventory.model import Node, State
from inventory.store import Store
from inventory.ticket import Receipt, iso, read_receipt
from provision.handover import outdated, read_receipt_file
from provision.journal import Journal
from provision.spec import Site
from provision.survey import Survey
from provision.tasks import Tools
from provision.unmake import Unmaking

_READY = frozenset({State.AWAITING_RETIREMENT, State.RETIRING, State.RETIRE_FAILED})


@dataclass(frozen=True, slots=True)
class Parting:
    """A node that may go. host: where its VM stands now. receipt: None where there is no identity to end.

    orphan: it goes although an identity of it may still be valid. handed: the receipt's text, where it came as a file.
    """

    node: Node
    host: str
    receipt: Receipt | None = None
    orphan: bool = False
    handed: str | None = None

    def lines(self) -> list[str]:
        """What goes, one line each, in Terraform's habit."""
        node = self.node
        if node.vmid is None:
            return ["- the record's place among the nodes in use; there is no VM"]
        if only_told(node):
            stays = (
                f"VM {node.vmid}, uuid {node.uuid}, stays as it is: it was made by hand, and never adopted"
            )
            return ["- the record's place among the nodes in use", f"  {stays}"]
        told = [
            f"- VM {node.vmid} on {self.host}, uuid {node.uuid}, with its disks, backup jobs and HA entry"
        ]
        if node.address is not None:
            told.append(f"- address {node.address.ip} ({node.address.source})")
        told += [f"- address {fabric.address} on {fabric.name}" for fabric in node.fabrics if fabric.address]
        if self.receipt is not None:
            when = iso(self.receipt.made_at)
            told.append(f"  its identity {self.receipt.serial} was ended by {self.receipt.made_by} at {when}")
        if self.orphan:
            told.append("! its identity may still be valid: nobody has shown that it was revoked")
        return told


class Retiring:
    """What the nodes of one run share on their way out."""

    def __init__(self, site: Site, store: Store, tools: Tools, *, survey: Survey | None = None) -> None:
        """Nothing is asked or written yet."""
        self._site = site
        self._store = store
        self._tools = tools
        self._survey = survey or Survey(tools.hypervisor)

    def for_thread(self, tools: Tools) -> "Retiring":
        """The same for another thread, with tools of its own."""
        return Retiring(self._site, self._store, tools, survey=self._survey)

    def look(self, name: str, *, orphan: bool, receipt: Path | None = None) -> Parting | None:
        """What would go; None if the node is retired already.

        receipt: a file, or a folder of them, with the holder's word; without it the record must have it.

        Raises:
            Refused: the node may not go, and why.
            BadInput: nobody is named whose receipts count.
        """
        node = self._store.get(name)
        if node is None:
            raise _refused(name, "it is not on record", "node-inventory list")
        if node.state is State.RETIRED:
            return None
        if node.state is State.PROVISIONING:
            raise _refused(name, f"it is {node.state}", f"provision-node {name} --rollback")
        if receipt is not None:
            text = read_receipt_file(receipt, name)
            believed = self._believed(node, text)
            if why := outdated(believed, node, signers=self._site.receipt_signers):
                raise _refused(name, f"the receipt is not the last word on it: {why}", _holder(name))
            return Parting(node, self._host(node), believed, handed=text)
        if not self._had_identity(node):
            return Parting(node, self._host(node))
        if orphan:
            shown = self._receipt(node) if node.state in _READY and self._believes(node) else None
            return Parting(node, self._host(node), shown, orphan=shown is None)
        return Parting(node, self._host(node), self._receipt(node))

    def carry_out(self, parting: Parting) -> tuple[Node, tuple[str, ...]]:
        """Take the VM away; the record is kept, `retired`. Also what a person should know.

        Raises:
            MusterError: a step failed; the record is `retire-failed`, and the same call goes on from there.
        """
        # Where the record lets the holder alone write receipts, one that came as a file stays a file.
        handed = parting.handed if self._store.may_keep_receipts() else None
        journal = Journal(self._store, replace(parting.node, receipt=handed or parting.node.receipt))
        self._to_retiring(journal, parting)
        # Facts are read of a VM that has our uuid; without them it may not have been given it yet.
        unmaking = Unmaking(self._tools, journal, configured=bool(parting.node.host_keys))
        try:
            was_there = not only_told(parting.node) and unmaking.to_the_end(parting.host)
        except MusterError as error:
            left = f"VM {journal.node.vmid} on {parting.host} (uuid {journal.node.uuid}) may still be there"
            error.next_step = (
                f"{error.next_step}\n{left}; provision-node {journal.node.name} --retire goes on from there"
            )
            journal.fail(error, State.RETIRE_FAILED)
            raise
        why = f"VM {journal.node.vmid} on {parting.host} was destroyed" if was_there else "its VM was gone"
        if only_told(parting.node):
            why = "its VM stays as it is: it was made by hand, and never adopted"
        journal.node = replace(journal.node, journal={}, ticket=None, reason=None)
        journal.move(State.RETIRED, why=why)
        return journal.node, tuple(unmaking.warnings)

    def _to_retiring(self, journal: Journal, parting: Parting) -> None:
        how = "its place on record ends" if only_told(parting.node) else "its VM is to be destroyed"
        if parting.orphan:
            how = "--orphan-identity: it goes without a receipt that its identity was ended"
        elif parting.handed is not None and parting.receipt is not None:
            how = f"--receipt: its identity {parting.receipt.serial} was ended by {parting.receipt.made_by}"
        journal.move(State.RETIRING, why=how, reason=None)

    def _had_identity(self, node: Node) -> bool:
        """Whether it was ever handed to the holder: then a certificate may be out there.

        What a former machine of that name had ended with it.
        """
        if node.receipt is not None:
            return True
        for event in reversed(self._store.history(node.name)):
            if event.after is State.ONBOARDING:
                return True
            if event.before is State.RETIRED:
                return False
        return False

    def _believes(self, node: Node) -> bool:
        try:
            self._receipt(node)
        except MusterError:
            return False
        return True

    def _receipt(self, node: Node) -> Receipt:
        """The receipt on record that says that the node's identity was ended.

        Raises:
            Refused: there is none, or it is not believed, or it is for another VM.
            BadInput: nobody is named whose receipts count.
        """
        if node.state not in _READY or node.receipt is None:
            why = f"it is {node.state}, and no receipt says that its identity ended"
            raise _refused(node.name, why, _holder(node.name))
        return self._believed(node, node.receipt)

    def _believed(self, node: Node, text: str) -> Receipt:
        """The receipt in `text`, if it says that the identity of this very node was ended.

        Raises:
            Refused: it is not believed, or says something else.
            BadInput: nobody is named whose receipts count.
        """
        if self._site.receipt_signers is None:
            raise BadInput(
                f"{node.name} was not retired",
                why="the site file does not say whose receipts count",
                next_step="add receipt_signers to the site file",
            )
        receipt, signer = read_receipt(text, signers=self._site.receipt_signers)
        if receipt.kind != "decommissioned":
            raise _refused(node.name, f"its receipt, by {signer}, says {receipt.kind}", _holder(node.name))
        if (receipt.node, receipt.vm_uuid) != (node.name, node.uuid):
            whose = f"{receipt.node}, VM {receipt.vm_uuid}"
            raise _refused(node.name, f"its receipt, by {signer}, is for {whose}", _holder(node.name))
        return receipt

    def _host(self, node: Node) -> str:
        if node.vmid is None:
            return str(node.proxmox_node)
        return self._survey.host_of(node.vmid) or str(node.proxmox_node)


def _holder(name: str) -> str:
    return f"ask the holder for it: onboard-node {name} --decommission; --receipt FILE takes it as a file"


def _refused(name: str, why: str, next_step: str) -> Refused:
    return Refused(f"{name} was not retired", why=why, next_step=next_step)
