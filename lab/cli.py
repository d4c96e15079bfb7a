"""node-lab: a Proxmox host on this machine whose VMs are real nodes, and a demo of the whole road."""

from typing import Annotated

import typer

from inventory.command import run
from inventory.console import Console
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
    console: Console,
) -> None:
    """Start the lab; it runs in the background until node-lab down.

    Example: node-lab up --backend directory
    """
    from lab import running
    from lab.demo import tell

    with console.waiting("the lab", timeout_s=running.START_TIMEOUT_S):
        lab, fresh = running.up(running.default_places(), backend=backend)
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
    console: Console,
) -> None:
    """Walk the whole road in a lab of its own: make a node, give it an identity, prove it.

    Example: node-lab demo --json
    """
    from lab.demo import run_demo, summary

    outcome = run_demo(console, backend=backend, keep=keep)
    console.document(outcome.document())
    for line in summary(outcome):
        console.data(line)
    raise typer.Exit(outcome.code)


@verb(app, "doctor")
def doctor(
    *,
    console: Console,
) -> None:
    """Try each backend on this machine, and say which start and why the others do not.

    Example: node-lab doctor
    """
    from lab import running

    found = running.try_backends()
    console.document({"backends": [{"name": name, "starts": not why, "why": why} for name, why in found]})
    console.table(
        ("BACKEND", "STARTS", "WHY NOT"), [(n, "no" if why else "yes", why or "-") for n, why in found]
    )


def main() -> None:
    """The console script."""
    run(app)


if __name__ == "__main__":
    main()
