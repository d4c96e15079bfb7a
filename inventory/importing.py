"""Lists of nodes that were joined by hand, as YAML or CSV: read and checked, every fault with its place.

A list is hearsay: it says where such machines are, and proves nothing of them.
"""

import csv
import difflib
import io
import json
import re
import uuid as uuids
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from inventory import claims
from inventory.document import MAX_BYTES, Marks, Model, loads, places, words_of
from inventory.errors import BadFile, Fault
from inventory.model import Address, Fabric, HostKey, Node, State, check_mac, check_user

MAX_NODES = 100_000
MAX_LIST_BYTES = 64 * MAX_BYTES
_ARMOUR = "-----BEGIN SSH SIGNATURE-----"
_LISTS = {"macs": " ", "host_keys": ";"}
"""Columns that hold several values, and what stands between these."""
_NUMBERS = ("vmid", "ssh_port")
_ONLY_YAML = ("fabrics",)
_OF_AN_EXPORT = frozenset({"state", "next", "command"})
"""Columns that nobody writes by hand."""
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_TITLE = re.compile(r"[\w -]*")
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")


def _uuid(text: str) -> str:
    try:
        found = uuids.UUID(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a uuid") from None
    if str(found) != text.lower():
        raise ValueError(f"{text!r} should be written {found}")
    if not found.int or found == uuids.UUID(int=2**128 - 1):
        raise ValueError(f"{found} is no machine's uuid")
    return str(found)


def _address(text: str) -> str:
    try:
        found = ip_interface(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address, such as 10.0.0.7 or 10.0.0.7/24") from None
    if found.ip.is_multicast or found.ip.is_unspecified or found.ip.is_link_local or _is_a_networks(found):
        raise ValueError(f"{found.ip} is not the address of a host")
    return str(found) if "/" in text else str(found.ip)


def _is_a_networks(found: IPv4Interface | IPv6Interface) -> bool:
    """Whether it names the whole of its network, or all hosts in it (RFC 1122, section 3.2.1.3)."""
    if found.version == 6 or found.network.prefixlen > 30:
        return False
    return found.ip in {found.network.network_address, found.network.broadcast_address}


def _host_key(text: str) -> str:
    return HostKey.from_line(text).line


def _machine_id(text: str) -> str:
    if not _MACHINE_ID.fullmatch(text):
        raise ValueError(f"{text!r} is not a machine-id (32 hex digits, as in /etc/machine-id)")
    return text


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError(f"{text!r} is not a word of letters, digits, '_', '.' and '-'")
    return text


def _line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("only what can be printed, on one line")
    return text


Name = Annotated[str, AfterValidator(claims.node)]
"""An RFC 1123 label of lower case, at most 63."""
Uuid = Annotated[str, AfterValidator(_uuid)]
"""Of the form 0e1a2b3c-0000-4000-8000-000000000001."""
VmId = Annotated[int, Field(ge=100, le=999_999_999)]
Port = Annotated[int, Field(ge=1, le=65535)]
IpOrCidr = Annotated[str, AfterValidator(_address)]
"""An IP address, with its prefix length where that is known."""
UserName = Annotated[str, AfterValidator(check_user)]
"""A user's name of a-z, 0-9, '_' and '-', at most 32."""
Mac = Annotated[str, AfterValidator(lambda text: check_mac(text.lower()))]
"""Six octets in hex with colons."""
KeyLine = Annotated[str, AfterValidator(_host_key)]
"""A line of a .pub file."""
MachineId = Annotated[str, AfterValidator(_machine_id)]
"""32 hex digits."""
HostWord = Annotated[str, AfterValidator(_word)]
"""Letters, digits, '_', '.' and '-'."""
OneLine = Annotated[str, AfterValidator(_line), Field(max_length=400)]
"""One printable line."""


class FabricEntry(Model):
    """One fast network of a node."""

    name: HostWord
    """Its name in the site file."""
    interface: HostWord | None = None
    """What the node calls it."""
    mac: Mac | None = None
    """The MAC of its card."""
    mtu: Annotated[int, Field(ge=576, le=65535)] | None = None
    """The largest packet."""
    rate_gbps: Annotated[float, Field(gt=0)] | None = None
    """Its speed."""
    address: IpOrCidr | None = None
    """The node's address there."""


class NodeEntry(Model):
    """One node that was joined by hand. In CSV its keys are the columns, all but `fabrics`."""

    name: Name
    """What it is called from now on."""
    uuid: Uuid
    """The SMBIOS uuid of its VM, by which it is found: `smbios1` in Proxmox, `dmidecode -s system-uuid` in it."""
    vmid: VmId | None = None
    """The id of its VM."""
    proxmox_node: HostWord | None = None
    """The Proxmox node that has it."""
    profile: HostWord | None = None
    """The profile of the site file that it is to be like."""
    address: IpOrCidr | None = None
    """Its management address."""
    address_source: Literal["static", "leased"] = "leased"
    """Whether infra chose that address, or a DHCP server did."""
    ssh_port: Port = 22
    """Where its SSH server listens."""
    user: UserName | None = None
    """Who logs in; without it the profile says so when it is adopted."""
    macs: tuple[Mac, ...] = ()
    """Its MACs, the management network's first; in CSV with a space between them."""
    host_keys: tuple[KeyLine, ...] = ()
    """Its SSH host keys as they are thought to be; nobody pins them. In CSV with a `;` between them."""
    machine_id: MachineId | None = None
    """What stands in its /etc/machine-id."""
    fabrics: tuple[FabricEntry, ...] = ()
    """Its fast networks."""
    note: OneLine | None = None
    """Whatever its history should tell: why and by whom it was joined."""

    def as_node(self) -> Node:
        """As the record has it: nobody has given it an identity, and nobody has looked at it."""
        return Node(
            self.name,
            State.AWAITING_IDENTITY,
            uuid=self.uuid,
            vmid=self.vmid,
            proxmox_node=self.proxmox_node,
            profile=self.profile,
            address=_as_address(self.address, self.address_source),
            ssh_port=self.ssh_port,
            user=self.user,
            macs=self.macs,
            host_keys=tuple(map(HostKey.from_line, self.host_keys)),
            machine_id=self.machine_id,
            fabrics=tuple(Fabric(**fabric.model_dump()) for fabric in self.fabrics),
        )


def _some(nodes: tuple[NodeEntry, ...]) -> tuple[NodeEntry, ...]:
    if not nodes:  # after its entries: pydantic's own bound counts those that have no fault
        raise ValueError("there is no node in it")
    return nodes


class NodeList(Model):
    """Nodes that were joined by hand, for node-inventory import."""

    nodes: Annotated[tuple[NodeEntry, ...], AfterValidator(_some)]
    """The nodes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One node of a list. line: where it begins. given: its keys in the file, not its defaults."""

    file: str
    number: int
    told: NodeEntry
    marks: Marks | None
    line: int | str = 0

    @property
    def given(self) -> frozenset[str]:
        """The keys that the file has for it."""
        return frozenset(self.told.model_fields_set)

    def place(self, key: str) -> str:
        """Where a key of it stands: file:line:col, in CSV file:line:column, in an export file:nodes[n]:key."""
        if self.marks is None:
            return f"{self.file}:{self.line}:{key}"
        path = ("nodes", self.number)
        line, column = self.marks.get((*path, key)) or self.marks.get(path) or (1, 1)
        return f"{self.file}:{line}:{column}"


def is_table(text: str) -> bool:
    """Whether its first line is a header row."""
    return _separator(text) is not None


def is_list(text: str) -> bool:
    """Whether it is a list of nodes and no receipt: whatever bears a signature, or is one line of claims, is none."""
    if _ARMOUR in text:
        return False
    return not text.lstrip().startswith("{") or '"nodes"' in text


def read_list(text: str, *, name: str) -> tuple[Entry, ...]:
    """The nodes of a list.

    Raises:
        BadFile: it has faults; every one is told with its place.
    """
    entries, faults = read_entries(text, name=name)
    if faults:
        raise BadFile(name, faults)
    return entries


def read_entries(text: str, *, name: str) -> tuple[tuple[Entry, ...], list[Fault]]:
    """The nodes of a list that can be read, and every fault with its place; in YAML a fault leaves none to be read."""
    text = text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")  # spreadsheets begin a file with it
    try:
        if (separator := _separator(text)) is not None:
            return _read_csv(text, separator, name=name)
        return _read_yaml(text, name=name), []
    except BadFile as error:
        return (), list(error.faults)


def _read_yaml(text: str, *, name: str) -> tuple[Entry, ...]:
    if len(text.encode()) > MAX_BYTES:
        raise BadFile(name, [Fault(name, f"larger than {MAX_BYTES} bytes; split it, or write it as CSV")])
    marks = places(text, name=name)
    if ("nodes",) not in marks and not any(len(path) == 1 and isinstance(path[0], str) for path in marks):
        wanted = "a mapping with `nodes`, or CSV with a header row that has the columns name and uuid"
        raise BadFile(
            name, [Fault(f"{name}:1:1", f"neither a receipt nor a list of nodes: that is {wanted}")]
        )
    found = loads(text, NodeList, name=name, base=Path())
    return tuple(Entry(name, number, told, marks) for number, told in enumerate(found.nodes))


def _as_address(text: str | None, source: Literal["static", "leased"]) -> Address | None:
    if text is None:
        return None
    ip, _, prefix = text.partition("/")
    return Address(ip, int(prefix) if prefix else None, source)


def _separator(text: str) -> str | None:
    """What separates the columns, if the first line is a header row: it has `name` among other words.

    Where a comma stands in numbers, as in German, spreadsheets write `;`.
    """
    first = next((line for line in text.splitlines() if line.strip()), "")
    for separator in ",;\t":
        cells = [cell.strip().strip('"') for cell in first.split(separator)]
        if (
            len(cells) > 1
            and {"name", "uuid"} & {*map(str.lower, cells)}
            and all(map(_TITLE.fullmatch, cells))
        ):
            return separator
    return None


def _read_csv(text: str, separator: str, *, name: str) -> tuple[tuple[Entry, ...], list[Fault]]:
    if len(text.encode()) > MAX_LIST_BYTES:
        raise BadFile(name, [Fault(name, f"larger than {MAX_LIST_BYTES} bytes")])
    faults: list[Fault] = []
    rows = _rows(text, separator, name, faults)
    start, header = next(rows, (1, []))
    header = [cell.strip() for cell in header]
    if {*header} >= _OF_AN_EXPORT:
        why = "export --format csv is for spreadsheets and lacks facts; import an export of --format json"
        return (), [Fault(f"{name}:{start}:state", why)]
    faults += _header_faults(header, f"{name}:{start}")
    entries: list[Entry] = []
    for line, row in rows:
        if len(row) != len(header):
            why = f"{len(row)} cells, and the header row has {len(header)}"
            faults.append(Fault(f"{name}:{line}:{header[-1]}", why))
            continue
        cells = dict(zip(header, map(str.strip, row), strict=True))
        told = _entry(cells, f"{name}:{line}", faults)
        if told is not None:
            entries.append(Entry(name, len(entries), told, None, line))
    if not entries and not faults:
        faults.append(Fault(f"{name}:{start}:name", "there is no node below the header row"))
    if len(entries) > MAX_NODES:
        faults.append(Fault(name, f"more than {MAX_NODES} nodes; split it"))
    return tuple(entries), faults


def _rows(text: str, separator: str, name: str, faults: list[Fault]) -> Iterator[tuple[int, list[str]]]:
    """Each row with the line that it begins in; blank ones are left out."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            faults.append(Fault(f"{name}:{line}", f"not CSV: {error}"))
            return
        if any(map(str.strip, row)):
            yield line, row


def _header_faults(header: list[str], place: str) -> Iterator[Fault]:
    known = [key for key in NodeEntry.model_fields if key not in _ONLY_YAML]
    nearly = set[str]()
    for column in dict.fromkeys(header):
        if column in _ONLY_YAML:
            yield Fault(f"{place}:{column}", f"{column}: CSV has no room for it; write the list as YAML")
        elif column not in known:
            near = difflib.get_close_matches(column.lower(), known, n=1)
            nearly.update(near)
            hint = f" (did you mean {near[0]}?)" if near else ""
            yield Fault(
                f"{place}:{column or '-'}", f"{column or 'a column without a name'}: unknown column{hint}"
            )
        if header.count(column) > 1:
            yield Fault(f"{place}:{column}", f"{column}: the column is there twice")
    for column in ("name", "uuid"):
        if column not in {*header, *nearly}:
            yield Fault(f"{place}:{column}", f"{column}: required column is missing")


def _entry(cells: dict[str, str], place: str, faults: list[Fault]) -> NodeEntry | None:
    """The node of a row; an empty cell says nothing. What the header row lacks or misspells is told there."""
    plain: dict[str, Any] = {
        key: _plain(key, text) for key, text in cells.items() if text and key in NodeEntry.model_fields
    }
    try:
        return NodeEntry.model_validate_json(json.dumps(plain))
    except ValidationError as error:
        for detail in error.errors():
            key = str(detail["loc"][0])
            if detail["type"] != "missing":
                faults.append(Fault(f"{place}:{key}", f"{key}: {words_of(detail)}"))
            elif key in cells:
                faults.append(Fault(f"{place}:{key}", f"{key}: required, and the cell is empty"))
        return None


def _plain(key: str, text: str) -> object:
    if key in _LISTS:
        return [item.strip() for item in text.split(_LISTS[key]) if item.strip()]
    return int(text) if key in _NUMBERS and text.isascii() and text.isdecimal() and len(text) < 12 else text
