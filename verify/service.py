"""Verifies one node and keeps the record of it; what verify-node and onboard-node both call."""

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inventory.command import need
from inventory.console import Console
from inventory.errors import BadInput, MusterError, NotVerified, OtherSide, Refused
from inventory.model import Node, State
from verify import about, events
from verify.artefact import alone
from verify.local import LocalExec
from verify.report import NodeReport, covered, critical, unjudged
from verify.runner import Exec, Findings, Order, run_probe
from verify.scenarios import NAMES

if TYPE_CHECKING:
    # for their names alone: `--local` runs on nodes, where a record and its database are nobody's business
    from inventory.agent_config import AgentConfig
    from inventory.jump import Jump
    from inventory.store import Store
    from inventory.ticket import Receipt

RANKS = 8
MAX_RANKS = 512
DEADLINE_S = 60.0
SPAWNS = ("fork", "exec")
_STATES = (State.AWAITING_VERIFICATION, State.VERIFYING, State.VERIFY_FAILED, State.IN_SERVICE)
_CURRENT = "current"


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be run.

    scenarios: by name; only the whole set lets a node into service.
    deadline_s: for the whole verification of one node.
    spawn: how the probe starts ranks, "fork" or "exec".
    disruptive: run what would disturb a node in service, too.
    gpus, driver: what the node must have; a driver's first numbers are enough ("570").
    engine: whose collectives are run as well; "torch" or none. engine_python: where it is installed on the node.
    """

    ranks: int = RANKS
    scenarios: tuple[str, ...] = NAMES
    deadline_s: float = DEADLINE_S
    spawn: str = "fork"
    disruptive: bool = False
    gpus: int | None = None
    driver: str | None = None
    engine: str | None = None
    engine_python: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what could never be judged."""
        if not 2 <= self.ranks <= MAX_RANKS:
            raise BadInput(
                f"{self.ranks} ranks cannot be verified",
                why="one rank alone has nobody to meet" if self.ranks < 2 else f"{MAX_RANKS} are the most",
                next_step="--ranks 8",
            )
        if self.spawn not in SPAWNS:
            raise BadInput(
                f"ranks cannot be started by {self.spawn!r}",
                why=f"the ways are {' and '.join(SPAWNS)}",
                next_step="--spawn exec",
            )
        if self.engine not in (None, "torch") or (self.engine_python and not self.engine):
            raise BadInput(
                f"the engine {self.engine or 'of --engine-python'} cannot be run",
                why="--engine torch is the one engine whose collectives are run, with or without --engine-python",
                next_step="--engine torch, or --show-engine for the commands of the others",
            )
        if not self.scenarios:
            raise BadInput(
                "nothing was asked", why="a run of no scenario is no pass", next_step="name a --scenario"
            )
        if not 5 <= self.deadline_s <= 3600:
            raise BadInput(
                f"a deadline of {self.deadline_s:g} s cannot be used",
                why="it must be between 5 and 3600 s",
                next_step="--deadline 60",
            )

    @property
    def whole(self) -> bool:
        """Is every scenario asked?"""
        return self.scenarios == NAMES


def over_ssh(
    receipt: "Receipt", ssh_key: Path, *, jump: "Jump | None" = None
) -> AbstractContextManager[Exec]:
    """A session to the receipt's node, pinned to the receipt's host keys; `jump` is a host to go through.

    Raises:
        BadInput: the extra `verify` is not installed.
        OtherSide: the node is out of reach, or is another machine.
    """
    need("verify", "paramiko")
    from inventory.reach import open_session

    return open_session(
        host=receipt.address.ip,
        port=receipt.ssh_port,
        user=receipt.user,
        host_keys=receipt.host_keys,
        key_file=ssh_key,
        jump=jump,
    )


def verify_node(
    receipt: "Receipt",
    *,
    ssh_key: Path,
    store: "Store | None",
    console: Console,
    wish: Wish | None = None,
    reach: "Callable[[Receipt, Path], AbstractContextManager[Exec]]" = over_ssh,
    sign: "Callable[[Receipt], str] | None" = None,
) -> NodeReport:
    """Verify the node of a believed receipt, and move it in the record when it is on it.

    sign: makes and keeps the receipt that it was verified, where the holder's key is at hand.

    A node that does not pass, is out of reach or cannot be judged is told in the report's `error`, not raised.
    """
    run = _Run(receipt.node, wish or Wish(), store, console)
    with ExitStack() as stack:
        try:
            if store is not None:
                stack.enter_context(store.lease(receipt.node, "verify-node", say=console.warn))
        except MusterError as error:
            return run.not_judged(error)
        return _verified(run, receipt, ssh_key, reach, sign)


