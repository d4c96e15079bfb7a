"""Nodes of lists against the record and against each other; then put on record, and nothing else is."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inventory.errors import BadFile, Fault, MusterError, Refused
from inventory.importing import Entry, read_entries
from inventory.importing_export import read_export
from inventory.lifecycle import anew, next_command, only_told, unadopted, whose_turn
from inventory.model import Node, State
from inventory.store import Store

_FREE = frozenset({State.RETIRED, State.PLANNED})
"""States in which a name has no machine."""
_SETS = ("macs", "host_keys")


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of one node of a list. node: as it is on record now, or would be; None where that failed."""

    entry: Entry
    node: Node | None
    changed: bool
    error: MusterError | None = None

    def to_json(self) -> dict[str, Any]:
        """As --json shows it."""
        told: dict[str, Any] = {
            "name": self.entry.told.name,
            "ok": self.error is None,
            "changed": self.changed,
        }
        if self.node is not None:
            told |= {"state": str(self.node.state), "uuid": self.node.uuid, "vmid": self.node.vmid}
            told |= {"next": whose_turn(self.node), "command": next_command(self.node)}
        if self.error is not None:
            told["error"] = self.error.to_json()
        return told


def read_lists(texts: Iterable[tuple[str, str]]) -> tuple[Entry, ...]:
    """The nodes of several lists, by name and text.

    Raises:
        BadFile: a list has faults, or two entries are one machine or one name; all of them are told at once.
    """
    entries: list[Entry] = []
    faults: list[Fault] = []
    files = []
    for name, text in texts:
        files.append(name)
        found, wrong = read_export(text, name=name) or read_entries(text, name=name)
        entries += found
        faults += wrong
    faults += _twice(entries)
    if faults:
        raise BadFile(", ".join(files), faults)
    return tuple(entries)


def compare(entries: Sequence[Entry], store: Store) -> dict[str, Node]:
    """The nodes of the lists that are on record already, with the same facts.

    Raises:
        Refused: the record says otherwise, or another node is that machine; nothing is ever overwritten.
    """
    theirs = {fact: entry for entry in entries for fact in _facts(entry.told.as_node())}
    by_name = {entry.told.name: entry for entry in entries}
    same: dict[str, Node] = {}
    clashes: list[tuple[Entry, str]] = []
    for node in store.each():
        entry = by_name.get(node.name)
        if entry is not None and node.state not in _FREE:
            other = list(_differences(entry, node))
            clashes += [
                (entry, f"{entry.place(key)}: {node.name} is on record: {text}") for key, text in other
            ]
            if not other:
                same[node.name] = node
        for kind, value in _facts(node):
            claim = theirs.get((kind, value))
            if claim is None or claim.told.name == node.name:
                continue
            # A uuid stays its node's for good, if anybody looked; whatever else a retired one had is free again.
            if node.state is not State.RETIRED or (kind == "uuid" and not free_uuid(node)):
                key = _KEYS[kind]
                told = f"{key}: {_shown(kind, value)} is on record as {node.name}'s, which is {node.state}"
                clashes.append((claim, f"{claim.place(key)}: {told}"))
    if clashes:
        clashes.sort(key=lambda clash: (clash[0].file, clash[0].number))
        raise Refused(
            "nothing was imported",
            why="\n".join(text for _, text in clashes),
            next_step="look at them with node-inventory show NAME, and mend the list; the record is never overwritten",
        )
    return same


def put(
    entries: Iterable[Entry], same: dict[str, Node], store: Store, *, dry_run: bool
) -> Iterator[Imported]:
    """Put each node on record that is not there; one that fails does not stop the others."""
    for entry in entries:
        known = same.get(entry.told.name)
        if known is not None:
            yield Imported(entry, known, changed=False)
            continue
        node = entry.told.as_node()
        if dry_run:
            yield Imported(entry, node, changed=True)
            continue
        note = f" ({entry.told.note})" if entry.told.note else ""
        why = f"imported from {Path(entry.file).name}: a machine joined by hand{note}"
        try:
            yield Imported(entry, put_on_record(store, node, why=why), changed=True)
        except MusterError as error:
            there = store.get(node.name)  # by another who imports the same list at this moment
            if there is not None and there.state not in _FREE and not [*_differences(entry, there)]:
                yield Imported(entry, there, changed=False)
            else:
                yield Imported(entry, None, changed=False, error=error)


