"""What the guest agent says, taken apart: addresses, cloud-init's result, host keys, machine-id (pure)."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Literal

from inventory.errors import Refused
from inventory.model import HostKey

CLOUD_INIT_RESULT = "/run/cloud-init/result.json"
CLOUD_INIT_STATUS = "/run/cloud-init/status.json"
MACHINE_ID = "/etc/machine-id"
HOST_KEYS = (
    "/etc/ssh/ssh_host_ed25519_key.pub",
    "/etc/ssh/ssh_host_ecdsa_key.pub",
    "/etc/ssh/ssh_host_rsa_key.pub",
)
READABLE = frozenset({CLOUD_INIT_RESULT, CLOUD_INIT_STATUS, MACHINE_ID, *HOST_KEYS})
"""The files that we read in a guest. The agent reads as root, private keys too, so there is no other."""

Family = Literal[4, 6]
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")
_LINK_LOCAL_MAC = "00:00:00:00:00:00"
_LOCALHOST = frozenset({IPv4Address("127.0.0.1"), IPv6Address("::1")})


@dataclass(frozen=True, slots=True)
class Seen:
    """The management address. ip: canonical text. prefix: bits."""

    ip: str
    prefix: int | None


@dataclass(frozen=True, slots=True)
class CloudInit:
    """How cloud-init stands. done: it has ended. errors: it failed; warnings: it recovered (degraded)."""

    done: bool
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def check_readable(path: str) -> None:
    """Refuse every file but the listed ones, before anything is asked.

    Raises:
        Refused: the path is not in the list.
    """
    if path not in READABLE:
        raise Refused(
            f"{path} was not read in the guest",
            why="the guest agent reads as root; Muster asks it for a fixed list of files only",
            next_step="nothing: this is a bug if you did not change the program",
        )


def management_address(
    interfaces: Sequence[Mapping[str, Any]], mac: str, *, wanted: str | None, family: Family | None = None
) -> Seen | None:
    """The address on the NIC with this MAC; None while there is none that serves.

    mac: case does not matter. wanted: a static address, which then has to be the one. family: only such
    addresses, for one of the other family may be there sooner. Otherwise IPv4 goes before IPv6, and what
    serves nobody else (link-local, APIPA, localhost, multicast) is passed over.
    """
    usable: list[Seen] = []
    for interface in interfaces:
        if str(interface.get("hardware-address", "")).lower() != mac.lower() or interface.get("name") == "lo":
            continue
        for entry in interface.get("ip-addresses") or ():
            try:
                ip = ip_address(str(entry.get("ip-address", "")).partition("%")[0])
            except ValueError:
                continue
            seen = Seen(str(ip), entry.get("prefix"))
            if wanted is not None:
                if seen.ip == wanted:
                    return seen
            elif _serves(ip) and family in {None, ip.version}:
                usable.append(seen)
    return min(usable, key=lambda seen: ":" in seen.ip, default=None)


def addresses_seen(interfaces: Sequence[Mapping[str, Any]]) -> str:
    """Every NIC and its addresses, for the message of a wait that gave up."""
    told = []
    for interface in interfaces:
        if interface.get("hardware-address") not in {None, _LINK_LOCAL_MAC}:
            ips = [str(entry.get("ip-address")) for entry in interface.get("ip-addresses") or ()]
            told.append(
                f"{interface.get('name')} ({interface['hardware-address']}): {', '.join(ips) or 'no address'}"
            )
    return "; ".join(told) or "no NIC"


def interface_of(interfaces: Sequence[Mapping[str, Any]], mac: str) -> str | None:
    """The name that the guest gives the NIC with this MAC."""
    for interface in interfaces:
        if str(interface.get("hardware-address", "")).lower() == mac.lower():
            name = interface.get("name")
            return None if name is None else str(name)
    return None


def cloud_init(result: str | None, status: str | None) -> CloudInit | None:
    """How cloud-init stands by its result.json and status.json; None if it has left neither.

    Errors in result.json make it fail (`cloud-init status` ends with 1); recoverable errors leave it
    degraded (2), which is success with warnings.
    """
    ended, going = _v1(result), _v1(status)
    if ended is None:
        return None if going is None else CloudInit(done=False)
    recovered: list[str] = []
    for part in (ended, *(value for value in (going or {}).values() if isinstance(value, Mapping))):
        for severity, lines in (part.get("recoverable_errors") or {}).items():
            recovered += [f"{severity}: {line}" for line in lines]
    errors = tuple(str(error) for error in ended.get("errors") or ())
    return CloudInit(done=True, errors=errors, warnings=tuple(dict.fromkeys(recovered)))


def host_key(text: str | None) -> HostKey | None:
    """The key of a .pub file; None if it is absent, empty or not one."""
    try:
        return HostKey.from_line((text or "").strip().splitlines()[0])
    except (ValueError, IndexError):
        return None


def machine_id(text: str | None) -> str | None:
    """The machine-id (machine-id(5)); None if it is absent, or `uninitialized` as before the first boot."""
    word = (text or "").strip()
    return word if _MACHINE_ID.fullmatch(word) else None


def _serves(ip: IPv4Address | IPv6Address) -> bool:
    # Other loopback addresses serve: a NIC that is not `lo` may have one where many machines share one host.
    return not (ip.is_link_local or ip.is_unspecified or ip.is_multicast or ip in _LOCALHOST)


def _v1(text: str | None) -> Mapping[str, Any] | None:
    try:
        found = json.loads(text or "")
    except ValueError:
        return None
    part = found.get("v1") if isinstance(found, dict) else None
    return part if isinstance(part, dict) else None
