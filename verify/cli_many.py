"""verify-node for a replica's shape: several nodes together, and the commands that an engine would be started with."""

import getpass
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inventory.console import Console
from inventory.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from inventory.model import Fabric, Node
    from inventory.store import Store
    from inventory.ticket import Receipt
    from verify.across import AcrossReport
    from verify.fleet import Place

Across = Annotated[
    bool, typer.Option("--across", help="Verify the named nodes together: one replica over all of them.")
]
ShowEngine = Annotated[
    bool,
    typer.Option(
        "--show-engine", help="Only print what --model of --server would be started with on the named nodes."
    ),
]
Engine = Annotated[
    str | None,
    typer.Option("--engine", metavar="torch", help="Run a real torch.distributed all-reduce as well."),
]
EnginePython = Annotated[
    Path | None,
    typer.Option("--engine-python", metavar="FILE", help="The Python on the node that has torch."),
]
_ASSUMED_MTU = 1500
_RANKS_PER_NODE = 2


def names_of(texts: Sequence[str]) -> tuple[str, ...]:
    """The named nodes, node sets such as gpu-[01-04] spelled out, each once; raises BadInput."""
    from inventory.model import check_node_name
    from inventory.nodeset import expand

    try:
        return tuple(check_node_name(name) for name in expand(texts))
    except ValueError as error:
        raise BadInput(
            "the nodes were not understood",
            why=str(error),
            next_step="name nodes like gpu-07, and sets of them like 'gpu-[01-16]'",
        ) from None


def show_engine(
    names: Sequence[str], *, server: Path | None, model: str | None, inventory: str | None, console: Console
) -> None:
    """Print what an engine would be started with; nothing is reached, nothing is run."""
    from inventory.server_config import served_model
    from inventory.store import Store
    from verify.engines import Host, starts

    if server is None or model is None or not names:
        raise BadInput(
            "no command was made",
            why="--show-engine needs the nodes, --server FILE and --model M",
            next_step="verify-node --show-engine gpu-01 gpu-02 --server server.yaml --model llama-70b",
        )
    served = served_model(server, model)
    store = Store.open(inventory)
    hosts = []
    for name in names_of(names):
        node = store.get(name)
        fabric = next((each for each in node.fabrics if each.address), None) if node else None
        if fabric and fabric.address:
            hosts.append(Host(name, fabric.address.partition("/")[0], fabric.interface))
        else:
            hosts.append(Host(name, node.address.ip if node and node.address else name))
    made = starts(served, hosts, place=f"{server}: {model}")
    console.document(
        {
            "ok": True,
            "engine": served.engine,
            "model": model,
            "world_size": served.world_size,
            "commands": [
                {
                    "node": start.node,
                    "role": start.role,
                    "environment": dict(start.environment),
                    "argv": list(start.argv),
                    "command": start.line,
                }
                for start in made
            ],
        }
    )
    for start in made:
        console.data(f"{start.node}\t{start.role}\t{start.line}")


def across(
    names: Sequence[str],
    *,
    ranks: int | None,
    scenarios: Sequence[str],
    deadline_s: float,
    reports: Sequence[Path],
    ca_dir: Path | None,
    signers: Path | None,
    ssh_key: Path | None,
    jump: str | None,
    jump_host_key: Path | None,
    inventory: str | None,
    console: Console,
    dry_run: bool,
) -> ExitCode:
    """Verify several nodes together over SSH, and tell; the exit code."""
    from inventory.command import need
    from inventory.jump import parse_jump
    from inventory.store import Store
    from verify import receipts
    from verify.across import check_shape, choose, run_across
    from verify.across_report import write
    from verify.service import over_ssh

    wanted, named = choose(scenarios), names_of(names)
    world = _RANKS_PER_NODE * len(named) if ranks is None else ranks
    check_shape(len(named), world)
    if ssh_key is None:
        raise BadInput(
            "no node was verified",
            why="which key logs in is not known",
            next_step="name the security holder's OpenSSH key with --ssh-key or MUSTER_SSH_KEY",
        )
    way = parse_jump(jump, jump_host_key, user=getpass.getuser())
    need("verify", "paramiko")
    found = {
        name: receipts.find(name, file=None, ca_dir=ca_dir, signers=signers, ssh_key=ssh_key)
        for name in named
    }
    store = Store.open(inventory)
    places = places_of(found, {name: store.get(name) for name in named})
    if dry_run:
        _plan(console, places, world, wanted)
        return ExitCode.DONE
    nodes = [(place, partial(over_ssh, found[place.name], ssh_key, jump=way)) for place in places]
    what = f"{', '.join(named)}: {world} ranks, {len(wanted)} scenarios"
    with console.waiting(what, timeout_s=deadline_s) as waiting:
        done = run_across(
            nodes,
            ranks=world,
            deadline_s=deadline_s,
            scenarios=wanted,
            on_result=lambda result: waiting.update(result.name),
        )
    _record(done, store, console)
    _show(done, console)
    for file in reports:
        write(done, file)
    console.document(done.document())
    return done.exit_code


