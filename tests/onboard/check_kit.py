"""A node that was onboarded over a real SSH server, once for a module; each test gets a copy of all that is left."""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inventory.checking import Asked, Checker, Disagreement, NotChecked
from inventory.model import Node
from inventory.ticket import Receipt, peek_receipt
from onboard.refresh import refresh
from tests.inventory import check_kit
from tests.onboard.kit import Bench, bench
from tests.onboard.node import node as serving
from tests.onboard.upkeep_kit import onboarded, with_lists


def original(folder: Path) -> Iterator[Bench]:
    """For a fixture of a module: gpu-01, in service, with the revocation list that is due."""
    (folder / "bench").mkdir()
    with serving(folder / "sshd") as there:
        made = bench(folder / "bench", there.server)
        onboarded(made)
        with_lists(made)
        refresh("gpu-01", made.desk())
        yield made


def copy_of(made: Bench, folder: Path) -> Bench:
    """The same for one test: its authority, its record, and what lies on the node."""
    shutil.copytree(made.folder / "ca", folder / "ca")
    shutil.copy2(made.folder / "record.db", folder / "record.db")
    shutil.copytree(made.install_dir, folder / "node", symlinks=True)
    shutil.copy2(made.folder / "signers", folder / "signers")
    copied = replace(made, folder=folder, install_dir=folder / "node")
    copied.set_policy()
    return copied


def the_node(holder: Bench) -> Node:
    node = holder.store().get("gpu-01")
    assert node is not None
    return node


def with_receipt(node: Node, **claims: Any) -> Node:
    """The node whose record has another receipt: its own, with these claims."""
    told: Receipt = replace(peek_receipt(str(node.receipt)), **claims)
    return replace(node, receipt=check_kit.as_text(told))


def asked(
    holder: Bench, nodes: Iterable[Node], *, names: Iterable[str] | None = None, key: Path | None = None
) -> Asked:
    chosen = None if names is None else frozenset(names)
    return check_kit.asked(
        nodes, now=datetime.now(UTC), names=chosen, ca_dir=holder.folder / "ca", ssh_key=key
    )


def told(checker: Checker, run: Asked) -> tuple[list[Disagreement], list[NotChecked]]:
    found = list(checker.check(run))
    return (
        [each for each in found if isinstance(each, Disagreement)],
        [each for each in found if isinstance(each, NotChecked)],
    )


def contents(folder: Path, *, but: str = "") -> dict[str, object]:
    """Every file below a folder with its bytes, rights and time of change; `but` are names that are left out."""
    found: dict[str, object] = {}
    for file in sorted(folder.rglob("*")):
        if but and file.name.startswith(but):
            continue
        if file.is_symlink():
            found[str(file)] = file.readlink()
        elif file.is_file():
            found[str(file)] = (file.read_bytes(), file.stat().st_mode, file.stat().st_mtime_ns)
    return found