def put_on_record(store: Store, node: Node, *, why: str) -> Node:
    """A node that was made by hand, under a name that is new or has no machine any more.

    Raises:
        Refused: the name has a machine, or the uuid is on record.
        AddressTaken: its static address is another node's.
    """
    for other in store.claimants(uuid=node.uuid):
        if other.name != node.name and not free_uuid(other):
            raise Refused(
                f"{node.name} was not put on record",
                why=f"its uuid {node.uuid} is on record as {other.name}'s, which is {other.state}",
                next_step=f"node-inventory show {other.name}",
            )
        if other.name != node.name:
            told = f"its uuid is {node.name}'s: it was told of under a wrong name"
            freed = store.save(anew(other), why=told)  # a shared record lets a retired node's uuid stay
            for state in (State.RETIRING, State.RETIRED):
                freed = store.save(replace(freed, state=state), why=told)
    former = store.get(node.name)
    if former is None:
        return store.add(node, why=why)
    if former.state is State.RETIRED:
        was = f"VM {former.vmid}, uuid {former.uuid}" if former.vmid else "no VM"
        former = store.save(anew(former), why=f"its name is used again; it was {was}")
    if former.state is not State.PLANNED:
        raise Refused(
            f"{node.name} was not put on record",
            why=f"somebody else did meanwhile: it is {former.state}",
            next_step=f"node-inventory show {node.name}",
        )
    return store.save(replace(node, version=former.version), why=why)


def free_uuid(node: Node) -> bool:
    """Whether its uuid may be another name's: a list had told of it, nobody had looked, and it was taken off again."""
    return node.state is State.RETIRED and only_told(node)


def lines(done: Imported, *, dry_run: bool) -> list[str]:
    """What became of one node, for people."""
    name = done.entry.told.name
    if done.node is None:
        return []
    if not done.changed:
        adopted = "" if unadopted(done.node) else f", and is {done.node.state}"
        return [f"{name}: nothing to change: it is on record with these facts{adopted}"]
    would = "would be" if dry_run else "is"
    return [f"{name}: {would} on record as {done.node.state}, and has no ticket"]


_KEYS = {
    "uuid": "uuid",
    "vmid": "vmid",
    "ip": "address",
    "mac": "macs",
    "host key": "host_keys",
    "machine-id": "machine_id",
}
"""What only one machine can have, and the key of a list that tells it."""


def _facts(node: Node) -> Iterator[tuple[str, Any]]:
    if node.uuid is not None:
        yield "uuid", node.uuid
    if node.vmid is not None:
        yield "vmid", node.vmid
    if node.address is not None:
        yield "ip", node.address.ip
    if node.machine_id is not None:
        yield "machine-id", node.machine_id
    for mac in (*node.macs, *(fabric.mac for fabric in node.fabrics if fabric.mac)):
        yield "mac", mac
    for key in node.host_keys:
        yield "host key", key


def _shown(kind: str, value: Any) -> str:  # noqa: ANN401 - whatever identifies a machine
    return f"{value.type} {value.fingerprint}" if kind == "host key" else str(value)


def _twice(entries: Sequence[Entry]) -> Iterator[Fault]:
    """Names and facts that two entries claim."""
    seen: dict[tuple[str, Any], Entry] = {}
    for entry in entries:
        node = entry.told.as_node()
        for kind, value in dict.fromkeys((("name", node.name), *_facts(node))):
            first = seen.setdefault((kind, value), entry)
            if first is not entry:
                key = _KEYS.get(kind, kind)
                where = f"{first.told.name}'s at {first.place(key)}"
                yield Fault(
                    entry.place(key), f"{key}: {_shown(kind, value)} is there twice, the first is {where}"
                )


def _differences(entry: Entry, node: Node) -> Iterator[tuple[str, str]]:
    """What the list says of a node and the record does not: key and words; what it leaves out counts not."""
    told = entry.told.as_node()
    for key in sorted(
        entry.given & {"uuid", "vmid", "proxmox_node", "profile", "user", "ssh_port", "machine_id"}
    ):
        ours, found = getattr(told, key), getattr(node, key)
        if ours is not None and ours != found:
            yield key, f"{key} is {found if found is not None else 'unknown'} there, and {ours} here"
    if told.address is not None and (node.address is None or node.address.ip != told.address.ip):
        yield (
            "address",
            f"address is {node.address.ip if node.address else 'unknown'} there, and {told.address.ip} here",
        )
    for key in _SETS:
        kind = next(kind for kind, name in _KEYS.items() if name == key)
        more = [value for value in getattr(told, key) if value not in getattr(node, key)]
        if more:
            shown = ", ".join(_shown(kind, value) for value in more)
            yield key, f"{key} has here what it has not there: {shown}"
    there = {fabric.name: fabric for fabric in node.fabrics}
    for fabric in told.fabrics:
        found = there.get(fabric.name)
        fields = ("interface", "mac", "mtu", "rate_gbps", "address")
        if found is None:
            yield "fabrics", f"fabrics has {fabric.name} here, and not there"
        elif other := [at for at in fields if getattr(fabric, at) not in {None, getattr(found, at)}]:
            yield "fabrics", f"fabrics: {fabric.name} has another {', '.join(other)} here"
