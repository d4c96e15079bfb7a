"""verify-node: shows on a node that a replica can assemble there, and that it fails when it must."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inventory.command import run
from inventory.console import Console
from inventory.errors import BadInput, MusterError, worst
from inventory.options import CaDir, DryRun, InventoryUrl, SshKey, lone, new_app

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inventory.ticket import Receipt as Believed
    from verify.report import NodeReport
    from verify.service import Wish

HELP = """Show on a node that a replica can assemble there, and can fail.

Several ranks meet over mutual TLS with the identity that the node was given.
They must assemble when all is well, and fail when one is missing or killed.

Examples:

  verify-node gpu-07

  verify-node gpu-07 --scenario missing-rank -v

  verify-node gpu-07 --server server.yaml --model llama-70b --json

  verify-node --local --config /etc/muster/current/agent.yaml
"""
app = new_app(HELP)
Name = Annotated[
    list[str] | None, typer.Argument(metavar="NAME...", help="The nodes' names.", show_default=False)
]
Receipt = Annotated[
    Path | None,
    typer.Option(
        "--receipt", metavar="FILE", help="The node's signed receipt (default: in the CA's directory)."
    ),
]
Signers = Annotated[
    Path | None,
    typer.Option(
        "--receipt-signers", metavar="FILE", help="Whose receipts count (default: the SSH key's own)."
    ),
]
Ranks = Annotated[int | None, typer.Option("--ranks", metavar="N", help="How many ranks (default: 8).")]
Scenarios = Annotated[
    list[str] | None,
    typer.Option("--scenario", metavar="S", help="Run only this scenario; may be given more than once."),
]
Server = Annotated[
    Path | None, typer.Option("--server", metavar="FILE", help="A server.yaml that says how many ranks.")
]
ModelName = Annotated[str | None, typer.Option("--model", metavar="M", help="Which model of --server FILE.")]
Deadline = Annotated[float, typer.Option("--deadline", metavar="S", help="Seconds for one node, at most.")]
ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.json", help="Write the report to a file as well.")
]
Local = Annotated[bool, typer.Option("--local", help="Verify this machine itself, without SSH.")]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The agent.yaml of this machine, for --local.")
]


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Which nodes, and what leads to them."""

    names: list[str]
    receipt: Path | None
    signers: Path | None
    ca_dir: Path | None
    ssh_key: Path | None
    inventory: str | None


@lone(app)
def verify(
    names: Name = None,
    *,
    console: Console,
    receipt: Receipt = None,
    receipt_signers: Signers = None,
    ca_dir: CaDir = None,
    ssh_key: SshKey = None,
    ranks: Ranks = None,
    scenario: Scenarios = None,
    server: Server = None,
    model: ModelName = None,
    deadline: Deadline = 60.0,
    report: ReportFile = None,
    local: Local = False,
    config: Config = None,
    inventory: InventoryUrl = None,
    dry_run: DryRun = False,
) -> None:
    """Verify nodes over SSH, or with --local this very machine."""
    from verify import report as reports

    reports.check_file(report)
    wish = _wish(
        console, ranks=ranks, scenario=scenario or [], server=server, model=model, deadline_s=deadline
    )
    nodes = _Nodes(names or [], receipt, receipt_signers, ca_dir, ssh_key, inventory)
    if local:
        done = _here(nodes, config, wish, console, dry_run=dry_run)
    else:
        done = _there(nodes, config, wish, console, dry_run=dry_run)
    if dry_run:
        return
    if report is not None:
        reports.write(done, report)
    console.document(reports.document(done))
    raise typer.Exit(int(worst(each.exit_code for each in done)))


def main() -> None:
    """The console script."""
    run(app)


def _wish(
    console: Console,
    *,
    ranks: int | None,
    scenario: list[str],
    server: Path | None,
    model: str | None,
    deadline_s: float,
) -> "Wish":
    """What is to be run, checked before anything is."""
    from inventory.server_config import served_model
    from verify.scenarios import choose
    from verify.service import RANKS, Wish

    if (server is None) != (model is None):
        raise BadInput(
            "how many ranks there are is not clear",
            why="--server and --model belong together",
            next_step="give both, or --ranks N",
        )
    if server is not None and model is not None:
        if ranks is not None:
            raise BadInput(
                "how many ranks there are is not clear",
                why="--ranks was given, and --server with --model says it too",
                next_step="leave one of them out",
            )
        ranks = served_model(server, model).world_size
        if ranks < 2:
            console.warn(f"a replica of {model} has one rank; two are run, for one has nobody to meet")
            ranks = 2
    return Wish(RANKS if ranks is None else ranks, choose(scenario), deadline_s)


