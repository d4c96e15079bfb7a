"""The demo: the very commands that a person would type, run one after the other against a lab of their own."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from inventory.console import Console
from inventory.errors import BadInput, ExitCode
from inventory.store.scratch import is_shared, scratch_record
from lab import running
from lab.lifeline import tied
from lab.places import Places
from lab.scenarios import KNOWN, check_names

NODE = "gpu-01"
PROFILE = "small"  # of the good template
_COMMAND_TIMEOUT_S = 1800.0  # a VM whose processors are emulated takes minutes to boot on a busy machine
_VM_DEADLINE_S = "900"  # verify-node's own is for processors that are not emulated
_ERROR_PREFIXES = ("error:", "why:", "next:", "bug:")


@dataclass(frozen=True, slots=True)
class Step:
    """One command of the demo, and the package that has it."""

    name: str
    command: str
    package: str
    arguments: tuple[str, ...]


def steps(profile: str, *, backend: str | None = None) -> tuple[Step, ...]:
    """The road of a node that is made from a profile of the lab's site file."""
    patience = ("--deadline", _VM_DEADLINE_S) if backend == "qemu" else ()
    return (
        Step("provision", "provision-node", "provision", (NODE, "--profile", profile, "--yes", "--json")),
        Step("onboard", "onboard-node", "onboard", (NODE, "--yes", "--no-verify", "--json")),
        Step("verify", "verify-node", "verify", (NODE, *patience, "--json")),
    )


@dataclass(slots=True)
class Outcome:
    """What the demo saw; `code` is the exit code of the command that failed."""

    lab: running.Lab
    code: int = int(ExitCode.DONE)
    error: str | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The demo's JSON document, without its schema number."""
        made, onboarded = self.nodes.get("provision", {}), self.nodes.get("onboard", {})
        verified = self.nodes.get("verify", {})
        identity, verification = onboarded.get("identity") or {}, verified.get("verification") or {}
        last = next((node for node in (verified, onboarded, made) if node), {})
        found: dict[str, Any] = {
            "ok": self.code == ExitCode.DONE,
            "lab": {"backend": self.lab.backend, "not_real": list(self.lab.not_real)},
            "node": {
                "name": NODE,
                **{key: made.get(key) for key in ("vmid", "uuid", "address")},
                "state": last.get("state"),
            },
            "steps": self.steps,
            "identity": {
                key: identity.get(key) for key in ("serial", "spiffe_id", "not_after", "fingerprint_sha256")
            },
            "verification": {key: verification.get(key) for key in ("ranks", "not_checked", "scenarios")},
        }
        if self.error is not None:
            found["error"] = self.error
        return found


def run_demo(console: Console, *, backend: str | None, keep: bool, template: str | None = None) -> Outcome:
    """Make a lab, walk the whole road in it, and take it away again (all but its directory with `keep`).

    `template` is one of lab/scenarios.py to clone the node from; None: the good one.

    Raises:
        MusterError: the lab did not start.
    """
    further = check_names([template] if template else [])
    with _record(console, keep=keep) as inventory:
        return _in_lab(console, inventory, further, backend=backend, keep=keep, profile=template or PROFILE)


@contextmanager
def _record(console: Console, *, keep: bool) -> Iterator[str | None]:
    """The URL of a record of its own where the person's is on a server: beside theirs, for it is the demo's alone."""
    given = os.environ.get("MUSTER_INVENTORY")
    if not given or not is_shared(given):
        yield None
        return
    with scratch_record(given, name="muster_demo", keep=keep) as own:
        console.say(f"the record is on your server, in a schema of its own: {own}")
        yield own


def _in_lab(
    console: Console,
    inventory: str | None,
    further: Sequence[str],
    *,
    backend: str | None,
    keep: bool,
    profile: str,
) -> Outcome:
    places = Places(_new_folder())
    try:
        console.say("starting a lab of its own")
        if (wait := running.long_wait(backend)) is not None:
            console.say(wait)
        lab, server = running.start(places, backend=backend, templates=further, tied=True, ephemeral=not keep)
        try:
            tell(console, lab)
            outcome = walk(console, lab, profile=profile, inventory=inventory)
        finally:
            console.detail("stopping the lab")
            running.end(server)
    finally:
        if not keep:
            shutil.rmtree(places.root, ignore_errors=True)
    if keep:
        console.say(f"kept: {places.root}")
    return outcome


def _new_folder() -> Path:
    """The demo's own directory.

    Raises:
        BadInput: there is nowhere to make it.
    """
    try:
        return Path(tempfile.mkdtemp(prefix="muster-demo-"))
    except OSError as error:
        raise BadInput(
            "the demo has no place",
            why=str(error.strerror or error),
            next_step="set TMPDIR to a directory that you can write to, on a disk that is not full",
        ) from error


def tell(console: Console, lab: running.Lab) -> None:
    """Say which backend a lab has, and what is not real about it."""
    console.say(f"the lab is up: {lab.url}, nodes by the {lab.backend} backend in {lab.prefix}")
    for sentence in lab.not_real:
        console.say(f"  not real: {sentence}")
    for name in lab.templates:
        console.say(f"  profile {name}: a template as it should not be, for {KNOWN[name].told}")


