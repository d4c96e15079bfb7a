"""The verbs of node-inventory that lead out of the record: export, ansible."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, cast

import typer

from inventory.cli import app
from inventory.console import Console
from inventory.errors import BadInput
from inventory.export import Form
from inventory.options import InventoryUrl, verb

if TYPE_CHECKING:
    from io import TextIOWrapper

    from inventory.export.target import Tally
    from inventory.model import Node

_PRIVATE = {Form.JSON, Form.CSV}  # the others are for other people's programs
_PINNED = {Form.ANSIBLE, Form.SSH_CONFIG}
_SUFFIXES = {
    Form.PROMETHEUS: ((".prom",), "node_exporter reads files that end in .prom alone"),
    Form.ANSIBLE: ((".yaml", ".yml", ""), "Ansible reads files that end in .yaml or .yml as YAML"),
}

StateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="STATE",
        help="Only nodes in this state (again for more); node-inventory list shows them.",
        show_default=False,
    ),
]
KnownHosts = Annotated[
    Path | None,
    typer.Option(
        "--known-hosts",
        envvar="MUSTER_KNOWN_HOSTS",
        metavar="FILE",
        help="The file of pinned host keys that ssh is to believe.",
    ),
]


@verb(app, "export")
def export(
    nodes: Annotated[
        list[str] | None,
        typer.Argument(metavar="NODES", help="Nodes, as gpu-[01-16] (default: all).", show_default=False),
    ] = None,
    *,
    form: Annotated[
        Form, typer.Option("--format", metavar="FORMAT", help=f"One of {', '.join(Form)}.")
    ] = Form.JSON,
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Replaced whole; '-' is stdout (default)."),
    ] = None,
    state: StateOption = None,
    known_hosts: KnownHosts = None,
    inventory: InventoryUrl = None,
    console: Console,
) -> None:
    """Write nodes as other programs want them.

    Ansible, ssh-config and known-hosts have the nodes that can be logged in
    to: not retired, with an address. The others have every node; prometheus
    takes no choice of nodes.

    Example: node-inventory export --format csv gpu-[01-16] -o nodes.csv

    Example: node-inventory export --format known-hosts -o muster_hosts

    Example: node-inventory export --format ssh-config
    --known-hosts muster_hosts -o ssh.conf
    """
    to_stdout = out is None or str(out) == "-"
    _check(form, known_hosts, json_on_stdout=console.json_output and to_stdout)
    if out is not None and form in _PINNED and known_hosts is not None and _same(out, known_hosts):
        raise _bad("nothing was exported", f"{out} is the file of host keys, which would be lost")
    if form is Form.PROMETHEUS and (nodes or state):
        raise _bad("nothing was exported", "a count of some nodes would pass for that of all in Prometheus")
    from inventory.listing import absent, asked
    from inventory.store import Store, utc_now
    from inventory.store.place import place_of

    wanted = asked(nodes, states=state, turn=None, expiring=None, now=utc_now(), command="export")
    store = Store.open(inventory)
    if gone := absent(store, wanted.names):
        raise BadInput("nothing was exported", why=f"not on record: {gone}", next_step="node-inventory list")
    if not store.last_event():  # a timer without the settings of a shell would empty a file that others read
        console.warn(f"nothing was ever on record in {place_of(inventory).where}")
    chosen = store.each(names=wanted.names, states=wanted.states)
    if to_stdout or out is None:
        _tell(console, form, _write(form, chosen, _stdout(), known_hosts), pinned=known_hosts is not None)
        return
    from inventory.files import writing_whole

    with writing_whole(out, mode=0o600 if form in _PRIVATE else 0o644) as file:
        tally = _write(form, chosen, file, known_hosts)
    console.document(
        {"format": str(form), "output": str(out), "nodes": tally.written, "left_out": tally.left}
    )
    console.say(f"{tally.written} node{'' if tally.written == 1 else 's'} written to {out} as {form}")
    _tell(console, form, tally, pinned=known_hosts is not None)
    suffixes, why = _SUFFIXES.get(form, ((out.suffix,), ""))
    if out.suffix not in suffixes:
        console.warn(f"{out}: {why}")


@verb(app, "ansible")
def ansible(
    *,
    every: Annotated[bool, typer.Option("--list", help="Print groups, nodes and their variables.")] = False,
    host: Annotated[
        str | None, typer.Option("--host", metavar="NAME", help="Print the variables of one node.")
    ] = None,
    state: StateOption = None,
    known_hosts: KnownHosts = None,
    inventory: InventoryUrl = None,
    console: Console,
) -> None:
    """Be a dynamic inventory of Ansible's; --json changes nothing.

    A script of two lines makes it one, see examples/ansible/muster-inventory:
    exec node-inventory ansible "$@"

    Example: node-inventory ansible --list

    Example: node-inventory ansible --host gpu-07
    """
    if every is (host is not None):
        raise BadInput(
            "nothing was printed",
            why="an inventory script is called with --list or with --host NAME",
            next_step="see node-inventory ansible --help",
        )
    _check(Form.ANSIBLE, known_hosts, json_on_stdout=False)
    from inventory import show
    from inventory.export.ansible import write_host, write_list
    from inventory.export.target import known_hosts_path
    from inventory.listing import asked
    from inventory.store import Store, utc_now

    wanted = asked(None, states=state, turn=None, expiring=None, now=utc_now(), command="ansible")
    store, out = Store.open(inventory), _stdout()
    pins = None if known_hosts is None else known_hosts_path(known_hosts)
    if host is not None:
        write_host(show.need_node(store, host), out, known_hosts=pins)
        return
    tally = write_list(store.each(states=wanted.states), out, known_hosts=pins)
    for fault in tally.faulty:  # nothing else: Ansible shows what a script says as an error
        console.warn(fault)


def _check(form: Form, known_hosts: Path | None, *, json_on_stdout: bool) -> None:
    """What can be refused before the record is read."""
    from inventory.export.target import known_hosts_path, needed_known_hosts

    if json_on_stdout and form is not Form.JSON:
        raise BadInput(
            "nothing was exported",
            why=f"--json wants one JSON document on stdout, and --format {form} is none",
            next_step="add --output FILE, or leave one of them out",
        )
    if form is Form.SSH_CONFIG:
        needed_known_hosts(known_hosts)
    elif known_hosts is not None:
        known_hosts_path(known_hosts)


def _same(one: Path, other: Path) -> bool:
    return one.absolute() == other.absolute() or (one.exists() and other.exists() and one.samefile(other))


def _write(form: Form, nodes: "Iterator[Node]", out: IO[str], known_hosts: Path | None) -> "Tally":
    from inventory.export.writing import write
    from inventory.store import utc_now

    return write(form, nodes, out, now=utc_now(), known_hosts=known_hosts)


def _tell(console: Console, form: Form, tally: "Tally", *, pinned: bool) -> None:
    for why, count in tally.absent.items():
        console.say(f"{count} {'is' if count == 1 else 'are'} not in it: {why}")
    for fault in tally.faulty:
        console.warn(fault)
    if form is Form.ANSIBLE and not pinned:
        console.warn("no --known-hosts FILE: ssh believes the host keys that it believes without Muster")


def _stdout() -> IO[str]:
    """Stdout as the bytes that were meant, whatever the locale says."""
    out = cast("TextIOWrapper", sys.stdout)
    out.reconfigure(encoding="utf-8", newline="")
    return out


def _bad(what: str, why: str) -> BadInput:
    return BadInput(what, why=why, next_step="see node-inventory export --help")