def _verified(
    run: "_Run",
    receipt: "Receipt",
    ssh_key: Path,
    reach: "Callable[[Receipt, Path], AbstractContextManager[Exec]]",
    sign: "Callable[[Receipt], str] | None",
) -> NodeReport:
    try:
        about.check_receipt(receipt)
        run.check_record(receipt.vm_uuid)
        with reach(receipt, ssh_key) as place:
            run.begin(f"verify-node: {run.wish.ranks} ranks, run {run.run_id}")
            folder = f"{receipt.install_dir}/{_CURRENT}"
            known, agent = about.of_node(place, receipt, folder)
            findings = run.probe(
                place,
                about.files_in(folder) if agent is None else about.files_of(agent),
                known,
                spiffe_id=receipt.spiffe_id,
                login=receipt.user,
                owner=receipt.owner,
            )
    except MusterError as error:
        return run.not_judged(error)
    report = run.judged(findings, about.against_receipt(findings, receipt))
    run.keep(report)
    if sign is not None and report.ok and run.wish.whole:
        run.hand_back(receipt, sign)
    return report


def verify_local(
    config: "AgentConfig", *, console: Console, wish: Wish | None = None, file: Path
) -> NodeReport:
    """Verify this very machine from its agent's own `file`, with this interpreter; no record is kept here."""
    files = about.files_of(config)
    run = _Run(config.node, wish or Wish(), None, console, command=f"verify-node --local --config {file}")
    try:
        place = LocalExec(as_owner_of=config.identity.key_file)
        # another user may not reach this interpreter; the system's is what SSH would start
        python = "python3" if place.other_user else sys.executable
        known = about.of_this_machine(config)
        findings = run.probe(place, files, known, spiffe_id=None, python=python)
    except MusterError as error:
        return run.not_judged(error)
    return run.judged(findings, ())


def stand_alone(config: "AgentConfig", wish: Wish) -> bytes:
    """The probe as one file that verifies this node by itself, whenever it is run there."""
    order = Order(
        config.node,
        "",
        wish.ranks,
        wish.scenarios,
        about.files_of(config),
        None,
        wish.deadline_s,
        wish.spawn,
        wish.disruptive,
        {**about.fabrics(config), **_hardware(wish)},
    )
    return alone(order.settings())


def _hardware(wish: Wish) -> dict[str, Any]:
    python = [str(wish.engine_python)] if wish.engine_python else []
    return {"gpus": wish.gpus, "driver": wish.driver, "engine": wish.engine, "engine_python": python}


def unfound(name: str, error: MusterError, wish: Wish, store: "Store") -> NodeReport:
    """The report of a node that nothing led to; the record is left as it is."""
    node = store.get(name)
    return NodeReport(
        name,
        wish.ranks,
        secrets.token_hex(16),
        node.state if node else None,
        None,
        error,
        f"verify-node {name}",
    )


