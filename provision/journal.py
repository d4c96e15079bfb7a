"""The record of one node while it is made: what is about to be written is noted before it is written."""

from dataclasses import replace
from typing import Any

from inventory.errors import MusterError
from inventory.model import Node, State
from inventory.store import Store

ACCEPTED = "accepted"
"""The journal's key for drift that stays, as digests by config key."""
SEEDS = "seeds"
"""The journal's key for our discs that may lie on a storage."""


class Journal:
    """One node's record, saved at every turn; `node` is what was saved last."""

    def __init__(self, store: Store, node: Node) -> None:
        """`node` is as the store has it."""
        self._store = store
        self.node = node

    def note(self, step: str, *, upid: str | None = None, known: str | None = None, **facts: Any) -> None:  # noqa: ANN401 - Node's fields
        """Before a write: which step it is. After it: the task that Proxmox began for it.

        known: the newest task of that kind before the write; what the write begins is another one, and newer.
        """
        journal: dict[str, Any] = {"step": step, **self.accepted}
        journal |= {SEEDS: self.seeds} if self.seeds else {}
        journal |= {"upid": upid} if upid else {}
        journal |= {"known": known} if known else {}
        self.node = self._store.save(replace(self.node, journal=journal, **facts))

    def note_seed(self, step: str, volume: str) -> None:
        """The same before a disc of ours is put on a storage: it is remembered until the making is over."""
        seeds = [*self.seeds, *([] if volume in self.seeds else [volume])]
        self.node = replace(self.node, journal={**self.node.journal, SEEDS: seeds})
        self.note(step)

    def move(self, state: State, *, why: str, **facts: Any) -> None:  # noqa: ANN401 - Node's fields
        """Another state, or an event in the same one."""
        self.node = self._store.save(replace(self.node, state=state, **facts), why=why)

    def fail(self, error: MusterError, state: State = State.PROVISION_FAILED) -> None:
        """The failed state with its reason; if somebody else holds the record by now, it is left to them."""
        try:
            self.move(state, why=str(error), reason=str(error))
        except MusterError:
            return

    @property
    def accepted(self) -> dict[str, Any]:
        """The drift that a ticket has accepted, which outlives the steps (`provision.drift`)."""
        return {key: value for key, value in self.node.journal.items() if key == ACCEPTED}

    @property
    def seeds(self) -> list[str]:
        """The discs of ours that may lie on a storage, by their volumes (`provision.seeding`)."""
        return list(self.node.journal.get(SEEDS) or ())

    @property
    def step(self) -> str | None:
        """The step that a former run was at."""
        return self.node.journal.get("step")

    @property
    def upid(self) -> str | None:
        """The task of that step, if its UPID was noted."""
        return self.node.journal.get("upid")

    @property
    def known(self) -> str | None:
        """The newest task of that step's kind from before its write."""
        return self.node.journal.get("known")

    @property
    def configured(self) -> bool:
        """Whether the VM surely has our uuid: a step after the configuring was begun."""
        return self.step in {"resize", "upload-seed", "attach-seed", "start", "read", "remove-seed"}
