"""Several nodes in one run: all looked at, one plan shown, one question, then each by itself."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from inventory.console import Console
from inventory.errors import ExitCode, MusterError, Refused, worst
from inventory.lifecycle import next_command, whose_move
from inventory.model import Node, State
from inventory.signature import fingerprint
from inventory.store import Store
from inventory.ticket import iso, peek_ticket
from provision.drift import Drift
from provision.handover import receipt_words, write_ticket
from provision.many import Many
from provision.plan import Clone, Step, as_json, as_text, writes
from provision.road import Prepared, Road
from provision.spec import Site

_NAMED = 4  # nodes that one warning names; a fleet would fill the screen


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for."""

    names: tuple[str, ...]
    profile: str | None = None
    plan_only: bool = False
    reissue: bool = False
    ticket_out: Path | None = None
    drift: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one node.

    prepared: it was looked at without a fault. node: its record now. goes: what --retire or --rollback takes away.
    adopts: the VM that --adopt found.
    """

    name: str
    prepared: Prepared | None = None
    node: Node | None = None
    changed: bool = False
    warnings: tuple[str, ...] = ()
    error: MusterError | None = None
    drift: Drift | None = None
    goes: tuple[str, ...] = ()
    adopts: Mapping[str, Any] | None = None

    @property
    def steps(self) -> tuple[Step, ...]:
        """What was, or is, to be done."""
        return self.prepared.steps if self.prepared else ()

    @property
    def to_do(self) -> bool:
        """Whether a plan has something to do for it, or its VM differs from its profile."""
        return bool(self.steps or self.drift or self.goes or self.adopts)


class Run:
    """One run of the command over its nodes.

    Args:
        confirm: asks a person before the first change; it raises where nobody can be asked.
        many: works on several nodes at once; without it they come one after the other.
    """

    def __init__(
        self,
        wish: Wish,
        *,
        site: Site,
        road: Road,
        store: Store,
        console: Console,
        confirm: Callable[[str], bool],
        now: datetime,
        many: Many | None = None,
    ) -> None:
        """Nothing is done yet."""
        self._wish = wish
        self._site = site
        self._road = road
        self._store = store
        self._console = console
        self._confirm = confirm
        self._now = now
        self._many = many

    def all(self) -> tuple[Result, ...]:
        """Do what is asked for; a node that fails does not stop the others.

        Raises:
            BadInput: nobody can be asked.
            Refused: the answer was no.
        """
        if self._wish.drift:
            return tuple(self._compare(name) for name in self._wish.names)
        if self._wish.reissue:
            self._ask_before_reissue()
            names = [Result(name) for name in self._wish.names]
            return self._each(names, lambda result, road: self._told(self._reissue(result.name, road)))
        looked = [_unless_refused(self._look(name)) for name in self._wish.names]
        self._show(looked)
        if self._wish.plan_only:
            return tuple(looked)
        changing = [result.name for result in looked if any(map(writes, result.steps))]
        if changing and not self._confirm(f"carry this out for {', '.join(changing)}?"):
            raise answered_no()
        if all(result.error is not None for result in looked):
            return tuple(looked)
        drawn = [self._with_id(result) for result in looked]
        return self._each(drawn, lambda result, road: self._told(self._carry_out(result, road)))

    def _each(self, results: list[Result], work: Callable[[Result, Road], Result]) -> tuple[Result, ...]:
        if self._many is None:
            return tuple(work(result, self._road) for result in results)
        if sum(result.error is None for result in results) > 1:
            with contextlib.suppress(MusterError):  # each node will tell it
                self._road.before_threads()
        return self._many.each(
            results,
            lambda result, tools: work(result, self._road.for_thread(tools)),
            name_of=lambda result: result.name,
        )

    def _compare(self, name: str) -> Result:
        result = self._look(name)
        if result.prepared is None:
            return result
        try:
            drift = self._road.drift(result.prepared)
        except MusterError as error:
            return replace(result, error=error)
        where = f"VM {result.prepared.node.vmid} and " if result.prepared.node else ""
        profile = f"profile {result.prepared.spec.profile}"
        verdict = f"{where}{profile} differ" if drift else "no changes"
        self._console.data(f"{name}: {verdict}")
        for line in drift.lines():
            self._console.data(f"  {line}")
        return replace(result, drift=drift)

    def _with_id(self, result: Result) -> Result:
        if result.prepared is None or not any(isinstance(step, Clone) for step in result.steps):
            return result
        try:
            return replace(result, prepared=self._road.draw_id(result.prepared))
        except MusterError as error:
            return replace(result, prepared=None, error=error)

    def _look(self, name: str) -> Result:
        try:
            prepared = self._road.prepare(name, profile=self._wish.profile)
        except MusterError as error:
            return Result(name, node=self._store.get(name), error=error)
        return Result(name, prepared, prepared.node, warnings=prepared.warnings)

    def _show(self, looked: Iterable[Result]) -> None:
        tell = self._console.data if self._wish.plan_only else self._console.say
        for result in looked:
            if result.prepared is None:
                continue
            lines = [line for step in result.steps for line in as_text(step)]
            alike = not lines and not result.prepared.drift
            for change in result.prepared.drift:
                lines.append(
                    f"-/+ {change.key:<9}  differs, and is refused: the guest would make new host keys"
                )
            for change in result.prepared.accepted:
                lines.append(f"=   {change.key:<9}  differs, and was accepted with the ticket")
            tell(
                f"{result.name}: {'no changes' if alike else 'from profile ' + result.prepared.spec.profile}"
            )
            for line in lines:
                tell(f"  {line}")
        if counts := count_line(looked):
            tell(counts)

    def _carry_out(self, result: Result, road: Road) -> Result:
        if result.prepared is None or result.error is not None:
            return result
        try:
            with self._store.lease(result.name, "provision-node", say=self._console.warn):
                made = road.carry_out(result.prepared)
        except MusterError as error:
            node = self._store.get(result.name)
            return replace(result, node=node, changed=bool(node and "step" in node.journal), error=error)
        warnings = (*result.warnings, *made.warnings)
        return replace(result, node=made.node, changed=made.changed, warnings=warnings)

    def _reissue(self, name: str, road: Road) -> Result:
        try:
            with self._store.lease(name, "provision-node --reissue-ticket", say=self._console.warn):
                made = road.reissue(name)
        except MusterError as error:
            return Result(name, node=self._store.get(name), error=error)
        return Result(name, node=made.node, changed=made.changed, warnings=made.warnings)

    def _ask_before_reissue(self) -> None:
        """A node that is past `awaiting-identity` goes back there: that is asked first."""
        known = filter(None, map(self._store.get, self._wish.names))
        back = [f"{node.name} ({node.state})" for node in known if node.state is not State.AWAITING_IDENTITY]
        if back and not self._confirm(f"send {', '.join(back)} back to awaiting-identity with a new ticket?"):
            raise answered_no()

    def _told(self, result: Result) -> Result:
        """The result with its ticket handed over, after what a person should know was said."""
        node = result.node
        if node is None or result.error is not None:
            return result
        words, warnings = receipt_words(self._site, node)
        if words:
            self._console.say(words)
        if node.ticket is not None and node.state is State.AWAITING_IDENTITY:
            again = f"provision-node {node.name} --reissue-ticket"
            try:
                ticket = peek_ticket(node.ticket)
            except Refused as error:
                what = f"the ticket of {node.name} on record is none"
                return replace(result, error=Refused(what, why=error.why, next_step=again))
            expires = iso(ticket.expires)
            if ticket.expires <= self._now:
                warnings.append(
                    f"the ticket for {node.name} has expired at {expires}; for a new one: {again}"
                )
            self._console.say(f"{node.name}: ticket {fingerprint(node.ticket)}, valid until {expires}")
            if self._wish.ticket_out is not None:
                try:
                    file = write_ticket(node.ticket, node.name, self._wish.ticket_out)
                except MusterError as error:
                    return replace(result, error=error)
                self._console.say(f"{node.name}: the ticket is in {file}")
        done = f"VM {node.vmid} on {node.proxmox_node} is {node.state}"
        self._console.say(f"{node.name}: {done}" + ("" if result.changed else "; nothing was changed"))
        if node.state is State.AWAITING_IDENTITY and node.ticket is None:
            what = "name ticket.signing_key in the site file, then " if self._site.ticket is None else ""
            self._console.say(f"next, for infra: {what}provision-node {node.name} --reissue-ticket")
        elif command := next_command(node):
            self._console.say(f"next, for {whose_move(node.state)}: {command}")
        return replace(result, warnings=(*result.warnings, *warnings))


def _unless_refused(result: Result) -> Result:
    """A node with drift that is refused: nothing of it is mended, and that is said before anybody is asked."""
    refusal = result.prepared.refusal if result.prepared else None
    if result.prepared is None or refusal is None:
        return result
    return replace(result, prepared=replace(result.prepared, steps=()), error=refusal)


def count_line(looked: Iterable[Result]) -> str:
    """`plan: 1 to make, 2 to change, 1 as it should be`; empty for a lone node that is as it should be."""
    looked = tuple(looked)
    making = sum(any(isinstance(step, Clone) for step in result.steps) for result in looked)
    changing = sum(bool(result.steps) for result in looked) - making
    failed = sum(result.error is not None for result in looked)
    alike = len(looked) - making - changing - failed
    if alike == len(looked):
        return "plan: no changes" if len(looked) > 1 else ""
    rest = [f"{alike} as it should be"] if alike else []
    rest += [f"{failed} refused"] if failed else []
    return ", ".join([f"plan: {making} to make, {changing} to change", *rest])


def exit_code(results: Iterable[Result], *, detailed: bool) -> ExitCode:
    """The worst of the nodes; with `detailed`, that a plan has steps."""
    results = tuple(results)
    codes = [result.error.exit_code for result in results if result.error is not None]
    if not codes and detailed and any(result.to_do for result in results):
        return ExitCode.CHANGES
    return worst(codes)


def document(results: Iterable[Result]) -> dict[str, Any]:
    """The JSON document of a run, without its schema number."""
    nodes = [_as_json(result) for result in results]
    return {"ok": all("error" not in node for node in nodes), "nodes": nodes}


def warnings_of(results: Iterable[Result]) -> list[str]:
    """Every warning once, with the nodes that it is about where there are several."""
    results = tuple(results)
    names: dict[str, list[str]] = {}
    for result in results:
        for warning in dict.fromkeys(result.warnings):
            names.setdefault(warning, []).append(result.name)
    if len(results) == 1:
        return list(names)
    return [f"{_some(whose)}: {warning}" for warning, whose in names.items()]


def rows(results: Iterable[Result]) -> list[tuple[str, ...]]:
    """A row for each node: name, VM id, address, state."""
    return [
        (
            result.name,
            str(result.node.vmid or "") if result.node else "",
            result.node.address.ip if result.node and result.node.address else "",
            str(result.node.state) if result.node else "not made",
        )
        for result in results
    ]


def _as_json(result: Result) -> dict[str, Any]:
    node = result.node
    told: dict[str, Any] = {
        "name": result.name,
        "vmid": node.vmid if node else None,
        "uuid": node.uuid if node else None,
        "address": node.address.ip if node and node.address else None,
        "state": str(node.state) if node else None,
        "changed": result.changed,
        "plan": [as_json(step) for step in result.steps],
        "ticket": _ticket_as_json(node.ticket) if node and node.ticket and result.error is None else None,
        "warnings": list(result.warnings),
    }
    if result.prepared is not None and result.prepared.drift:
        told["drift"] = [change.key for change in result.prepared.drift]
    if result.prepared is not None and result.prepared.accepted:
        told["accepted"] = [change.key for change in result.prepared.accepted]
    if result.drift is not None:
        told["drift"] = result.drift.as_json()
    if result.goes:
        told["goes"] = list(result.goes)
    if result.adopts is not None:
        told["adopts"] = dict(result.adopts)
    if result.error is not None:
        told["error"] = result.error.to_json()
    return told


def _ticket_as_json(text: str) -> dict[str, str]:
    ticket = peek_ticket(text)
    return {"id": ticket.id, "fingerprint": fingerprint(text), "expires": iso(ticket.expires)}


def _some(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def answered_no() -> Refused:
    """What is raised where a person was asked and did not agree."""
    return Refused(
        "nothing was changed", why="the answer was no", next_step="run the command again when it suits"
    )