class _Run:
    """One verification of one node, and the node's way through the record."""

    def __init__(
        self, name: str, wish: Wish, store: "Store | None", console: Console, *, command: str | None = None
    ) -> None:
        self._command = command or f"verify-node {name}"
        self.name, self.wish, self._store, self._console = name, wish, store, console
        self.run_id = secrets.token_hex(16)
        self._began = False

    def check_record(self, vm_uuid: str) -> None:
        """Refuse, without moving anything, a node that is not to be verified now."""
        node = self._node()
        if node is None:
            self._console.warn(f"{self.name} is not on record here: nothing is recorded")
        elif node.state not in _STATES:
            raise Refused(
                f"{self.name} was not verified",
                why=f"it is {node.state}",
                next_step=f"node-inventory show {self.name}",
            )
        elif node.uuid is not None and node.uuid != vm_uuid:
            raise Refused(
                f"{self.name} was not verified",
                why=f"the receipt is for VM {vm_uuid}, on record is VM {node.uuid}",
                next_step=f"onboard-node {self.name} with that VM's ticket, which makes a new receipt",
            )

    def begin(self, why: str) -> None:
        """The node can be reached: from here on the record says that it is being verified."""
        self._began = True
        node = self._node()
        if node is not None and self.wish.whole and node.state is not State.IN_SERVICE:
            self._move(node, State.VERIFYING, why=why, reason=None)

    def probe(
        self,
        place: Exec,
        files: dict[str, str | None],
        known: Mapping[str, Any],
        *,
        spiffe_id: str | None,
        login: str | None = None,
        owner: str | None = None,
        python: str = "python3",
    ) -> Findings:
        """Run the probe, telling how far it is."""
        wish = self.wish
        order = Order(
            self.name,
            self.run_id,
            wish.ranks,
            wish.scenarios,
            files,
            spiffe_id,
            wish.deadline_s,
            wish.spawn,
            self._may_disturb(),
            {**known, **_hardware(wish)},
        )
        what = f"{self.name}: {wish.ranks} ranks, {len(wish.scenarios)} scenarios"
        with self._console.waiting(what, timeout_s=wish.deadline_s) as waiting:

            def show(event: events.Event) -> None:
                match event:
                    case events.Started():
                        waiting.update(event.name)
                    case events.ScenarioResult():
                        verdict = "ok" if event.ok else "FAILED"
                        self._console.detail(
                            f"{event.name}: {verdict} after {event.seconds:.2f} s: {event.detail}"
                        )
                    case _:
                        pass

            return run_probe(place, order, python=python, login=login, owner=owner, on_event=show)

    def _may_disturb(self) -> bool:
        """A node on record that is not in service serves nobody; of any other the person must say so."""
        node = self._node()
        idle = node is not None and node.state is not State.IN_SERVICE
        return self.wish.disruptive or idle

    def judged(self, findings: Findings, faults: Sequence[str]) -> NodeReport:
        """The probe has run to its end: pass, or not."""
        failed = [f"{result.name}: {result.detail}" for result in findings.scenarios if not result.ok]
        # an identity that does not hold has failed every scenario already, and each says why
        bad = [] if findings.identity.fault else [f"{each.name}: {each.found}" for each in critical(findings)]
        why = "\n".join([*faults, *bad, *failed])
        blind = "\n".join(f"{each.name}: {each.found}" for each in unjudged(findings))
        if blind and not why:
            return self._half_judged(findings, blind)
        error: MusterError | None = None
        if why:
            error = NotVerified(
                f"{self.name} did not pass muster", why=why, next_step=self._next(faults, findings)
            )
        try:
            state = self._record(findings, why)
        except MusterError as unrecorded:
            error, state = unrecorded, self._state()
        return NodeReport(self.name, self.wish.ranks, self.run_id, state, findings, error, self._command)

    def _half_judged(self, findings: Findings, blind: str) -> NodeReport:
        """Everything that was seen is well, but what must be known is not."""
        (first, *_) = unjudged(findings)
        error = OtherSide(
            f"{self.name} could not be judged",
            why=blind,
            next_step=f"{first.next}; then run {self._command} again",
        )
        return replace(self.not_judged(error), findings=findings)

    def hand_back(self, receipt: "Receipt", sign: "Callable[[Receipt], str]") -> None:
        """Infra is told by a receipt; where that fails, the node is verified all the same."""
        try:
            text, node = sign(receipt), self._node()
            if node is not None and self._store is not None:
                self._store.save(replace(node, receipt=text))
        except MusterError as error:
            self._console.warn(
                f"{self.name}: no receipt says that it was verified: {error.what}: {error.why}"
            )

    def keep(self, report: NodeReport) -> None:
        """A run of every scenario is kept whole in the record; where that fails, its verdict is there all the same."""
        if self._store is None or not self.wish.whole or self._node() is None:
            return
        try:
            self._store.keep_report(self.name, report.to_json(), passed=report.ok)
        except MusterError as error:
            self._console.warn(f"{self.name}: its report was not kept: {error.what}: {error.why}")

    def not_judged(self, error: MusterError) -> NodeReport:
        """Nothing can be said of the node; a node that was in service stays there."""
        node = self._node()
        if self._began and node is not None:
            why = f"could not be verified: {error.why}"
            if node.state is State.VERIFYING:
                self._move(node, State.VERIFY_FAILED, why=why, reason=why)
            elif node.state is State.IN_SERVICE:
                self._move(node, State.IN_SERVICE, why=why, reason=node.reason)
        return NodeReport(self.name, self.wish.ranks, self.run_id, self._state(), None, error, self._command)

    def _next(self, faults: Sequence[str], findings: Findings) -> str:
        if faults or findings.identity.fault:
            return f"ask infra for a new ticket (provision-node {self.name} --reissue-ticket), then onboard it again"
        first = next(iter(critical(findings)), None)
        if first is not None:
            return f"{first.next}; then run {self._command} again"
        failed = next(result.name for result in findings.scenarios if not result.ok)
        return f"look at the node, then run {self._command} --scenario {failed} -v"

    def _record(self, findings: Findings, why: str) -> str | None:
        node = self._node()
        if node is None:
            return None
        if why:
            if node.state is not State.IN_SERVICE and node.state is not State.VERIFYING:
                node = self._move(node, State.VERIFYING, why=f"run {self.run_id}", reason=None)
            return self._move(node, State.VERIFY_FAILED, why=why, reason=why).state
        if not self.wish.whole and node.state is not State.IN_SERVICE:
            self._console.warn(
                f"{self.name} stays {node.state}: only a run of every scenario lets it into service"
            )
            return node.state
        passed = f"passed: {covered(self.wish.ranks, findings)} (run {self.run_id})"
        return self._move(node, State.IN_SERVICE, why=passed, reason=None).state

    def _move(self, node: Node, state: State, *, why: str, reason: str | None) -> Node:
        if self._store is None:
            return node
        return self._store.save(replace(node, state=state, reason=reason), why=why)

    def _node(self) -> Node | None:
        return self._store.get(self.name) if self._store else None

    def _state(self) -> str | None:
        node = self._node()
        return None if node is None else str(node.state)
