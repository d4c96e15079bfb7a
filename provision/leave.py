"""Nodes that go, by --retire or --rollback: what goes is shown, each name is asked for, then each goes by itself."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from inventory.console import Console
from inventory.errors import BadInput, MusterError, Refused
from inventory.model import Node
from inventory.store import Store
from provision.many import Many
from provision.retire import Parting, Retiring
from provision.rollback import Rollback, lines
from provision.run import Result
from provision.tasks import Tools

G = TypeVar("G")


class Leave:
    """One run over nodes that go.

    Args:
        confirm: asks a person for the name of the node that is named; it raises where nobody can be asked.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        store: Store,
        console: Console,
        many: Many,
        confirm: Callable[[str], bool],
    ) -> None:
        """Nothing is done yet."""
        self._names = names
        self._store = store
        self._console = console
        self._many = many
        self._confirm = confirm

    def retire(
        self, retiring: Retiring, *, orphan: bool, plan_only: bool, receipt: Path | None = None
    ) -> tuple[Result, ...]:
        """Retire them; one that fails or is refused does not stop the others.

        receipt: where the holder's receipts lie, if not on record.

        Raises:
            BadInput: nobody can be asked.
            Refused: a name was not typed as it is.
        """

        def look(name: str) -> tuple[Parting | None, list[str]]:
            parting = retiring.look(name, orphan=orphan, receipt=receipt)
            return parting, parting.lines() if parting else []

        def go(parting: Parting, tools: Tools) -> tuple[Node, tuple[str, ...]]:
            if parting.orphan:
                tools.console.warn(
                    f"{parting.node.name} goes with --orphan-identity: a certificate of it may stay valid;"
                    " tell the holder to revoke it (node-ca revoke)"
                )
            return retiring.for_thread(tools).carry_out(parting)

        return self._all("retired", look, go, plan_only=plan_only)

    def roll_back(self, rollback: Rollback, *, plan_only: bool) -> tuple[Result, ...]:
        """Undo them; one that fails or is refused does not stop the others.

        Raises:
            BadInput: nobody can be asked.
            Refused: a name was not typed as it is.
        """

        def look(name: str) -> tuple[Node | None, list[str]]:
            node = rollback.look(name)
            return node, lines(node) if node else []

        def go(node: Node, tools: Tools) -> tuple[Node, tuple[str, ...]]:
            return rollback.for_thread(tools).carry_out(node)

        return self._all("undone", look, go, plan_only=plan_only)

    def _all(
        self,
        done: str,
        look: Callable[[str], tuple[G | None, list[str]]],
        go: Callable[[G, Tools], tuple[Node, tuple[str, ...]]],
        *,
        plan_only: bool,
    ) -> tuple[Result, ...]:
        going: dict[str, G] = {}
        looked: list[Result] = []
        tell = self._console.data if plan_only else self._console.say
        for name in self._names:
            try:
                found, told = look(name)
            except MusterError as error:
                looked.append(Result(name, node=self._store.get(name), error=error))
                continue
            looked.append(Result(name, node=self._store.get(name), goes=tuple(told)))
            tell(f"{name}: {'is to be ' + done if found is not None else 'nothing is left to do'}")
            for line in told:
                tell(f"  {line}")
            if found is not None:
                going[name] = found
        if plan_only:
            return tuple(looked)
        for name in going:
            if not self._confirm(name):
                raise Refused(
                    "nothing was changed",
                    why=f"the name of {name} was not typed",
                    next_step="run the command again when it suits",
                )

        def carry_out(result: Result, tools: Tools) -> Result:
            if result.name not in going:
                return result
            try:
                with self._store.lease(result.name, "provision-node", say=tools.console.warn):
                    node, warnings = go(going[result.name], tools)
            except MusterError as error:
                return replace(result, node=self._store.get(result.name), error=error, changed=True)
            tools.console.say(
                f"{result.name}: {done}; its record stays (node-inventory history {result.name})"
            )
            return replace(result, node=node, warnings=warnings, changed=True)

        return self._many.each(looked, carry_out, name_of=lambda result: result.name)


def typed_name(console: Console, name: str, *, yes: bool) -> bool:
    """Whether a person typed the node's name, or --yes stands for it.

    Raises:
        BadInput: there is no terminal to ask on, or --no-input was given.
    """
    if yes:
        return True
    if console.no_input or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput(
            "nothing was changed",
            why=f"this asks for the name of {name} before it destroys a VM, and there is no terminal to ask on",
            next_step="run it again with --yes",
        )
    console.trouble(f"type {name} to go on:")
    return sys.stdin.readline().strip() == name
