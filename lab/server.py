"""The lab's server process: the API, its world and its nodes, until it is told to end or its parent ends."""

import argparse
import asyncio
import contextlib
import errno
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import NoReturn

from inventory.command import need
from inventory.console import SCHEMA
from inventory.errors import BadInput, ExitCode, MusterError, OtherSide
from inventory.files import lock, write_whole
from lab.lifeline import ParentGone, tie
from lab.machines import Machines
from lab.nodes import Backend, choose
from lab.places import Places
from lab.scenarios import GOOD_NAME, Template, check_names, templates

PORT = 8006  # Proxmox's own
_PREFIXES = tuple(ipaddress.IPv4Network(f"127.20.{x}.0/24") for x in range(1, 255))
TRIAL_HOST = 254  # where a backend may try itself out; neither a profile nor a lease gives it to a node
_LOCK_TIMEOUT_S = 1.0


def main() -> None:
    """Run one lab; the one line on stdout tells whether it is ready, or why not."""
    options = _options()
    places = Places(options.state.absolute())
    code = int(ExitCode.DONE)
    os.chdir("/")  # a lab in the background keeps no file system busy
    signal.signal(signal.SIGTERM, _stop_now)
    signal.signal(signal.SIGINT, _stop_now)
    try:
        if options.tied is not None:
            tie(options.tied, signal.SIGTERM)
        with _state(places), claim() as (listening, prefix):
            _run(places, options, listening, prefix)
    except MusterError as error:
        code = int(error.exit_code)
        _let_nothing_interrupt()  # whoever hears this ends us, and what is left must still be removed
        _tell({"failed": {"what": error.what, "why": error.why, "next": error.next_step, "code": code}})
    except ParentGone:
        code = int(ExitCode.TERMINATED)
    finally:
        if options.ephemeral:
            shutil.rmtree(places.root, ignore_errors=True)
    sys.exit(code)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.server", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="the lab's own directory")
    parser.add_argument("--backend", default=None, help="what nodes are made of; none: the best that starts")
    parser.add_argument("--template", action="append", default=[], help="a further template, by its name")
    parser.add_argument("--tied", type=int, default=None, metavar="PID", help="end when this parent ends")
    parser.add_argument("--ephemeral", action="store_true", help="remove the directory at the end")
    parser.add_argument("--without-authority", action="store_true", help="API and nodes only; make no CA")
    return parser.parse_args()


def _stop_now(signum: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signum)


def _let_nothing_interrupt() -> None:
    """The end is bounded in time; whoever asks for it once more must not cut it short."""
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, signal.SIG_IGN)


def _tell(report: dict[str, object]) -> None:
    """The one line that whoever started the lab waits for; it may be gone by now."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _state(places: Places) -> Iterator[None]:
    """Hold the state directory, emptied of what a lab that crashed has left."""
    strange = places.root.is_dir() and set(places.root.iterdir()) - {places.log}
    if strange and not places.lock.exists():
        raise BadInput(
            f"{places.root} is not touched",
            why="it holds files, and none of them says that a lab made it",
            next_step="name a directory that does not exist yet",
        )
    while True:
        places.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError), lock(places.lock, timeout_s=_LOCK_TIMEOUT_S):
            # Whoever took the former lab down may have removed the file between opening and locking it.
            if places.lock.read_text().strip() == str(os.getpid()):
                empty(places)
                yield
                return


def empty(places: Places) -> None:
    """Remove everything of a lab but its lock and its log."""
    for entry in places.root.iterdir():
        if entry in {places.lock, places.log}:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@contextlib.contextmanager
def claim() -> Iterator[tuple[socket.socket, ipaddress.IPv4Network]]:
    """The first network that no other lab has: who listens on its .1 has it, and loses it with the process.

    Raises:
        OtherSide: all are taken, or this machine has no such addresses.
    """
    for prefix in _PREFIXES:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind((str(prefix.network_address + 1), PORT))
                listening.listen(128)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise OtherSide(
                    "the lab found no addresses",
                    why=f"{prefix.network_address + 1}:{PORT} cannot be listened on: {error.strerror}",
                    next_step="run the lab on Linux, where all of 127.0.0.0/8 is the machine's own",
                ) from error
            yield listening, prefix
            return
    raise OtherSide(
        "the lab found no addresses",
        why=f"port {PORT} is in use on every address of 127.20.0.0/16",
        next_step=f"end the other labs, or whatever listens on port {PORT} of all addresses",
    )


def _run(
    places: Places, options: argparse.Namespace, listening: socket.socket, prefix: ipaddress.IPv4Network
) -> None:
    trial = str(prefix.network_address + TRIAL_HOST)
    need("lab", "asyncssh")
    # fakepve takes half a second to import, and choose mostly waits for a node on trial.
    with ThreadPoolExecutor(1) as beside:
        imported = beside.submit(need, "lab", "fakepve", "lab.proxmox_api")
        backend = choose(places.nodes, wanted=options.backend, trial_address=trial)
    try:
        imported.result()
        known = _templates(options.template, backend)
        machines = Machines(backend, prefix, templates=known)
        try:
            asyncio.run(_serve(places, options, listening, machines, known))
        finally:
            _let_nothing_interrupt()
            machines.close()
    finally:
        backend.close()


def _templates(names: list[str], backend: Backend) -> dict[int, Template]:
    """The templates to clone from.

    Raises:
        BadInput: there is none of a name, or a node of this backend cannot be one's clone.
    """
    from lab.ssh_server import new_host_keys

    names = list(check_names(names))
    for name in names:
        if reason := backend.cannot.get(name):
            raise BadInput(
                f"the lab cannot have a template '{name}'",
                why=f"with the {backend.name} backend that starts here, {reason}",
                next_step="leave it away, or choose another --backend; node-lab doctor tells which ones start",
            )
    return templates(
        names,
        now=datetime.now(UTC),
        machine_id=secrets.token_hex(16),
        host_keys=new_host_keys(GOOD_NAME),
    )


async def _serve(
    places: Places,
    options: argparse.Namespace,
    listening: socket.socket,
    machines: Machines,
    known: Mapping[int, Template],
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stopped.set)
    from lab import world
    from lab.proxmox_api import LabPve
    from lab.tls import api_context

    now, backend, prefix = datetime.now(UTC), machines.backend, machines.prefix
    host = prefix.network_address + 1
    url = f"https://{host}:{PORT}"
    context, api_ca = api_context(host, now=now)
    secret = world.make_world(places, backend, url=url, prefix=prefix, api_ca=api_ca, templates=known)
    authority = None
    if not options.without_authority:
        authority = loop.run_in_executor(None, lambda: world.make_authority(places, now=now))
    pve = LabPve(machines, host=str(host))
    pve.add_token(world.TOKEN, secret, world.PRIVILEGES)
    for vmid, template in known.items():
        pve.add_template(vmid, template.name, storage=world.STORAGE, disk_gib=world.TEMPLATE_DISK_GIB)
    await pve.serve(listening, context)
    try:
        if authority is not None:
            await authority
        lab = {
            "schema": SCHEMA,
            "pid": os.getpid(),
            "url": url,
            "prefix": str(prefix),
            "backend": backend.name,
            "not_real": list(backend.not_real),
            "templates": list(options.template),
        }
        write_whole(places.ready, json.dumps(lab, indent=2).encode() + b"\n")
        _tell({"ready": lab})
        await stopped.wait()
    finally:
        await pve.stop()


if __name__ == "__main__":
    main()
