"""Nodes and records to be exported, for tests."""

import base64
import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from inventory.model import Address, Fabric, HostKey, Node, State
from inventory.store import Store
from tests.inventory.kit import KEY

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
BIN = Path(sys.executable).parent


def node(name: str = "gpu-01", state: State = State.IN_SERVICE, **facts: Any) -> Node:
    """A node that can be logged in to; one fact varies per test."""
    whole = Node(
        name,
        state,
        uuid=f"uuid-of-{name}",
        vmid=5000,
        proxmox_node="pve1",
        site="lab.example",
        profile="h100x8",
        spec_hash="00ff",
        address=Address("10.0.0.7", 24, "leased"),
        user="muster",
        macs=("bc:24:11:00:00:01",),
        host_keys=(KEY,),
        fabrics=(Fabric("fabric0", mtu=9000, rate_gbps=400.0),),
    )
    return replace(whole, **facts)


def key(type_: str) -> HostKey:
    """A key that is of this type by its form."""
    blob = len(type_).to_bytes(4, "big") + type_.encode() + b"\0" * 32
    return HostKey(type_, base64.b64encode(blob).decode())


def text_of(write: Callable[[IO[str]], object]) -> str:
    """What a form writes."""
    out = io.StringIO(newline="")
    write(out)
    return out.getvalue()


def record(folder: Path, *nodes: Node) -> str:
    """The URL of a record that has these nodes."""
    url = f"sqlite:///{folder / 'record.db'}"
    store = Store.open(url)
    for each in nodes:
        store.add(each, why="a test")
    return url


def run(*arguments: str, url: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`node-inventory` as a user meets it."""
    return subprocess.run(
        [str(BIN / "node-inventory"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "MUSTER_INVENTORY": url},
        cwd=cwd,
    )