def _here(
    nodes: _Nodes, config: Path | None, wish: "Wish", console: Console, *, dry_run: bool
) -> "Sequence[NodeReport]":
    from inventory.agent_config import AgentConfig
    from inventory.document import load
    from verify import report as reports
    from verify.service import verify_local

    if nodes.names or nodes.receipt or config is None:
        raise BadInput(
            "--local verifies this machine alone",
            why="it takes neither names nor a receipt, but --config agent.yaml",
            next_step="verify-node --local --config /etc/muster/current/agent.yaml",
        )
    agent = load(config, AgentConfig)
    if dry_run:
        _plan(console, wish, [(agent.node, "this machine")])
        return ()
    done = verify_local(agent, console=console, wish=wish, file=config)
    reports.show(done, console)
    _complain(console, done)
    return (done,)


def _there(
    nodes: _Nodes, config: Path | None, wish: "Wish", console: Console, *, dry_run: bool
) -> "Sequence[NodeReport]":
    from inventory.command import need
    from inventory.model import check_node_name
    from inventory.store import Store
    from verify import receipts
    from verify import report as reports
    from verify.service import unfound, verify_node

    ssh_key = _check_there(nodes, config)
    names = [check_node_name(name) for name in dict.fromkeys(nodes.names)]
    need("verify", "paramiko")
    found: dict[str, Believed | MusterError] = {}
    for name in names:
        try:
            found[name] = receipts.find(
                name, file=nodes.receipt, ca_dir=nodes.ca_dir, signers=nodes.signers, ssh_key=ssh_key
            )
        except MusterError as error:
            if len(names) == 1:
                raise
            found[name] = error
    if dry_run:
        _plan(console, wish, [(name, _where(at)) for name, at in found.items()])
        return ()
    store = Store.open(nodes.inventory)
    done = []
    for name, at in found.items():
        if isinstance(at, MusterError):
            each = unfound(name, at, wish, store)
        else:
            each = verify_node(at, ssh_key=ssh_key, store=store, console=console, wish=wish)
        reports.show(each, console)
        _complain(console, each)
        done.append(each)
    return done


def _check_there(nodes: _Nodes, config: Path | None) -> Path:
    """The SSH key, once the options fit each other."""
    if not nodes.names or config is not None:
        raise BadInput(
            "no node was verified",
            why="--config is for --local" if config else "no node was named",
            next_step="verify-node NAME, or verify-node --local --config agent.yaml",
        )
    if nodes.receipt is not None and len(set(nodes.names)) > 1:
        raise BadInput(
            "no node was verified",
            why=f"--receipt is one node's, and {len(set(nodes.names))} were named",
            next_step="verify them one by one, or leave their receipts in the CA's directory",
        )
    if nodes.ssh_key is None:
        raise BadInput(
            "no node was verified",
            why="which key logs in is not known",
            next_step="name the security holder's OpenSSH key with --ssh-key or MUSTER_SSH_KEY",
        )
    return nodes.ssh_key


def _where(at: "Believed | MusterError") -> str:
    if isinstance(at, MusterError):
        return str(at)
    return f"{at.user}@{at.address.ip} port {at.ssh_port}, as {at.owner}"


def _plan(console: Console, wish: "Wish", where: "Sequence[tuple[str, str]]") -> None:
    console.document(
        {
            "ok": True,
            "dry_run": True,
            "ranks": wish.ranks,
            "scenarios": list(wish.scenarios),
            "nodes": [{"name": name, "where": place} for name, place in where],
        }
    )
    for name, place in where:
        console.data(f"{name}\t{place}\t{wish.ranks} ranks\t{' '.join(wish.scenarios)}")
    console.say("nothing was run and nothing recorded (--dry-run)")


def _complain(console: Console, done: "NodeReport") -> None:
    if done.error:
        console.error(done.error)
