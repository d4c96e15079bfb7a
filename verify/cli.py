"""verify-node: shows on a node that a replica can assemble there, and that it fails when it must."""

import getpass
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inventory.command import run
from inventory.console import Console
from inventory.errors import BadInput, MusterError, worst
from inventory.options import CaDir, DryRun, InventoryUrl, JumpHost, JumpHostKey, SshKey, lone, new_app
from verify import cli_many as many
from verify.cli_many import Across, Engine, EnginePython, ShowEngine

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

  verify-node --across 'gpu-[01-04]'

  verify-node --local --config /etc/muster/current/agent.yaml

  verify-node --emit-probe verify-gpu-01 --config agent.yaml
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
    list[Path] | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write the report as well: .html, .json, .xml (JUnit), .tap; may be given more than once.",
    ),
]
Gpus = Annotated[int | None, typer.Option("--gpus", metavar="N", min=0, help="How many GPUs must be there.")]
Driver = Annotated[
    str | None, typer.Option("--driver", metavar="V", help="The GPU driver's version, or how it begins: 570.")
]
Local = Annotated[bool, typer.Option("--local", help="Verify this machine itself, without SSH.")]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The node's agent.yaml, for --local and --emit-probe."),
]
Spawn = Annotated[
    str,
    typer.Option("--spawn", metavar="HOW", help="Start ranks by fork, or by exec (an interpreter for each)."),
]
Disruptive = Annotated[
    bool,
    typer.Option("--disruptive", help="Run torch, nccl and dcgmi on a node that is in service, too."),
]
EmitProbe = Annotated[
    Path | None,
    typer.Option(
        "--emit-probe",
        metavar="FILE",
        help="Write one file that verifies the node of --config by itself, with Python 3.9 alone.",
    ),
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
    jump: str | None
    jump_host_key: Path | None


@lone(app)
def verify(
    names: Name = None,
    *,
    console: Console,
    receipt: Receipt = None,
    receipt_signers: Signers = None,
    ca_dir: CaDir = None,
    ssh_key: SshKey = None,
    jump: JumpHost = None,
    jump_host_key: JumpHostKey = None,
    ranks: Ranks = None,
    scenario: Scenarios = None,
    server: Server = None,
    model: ModelName = None,
    deadline: Deadline = 60.0,
    report: ReportFile = None,
    local: Local = False,
    config: Config = None,
    emit_probe: EmitProbe = None,
    spawn: Spawn = "fork",
    disruptive: Disruptive = False,
    gpus: Gpus = None,
    driver: Driver = None,
    across: Across = False,
    engine: Engine = None,
    engine_python: EnginePython = None,
    show_engine: ShowEngine = False,
    inventory: InventoryUrl = None,
    dry_run: DryRun = False,
) -> None:
    """Verify nodes over SSH, or with --local this very machine."""
    from verify import report as reports

    if show_engine:
        many.show_engine(names or [], server=server, model=model, inventory=inventory, console=console)
        return
    if across:
        one = {"local": local, "config": config, "receipt": receipt, "emit_probe": emit_probe}
        more = {"server": server, "engine": engine, "gpus": gpus, "driver": driver}
        many.refuse_beside_across(**one, **more, disruptive=disruptive, spawn=spawn != "fork")
        reports.check_files(report or [])
        code = many.across(
            names or [],
            ranks=ranks,
            scenarios=scenario or [],
            deadline_s=deadline,
            reports=report or [],
            ca_dir=ca_dir,
            signers=receipt_signers,
            ssh_key=ssh_key,
            jump=jump,
            jump_host_key=jump_host_key,
            inventory=inventory,
            console=console,
            dry_run=dry_run,
        )
        raise typer.Exit(int(code))
    reports.check_files(report or [])
    wish = _wish(
        console, ranks=ranks, scenario=scenario or [], server=server, model=model, deadline_s=deadline
    )
    wish = replace(wish, spawn=spawn, disruptive=disruptive, gpus=gpus, driver=driver)
    wish = replace(wish, engine=engine, engine_python=engine_python)
    nodes = _Nodes(names or [], receipt, receipt_signers, ca_dir, ssh_key, inventory, jump, jump_host_key)
    if emit_probe is not None:
        _emit(nodes, config, wish, console, emit_probe, local=local, dry_run=dry_run)
        return
    if local:
        done = _here(nodes, config, wish, console, dry_run=dry_run)
    else:
        done = _there(nodes, config, wish, console, dry_run=dry_run)
    if dry_run:
        return
    for file in report or []:
        reports.write(done, file)
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


def _emit(
    nodes: _Nodes,
    config: Path | None,
    wish: "Wish",
    console: Console,
    file: Path,
    *,
    local: bool,
    dry_run: bool,
) -> None:
    import hashlib

    from inventory.agent_config import AgentConfig
    from inventory.document import load
    from inventory.files import write_whole
    from verify.service import stand_alone

    if nodes.names or nodes.receipt or local or config is None:
        raise BadInput(
            "no probe was written",
            why="--emit-probe takes neither names, a receipt nor --local, but --config agent.yaml",
            next_step="verify-node --emit-probe FILE --config agent.yaml",
        )
    agent = load(config, AgentConfig)
    if dry_run:
        _plan(console, wish, [(agent.node, str(file))])
        return
    data = stand_alone(agent, wish)
    try:
        write_whole(file, data, mode=0o755)
    except OSError as error:
        raise BadInput(
            f"the probe {file} was not written",
            why=error.strerror or str(error),
            next_step="name another FILE",
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    console.document({"ok": True, "node": agent.node, "file": str(file), "sha256": digest})
    console.data(f"{file}\t{digest}")
    console.say(f"copy it to {agent.node} and run it there: exit 0 is a pass, 5 a failure, 4 no verdict")


def _there(
    nodes: _Nodes, config: Path | None, wish: "Wish", console: Console, *, dry_run: bool
) -> "Sequence[NodeReport]":
    from inventory.command import need
    from inventory.jump import parse_jump
    from inventory.store import Store, utc_now
    from verify import receipts
    from verify import report as reports
    from verify.service import over_ssh, unfound, verify_node

    ssh_key = _check_there(nodes, config)
    names = many.names_of(nodes.names)
    way = parse_jump(nodes.jump, nodes.jump_host_key, user=getpass.getuser())
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

    def hand_back(receipt: "Believed") -> str:
        return receipts.hand_back(receipt, ssh_key=ssh_key, ca_dir=nodes.ca_dir, now=utc_now())

    # Only a receipt that this very key signed, in the authority's folder, is followed by another of it.
    sign = hand_back if nodes.receipt is None and nodes.signers is None else None
    done = []
    for name, at in found.items():
        if isinstance(at, MusterError):
            each = unfound(name, at, wish, store)
        else:
            reach = partial(over_ssh, jump=way)
            each = verify_node(
                at, ssh_key=ssh_key, store=store, console=console, wish=wish, reach=reach, sign=sign
            )
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
