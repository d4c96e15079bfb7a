"""Verifies one node and keeps the record of it; what verify-node and onboard-node both call."""

import secrets
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from inventory.command import need
from inventory.console import Console
from inventory.errors import BadInput, MusterError, NotVerified, Refused
from inventory.model import Node, State
from verify import events
from verify.local import LocalExec
from verify.report import NodeReport, covered
from verify.runner import Exec, Findings, Order, run_probe
from verify.scenarios import NAMES

if TYPE_CHECKING:
    # for their names alone: `--local` runs on nodes, where a record and its database are nobody's business
    from inventory.agent_config import AgentConfig
    from inventory.store import Store
    from inventory.ticket import Receipt

RANKS = 8
MAX_RANKS = 512
DEADLINE_S = 60.0
_STATES = (State.AWAITING_VERIFICATION, State.VERIFYING, State.VERIFY_FAILED, State.IN_SERVICE)
_CURRENT = "current"


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be run.

    scenarios: by name; only the whole set lets a node into service.
    deadline_s: for the whole verification of one node.
    """

    ranks: int = RANKS
    scenarios: tuple[str, ...] = NAMES
    deadline_s: float = DEADLINE_S

    def __post_init__(self) -> None:
        """Refuse what could never be judged."""
        if not 2 <= self.ranks <= MAX_RANKS:
            raise BadInput(
                f"{self.ranks} ranks cannot be verified",
                why="one rank alone has nobody to meet" if self.ranks < 2 else f"{MAX_RANKS} are the most",
                next_step="--ranks 8",
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


def over_ssh(receipt: "Receipt", ssh_key: Path) -> AbstractContextManager[Exec]:
    """A session to the receipt's node, pinned to the receipt's host keys.

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
    )


def verify_node(
    receipt: "Receipt",
    *,
    ssh_key: Path,
    store: "Store | None",
    console: Console,
    wish: Wish | None = None,
    reach: "Callable[[Receipt, Path], AbstractContextManager[Exec]]" = over_ssh,
) -> NodeReport:
    """Verify the node of a believed receipt, and move it in the record when it is on it.

    A node that does not pass, is out of reach or cannot be judged is told in the report's `error`, not raised.
    """
    run = _Run(receipt.node, wish or Wish(), store, console)
    try:
        _check_receipt(receipt)
        run.check_record(receipt.vm_uuid)
        with reach(receipt, ssh_key) as place:
            run.begin(f"verify-node: {run.wish.ranks} ranks, run {run.run_id}")
            findings = run.probe(
                place,
                _files(f"{receipt.install_dir}/{_CURRENT}"),
                spiffe_id=receipt.spiffe_id,
                login=receipt.user,
                owner=receipt.owner,
            )
    except MusterError as error:
        return run.not_judged(error)
    return run.judged(findings, _against_receipt(findings, receipt))


def verify_local(
    config: "AgentConfig", *, console: Console, wish: Wish | None = None, file: Path
) -> NodeReport:
    """Verify this very machine from its agent's own `file`, with this interpreter; no record is kept here."""
    identity = config.identity
    files = {
        "cert_file": str(identity.cert_file),
        "key_file": str(identity.key_file),
        "ca_file": str(identity.ca_file),
        "crl_file": None if identity.crl_file is None else str(identity.crl_file),
    }
    run = _Run(config.node, wish or Wish(), None, console, command=f"verify-node --local --config {file}")
    try:
        findings = run.probe(LocalExec(), files, spiffe_id=None, python=sys.executable)
    except MusterError as error:
        return run.not_judged(error)
    return run.judged(findings, ())


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
        *,
        spiffe_id: str | None,
        login: str | None = None,
        owner: str | None = None,
        python: str = "python3",
    ) -> Findings:
        """Run the probe, telling how far it is."""
        wish = self.wish
        order = Order(self.name, self.run_id, wish.ranks, wish.scenarios, files, spiffe_id, wish.deadline_s)
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

    def judged(self, findings: Findings, faults: Sequence[str]) -> NodeReport:
        """The probe has run to its end: pass, or not."""
        failed = [f"{result.name}: {result.detail}" for result in findings.scenarios if not result.ok]
        why = "\n".join([*faults, *failed])
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


def _check_receipt(receipt: "Receipt") -> None:
    if receipt.kind == "decommissioned":
        raise Refused(
            f"{receipt.node} was not verified",
            why="its receipt says that it was decommissioned",
            next_step=f"onboard-node {receipt.node} gives it a new identity",
        )


def _files(folder: str) -> dict[str, str | None]:
    return {
        "cert_file": f"{folder}/chain.pem",
        "key_file": f"{folder}/key.pem",
        "ca_file": f"{folder}/bundle.pem",
        "crl_file": f"{folder}/crl.pem",
    }


def _against_receipt(findings: Findings, receipt: "Receipt") -> tuple[str, ...]:
    """What the node shows, set against what the security holder signed."""
    facts, faults = findings.identity, []
    if facts.fault is None:
        if facts.serial is None or int(facts.serial, 16) != int(receipt.serial, 16):
            faults.append(
                f"identity: the node shows certificate {facts.serial}, the receipt is for {receipt.serial}"
            )
        if receipt.ca_fingerprint not in facts.ca_fingerprints:
            trusted = ", ".join(facts.ca_fingerprints) or "none"
            faults.append(
                f"identity: the node trusts {trusted}, the receipt names the root {receipt.ca_fingerprint}"
            )
    return tuple(faults)
