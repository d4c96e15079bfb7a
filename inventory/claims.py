"""The checks that each field of a ticket or receipt must pass, whoever signed it (pure).

A signer's key may be stolen and a signer may err: nothing that is shown, dialled or put into a command is
taken in another form than it must have.
"""

import base64
import binascii
import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

from inventory.errors import BadInput
from inventory.model import Address, Fabric, HostKey, check_mac, check_node_name, check_user

MIN_RSA_BITS = 2048
MAX_RSA_BITS = 16384
MAX_ITEMS = 64
"""The most that a list of a ticket holds."""
T = TypeVar("T")
_ED25519 = "ssh-ed25519"
_POINTS = {"ecdsa-sha2-nistp256": 65, "ecdsa-sha2-nistp384": 97, "ecdsa-sha2-nistp521": 133}
_HEX = re.compile(r"[0-9a-f]{1,128}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PRINTABLE = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?")
_FABRIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")
_FOLDER = re.compile(r"(/[A-Za-z0-9._-]+)+")


def node(text: str) -> str:
    """A node's name."""
    try:
        return check_node_name(text)
    except BadInput as error:
        raise ValueError(f"{text[:80]!a} cannot name a node: {error.why}") from None


def user(text: str) -> str:
    """A login user's name, which goes into commands."""
    return check_user(text)


def hexadecimal(text: str) -> str:
    """Lower-case hex, at most 128 digits."""
    return _match(_HEX, text, "is not lower-case hex of at most 128 digits")


def uuid(text: str) -> str:
    """A machine's uuid in lower case; all zeros is what firmware says that has none."""
    _match(_UUID, text, "is not a lower-case uuid")
    if not text.strip("0-"):
        raise ValueError(f"{text} is no machine's uuid")
    return text


def words(text: str) -> str:
    """One line of printable ASCII, 1 to 255, that neither begins nor ends with a blank."""
    return _match(
        _PRINTABLE, text, "is empty, too long, holds what cannot be printed, or has a blank at an end"
    )


def folder(text: str) -> str:
    """An absolute path of plain words."""
    if not _FOLDER.fullmatch(text) or {".", ".."} & set(text.split("/")):
        raise ValueError(f"{text[:80]!a} is not an absolute path of plain words")
    return text


def port(number: int) -> int:
    """A TCP port."""
    return _between(number, 1, 65535, "port")


def vmid(number: int) -> int:
    """A VM's id, as Proxmox allows it."""
    return _between(number, 100, 999_999_999, "vmid")


def macs(items: tuple[str, ...]) -> tuple[str, ...]:
    """MAC addresses, each once."""
    for item in _few(items):
        check_mac(item)
    return items


def ids(items: tuple[str, ...]) -> tuple[str, ...]:
    """Ids of other tickets."""
    for item in _few(items):
        hexadecimal(item)
    return items


def address(value: Address) -> Address:
    """An address that one host can have and another can dial; whether loopback will do is the policy's matter."""
    ip = ipaddress.ip_address(value.ip)
    if getattr(ip, "scope_id", None):
        raise ValueError(f"{ip} has a zone, which means nothing on another host (RFC 4007)")
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        raise ValueError(f"{ip} should be written {ip.ipv4_mapped}")
    if ip.is_multicast or ip.is_unspecified or ip.is_link_local or (ip.version == 4 and ip.is_reserved):
        raise ValueError(f"{ip} is no node's address")
    return value


def host_keys(items: tuple[HostKey, ...]) -> tuple[HostKey, ...]:
    """At least one host key, each of a kind that is worth a pin."""
    if not items:
        raise ValueError("it pins no SSH host key")
    for item in _few(items):
        if fault := weakness(item):
            raise ValueError(fault)
    return items


def fabrics(items: tuple[Fabric, ...]) -> tuple[Fabric, ...]:
    """Fabrics whose every word may go into a file of the node; each name once."""
    for item in items:
        _fabric(item)
    _few(tuple(item.name for item in items))
    return items


def moment(value: datetime) -> datetime:
    """A time in UTC."""
    if value.utcoffset() != timedelta(0):
        raise ValueError("a time is not in UTC")
    return value


def weakness(key: HostKey) -> str | None:
    """Why a host key is not worth a pin; None if it is."""
    try:
        parts = _parts(base64.b64decode(key.base64, validate=True))
    except (binascii.Error, ValueError):
        return f"the {key.type} host key is broken"
    if key.type == _ED25519:
        sound = len(parts) == 2 and len(parts[1]) == 32
    elif key.type in _POINTS:
        curve = key.type.rpartition("-")[2].encode()
        sound = len(parts) == 3 and parts[1] == curve and len(parts[2]) == _POINTS[key.type]
    elif key.type == "ssh-rsa":
        sound = len(parts) == 3
        bits = int.from_bytes(parts[2], "big").bit_length() if sound else 0
        if sound and not MIN_RSA_BITS <= bits <= MAX_RSA_BITS:
            return f"an RSA host key has {bits} bits, and {MIN_RSA_BITS} to {MAX_RSA_BITS} are taken"
    else:
        return f"a host key is of type {key.type}; {', '.join((_ED25519, *_POINTS, 'ssh-rsa'))} are taken"
    return None if sound else f"the {key.type} host key is broken"


def faults(value: object, checks: Mapping[str, Callable[[Any], object]]) -> list[str]:
    """What the checks, by the name of a field, say against a value's fields; what is absent is checked by nobody."""
    found = []
    for name, check in checks.items():
        claim = getattr(value, name)
        if claim is None:
            continue
        try:
            check(claim)
        except ValueError as error:
            found.append(f"{name}: {error}")
    return found


def _fabric(item: Fabric) -> None:
    _match(_FABRIC, item.name, "cannot name a fabric")
    if item.interface is not None:
        _match(_INTERFACE, item.interface, "cannot name an interface")
    if item.mtu is not None:
        _between(item.mtu, 576, 65535, "mtu")
    if item.rate_gbps is not None and not (math.isfinite(item.rate_gbps) and 0.001 <= item.rate_gbps <= 1e6):
        raise ValueError(f"{item.name}: rate_gbps is not between 0.001 and 1000000")
    if item.address is not None:
        try:
            if str(ipaddress.ip_interface(item.address)) != item.address:
                raise ValueError
        except ValueError:
            raise ValueError(f"{item.address[:80]!a} is not an address with its prefix") from None


def _match(pattern: re.Pattern[str], text: str, fault: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"{text[:80]!a} {fault}")
    return text


def _between(number: int, least: int, most: int, what: str) -> int:
    if not least <= number <= most:
        raise ValueError(f"{what} {number} is not between {least} and {most}")
    return number


def _few(items: tuple[T, ...]) -> tuple[T, ...]:
    if len(items) > MAX_ITEMS:
        raise ValueError(f"there are {len(items)}, and {MAX_ITEMS} are the most")
    if len(set(items)) != len(items):
        raise ValueError("one is there twice")
    return items


def _parts(blob: bytes) -> list[bytes]:
    """The strings of a key's blob (RFC 4251, section 5)."""
    parts = []
    while blob:
        size = int.from_bytes(blob[:4], "big")
        if len(blob) < 4 + size:
            raise ValueError("a part is cut short")
        parts.append(blob[4 : 4 + size])
        blob = blob[4 + size :]
    return parts
