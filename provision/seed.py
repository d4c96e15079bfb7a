"""A node's own cloud-init disc (NoCloud): its texts, and the ISO image of them, made in memory; asks nobody.

The one module that knows pycdlib. The disc stands in the slot of Proxmox's own cloud-init drive, never beside it:
of two discs labelled `cidata`, cloud-init takes the one whose device name sorts last (DataSourceNoCloud), which
depends on how the kernel numbered them. Its instance-id is the one that Proxmox's own drive would have. So when
that drive comes back after the first boot, it is the same instance to cloud-init: host keys stay as they are, also
in guests that would take no disc at all for a new instance (datasource None).
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from ipaddress import ip_interface
from typing import Any

import pycdlib
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from inventory.errors import OtherSide
from provision.config import mac_of
from provision.properties import Config, decode_keys, split
from provision.user_data import CLOUD_CONFIG, UserData

LABEL = "cidata"
MAX_DISC_BYTES = 4 * 1024 * 1024
"""More than any disc takes: texts of at most 1 MiB of the user's, some KiB of ours, and what ISO 9660 adds."""

_BOUNDARY = "===============muster=="  # a boundary drawn at random would make each disc another one


@dataclass(frozen=True, slots=True)
class Dns:
    """What Proxmox tells guests of name servers: the VM's own, else its host's."""

    servers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProxmoxFiles:
    """What Proxmox's own drive would hold (`GET .../cloudinit/dump`). user: maybe with a password's hash."""

    user: str = field(repr=False)
    meta: str
    network: str


def disc(config: Config, user_data: UserData, own: ProxmoxFiles) -> bytes:
    """The whole disc of a VM with this config.

    Raises:
        OtherSide: Proxmox's files are not what a NoCloud drive holds.
    """
    return image(
        {
            "meta-data": json.dumps({"instance-id": instance_id(own.meta)}),
            "network-config": json.dumps(network_config(config, dns_of(own.network)), indent=1),
            "user-data": merged(user_data, own_part(config, own.user)),
        }
    )


def image(files: Mapping[str, str]) -> bytes:
    """An ISO 9660 image with Joliet and Rock Ridge names; Linux reads the latter."""
    iso = pycdlib.PyCdlib()
    iso.new(interchange_level=3, vol_ident=LABEL, joliet=3, rock_ridge="1.09")
    for name, text in files.items():
        data = text.encode()
        plain = f"/{name.upper().replace('-', '_')}.;1"
        iso.add_fp(io.BytesIO(data), len(data), plain, rr_name=name, joliet_path=f"/{name}")
    made = io.BytesIO()
    iso.write_fp(made)
    iso.close()
    return made.getvalue()


def merged(user_data: UserData, own: Mapping[str, Any]) -> str:
    """Both as one multipart user-data: the user's part, then ours, which cloud-init lets win where both speak."""
    whole = MIMEMultipart(boundary=_BOUNDARY)
    kind = "x-shellscript" if user_data.is_script else "cloud-config"
    whole.attach(_part(user_data.text, kind, "user-data"))
    # Proxmox's [default] would take the place of the users that the file adds; it has default among them.
    ours = {key: value for key, value in own.items() if key != "users" or not user_data.sets_users}
    whole.attach(_part(f"{CLOUD_CONFIG}\n{json.dumps(ours, indent=1)}\n", "cloud-config", "muster"))
    return whole.as_string()


def own_part(config: Config, user: str) -> Mapping[str, Any]:
    """What Proxmox's own user-data says: the login user, its keys and the VM's name.

    Raises:
        OtherSide: it is not what the config has.
    """
    found = _yaml(user)
    if not isinstance(found, dict) or not user.startswith(CLOUD_CONFIG):
        raise _odd("user-data", "it is no cloud-config")
    keys = tuple(str(key).strip() for key in found.get("ssh_authorized_keys") or ())
    if str(found.get("user")) != str(config.get("ciuser")) or keys != decode_keys(
        str(config.get("sshkeys", ""))
    ):
        raise _odd("user-data", "its login user or keys are not those of the VM's config")
    return found


def network_config(config: Config, dns: Dns) -> dict[str, Any]:
    """Version 2, saying what Proxmox's own drive says in version 1: NICs with an ipconfigN, by their MACs."""
    ethernets: dict[str, Any] = {}
    for index in range(32):
        text, mac = str(config.get(f"ipconfig{index}", "")).strip(), mac_of(config, index)
        if text and mac:
            name = f"eth{index}"
            nic = {"match": {"macaddress": mac}, "set-name": name, **_addresses(split(text))}
            if dns.servers or dns.search:
                nic["nameservers"] = {"addresses": list(dns.servers), "search": list(dns.search)}
            ethernets[name] = nic
    return {"version": 2, "ethernets": ethernets}


def instance_id(meta: str) -> str:
    """The instance-id of Proxmox's own meta-data.

    Raises:
        OtherSide: it holds none.
    """
    found = _yaml(meta)
    name = found.get("instance-id") if isinstance(found, dict) else None
    if not name:
        raise _odd("meta-data", "it has no instance-id")
    return str(name)


def dns_of(network: str) -> Dns:
    """The name servers of Proxmox's own network-config (version 1).

    Raises:
        OtherSide: it is not one.
    """
    found = _yaml(network)
    rows = found.get("config") if isinstance(found, dict) else None
    if not isinstance(found, dict) or found.get("version") != 1 or not isinstance(rows, list | None):
        raise _odd("network-config", "it is not of version 1")
    named = [row for row in rows or () if isinstance(row, dict) and row.get("type") == "nameserver"]
    return Dns(
        tuple(str(server) for row in named for server in row.get("address") or ()),
        tuple(str(domain) for row in named for domain in row.get("search") or ()),
    )


def _part(text: str, kind: str, name: str) -> Message:
    part = MIMEText(text, kind, "utf-8")
    part.add_header("Content-Disposition", "attachment", filename=name)
    return part


def _addresses(ipconfig: Mapping[str, str]) -> dict[str, Any]:
    """A NIC's addresses. The way out is spelled as a prefix: older cloud-inits do not know the word default."""
    nic: dict[str, Any] = {}
    addresses, routes = [], []
    for key, gateway, everywhere in (("ip", "gw", "0.0.0.0/0"), ("ip6", "gw6", "::/0")):
        value = ipconfig.get(key, "")
        if value == "dhcp":
            nic["dhcp4" if key == "ip" else "dhcp6"] = True
        elif value == "auto":
            nic["accept-ra"] = True
        elif value:
            addresses.append(str(ip_interface(value)))
            if ipconfig.get(gateway):
                routes.append({"to": everywhere, "via": ipconfig[gateway]})
    if addresses:
        nic["addresses"] = addresses
    if routes:
        nic["routes"] = routes
    return nic


def _yaml(text: str) -> Any:  # noqa: ANN401 - whatever stands there
    try:
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError):
        return None


def _odd(what: str, why: str) -> OtherSide:
    return OtherSide(
        f"the {what} that Proxmox writes for this VM is not understood",
        why=f"{why}; Muster makes its disc by it",
        next_step="see that the template has no citype or cicustom of its own, then run the command again",
    )
