"""onboard-node --check: which of our files is this, and what is wrong with it; needs no authority and no network."""

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from ca.ceremony import Ceremony
from ca.policy import Policy
from inventory import signature
from inventory.agent_config import AgentConfig
from inventory.console import Console
from inventory.document import Model, load
from inventory.errors import BadFile, BadInput, ExitCode, Fault, Refused
from inventory.importing import NodeList, is_table, read_list
from inventory.server_config import ServerConfig
from inventory.ticket import RECEIPT_NAMESPACE, TICKET_NAMESPACE, peek_receipt, peek_ticket
from provision.spec import Site
from provision.user_data import CLOUD_CONFIG, read_user_data

MODELS: dict[str, type[Model]] = {
    "site": Site,
    "policy": Policy,
    "agent": AgentConfig,
    "server": ServerConfig,
    "ceremony": Ceremony,
    "nodes": NodeList,
}
"""The files that are YAML of ours, by their kind."""
_SIGNED: dict[str, tuple[str, Callable[[str], object]]] = {
    "ticket": (TICKET_NAMESPACE, peek_ticket),
    "receipt": (RECEIPT_NAMESPACE, peek_receipt),
}
USER_DATA = "user-data"
KINDS = (*MODELS, *_SIGNED, USER_DATA)
_ARMOUR = "-----BEGIN SSH SIGNATURE-----"
_NEAR = 0.5  # what a misspelt key counts against one that is right
_ALIKE = 0.75  # of two words: difflib's ratio
_PLACE = re.compile(r":(\d+):(\d+)$")


