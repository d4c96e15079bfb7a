"""The kinds of value that site.yaml holds; what ends in a Proxmox property string can hold no comma."""

import re
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from inventory.errors import BadInput
from inventory.model import check_node_name, check_user

DEFAULT_PORT = 8006
Interface = IPv4Interface | IPv6Interface

_BRIDGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_POOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*")
_SHA256 = re.compile(r"[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){31}")
_SHA256_HEX = re.compile(r"[0-9A-Fa-f]{64}")
_IMAGE_FILE = re.compile(r"/[A-Za-z0-9][A-Za-z0-9_.+-]*\.(?:qcow2|raw|img|vmdk)$")
_VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*:[A-Za-z0-9][A-Za-z0-9_.+/-]*")
_CPU_SET = re.compile(r"\d{1,4}(?:-\d{1,4})?(?:[;,]\d{1,4}(?:-\d{1,4})?)*")
_MACHINE = re.compile(r"(?:pc|q35|pc-(?:i440fx|q35)-\d+\.\d+(?:\+pve\d+)?)(?:,viommu=(?:intel|virtio))?")
_CPU = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(?:,flags=[+-][a-z0-9-]+(?:;[+-][a-z0-9-]+)*)?")
_FABRIC = re.compile(r"[a-z0-9][a-z0-9-]{0,14}")


def _matches(pattern: re.Pattern[str], meaning: str) -> AfterValidator:
    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"{text!r} is not {meaning}")
        return text

    return AfterValidator(check)


def _url(text: str) -> str:
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{text!r} has no valid port") from None
    if parts.scheme != "https" or not parts.hostname:
        raise ValueError(f"{text!r} is not of the form https://host:8006; there is no plain http")
    if parts.username or parts.password or parts.query or parts.fragment or parts.path not in {"", "/"}:
        raise ValueError(f"{text!r} holds more than https://host:port")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"https://{host}:{port or DEFAULT_PORT}"


def _node_name(text: str) -> str:
    try:
        return check_node_name(text)
    except BadInput as error:
        raise ValueError(f"{error.what}: {error.why}") from None


def _host_address(text: str) -> str:
    try:
        found = ip_interface(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an address with its prefix length, such as 10.0.0.7/24") from None
    if "/" not in text:
        raise ValueError(f"{text!r} lacks the prefix length, such as {text}/24")
    edges = {found.network.network_address, found.network.broadcast_address}
    if found.version == 4 and found.network.prefixlen < 31 and found.ip in edges:
        raise ValueError(f"{found.ip} is the network or the broadcast address of {found.network}")
    return str(found)


def _ip(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address") from None


def _fingerprint(text: str) -> str:
    if not _SHA256.fullmatch(text):
        raise ValueError(
            "a fingerprint is the SHA-256 of the certificate, 32 octets in hex with colons, AB:CD:..."
        )
    return text.upper()


def _image_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.password:
        raise ValueError(f"{text!r} is not of the form https://host/file.qcow2, without a password in it")
    if not _IMAGE_FILE.search(parts.path):
        raise ValueError(f"{text!r} does not end in .qcow2, .raw, .img or .vmdk")
    return text


Url = Annotated[str, AfterValidator(_url)]
"""https://host:8006, and no more; 8006 where no port is named."""
NodeName = Annotated[str, AfterValidator(_node_name)]
"""A node's name: an RFC 1123 label of lower case, at most 63."""
HostAddress = Annotated[str, AfterValidator(_host_address)]
"""An address with its prefix length, such as 10.0.0.7/24."""
Ip = Annotated[str, AfterValidator(_ip)]
"""An IP address."""
User = Annotated[str, AfterValidator(check_user)]
"""A user's name of a-z, 0-9, '_' and '-', at most 32."""
Fingerprint = Annotated[str, AfterValidator(_fingerprint)]
"""32 octets in hex with colons, AB:CD:..."""
Sha256 = Annotated[str, _matches(_SHA256_HEX, "a SHA-256 in hex (64 digits)")]
"""64 hex digits."""
ImageUrl = Annotated[str, AfterValidator(_image_url)]
"""Ends in .qcow2, .raw, .img or .vmdk; no password in it."""
Volume = Annotated[str, _matches(_VOLUME, "a volume of a storage, such as local:import/debian-12.qcow2")]
"""Of the form local:import/debian-12.qcow2."""
CpuSet = Annotated[str, _matches(_CPU_SET, "a set of CPUs, such as 0-31")]
"""A set of CPUs, such as 0-31 or 0-31;64-95."""
Machine = Annotated[str, _matches(_MACHINE, "a machine type of Proxmox, such as q35 or pc-q35-9.2")]
"""Such as q35 or pc-q35-9.2."""
Cpu = Annotated[str, _matches(_CPU, "a CPU type of Proxmox, such as host or host,flags=+pcid")]
"""Such as host or host,flags=+pcid."""
Bridge = Annotated[str, _matches(_BRIDGE, "a bridge's name")]
"""At most 15 of letters, digits, '_', '.' and '-'."""
Word = Annotated[str, _matches(_WORD, "a word of letters, digits, '_', '.' and '-'")]
"""Letters, digits, '_', '.' and '-'."""
Pool = Annotated[str, _matches(_POOL, "a pool's name")]
"""Letters, digits, '_', '.', '-' and '/'."""
FabricName = Annotated[str, _matches(_FABRIC, "1 to 15 of a-z, 0-9 and '-'")]
"""1 to 15 of a-z, 0-9 and '-'."""
VmId = Annotated[int, Field(ge=100, le=999_999_999)]
