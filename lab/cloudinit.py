"""What Proxmox writes on a VM's cloud-init drive, from the VM's config; pure, as a real host renders it."""

import hashlib
import ipaddress
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Config = Mapping[str, object]

HIDDEN = "**********"  # what is told of a password

_PLAIN_KEYS = frozenset(
    {
        "cicustom",
        "cipassword",
        "citype",
        "ciupgrade",
        "ciuser",
        "nameserver",
        "searchdomain",
        "sshkeys",
    }
)
_NUMBERED = re.compile(r"ipconfig\d+")
_PUBLIC_KEY = re.compile(r"(\S.*\s)?(ssh|ecdsa|sk)-[A-Za-z0-9@.-]+\s+[A-Za-z0-9+/]+={0,3}(\s.*)?")


@dataclass(frozen=True, slots=True)
class Seed:
    """The three files of the drive; `instance_id` (SHA-1, hex) changes when their data does."""

    user: str
    network: str
    meta: str
    instance_id: str


def is_cloudinit_key(key: str) -> bool:
    """Whether a config key belongs to cloud-init (privilege VM.Config.Cloudinit)."""
    return key in _PLAIN_KEYS or _NUMBERED.fullmatch(key) is not None


def ssh_keys(config: Config) -> tuple[str, ...]:
    """The public keys of a config, whose `sshkeys` is kept percent-encoded."""
    text = urllib.parse.unquote(str(config.get("sshkeys", "")))
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def are_public_keys(encoded: str) -> bool:
    """Whether every line of a percent-encoded `sshkeys` looks like an OpenSSH public key."""
    keys = ssh_keys({"sshkeys": encoded})
    return bool(keys) and all(_PUBLIC_KEY.fullmatch(key) for key in keys)


def properties(text: object) -> dict[str, str]:
    """The `key=value` parts of a property string; a part without a key is left out."""
    pairs = (part.partition("=") for part in str(text).split(","))
    return {key: value for key, equals, value in pairs if equals}


def nics(config: Config) -> tuple[tuple[int, str, str], ...]:
    """(number, MAC in lower case, bridge) of every netN, in their order."""
    found = []
    for key, value in config.items():
        if (match := re.fullmatch(r"net(\d+)", key)) is None:
            continue
        parts = properties(value)
        mac = next((v for v in parts.values() if re.fullmatch(r"([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}", v)), "")
        found.append((int(match[1]), mac.lower(), parts.get("bridge", "")))
    return tuple(sorted(found))


def static_address(config: Config) -> str | None:
    """The `ip` of ipconfig0 as CIDR, or None for DHCP."""
    address = properties(config.get("ipconfig0", "")).get("ip", "dhcp")
    return None if address == "dhcp" else address


def machine_uuid(config: Config) -> str:
    """The uuid of `smbios1`, or nothing."""
    return properties(config.get("smbios1", "")).get("uuid", "").lower()


def seed(config: Config, *, name: str) -> Seed:
    """Render the drive's files for a VM called `name`."""
    user = "\n".join(_user_lines(config, name)) + "\n"
    network = "\n".join(_network_lines(config)) + "\n"
    instance_id = hashlib.sha1((user + network).encode(), usedforsecurity=False).hexdigest()
    return Seed(user, network, f"instance-id: {instance_id}\n", instance_id)


def differences(config: Config, written: Config | None) -> list[dict[str, object]]:
    """Each cloud-init key of the config (pending) against the drive as last written (value).

    As long as no drive was ever written, nothing is pending.
    """
    if written is None:
        return [{"key": key, "value": _told(config, key)} for key in sorted(_PLAIN_KEYS & config.keys())]
    rows: list[dict[str, object]] = []
    for key in sorted(filter(is_cloudinit_key, {*config, *written})):
        row: dict[str, object] = {"key": key}
        if key in written:
            row["value"] = _told(written, key)
        if key not in config:
            row["delete"] = 1
        elif config[key] != written.get(key):
            row["pending"] = _told(config, key)
        rows.append(row)
    return rows


def _told(config: Config, key: str) -> str:
    return HIDDEN if key == "cipassword" else str(config[key])


def _user_lines(config: Config, name: str) -> Iterator[str]:
    short = name.partition(".")[0]
    yield from (
        "#cloud-config",
        f"hostname: {short}",
        "manage_etc_hosts: true",
        f"fqdn: {_fqdn(config, name)}",
    )
    if user := config.get("ciuser"):
        yield f"user: {user}"
    if password := config.get("cipassword"):
        yield f"password: {password}"
    if keys := ssh_keys(config):
        yield "ssh_authorized_keys:"
        yield from (f"  - {key}" for key in keys)
    yield from ("chpasswd:", "  expire: False", "users:", "  - default")
    if str(config.get("ciupgrade", "1")) != "0":
        yield "package_upgrade: true"


def _fqdn(config: Config, name: str) -> str:
    domain = str(config.get("searchdomain", "")).split()
    return name if "." in name or not domain else f"{name}.{domain[0]}"


def _network_lines(config: Config) -> Iterator[str]:
    yield from ("version: 1", "config:")
    for number, mac, _bridge in nics(config):
        yield from ("    - type: physical", f"      name: eth{number}", f"      mac_address: '{mac}'")
        address = properties(config.get(f"ipconfig{number}", ""))
        if not address:
            continue
        yield "      subnets:"
        if address.get("ip") == "dhcp":
            yield "      - type: dhcp4"
        elif "ip" in address:
            interface = ipaddress.IPv4Interface(address["ip"])
            yield "      - type: static"
            yield f"        address: '{interface.ip}'"
            yield f"        netmask: '{interface.netmask}'"
            if "gw" in address:
                yield f"        gateway: '{address['gw']}'"
        if six := address.get("ip6"):
            kinds = {"dhcp": "dhcp6", "auto": "ipv6_slaac"}
            yield f"      - type: {kinds.get(six, 'static6')}"
            if six not in kinds:
                yield f"        address: '{six}'"
            if six not in kinds and "gw6" in address:
                yield f"        gateway: '{address['gw6']}'"
    servers, domains = str(config.get("nameserver", "")).split(), str(config.get("searchdomain", "")).split()
    if servers or domains:
        yield from ("    - type: nameserver", "      address:")
        yield from (f"      - '{server}'" for server in servers)
        yield "      search:"
        yield from (f"      - '{domain}'" for domain in domains)
