"""A lab seen from outside: started, found, asked, stopped; its server is a process of its own."""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inventory.command import state_home
from inventory.errors import BadInput, Damaged, MusterError, NotVerified, OtherSide, Refused
from inventory.files import lock
from lab import no_lab
from lab.places import Places
from lab.scenarios import check_names

START_TIMEOUT_S = 90.0
VM_START_TIMEOUT_S = 1200.0  # an image is built first, and a guest has to get on
STOP_TIMEOUT_S = 40.0
_ASK_TIMEOUT_S = 15.0
_ERRORS: dict[int, type[MusterError]] = {
    int(kind.exit_code): kind for kind in (BadInput, Refused, OtherSide, NotVerified, Damaged)
}


@dataclass(frozen=True, slots=True)
class Lab:
    """A lab that is ready.

    url: of its API. prefix: its own network. not_real: what its nodes are not, in short sentences.
    templates: those of lab/scenarios.py that it has beside the good one.
    """

    places: Places
    pid: int
    url: str
    prefix: str
    backend: str
    not_real: tuple[str, ...]
    templates: tuple[str, ...] = ()


def default_places() -> Places:
    """Where `node-lab up` keeps its lab."""
    return Places(state_home() / "lab")


def backend_named(backend: str | None, *, vm: bool) -> str | None:
    """The backend that is meant, where `vm` is another word for one.

    Raises:
        BadInput: two are named.
    """
    if vm and backend not in {None, "qemu"}:
        raise BadInput(
            "two kinds of node were asked for",
            why=f"--vm is --backend qemu, and --backend {backend} was given too",
            next_step="give one of them",
        )
    return "qemu" if vm else backend


def start_timeout_s(backend: str | None) -> float:
    """How long a lab may take until it is ready."""
    return VM_START_TIMEOUT_S if backend == "qemu" else START_TIMEOUT_S


def long_wait(backend: str | None) -> str | None:
    """What to tell a person before a lab is started that takes its time."""
    if backend != "qemu":
        return None
    from lab import image

    home = image.images_home()
    if image.find(home) is None:
        return f"the image for VMs is built first, once, in {home}: a minute or two"
    return "a VM is booted first, to see that it gets on here"


def find(places: Places) -> Lab | None:
    """The lab that runs in a directory, if one does and is ready.

    Raises:
        BadInput: this user cannot look there.
        Refused: one runs there that another version started.
    """
    pid = holder(places)
    if pid is None:
        return None
    try:
        found = json.loads(places.ready.read_bytes())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    try:
        lab = _lab(places, found)
    except (KeyError, TypeError) as error:
        raise no_lab.other_version(places.ready) from error
    # Else it is a dead one's, which the one that starts has not cleared away yet.
    return lab if lab.pid == pid else None


def up(places: Places, *, backend: str | None, templates: Sequence[str] = ()) -> tuple[Lab, bool]:
    """The lab of a directory, started if it was not there (True), to run until `stop`.

    Raises:
        BadInput: there is no template of a name.
        Refused: it runs with another backend, or without one of the templates.
        MusterError: it did not start, in its own words.
    """
    names = check_names(templates)
    lab = _found_soon(places, start_timeout_s(backend))
    if lab is None:
        try:
            lab, process = start(places, backend=backend, templates=names)
        except Refused:
            # Someone else's lab may have taken the directory between our look and our start.
            if (lab := _found_soon(places, start_timeout_s(backend))) is None:
                raise
            return _fitting(lab, backend, names), False
        if process.stdout is not None:
            process.stdout.close()
        # It is meant to live on: nobody waits for it, which Popen would warn of.
        process.returncode = 0
        return lab, True
    return _fitting(lab, backend, names), False


def _found_soon(places: Places, timeout_s: float) -> Lab | None:
    """The lab that runs in a directory, waited for while it starts; None if none does, or not in time."""
    deadline = time.monotonic() + timeout_s
    while (lab := find(places)) is None and holder(places) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    return lab


def _fitting(lab: Lab, backend: str | None, names: Sequence[str]) -> Lab:
    """A lab that was up already, if it is what was asked for."""
    if backend not in {None, lab.backend}:
        raise Refused(
            f"no lab with backend {backend} was started",
            why=f"one with backend {lab.backend} is up",
            next_step="node-lab down, then run it again",
        )
    if missing := [name for name in names if name not in lab.templates]:
        raise Refused(
            f"no lab with the template {missing[0]} was started",
            why="one without it is up",
            next_step="node-lab down, then run it again",
        )
    return lab


def facts(lab: Lab) -> dict[str, Any]:
    """A lab as `--json` tells of it."""
    return {
        "backend": lab.backend,
        "not_real": list(lab.not_real),
        "templates": list(lab.templates),
        "url": lab.url,
    }


TITLES = ("VMID", "NAME", "STATUS", "TEMPLATE", "ADDRESS", "NODE")


def row(vm: Mapping[str, Any]) -> tuple[str, ...]:
    """A VM as a table's row."""
    node = vm["node"]
    address = f"{node['address']}:{node['ssh_port']}" if node else "-"
    state = ("up" if node["alive"] else "not up") if node else "-"
    return str(vm["vmid"]), vm["name"], vm["status"], "yes" if vm["template"] else "no", address, state