def places_of(found: "Mapping[str, Receipt]", nodes: "Mapping[str, Node | None]") -> "list[Place]":
    """Where the ranks go: on the first network that every node has an address on, else on the one SSH goes over."""
    from verify.fleet import Place

    networks = {name: _networks(nodes[name], receipt.address.ip) for name, receipt in found.items()}
    shared = [
        name for name in next(iter(networks.values())) if all(name in each for each in networks.values())
    ]
    made = []
    for name, receipt in found.items():
        folder = f"{receipt.install_dir}/current"
        files = {
            "cert_file": f"{folder}/chain.pem",
            "key_file": f"{folder}/key.pem",
            "ca_file": f"{folder}/bundle.pem",
            "crl_file": f"{folder}/crl.pem",
        }
        made.append(
            Place(
                name,
                receipt.spiffe_id,
                networks[name][shared[0]][0],
                files,
                login=receipt.user,
                owner=receipt.owner,
                fabrics=networks[name],
            )
        )
    return made


def _networks(node: "Node | None", management: str) -> dict[str, tuple[str, int]]:
    """Networks by name, each with the node's address there and its MTU; the fabrics first, management last."""
    fabrics: Sequence[Fabric] = node.fabrics if node else ()
    networks = {
        each.name: (each.address.partition("/")[0], each.mtu or _ASSUMED_MTU)
        for each in fabrics
        if each.address
    }
    return {**networks, "management": (management, _ASSUMED_MTU)}


def refuse_beside_across(**others: object) -> None:
    """--across has a meaning of its own for each option that it takes, and takes no other."""
    given = [f"--{name.replace('_', '-')}" for name, value in others.items() if value]
    if given:
        raise BadInput(
            "nothing was verified across nodes",
            why=f"{', '.join(given)} cannot be given with --across",
            next_step="verify-node --across 'gpu-[01-04]'",
        )


def _record(done: "AcrossReport", store: "Store", console: Console) -> None:
    """Nodes in service keep their state, for which of them is at fault may not be known; their history tells."""
    from inventory.errors import MusterError
    from inventory.model import State

    for place in done.places:
        try:
            node = store.get(place.name)
            if node is not None and node.state is State.IN_SERVICE:
                store.save(node, why=f"together with others: {done.verdict}"[:1000])
        except MusterError as error:
            console.warn(f"{place.name}: the result was not recorded: {error.what}: {error.why}")


def _plan(console: Console, places: "Sequence[Place]", ranks: int, scenarios: Sequence[str]) -> None:
    rows = [
        {"name": place.name, "address": place.address, "fabrics": list(place.fabrics)} for place in places
    ]
    console.document(
        {"ok": True, "dry_run": True, "ranks": ranks, "scenarios": list(scenarios), "nodes": rows}
    )
    for place in places:
        console.data(
            f"{place.name}\t{place.address}\t{ranks // len(places)} ranks\t{' '.join(place.fabrics)}"
        )
    console.say("nothing was run and nothing recorded (--dry-run)")


def _show(done: "AcrossReport", console: Console) -> None:
    console.data(done.verdict)
    paths = [
        (
            "ok" if row.ok else "FAILED",
            row.fabric,
            row.source,
            row.target,
            str(row.mtu),
            row.why or "full size",
        )
        for row in done.paths
    ]
    if paths:
        console.table(("VERDICT", "NETWORK", "FROM", "TO", "MTU", "FOUND"), paths)
    words = {True: "ok", False: "FAILED", None: "unknown"}
    rows = [
        (words[result.ok], result.name, result.kind, f"{result.seconds:.2f}", result.found)
        for result in done.scenarios
    ]
    console.table(("VERDICT", "SCENARIO", "KIND", "SECONDS", "FOUND"), rows)
    if done.error:
        console.error(done.error)
