"""The lab's world: keys, token, site file, policy and authority, as two teams would have them; all throw-away."""

import ipaddress
import json
import secrets
import subprocess
import uuid
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from inventory.errors import OtherSide
from inventory.files import write_whole
from inventory.passport.dsse import NAMESPACE as PASSPORT_NAMESPACE
from inventory.ticket import RECEIPT_NAMESPACE, TICKET_NAMESPACE
from lab.nodes import Backend
from lab.places import Places
from lab.scenarios import FIRST_VMID, Template, profiles

PROFILE = "small"
TEMPLATE_DISK_GIB = 4
STORAGE = "local-lvm"
DISCS = "local"  # holds ISO images
TOKEN = "muster@pve!lab"  # noqa: S105 - the token's name, not its secret
TRUST_DOMAIN = "lab.example"
ADDRESSES = "127.20.0.0/16"  # from which every lab claims a /24 of its own

PRIVILEGES = {
    "/vms": (
        "VM.Allocate",
        "VM.Audit",
        "VM.Clone",
        "VM.Config.CDROM",
        "VM.Config.CPU",
        "VM.Config.Cloudinit",
        "VM.Config.Disk",
        "VM.Config.HWType",
        "VM.Config.Memory",
        "VM.Config.Network",
        "VM.Config.Options",
        "VM.GuestAgent.Audit",
        "VM.GuestAgent.FileRead",
        "VM.PowerMgmt",
    ),
    f"/storage/{STORAGE}": ("Datastore.AllocateSpace", "Datastore.Audit"),
    f"/storage/{DISCS}": ("Datastore.Allocate", "Datastore.AllocateTemplate", "Datastore.Audit"),
    "/sdn/zones/localnetwork": ("SDN.Use",),
    "/nodes": ("Sys.Audit",),
}

_KEYGEN_TIMEOUT_S = 20.0


def make_world(
    places: Places,
    backend: Backend,
    *,
    url: str,
    prefix: ipaddress.IPv4Network,
    api_ca: bytes,
    templates: Mapping[int, Template],
) -> str:
    """Write everything that the two teams have before the first node; gives the API token's secret.

    Args:
        places: where all is written.
        backend: what nodes are made of.
        url: of the lab's API.
        prefix: the lab's own network.
        api_ca: the CA that signed the API's certificate, as PEM.
        templates: what is there to clone, by vmid; a profile is written for each.

    Raises:
        OtherSide: ssh-keygen is not there, or failed.
    """
    secret = str(uuid.uuid4())
    infra, holder = new_key(places.infra_key, "infra@lab"), new_key(places.holder_key, "holder@lab")
    signers = '{} namespaces="{}" {}\n'
    files = {
        places.token: f"{TOKEN}={secret}\n",
        places.passphrase: f"{secrets.token_urlsafe(24)}\n",
        places.api_ca: api_ca.decode(),
        places.login_keys: f"{infra}\n{holder}\n",
        places.ticket_signers: signers.format("infra@lab", TICKET_NAMESPACE, infra),
        places.receipt_signers: signers.format(
            "holder@lab", f"{RECEIPT_NAMESPACE},{PASSPORT_NAMESPACE}", holder
        ),
        places.site: _site(places, backend, url=url, prefix=prefix, templates=templates),
        places.policy: _policy(places, backend),
    }
    for path, text in files.items():
        write_whole(path, text.encode())
    return secret


def make_authority(places: Places, *, now: datetime) -> None:
    """The certificate authority that the policy describes."""
    from ca.authority import Authority
    from ca.keystore import KDF_FLOOR

    passphrase = places.passphrase.read_bytes().strip()
    # More passes would add nothing to 192 random bits, and a second to every start and every onboarding.
    Authority.create(
        places.authority, policy_file=places.policy, passphrase=passphrase, now=now, kdf=KDF_FLOOR
    )


def new_key(path: Path, comment: str) -> str:
    """A new SSH key without a passphrase; gives its public line.

    Raises:
        OtherSide: ssh-keygen is not there, or could not write it.
    """
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    try:
        subprocess.run(
            command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=_KEYGEN_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or b""
        absent = isinstance(error, OSError)
        remedy = "install ssh-keygen (Debian: apt-get install openssh-client)"
        raise OtherSide(
            "the lab has no SSH keys",
            why=output.decode(errors="replace").strip() or str(error),
            next_step=remedy if absent else "mend that, then run the command again",
        ) from error
    return path.with_name(path.name + ".pub").read_text().strip()


def _site(
    places: Places,
    backend: Backend,
    *,
    url: str,
    prefix: ipaddress.IPv4Network,
    templates: Mapping[int, Template],
) -> str:
    further = "".join(f"{line}\n" for line in profiles(templates, like=PROFILE))
    first, last, gateway = (prefix.network_address + n for n in (10, 220, 1))
    return f"""\
# The lab's infra team; node-lab made this file and takes it away.
proxmox:
  url: {url}
  token_file: {places.token.name}
  ca_file: {places.api_ca.name}
ticket:
  signing_key: {places.infra_key.name}
  valid_h: 72
receipt_signers: {places.receipt_signers.name}
profiles:
  {PROFILE}:
    template: {FIRST_VMID}
    node: auto
    storage: {STORAGE}
    cores: 2
    memory_mib: 2048
    disk_gib: 8
    user: {_text(backend.login_user)}
    ssh_port: {backend.ssh_port}
    ssh_keys_file: {places.login_keys.name}
    network:
      bridge: vmbr0
      address: {{from: {first}/{prefix.prefixlen}, to: {last}/{prefix.prefixlen}, gateway: {gateway}}}
{further}"""


def _policy(places: Places, backend: Backend) -> str:
    install = backend.install
    return f"""\
# The lab's security holder; node-lab made this file and takes it away.
trust_domain: {TRUST_DOMAIN}
names: ["{{node}}.nodes.{TRUST_DOMAIN}"]
addresses: [{ADDRESSES}]
ticket_signers: {places.ticket_signers.name}
machine_uuid: {backend.machine_uuid}
unattended: true   # only because every secret of the lab is thrown away
bootstrap_keys: remove
ssh: {{key_file: {places.holder_key.name}}}
install: {{dir: {_text(install.dir)}, owner: {_text(install.owner)}, group: {_text(install.group)}}}
"""


def _text(value: str) -> str:
    """A YAML scalar that stays text, whatever is in it (YAML 1.2 takes JSON's strings)."""
    return json.dumps(value)