def need_running(places: Places) -> Lab:
    """The lab that runs in a directory.

    Raises:
        Refused: none does.
    """
    lab = find(places)
    if lab is None:
        raise Refused("no lab is up", why=f"none runs in {places.root}", next_step="node-lab up")
    return lab


def holder(places: Places) -> int | None:
    """The pid of the server that holds a directory, whether it is ready or not (0: not known yet).

    Raises:
        BadInput: this user cannot look there.
    """
    try:
        descriptor = os.open(places.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise no_lab.no_place(places.root, error) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip()
            return int(text) if text.isdigit() else 0
        return None
    finally:
        os.close(descriptor)


def start(
    places: Places,
    *,
    backend: str | None = None,
    templates: Sequence[str] = (),
    tied: bool = False,
    ephemeral: bool = False,
    authority: bool = True,
) -> tuple[Lab, "subprocess.Popen[bytes]"]:
    """Start a lab and wait until it is ready.

    Args:
        places: its directory; what a crashed lab has left there is removed.
        backend: what its nodes are made of; None: the best that starts.
        templates: names of lab/scenarios.py that it has beside the good one.
        tied: it ends with this thread, however that ends (prctl(2)); call from the main thread.
        ephemeral: it removes its directory when it ends.
        authority: it makes a CA, too.

    Raises:
        MusterError: it did not start, in its own words.
    """
    # -P: what lies in the current directory is not ours, whatever it is called.
    command = [sys.executable, "-P", "-m", "lab.server", "--state", str(places.root)]
    command += ["--backend", backend] if backend is not None else []
    command += [word for name in templates for word in ("--template", name)]
    command += ["--tied", str(os.getpid())] if tied else []
    command += ["--ephemeral"] if ephemeral else []
    command += [] if authority else ["--without-authority"]
    try:
        places.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = places.log.open("ab")
    except OSError as error:
        raise no_lab.no_place(places.root, error) from error
    with opened as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    try:
        timeout_s = start_timeout_s(backend)
        report = _first_line(process, timeout_s)
        if report is None:
            raise no_lab.silent(process, places.log, timeout_s)
        if failed := report.get("failed"):
            kind = _ERRORS.get(failed["code"], OtherSide)
            raise kind(failed["what"], why=failed["why"], next_step=failed["next"])
        return _lab(places, report["ready"]), process
    except BaseException:
        end(process)
        raise


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a server that we started; its nodes die with it even if it has to be killed."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def stop(places: Places) -> bool:
    """Stop the lab of a directory and remove all of it; False when there was nothing.

    Raises:
        OtherSide: its server did not end, not even killed.
    """
    ran = False
    for sign in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + STOP_TIMEOUT_S
        told = False
        while (pid := holder(places)) is not None and time.monotonic() < deadline:
            ran = True
            if pid and not told:
                # Only who holds the lock is told to end: the number alone might be another's by now.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sign)
                told = True
            time.sleep(0.05)
    if holder(places) is not None:
        raise OtherSide(
            "the lab did not end",
            why=f"process {holder(places)} still holds {places.lock}",
            next_step=f"look at it, end it, then run node-lab down again ({places.log} tells what it did)",
        )
    if not places.lock.exists():
        return ran
    with lock(places.lock, timeout_s=1.0):
        shutil.rmtree(places.root)
    return True


def vms(lab: Lab) -> list[dict[str, Any]]:
    """The lab's VMs and the nodes behind them.

    Raises:
        OtherSide: its API does not answer.
    """
    context = ssl.create_default_context(cafile=str(lab.places.api_ca))
    token = lab.places.token.read_text().strip()
    request = urllib.request.Request(  # noqa: S310 - the lab's own https URL
        f"{lab.url}/lab/status", headers={"Authorization": f"PVEAPIToken={token}"}
    )
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(request, timeout=_ASK_TIMEOUT_S) as answer:
            found: list[dict[str, Any]] = json.loads(answer.read())["vms"]
    except OSError as error:
        raise OtherSide(
            "the lab does not answer",
            why=f"{lab.url}: {error}",
            next_step="node-lab down, then node-lab up",
        ) from error
    return found


def _lab(places: Places, found: dict[str, Any]) -> Lab:
    return Lab(
        places,
        pid=found["pid"],
        url=found["url"],
        prefix=found["prefix"],
        backend=found["backend"],
        not_real=tuple(found["not_real"]),
        templates=tuple(found["templates"]),
    )


def _first_line(process: "subprocess.Popen[bytes]", timeout_s: float) -> dict[str, Any] | None:
    """The server's report, or None when it ended or stayed silent for too long."""
    assert process.stdout is not None  # noqa: S101 - asked for above
    deadline, text = time.monotonic() + timeout_s, b""
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(process.stdout.fileno(), 65536) if ready else b""
        if not part:
            return None
        text += part
    report: dict[str, Any] = json.loads(text)
    return report