@dataclass(frozen=True, slots=True)
class Checked:
    """A file that was looked at. kind: which of ours it is; None: none of them. notes: what was not judged."""

    file: Path
    kind: str | None
    faults: tuple[Fault, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the commands would take it."""
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        """As --json shows it."""
        return {
            "ok": self.ok,
            "file": str(self.file),
            "kind": self.kind,
            "faults": [_fault_json(fault) for fault in self.faults],
            "notes": list(self.notes),
        }


class _Anything(Model):
    """A mapping with whatever keys."""

    model_config = ConfigDict(extra="allow")


def check_alone(file: Path, *others: object) -> Checked:
    """As `check`; whatever else was to be worked on with it is refused.

    Raises:
        BadInput: it cannot be read, or nodes or tickets were named beside it.
    """
    if any(others):
        raise BadInput(
            "nothing was done",
            why="--check looks at one file and touches no node, and nodes or tickets were named beside it",
            next_step=f"onboard-node --check {file}",
        )
    return check(file)


def check(file: Path) -> Checked:
    """What kind of file it is, and every fault of it.

    Raises:
        BadInput: it cannot be read.
    """
    text = _beginning(file)
    if _ARMOUR in text or file.suffix.removeprefix(".") in _SIGNED:
        return _check_signed(file, text)
    if text.startswith(CLOUD_CONFIG):
        return _judged(file, USER_DATA, lambda: read_user_data(file))
    if is_table(text):
        return _judged(file, "nodes", lambda: read_list(file.read_text("utf-8", "replace"), name=str(file)))
    try:
        found = load(file, _Anything).model_extra or {}
    except BadFile as error:
        return Checked(file, _by_name(file), error.faults)
    keys = tuple(found)
    kind = "nodes" if _lists_nodes(found.get("nodes")) else kind_of(keys, file)
    if kind is None:
        return Checked(file, None, (Fault(f"{file}:1:1", _strange(keys)),))
    return _judged(file, kind, lambda: load(file, MODELS[kind]))


def kind_of(keys: Iterable[str], file: Path) -> str | None:
    """The kind whose keys these are, misspelt ones too; between two that are as like, the name decides."""
    found = {kind: _likeness(tuple(keys), model) for kind, model in MODELS.items()}
    best = max(found.values())
    likely = [kind for kind, likeness in found.items() if likeness == best]
    named = _by_name(file)
    if named in likely:
        return named
    return likely[0] if best and len(likely) == 1 else None


def report(checked: Checked, console: Console) -> ExitCode:
    """Tell it: one line if all is well, else a line for each fault; the exit code says which."""
    console.document(checked.to_json())
    for fault in checked.faults:
        console.data(str(fault))
    count = len(checked.faults)
    if checked.ok:
        console.data(f"{checked.file}\t{checked.kind}\tOK")
        for note in checked.notes:
            console.say(note)
        return ExitCode.DONE
    kind = f"checked as {checked.kind}" if checked.kind else "none of our files"
    console.trouble(f"{checked.file}: {kind}, {count} fault{'' if count == 1 else 's'}")
    return ExitCode.USAGE


def _lists_nodes(value: object) -> bool:
    """Whether it is what only nodes.yaml has there: site.yaml has them by name, and policy.yaml names alone."""
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _judged(file: Path, kind: str, judge: Callable[[], object]) -> Checked:
    try:
        judge()
    except BadFile as error:
        return Checked(file, kind, error.faults)
    return Checked(file, kind, ())


def _check_signed(file: Path, text: str) -> Checked:
    """Form and signature of a ticket or receipt; whose key signed it only the list of signers tells."""
    kind = _signed_kind(file, text)
    namespace, peek = _SIGNED[kind]
    line = text.partition("\n")[0]
    faults: list[Fault] = []
    notes: tuple[str, ...] = ()
    try:
        peek(text)
    except Refused as error:
        faults += [Fault(f"{file}:1:{_column(line, why)}", why) for why in error.why.splitlines()]
    try:
        key = signature.signed_with(text, namespace=namespace, what=f"the {kind}")
        notes = (f"it is signed with {key}; whether that key counts, the list of signers says, not this",)
    except Refused as error:
        faults.append(Fault(f"{file}:2:1", error.why))
    return Checked(file, kind, tuple(faults), notes)


def _signed_kind(file: Path, text: str) -> str:
    line = text.partition("\n")[0]
    by_key = {'"kind":': "receipt", '"expires":': "ticket"}
    found = [kind for key, kind in by_key.items() if key in line]
    suffix = file.suffix.removeprefix(".")
    return found[0] if len(found) == 1 else suffix if suffix in _SIGNED else "ticket"


def _column(line: str, fault: str) -> int:
    """Where the key that a fault names stands in the line; its beginning where it names none."""
    at, found = 0, 0
    for part in fault.partition(": ")[0].split("."):
        if not part.isdecimal() and (at := line.find(f'"{part}":', found)) >= 0:
            found = at
    return found + 1


def _beginning(file: Path) -> str:
    try:
        with file.open("rb") as source:
            return source.read(signature.MAX_BYTES + 1).decode("utf-8", "replace")
    except OSError as error:
        raise BadInput(
            f"{file} cannot be read",
            why=error.strerror or str(error),
            next_step=f"check the path and rights of {file}",
        ) from error


def _likeness(keys: tuple[str, ...], model: type[Model]) -> float:
    """How many of the keys the model knows, or nearly; less a little for each that it does not know."""
    known = {field.alias or name for name, field in model.model_fields.items()}
    exact = [key for key in keys if key in known]
    near = [
        key
        for key in keys
        if key not in known and difflib.get_close_matches(key, known - {*exact}, n=1, cutoff=_ALIKE)
    ]
    if not exact and not near:
        return 0
    return len(exact) + _NEAR * len(near) - (len(keys) - len(exact) - len(near)) / 1000


def _by_name(file: Path) -> str | None:
    """site.yaml, site-pinned.yaml, lab.site.yml: the kind that the name tells."""
    words = re.split(r"[^a-z]+", file.name.lower())
    named = [kind for kind in MODELS if kind in words]
    return named[0] if len(named) == 1 else None


def _strange(keys: tuple[str, ...]) -> str:
    told = ", ".join(keys[:8]) or "none"
    return (
        f"its keys ({told}) do not tell which of our files it is; call it as one of"
        f" {', '.join(f'{kind}.yaml' for kind in MODELS)}, and it is checked as that"
    )


def _fault_json(fault: Fault) -> dict[str, Any]:
    place = _PLACE.search(fault.place)
    line, column = (int(place[1]), int(place[2])) if place else (None, None)
    return {"place": fault.place, "line": line, "column": column, "text": fault.text}
