"""What one acceptance run has of its own: names, a record, and provision-node as a child process on them."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inventory.errors import OtherSide, Refused
from inventory.model import Node, check_node_name
from inventory.store import Store
from provision.config import is_ours
from provision.spec import Site
from tests.acceptance.looking import Looking
from tests.acceptance.outcome import Failed

COUNT = 5
_POLL_S = 0.02
_END_S = 60.0  # a child that is told to end says what goes on without it, and ends


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """The nodes of its JSON document, none if it printed none."""
        try:
            found: list[dict[str, Any]] = json.loads(self.stdout)["nodes"]
        except (ValueError, KeyError):
            return []
        return found

    def expect(self, code: int, what: str) -> "Done":
        """Itself, if it ended so.

        Raises:
            Failed: it ended otherwise; its own words are told.
        """
        if self.code != code:
            words = "; ".join(line.strip() for line in self.stderr.splitlines() if line.strip())
            raise Failed(f"{what}: exit {self.code} instead of {code}: {words}")
        return self


@dataclass
class Ours:
    """One run's own things."""

    site: Site
    site_file: Path
    profile: str
    looking: Looking
    prefix: str
    folder: Path
    timeout_s: float
    running: "list[subprocess.Popen[str]]" = field(default_factory=list)
    vmids: dict[int, tuple[str, str]] = field(
        default_factory=dict
    )  # every id of a node of ours: its uuid and name

    @property
    def names(self) -> tuple[str, ...]:
        """The only nodes that are ever named."""
        return tuple(f"{self.prefix}-{number}" for number in range(1, COUNT + 1))

    @property
    def url(self) -> str:
        """The record of this run."""
        return f"sqlite:///{self.folder / 'inventory.db'}"

    @property
    def store(self) -> Store:
        """The record."""
        return Store.open(self.url)

    def node(self, name: str) -> Node:
        """A node of the record.

        Raises:
            Failed: it is not there.
        """
        node = self.store.get(name)
        if node is None:
            raise Failed(f"{name} is not on record")
        self._remember(node)
        return node

    def run(self, *words: str) -> Done:
        """provision-node with these words, to its end."""
        process = self._start(*words)
        try:
            stdout, stderr = process.communicate(timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            self._end(process)
            raise Failed(f"provision-node {' '.join(words)} did not end in {self.timeout_s:.0f} s") from None
        except BaseException:
            self._end(process)
            raise
        finally:
            self._remember_all()
        return Done(process.returncode, stdout, stderr)

    def kill_at(self, name: str, when: Callable[[Mapping[str, Any]], bool], *words: str) -> str:
        """Start provision-node and kill it as soon as the node's journal is so; the step it was at.

        Raises:
            Failed: it ended before.
        """
        process = self._start(name, *words)
        store, deadline = self.store, time.monotonic() + self.timeout_s
        try:
            while process.poll() is None and time.monotonic() < deadline:
                node = store.get(name)
                if node is not None and when(node.journal):
                    process.kill()
                    break
                time.sleep(_POLL_S)
            else:
                self._end(process)
                raise Failed(f"the run for {name} ended before a write of it was seen")
            process.communicate(timeout=_END_S)
        except BaseException:
            self._end(process)
            raise
        finally:
            self._remember_all()
        if process.returncode != -signal.SIGKILL:
            raise Failed(f"the run for {name} ended by itself, with exit {process.returncode}")
        return str(self.node(name).journal.get("step"))

    def machine(self, name: str) -> dict[str, Any]:
        """The config of a node's VM, which is proved to be its own.

        Raises:
            Failed: there is none, or it is another's.
        """
        node = self.node(name)
        config = self.looking.config(str(node.proxmox_node), int(node.vmid or 0))
        if config is None:
            raise Failed(f"{name} has no VM {node.vmid}")
        if not is_ours(config, name, str(node.uuid), configured=True):
            raise Failed(f"VM {node.vmid} has not the uuid {node.uuid} of {name}")
        return dict(config)

    def close(self, *, keep: bool) -> None:
        """End what still runs; the record goes, unless it is still needed."""
        for process in list(self.running):
            self._end(process)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, *words: str) -> "subprocess.Popen[str]":
        environ = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
        environ |= {"XDG_STATE_HOME": str(self.folder), "NO_COLOR": "1"}
        process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("provision-node")),
                *words,
                *("--site", str(self.site_file), "--inventory", self.url),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            start_new_session=True,  # Ctrl-C on the terminal is for us, who then clean up with further commands
        )
        self.running.append(process)
        return process

    def _end(self, process: "subprocess.Popen[str]") -> None:
        if process.poll() is None:
            process.terminate()
            try:
                process.communicate(timeout=_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate(timeout=_END_S)
        if process in self.running:
            self.running.remove(process)

    def _remember_all(self) -> None:
        self.running[:] = [process for process in self.running if process.poll() is None]
        for node in self.store.all():
            self._remember(node)

    def _remember(self, node: Node) -> None:
        if node.vmid is not None and node.uuid is not None:
            self.vmids[node.vmid] = node.uuid, node.name


def begin(
    site: Site,
    site_file: Path,
    profile: str,
    looking: Looking,
    *,
    prefix: str,
    own_addresses: bool,
    timeout_s: float,
    token_hex: Callable[[int], str] = secrets.token_hex,
) -> Ours:
    """What the run needs before its first step; nothing is written to Proxmox.

    Raises:
        Refused: VMs of these names are there, or static addresses may be somebody's.
        BadInput: the prefix names no node, or there is no such profile.
        OtherSide: Proxmox does not answer.
    """
    ranged = site.profile(profile).network.addresses is not None
    if (ranged or site.profile(profile).fabrics) and not own_addresses:
        raise Refused(
            "the acceptance run was not begun",
            why=f"profile {profile} may give static addresses, and the record of this run is empty: it would give"
            " away addresses that nodes of yours have",
            next_step="use a profile with address: dhcp, or one whose ranges nobody else uses, and say so with"
            " --own-addresses",
        )
    whole = f"{prefix}-{token_hex(2)}"
    check_node_name(f"{whole}-{COUNT}")
    folder = Path(tempfile.mkdtemp(prefix="muster-acceptance-"))
    ours = Ours(site, site_file, profile, looking, whole, folder, timeout_s)
    try:
        there = sorted({guest.name for guest in looking.guests()} & set(ours.names))
    except OtherSide:
        ours.close(keep=False)
        raise
    if there:
        ours.close(keep=False)
        raise Refused(
            "the acceptance run was not begun",
            why=f"there are VMs of these names already: {', '.join(there)}",
            next_step="run it again: it draws other names",
        )
    return ours
