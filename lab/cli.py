"""node-lab: a Proxmox host on this machine whose VMs are real nodes, and a demo of the whole road."""

from typing import Annotated

import typer

from inventory.command import need, run
from inventory.console import Console
from inventory.errors import ExitCode
from inventory.options import new_app, verb

app = new_app(
    """A Proxmox host on this machine whose VMs are real nodes, with a site and a CA to try Muster on.

    Examples:

        node-lab demo

        node-lab up && eval "$(node-lab env)"

        provision-node gpu-01 --profile small

        node-lab down
    """
)
Backend = Annotated[
    str | None,
    typer.Option("--backend", metavar="NAME", help="What nodes are made of (default: the best that starts)."),
]


@verb(app, "up")
def up(
    *,
    backend: Backend = None,
    template: Annotated[
        list[str] | None,
        typer.Option("--template", metavar="NAME", help="A further template, from this list; repeatable."),
    ] = None,
    console: Console,
) -> None:
    """Start the lab; it runs in the background until node-lab down.

    Example: node-lab up --backend directory --template cloned --template slow

    Templates as they are in life; each comes with a profile of its name:

    \b
      cloned            all its clones share a machine-id and SSH host keys
      no-agent          has no guest agent
      degraded          its cloud-init ends degraded
      cloud-init-fails  its cloud-init ends with an error
      slow              nothing in it answers for 8 s after the start
      clock-off         its clock is 7 minutes behind
      clock-1970        its clock starts in 1970
      moving-lease      DHCP gives it another address at each boot
      sudo-asks         its sudo asks for a password
    """  # noqa: D301 - the backspace keeps click from joining the lines
    from lab import running
    from lab.demo import tell

    with console.waiting("the lab", timeout_s=running.start_timeout_s(backend)):
        lab, fresh = running.up(running.default_places(), backend=backend, templates=template or ())
    if not fresh:
        console.say("it was up already; nothing was changed")
    tell(console, lab)
    console.say('next: eval "$(node-lab env)", then provision-node gpu-01 --profile small')
    console.document({"running": True, **running.facts(lab)})


@verb(app, "down")
def down(
    *,
    console: Console,
) -> None:
    """Stop the lab with all its nodes, and remove everything of it.

    Example: node-lab down
    """
    from lab import running

    with console.waiting("the lab's end", timeout_s=2 * running.STOP_TIMEOUT_S):
        was_there = running.stop(running.default_places())
    console.say(
        "the lab is down; nothing of it is left" if was_there else "no lab is up; nothing was changed"
    )
    console.document({"running": False, "changed": was_there})


@verb(app, "status")
def status(
    *,
    console: Console,
) -> None:
    """Show whether the lab is up, its VMs, and the nodes behind them.

    Example: node-lab status --json
    """
    from lab import running

    lab = running.find(running.default_places())
    if lab is None:
        console.say("no lab is up; node-lab up starts one")
        console.document({"running": False, "backend": None, "not_real": [], "url": None, "vms": []})
        return
    vms = running.vms(lab)
    console.say(f"{lab.url}, {lab.backend}, {lab.prefix}")
    console.document({"running": True, **running.facts(lab), "vms": vms})
    console.table(running.TITLES, [running.row(vm) for vm in vms])


@verb(app, "env")
def env(
    *,
    console: Console,
) -> None:
    """Print the settings with which the roles' commands run against the lab, for a shell's eval.

    Example: eval "$(node-lab env)"
    """
    from lab import running

    places = running.need_running(running.default_places()).places
    console.document({"environment": places.environment()})
    console.data(places.shell())


@verb(app, "demo")
def demo(
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the demo's directory behind.")] = False,
    backend: Backend = None,
    vm: Annotated[bool, typer.Option("--vm", help="As --backend qemu: the node is a real VM.")] = False,
    template: Annotated[
        str | None,
        typer.Option(
            "--template", metavar="NAME", help="Clone the node from that one; node-lab up -h tells."
        ),
    ] = None,
    console: Console,
) -> None:
    """Walk the whole road in a lab of its own: make a node, give it an identity, prove it.

    Example: node-lab demo --json --template clock-off
    """
    from lab import running
    from lab.demo import run_demo, summary

    outcome = run_demo(console, backend=running.backend_named(backend, vm=vm), keep=keep, template=template)
    console.document(outcome.document())
    for line in summary(outcome):
        console.data(line)
    raise typer.Exit(outcome.code)


@verb(app, "doctor")
def doctor(
    *,
    backend: Backend = None,
    console: Console,
) -> None:
    """Start a node of each backend on this machine; tell which ones start, why not, and what would add them.

    Exits with 4 if none starts.

    Example: node-lab doctor --json
    """
    need("lab", "asyncssh")
    from lab import doctor as ward
    from lab.nodes import BACKENDS

    found = []
    for name in (backend,) if backend else BACKENDS:
        with console.waiting(f"a node of the {name} backend", timeout_s=ward.TIMEOUT_S):
            found.append(ward.examine(name))
    console.document({"backends": [finding.to_json() for finding in found]})
    console.table(ward.TITLES, [finding.row() for finding in found])
    if not any(finding.starts for finding in found):
        raise typer.Exit(int(ExitCode.OTHER_SIDE))


def main() -> None:
    """The console script."""
    run(app)


if __name__ == "__main__":
    main()
