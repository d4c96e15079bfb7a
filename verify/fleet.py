"""Several nodes at once: one command on each, orders in, answers out, in lock step and never beyond the deadline."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from inventory.errors import MusterError, OtherSide
from verify import events
from verify.artefact import command, stdin_for
from verify.runner import Exec, RemoteProcess

_GRACE_S = 20.0
_MAX_REPLY = 65536


@dataclass(frozen=True, slots=True)
class Place:
    """One node of the run.

    address: what its ranks are bound to, and dialled at.
    fabrics: its networks by name, each with this node's address there and its declared MTU.
    """

    name: str
    spiffe_id: str
    address: str
    files: Mapping[str, str | None]
    login: str | None = None
    owner: str | None = None
    python: str = "python3"
    fabrics: Mapping[str, tuple[str, int]] = field(default_factory=dict)


class Lost(Exception):
    """A node does not answer any more; the text says why."""

    def __init__(self, name: str, why: str) -> None:
        """`name` is the node's."""
        super().__init__(f"{name}: {why}")
        self.name, self.why = name, why


class Said(dict[str, Any]):
    """An answer of a node's, or an object within one; what it lacks is that node's fault. Reading it raises Lost."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._name = name

    def __missing__(self, key: str) -> Any:  # noqa: ANN401 - JSON values
        raise Lost(self._name, f"an answer of its probe lacks {key!r}")


class Worker:
    """One node's probe, which takes orders."""

    def __init__(self, place: Place, where: Exec, settings: Mapping[str, Any], *, ends: float) -> None:
        self.place, self.index = place, -1
        self.probe: events.Began | None = None
        self._ends = ends
        self._process: RemoteProcess | None = None
        try:
            self._process = where.start(command(python=place.python, login=place.login, owner=place.owner))
            self._lines: Iterator[bytes] = self._process.lines(timeout_s=self._left() + _GRACE_S)
            self._process.send(stdin_for(settings), timeout_s=self._left())
        except MusterError as error:
            self.kill()
            raise Lost(place.name, error.why) from error

    def identity(self) -> events.IdentityFacts:
        """Who it is; raises Lost."""
        began, facts = self._event(), self._event()
        if not isinstance(began, events.Began) or not isinstance(facts, events.IdentityFacts):
            raise Lost(self.place.name, "the probe did not say who it is")
        self.probe = began
        return facts

    def order(self, do: str, **words: Any) -> None:  # noqa: ANN401 - JSON values
        """Give an order; its answer must be taken before the next one. Raises Lost."""
        if self._process is None:
            raise Lost(self.place.name, "its probe has ended")
        try:
            self._process.send(json.dumps({"do": do, **words}).encode() + b"\n", timeout_s=self._left())
        except MusterError as error:
            raise Lost(self.place.name, error.why) from error

    def answer(self, do: str) -> dict[str, Any]:
        """The answer to the last order; raises Lost."""
        line = self._line()
        try:
            said = json.loads(line, object_hook=partial(Said, self.place.name))
        except (ValueError, RecursionError):
            said = None
        if isinstance(said, dict) and said.get("event") == "broken":
            raise Lost(self.place.name, f"the probe failed: {str(said.get('text'))[:300]}")
        if not isinstance(said, dict) or said.get("event") != "reply" or said.get("do") != do:
            raise Lost(self.place.name, f"no answer to {do!r}: {line[:100]!r}")
        return said

    def ask(self, do: str, **words: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON values
        """Order and answer; raises Lost, also where the node could not do it."""
        self.order(do, **words)
        said = self.answer(do)
        if said.get("fault"):
            raise Lost(self.place.name, str(said["fault"])[:500])
        return said

    def leave(self) -> None:
        """End it in good order, or at all."""
        try:
            self.ask("bye")
            if self._process is not None:
                self._process.close_stdin()
                self._process.finish(timeout_s=_GRACE_S)
                self._process = None
        except (Lost, MusterError):
            self.kill()

    def kill(self) -> None:
        """The end of its stdin ends its ranks and itself."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _event(self) -> events.Event:
        line = self._line()
        try:
            return events.read(line)
        except ValueError as error:
            raise Lost(self.place.name, f"it sent what is no event of the probe: {error}") from error

    def _line(self) -> bytes:
        try:
            line = next(self._lines, None)
        except OtherSide as error:
            raise Lost(self.place.name, error.why) from error
        if line is None:
            raise Lost(self.place.name, self._last_words())
        if len(line) > _MAX_REPLY:
            raise Lost(self.place.name, f"an answer of {len(line)} bytes")
        return line

    def _last_words(self) -> str:
        try:
            ended = self._process.finish(timeout_s=_GRACE_S) if self._process else None
        except MusterError as error:
            return error.why
        if ended is None:
            return "its probe has ended"
        said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
        return (
            f"the probe ended with exit status {ended.exit_status}: {said[-1][:300] if said else 'no word'}"
        )

    def _left(self) -> float:
        return max(0.1, self._ends - time.monotonic())


class Fleet:
    """All nodes of the run; ranks lie on them in blocks of one size, as an engine's do, rank 0 on the first.

    Args:
        join_s: how long an assembly may take that should succeed.
    """

    def __init__(self, workers: Sequence[Worker], ranks: int, *, join_s: float = 5.0) -> None:
        self.workers, self.ranks = tuple(workers), ranks
        self.per_node, self.join_s = ranks // len(self.workers), join_s
        for index, worker in enumerate(self.workers):
            worker.index = index

    @property
    def lead(self) -> Worker:
        """The node that has rank 0."""
        return self.workers[0]

    def of(self, rank: int) -> Worker:
        """The node that a rank is on."""
        return self.workers[rank // self.per_node]

    def ranks_of(self, worker: Worker) -> list[int]:
        """The ranks on a node, without rank 0, which leads."""
        first = worker.index * self.per_node
        return [rank for rank in range(first, first + self.per_node) if rank]

    def everyone(self, do: str, **words: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - JSON values
        """The same order to every node at once, and all answers; raises Lost."""
        for worker in self.workers:
            worker.order(do, **words)
        answers = [worker.answer(do) for worker in self.workers]
        for worker, said in zip(self.workers, answers, strict=True):
            if said.get("fault"):
                raise Lost(worker.place.name, str(said["fault"])[:500])
        return answers
