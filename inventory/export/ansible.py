"""Nodes as an inventory of Ansible's: a YAML file, or what its inventory scripts print."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from inventory.export.facts import fabric
from inventory.export.target import Tally, Target, targets
from inventory.lifecycle import whose_turn
from inventory.model import Node
from inventory.ticket import iso

FLEET = "muster"
_NO_GROUP_CHARACTER = re.compile(r"[^A-Za-z0-9_]")
# Ansible's own default, which is gone where a host has ssh_args of its own.
_MULTIPLEX = "-C -o ControlMaster=auto -o ControlPersist=60s"
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Groups:
    """Which nodes are in which group: by state, site, profile and Proxmox node."""

    def __init__(self) -> None:
        """Empty; names alone are kept, however many facts a node has."""
        self._members: dict[tuple[str, str], list[str]] = {}

    def add(self, node: Node) -> None:
        """Put a node into its groups."""
        kinds = {
            "state": str(node.state),
            "site": node.site,
            "profile": node.profile,
            "proxmox": node.proxmox_node,
        }
        for kind, text in kinds.items():
            if text:
                self._members.setdefault((kind, text), []).append(node.name)

    def named(self) -> Iterator[tuple[str, list[str]]]:
        """Each group's name, which Ansible takes without a warning, and its members.

        Names that would be the same group get a part of their hash: pve-1 and pve.1 are two.
        """
        claims: dict[str, int] = {}
        for key in self._members:
            claims[_group(*key)] = claims.get(_group(*key), 0) + 1
        for (kind, text), members in sorted(self._members.items()):
            name = _group(kind, text)
            if claims[name] > 1:
                name = f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
            yield name, members


def write_yaml(nodes: Iterable[Node], out: IO[str], *, known_hosts: Path | None) -> Tally:
    """The static inventory, as the plugin `ansible.builtin.yaml` reads it."""
    tally, groups = Tally(), Groups()
    out.write("# written by node-inventory export: changes are lost with the next one\n")
    out.write(f"all:\n  children:\n    {FLEET}:\n")
    for node, target in targets(nodes, tally, pinned=False):
        out.write("      hosts:\n" if tally.written == 1 else "")
        out.write(f"        {node.name}:\n")
        for key, value in host_vars(node, target, known_hosts).items():
            out.write(f"          {key}: {_yaml(value)}\n")
        groups.add(node)
    out.write("" if tally.written else "      hosts: {}\n")
    for name, members in groups.named():
        out.write(f"    {name}:\n      hosts:\n")
        out.writelines(f"        {member}: {{}}\n" for member in members)
    return tally


def write_list(nodes: Iterable[Node], out: IO[str], *, known_hosts: Path | None) -> Tally:
    """What `--list` of an inventory script prints (Ansible's developer guide, "Developing dynamic inventory")."""
    tally, groups, names = Tally(), Groups(), list[str]()
    out.write('{"_meta": {"hostvars": {')
    for node, target in targets(nodes, tally, pinned=False):
        out.write(",\n" if names else "\n")
        out.write(f"{json.dumps(node.name)}: {_json(host_vars(node, target, known_hosts))}")
        groups.add(node)
        names.append(node.name)
    out.write("}}")
    own = [FLEET]
    for name, members in [(FLEET, names), *groups.named()]:
        out.write(f",\n{json.dumps(name)}: {json.dumps({'hosts': members})}")
        own += [] if name == FLEET else [name]
    out.write(f',\n"all": {json.dumps({"children": own})}}}\n')
    return tally


def write_host(node: Node, out: IO[str], *, known_hosts: Path | None) -> Tally:
    """What `--host NAME` prints: the node's variables, none where nobody can log in to it."""
    tally = Tally()
    told = [host_vars(node, target, known_hosts) for _, target in targets([node], tally, pinned=False)]
    out.write(f"{_json(told[0] if told else {})}\n")
    return tally


def host_vars(node: Node, target: Target, known_hosts: Path | None) -> dict[str, Any]:
    """How Ansible reaches a node, and what the record knows of it, as muster_*.

    With `known_hosts` the pins stand in `ansible_ssh_args`, which ssh reads before all else of Ansible's: of two
    values ssh takes the first, and many an ansible.cfg says StrictHostKeyChecking=no.
    """
    pinned = {}
    if known_hosts is not None:
        pins = " ".join(
            f"-o {key}={value}" for key, value in (("UserKnownHostsFile", known_hosts), *target.pins)
        )
        pinned = {"ansible_connection": "ssh", "ansible_ssh_args": f"{pins} {_MULTIPLEX}"}
    known = {
        "ansible_host": target.ip,
        "ansible_port": target.port,
        "ansible_user": target.user,
        **pinned,
        "muster_state": str(node.state),
        "muster_next": whose_turn(node),
        "muster_reason": node.reason,
        "muster_site": node.site,
        "muster_profile": node.profile,
        "muster_proxmox_node": node.proxmox_node,
        "muster_vmid": node.vmid,
        "muster_uuid": node.uuid,
        "muster_machine_id": node.machine_id,
        "muster_fabrics": [fabric(each) for each in node.fabrics] or None,
        "muster_certificate_not_after": None if node.not_after is None else iso(node.not_after),
        "muster_verified_at": None if node.verified_at is None else iso(node.verified_at),
    }
    return {key: value for key, value in known.items() if value is not None}


def _group(kind: str, text: str) -> str:
    return _NO_GROUP_CHARACTER.sub("_", f"{FLEET}_{kind}_{text}")


def _is_template(text: str) -> bool:
    """Whether Ansible could take a text for a template, and run what it says: {{ lookup('pipe', ...) }}."""
    return "{" in text


def _json(value: Any) -> str:  # noqa: ANN401 - JSON
    return json.dumps(_unsafe(value), ensure_ascii=False)


def _unsafe(value: Any) -> Any:  # noqa: ANN401 - JSON
    """The value, with its texts marked for Ansible's JSON decoder where they must stay texts."""
    match value:
        case str() if _is_template(value):
            return {"__ansible_unsafe": value}
        case Mapping():
            return {key: _unsafe(item) for key, item in value.items()}
        case list():
            return [_unsafe(item) for item in value]
    return value


def _yaml(value: Any) -> str:  # noqa: ANN401 - JSON
    """A value in YAML's flow style; every text is in double quotes and ASCII, for YAML has its own line breaks."""
    match value:
        case str():
            tag = "!unsafe " if _is_template(value) else ""
            return tag + '"' + "".join(map(_escaped, value)) + '"'
        case Mapping():
            return "{" + ", ".join(f"{key}: {_yaml(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_yaml, value)) + "]"
    return json.dumps(value)


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if " " <= character <= "~":
        return character
    return f"\\U{ord(character):08x}"
