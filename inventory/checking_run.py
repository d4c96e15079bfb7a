"""One run of `node-inventory check`: from what was typed to what was found, and the words for it."""

import getpass
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inventory.checking import Asked, Outcome, Severity, chosen, discover, run_checks
from inventory.console import Console
from inventory.errors import BadInput
from inventory.jump import parse_jump
from inventory.model import Node
from inventory.nodeset import expand
from inventory.show import one_line
from inventory.store import Store, utc_now


@dataclass(frozen=True, slots=True)
class Typed:
    """What was typed; see the command's help."""

    nodes: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    site: Path | None = None
    ca_dir: Path | None = None
    ssh_key: Path | None = None
    jump: str | None = None
    jump_host_key: Path | None = None
    inventory: str | None = None


def check(typed: Typed, console: Console) -> Outcome:
    """Compare the record with every source, or with those that were named.

    Raises:
        BadInput: a node is not on record, a source does not exist, or an option cannot be meant.
    """
    offers = chosen(discover(), typed.only)
    jump = parse_jump(typed.jump, typed.jump_host_key, user=getpass.getuser())
    try:
        names = frozenset(expand(typed.nodes)) if typed.nodes else None
    except ValueError as error:
        raise BadInput(
            "nothing was checked", why=str(error), next_step="name nodes as gpu-07 or gpu-[01-16]"
        ) from None
    store = Store.open(typed.inventory)
    if names is not None:
        _refuse_unknown(store, names)
    held = store.leased()
    asked = Asked(
        nodes=lambda: _each(store, names),
        everyone=lambda: _each(store, None),
        history=store.history,
        held=lambda name: name in held,
        now=utc_now(),
        console=console,
        names=names,
        site=typed.site,
        ca_dir=typed.ca_dir,
        ssh_key=typed.ssh_key,
        jump=jump,
    )
    return run_checks(offers, asked, only=typed.only)


def rows(outcome: Outcome) -> list[list[str]]:
    """A row for each disagreement, in the order of `cli_check.TITLES`."""
    return [
        [
            one_line(text)
            for text in (
                each.node,
                each.source,
                each.about,
                str(each.severity),
                each.found,
                each.recorded,
                each.mend,
            )
        ]
        for each in outcome.disagreements
    ]


def untold(outcome: Outcome) -> Iterator[str]:
    """What was not looked at, why, and how to have it: one line each."""
    for each in outcome.not_checked:
        whose = each.source if each.node is None else f"{each.source} of {each.node}"
        why, how = (" / ".join(text.splitlines()) for text in (each.why, each.how))
        yield f"not checked: {whose}: {why}; to have it: {how}"


def verdict(outcome: Outcome) -> str:
    """The last line: how many, against what, and against what not."""
    wrong = sum(each.severity is Severity.WRONG for each in outcome.disagreements)
    notices = len(outcome.disagreements) - wrong
    found = f"{wrong} wrong, {notices} to be seen to" if outcome.disagreements else "all agree"
    lacking = [each.source for each in outcome.not_checked if each.node is None]
    nodes = sum(each.node is not None for each in outcome.not_checked)
    rest = f"; not with {', '.join(lacking)}" if lacking else ""
    rest += f"; not {nodes} node{'' if nodes == 1 else 's'} of them" if nodes else ""
    return f"{found}: compared with {', '.join(outcome.checked) or 'nothing'}{rest}"


def _each(store: Store, names: frozenset[str] | None) -> Iterator[Node]:
    return store.each(names=names)


def _refuse_unknown(store: Store, names: frozenset[str]) -> None:
    known = {each.name for each in store.summaries(names=names)}
    if strange := sorted(names - known):
        raise BadInput(
            "nothing was checked",
            why=f"not on record: {', '.join(strange[:8])}" + (" and more" if strange[8:] else ""),
            next_step="node-inventory list shows what is; without NODES all is checked",
        )
