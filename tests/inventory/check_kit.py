"""A record as a checker reads it, made of plain values; and tickets and receipts as texts that nobody signed."""

import contextlib
import io
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from inventory import cli
from inventory.canonical import dumps
from inventory.checking import Asked, Disagreement, NotChecked
from inventory.checking_record import SERVING, RecordChecker
from inventory.console import Console
from inventory.model import Event, Node, State
from inventory.ticket import Receipt, Ticket
from tests.inventory.kit import NOW, receipt, ticket


def as_text(told: Ticket | Receipt) -> str:
    """As it travels, without its signature: who only compares does not ask for it."""
    return dumps(TypeAdapter(type(told)).dump_python(told, mode="json")) + "\n"


def node(state: State, **other: Any) -> Node:
    """gpu-01 with all that its state must have."""
    told = ticket()
    made = Node(
        told.node,
        state,
        uuid=told.vm_uuid,
        vmid=told.vmid,
        proxmox_node=told.proxmox_node,
        site=told.site,
        profile="small",
        spec_hash=told.profile_hash,
        address=told.address,
        user=told.user,
        macs=told.macs,
        host_keys=told.host_keys,
        machine_id=told.machine_id,
        ticket=as_text(told),
    )
    if state in SERVING | {State.DECOMMISSIONING}:
        made = replace(made, receipt=as_text(receipt()))
    if state is State.AWAITING_RETIREMENT:
        made = replace(made, receipt=as_text(replace(receipt(), kind="decommissioned")))
    return replace(made, **other)


def asked(
    nodes: Iterable[Node],
    *,
    history: Mapping[str, Sequence[Event]] | None = None,
    held: frozenset[str] = frozenset(),
    now: datetime = NOW,
    names: frozenset[str] | None = None,
    console: Console | None = None,
    **other: Any,
) -> Asked:
    """A run over these nodes; `held` are those that another run is at work on."""
    all_nodes = tuple(nodes)
    return Asked(
        nodes=lambda: (each for each in all_nodes if names is None or each.name in names),
        everyone=lambda: iter(all_nodes),
        history=lambda name: (history or {}).get(name, ()),
        held=held.__contains__,
        now=now,
        console=console or Console(quiet=True),
        names=names,
        **other,
    )


def found(told: Iterable[Disagreement | NotChecked]) -> list[tuple[str, str]]:
    """Node and kind of each disagreement; nothing may have been left unchecked."""
    all_told = list(told)
    assert [each for each in all_told if isinstance(each, NotChecked)] == []
    return sorted((each.node, each.about) for each in all_told if isinstance(each, Disagreement))


def against_itself(*nodes: Node, **other: Any) -> list[tuple[str, str]]:
    """What the record's own checker finds."""
    return found(RecordChecker().check(asked(nodes, **other)))


def typed(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`node-inventory check` as a person types it, without the second that a process needs to start."""
    out, err = io.StringIO(), io.StringIO()
    argv, handler = sys.argv, signal.getsignal(signal.SIGTERM)
    sys.argv = ["node-inventory", "check", *arguments]
    code: int | str | None = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.argv = argv
        signal.signal(signal.SIGTERM, handler)
    return subprocess.CompletedProcess(arguments, int(code or 0), out.getvalue(), err.getvalue())
