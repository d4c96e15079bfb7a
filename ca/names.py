"""Names that may be certified: host names and SPIFFE identifiers, checked as text (pure)."""

import ipaddress
import re

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_NAME = 253
"""Octets of a host name without its trailing dot (RFC 1035, section 2.3.4)."""

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_TRUST_DOMAIN = re.compile(r"[a-z0-9._-]{1,255}")
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")


def check_host_name(text: str) -> str:
    """A lower-case LDH host name (RFC 1123, section 2.1; RFC 5890, section 2.3.1), without a trailing dot.

    A last label of digits is refused, for it would make the name look like an address (RFC 3696, section 2).

    Raises:
        ValueError: it is not one.
    """
    labels = text.split(".")
    if len(text) > MAX_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{text!r} is not a host name of lower-case letters, digits, '-' and '.'")
    if labels[-1].isdigit():
        raise ValueError(f"{text!r} is not a host name: its last label has only digits")
    return text


def check_trust_domain(text: str) -> str:
    """A SPIFFE trust domain (SPIFFE-ID, section 2.1): at most 255 of a-z, 0-9, '.', '-' and '_'.

    Raises:
        ValueError: it is not one.
    """
    if not _TRUST_DOMAIN.fullmatch(text):
        raise ValueError(f"{text!r} is not a SPIFFE trust domain: 1 to 255 of a-z, 0-9, '.', '-' and '_'")
    return text


def check_spiffe_id(text: str) -> tuple[str, str]:
    """Trust domain and path of a workload's SPIFFE identifier (SPIFFE-ID, sections 2.1 to 2.4).

    Raises:
        ValueError: it is not one, or it has no path (X509-SVID, section 3.1: a leaf needs one).
    """
    scheme, _, rest = text.partition("://")
    domain, slash, path = rest.partition("/")
    if scheme != "spiffe" or len(text) > 2048:
        raise ValueError(f"{text!r} is not a SPIFFE identifier of at most 2048 octets")
    check_trust_domain(domain)
    if not slash or not all(
        _SEGMENT.fullmatch(segment) and segment not in {".", ".."} for segment in path.split("/")
    ):
        raise ValueError(f"{text!r} has no path of segments made of letters, digits, '.', '-' and '_'")
    return domain, path


def check_name_pattern(text: str) -> str:
    """A host name with {node} in its first label, such as {node}.nodes.lab.example.

    Only there, because what follows the first label is what the authority is constrained to.

    Raises:
        ValueError: it is not one.
    """
    first, _, base = text.partition(".")
    if first.count("{node}") != 1 or not base:
        raise ValueError(f"{text!r} must have {{node}} once in its first label, and a domain after it")
    check_host_name(text.replace("{node}", "n"))
    return text


def base_domain(pattern: str) -> str:
    """The domain below which all names of a pattern lie."""
    return pattern.partition(".")[2]


def parse_network(text: str) -> IPNetwork:
    """An address range in CIDR form.

    Raises:
        ValueError: it is not one, or has bits set beyond its prefix (the range meant is then named).
    """
    try:
        loose = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is not an address range like 10.0.0.0/16") from None
    if "/" not in text:
        raise ValueError(f"{text!r} has no prefix length; write {loose} for this one address")
    if str(loose) != text:
        raise ValueError(f"{text!r} is written {loose}")
    return loose