def walk(
    console: Console, lab: running.Lab, *, profile: str = PROFILE, inventory: str | None = None
) -> Outcome:
    """Run the commands in order; the first that fails is the last.

    inventory: the record's URL; None: the lab's own.
    """
    outcome = Outcome(lab)
    # What a command that is killed leaves of its temporary files goes with the demo's.
    temporary = lab.places.root / "tmp"
    temporary.mkdir(mode=0o700, exist_ok=True)
    environment = {**_inherited(), **lab.places.environment(), "TMPDIR": str(temporary)}
    if inventory is not None:
        environment["MUSTER_INVENTORY"] = inventory
    manner = ("--quiet",) if console.quiet else ()
    for step in steps(profile, backend=lab.backend):
        arguments = (*step.arguments, *manner)
        console.say(f"$ {' '.join((step.command, *arguments))}")
        began = time.monotonic()
        code, text, error = _run([*_program(step), *arguments], environment)
        error = keep_tracebacks(console, temporary, error)
        seconds = round(time.monotonic() - began, 3)
        node, complaint = _node(text)
        outcome.nodes[step.name] = node
        ok = code == ExitCode.DONE and complaint is None
        row: dict[str, Any] = {"name": step.name, "ok": ok, "seconds": seconds}
        outcome.steps.append(row)
        if not ok:
            outcome.code = code or int(ExitCode.BUG)
            outcome.error = row["error"] = error or complaint or f"{step.command} ended with {code}"
            break
    return outcome


def keep_tracebacks(console: Console, temporary: Path, error: str) -> str:
    """An error in which the tracebacks that it names lie where they outlive the demo."""
    for trace in temporary.glob("muster-bug-*"):
        kept = shutil.move(trace, tempfile.mkdtemp(prefix="muster-bug-"))
        console.trouble(f"kept: {kept}")
        error = error.replace(str(trace), str(kept))
    return error


def summary(outcome: Outcome) -> list[str]:
    """What a person is told at the end, as lines of data."""
    document = outcome.document()
    if not document["ok"]:
        failed = outcome.steps[-1]["name"]
        return [f"{NODE} has not passed muster: {failed} failed", f"  {outcome.error}"]
    node, identity, found = document["node"], document["identity"], document["verification"]
    took = sum(step["seconds"] for step in outcome.steps)
    return [
        f"{NODE} has passed muster: {found['ranks']} ranks assembled over its identity, in {took:.1f} s",
        f"  vm {node['vmid']} at {node['address']}, uuid {node['uuid']}, {node['state']}",
        f"  {identity['spiffe_id']}, serial {identity['serial']}, until {identity['not_after']}",
        *(
            f"  {'passed' if s['ok'] else 'FAILED'}  {s['name']}: {s['detail']}"
            for s in found["scenarios"] or ()
        ),
        f"  not checked: {', '.join(found['not_checked'] or ())}",
        f"  lab: nodes by the {outcome.lab.backend} backend; --json tells what is not real about them",
    ]


def _inherited() -> Mapping[str, str]:
    """The person's environment, without settings that would lead the commands elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}


def _program(step: Step) -> list[str]:
    """The command beside this interpreter, or what it would run where nothing is installed."""
    beside = Path(sys.executable).parent / step.command
    if beside.exists():
        return [str(beside)]
    start = f"import sys; sys.argv[0] = {step.command!r}; from {step.package}.cli import main; main()"
    return [sys.executable, "-c", start]


def _run(command: list[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Exit code, stdout, and the last error that it told; its stderr is passed on as it comes.

    The command is killed when this process ends, however that ends.
    """
    process = subprocess.Popen(
        tied(command),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None  # noqa: S101 - asked for above
    assert process.stderr is not None  # noqa: S101
    told: list[str] = []
    relay = threading.Thread(target=_relay, args=(process.stderr, told.append), daemon=True)
    watchdog = threading.Timer(_COMMAND_TIMEOUT_S, process.kill)
    relay.start()
    watchdog.start()
    with process:
        try:
            output = process.stdout.read()
            relay.join(5.0)
            code = process.wait()
        except BaseException:
            process.kill()
            relay.join(5.0)  # it holds stderr, which could not be closed
            raise
        finally:
            watchdog.cancel()
    lines = [line.strip() for line in told]
    error = "; ".join(line for line in lines if line.startswith(_ERROR_PREFIXES)) or (lines or [""])[-1]
    return (code if code >= 0 else 128 - code), output.decode(errors="replace"), error


def _relay(source: IO[bytes], keep: Callable[[str], None]) -> None:
    for line in source:
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
        keep(line.decode(errors="replace"))


def _node(text: str) -> tuple[dict[str, Any], str | None]:
    """What a command's JSON document says of our node; else why that cannot be told."""
    try:
        nodes = json.loads(text)["nodes"]
        node: dict[str, Any] = next(node for node in nodes if node["name"] == NODE)
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        return {}, f"no JSON document about {NODE} came ({type(error).__name__})"
    return node, None
