"""A Proxmox of one's own for each test: a template, a token, a site file, and guests whose agent answers."""

import base64
import contextlib
import functools
import io
import json
import secrets
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from inventory.console import Console
from inventory.errors import MusterError
from inventory.model import State
from inventory.store import Store
from provision.api_token import read_token
from provision.cli import main
from provision.proxmox import Proxmox
from provision.road import Made, Road
from provision.spec import load_site
from provision.tasks import Patience, Tools

SECRET = "5f2c1a34-9a1e-4e0f-8f6e-6d0f6f4f7a11"  # noqa: S105 - made up
TOKEN_ID = "muster@pve!t"  # noqa: S105 - a name
FINISHED = json.dumps({"v1": {"datasource": "DataSourceNoCloud", "errors": []}})
CLONE = ("POST", "/nodes/pve1/qemu/9000/clone")
CONFIG = ("PUT", "/nodes/pve1/qemu/100/config")
RESIZE = ("PUT", "/nodes/pve1/qemu/100/resize")
START = ("POST", "/nodes/pve1/qemu/100/status/start")
WRITES = frozenset({"POST", "PUT", "DELETE"})


def public_line(comment: str = "root@guest") -> str:
    """A fresh ed25519 public key line (RFC 8709); nobody has its private half."""
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (b"ssh-ed25519", secrets.token_bytes(32)))
    return f"ssh-ed25519 {base64.b64encode(blob).decode()} {comment}"


class Requests(list[tuple[str, str, bytes]]):
    """What the server was asked, in order; `on_next` hears each request before it is answered."""

    on_next: Callable[[str, str], None] | None = None

    def append(self, request: tuple[str, str, bytes]) -> None:
        super().append(request)
        if self.on_next is not None:
            self.on_next(request[0], request[1])

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [(method, path.removeprefix("/api2/json")) for method, path, _ in self if method in WRITES]

    def body_of(self, method: str, ending: str) -> dict[str, str]:
        found = [body for verb, path, body in self if verb == method and path.endswith(ending)]
        return dict(urllib.parse.parse_qsl(found[-1].decode()))


class Agent(dict[str, Any]):
    """A guest agent: the guest's NICs carry the MACs that the VM's config has by then."""

    def __init__(self, vm: Any, *, address: Callable[[], str], files: Mapping[str, str]) -> None:
        super().__init__(files=dict(files), interfaces=None)
        self._vm = vm
        self._address = address

    def __getitem__(self, key: str) -> Any:
        if key != "interfaces" or super().__getitem__(key) is not None:
            return super().__getitem__(key)
        nics: list[dict[str, Any]] = [
            {
                "name": "lo",
                "hardware-address": "00:00:00:00:00:00",
                "ip-addresses": [{"ip-address": "127.0.0.1", "ip-address-type": "ipv4", "prefix": 8}],
            }
        ]
        for index in range(4):
            nic = str(self._vm.config.get(f"net{index}", ""))
            if nic:
                mac = nic.split(",")[0].split("=")[1].lower()
                nics.append({"name": f"eth{index}", "hardware-address": mac})
        nics[1]["ip-addresses"] = [
            {"ip-address": "fe80::1", "ip-address-type": "ipv6", "prefix": 64},
            {"ip-address": self._address(), "ip-address-type": "ipv4", "prefix": 24},
        ]
        return nics


class Guests(list[Any]):
    """The server's VMs; each new one gets an agent, unless `agent_for` says otherwise."""

    agent_for: Callable[[Any], Agent | None]

    def append(self, vm: Any) -> None:
        super().append(vm)
        vm.agent = self.agent_for(vm)


@dataclass
class Place:
    """One site: its Proxmox, its files, its record."""

    pve: Any
    folder: Path
    ca_file: Path
    address: str = "10.0.0.10"
    files: dict[str, str] = field(default_factory=dict)
    adapters: list[Proxmox] = field(default_factory=list)

    @property
    def requests(self) -> Requests:
        requests = self.pve.requests
        assert isinstance(requests, Requests)
        return requests

    @property
    def site_file(self) -> Path:
        return self.folder / "site.yaml"

    @functools.cached_property
    def store(self) -> Store:
        """One for the whole test, as a run has one: what it holds a lease of, another store may not save."""
        return Store.open(f"sqlite:///{self.folder / 'inventory.db'}")

    def write_site(self, *, ticket: bool = True, **other: str) -> None:
        """The site file; `other` are further top-level keys, or of the profile if they begin with `profile_`."""
        extra = {key: value for key, value in other.items() if not key.startswith("profile_")}
        profile = {
            "template": "9000", "node": "auto", "storage": "local-lvm", "cores": "2", "memory_mib": "2048",
            "disk_gib": "8", "user": "muster", "ssh_keys_file": "login_keys.pub",
            "network": "{bridge: vmbr0, address: dhcp}",
        }  # fmt: skip
        profile |= {key.removeprefix("profile_"): value for key, value in other.items() if key not in extra}
        lines = [
            "proxmox:",
            f"  url: {self.pve.url}",
            "  token_file: pve.token",
            f"  ca_file: {self.ca_file}",
        ]
        lines += ["ticket: {signing_key: id_infra, valid_h: 24}"] if ticket else []
        lines += [f"{key}: {value}" for key, value in extra.items()]
        lines += ["profiles:", "  small:", *(f"    {key}: {value}" for key, value in profile.items())]
        self.site_file.write_text("\n".join(lines) + "\n")

    def new_agent(self, vm: Any) -> Agent:
        files = {
            "/etc/ssh/ssh_host_ed25519_key.pub": public_line("root@guest"),
            "/etc/machine-id": secrets.token_hex(16) + "\n",
            "/run/cloud-init/result.json": FINISHED,
        }
        return Agent(vm, address=lambda: self.address, files=files | self.files)

    def command(self, *arguments: str) -> list[str]:
        return [
            sys.executable, "-m", "provision.cli", *arguments,
            "--site", str(self.site_file), "--inventory", f"sqlite:///{self.folder / 'inventory.db'}",
        ]  # fmt: skip

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command as a person types it, without the second that a process needs to start."""
        out, err = io.StringIO(), io.StringIO()
        argv, handler = sys.argv, signal.getsignal(signal.SIGTERM)
        sys.argv = ["provision-node", *self.command(*arguments)[3:]]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main()
        except SystemExit as stop:
            code = stop.code
        finally:
            sys.argv = argv
            signal.signal(signal.SIGTERM, handler)
        return subprocess.CompletedProcess(arguments, int(code or 0), out.getvalue(), err.getvalue())

    def run_process(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command as a person types it, as a process of its own."""
        return subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=600, check=False
        )

    def road(self, *, adapter: Callable[[Proxmox], Proxmox] | None = None) -> Road:
        """The same in this process, with less patience."""
        site = load_site(self.site_file)
        token, _ = read_token(site.proxmox.token_file)
        proxmox = Proxmox(url=site.proxmox.url, token=token, ca_file=site.proxmox.ca_file)
        self.adapters.append(proxmox)
        if adapter is not None:
            proxmox = adapter(proxmox)
        patience = Patience(
            agent_s=1.5, cloud_init_s=1.5, no_cloud_init_s=0.2, host_keys_s=1, lost_answer_s=1
        )
        return Road(site, self.store, Tools(proxmox, Console(quiet=True), patience))


def furnish(pve: Any, folder: Path, ca_file: Path) -> Place:
    """A Proxmox with one template, and the infra team's files for it."""
    site = Place(pve, folder, ca_file)
    pve.apitokens[TOKEN_ID] = SECRET
    pve.add_vm(
        9000,
        "debian-12",
        template=True,
        config={
            "scsi0": "local-lvm:base-9000-disk-0,size=8G",
            "ide2": "local-lvm:vm-9000-cloudinit,media=cdrom",
            "net0": "virtio=BC:24:11:00:90:00,bridge=vmbr0,firewall=1",
            "boot": "order=scsi0;net0",
            "cores": 1,
            "memory": 512,
            "smbios1": "uuid=11111111-2222-3333-4444-555555555555,manufacturer=QUNNRQ==,base64=1",
            "tags": "golden",
        },
    )
    pve.requests = Requests()
    pve.vms = Guests(pve.vms)
    pve.vms.agent_for = site.new_agent
    token = folder / "pve.token"
    token.write_text(f"{TOKEN_ID}={SECRET}\n")
    token.chmod(0o600)
    (folder / "login_keys.pub").write_text(f"{public_line('infra')}\n# the holder\n{public_line('holder')}\n")
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "infra", "-f", folder / "id_infra"],
        check=True,
    )
    public = (folder / "id_infra.pub").read_text()
    (folder / "allowed_signers").write_text(f'infra namespaces="muster-ticket" {public}')
    site.write_site()
    return site


def make(road: Road, name: str = "gpu-01") -> Made:
    return road.carry_out(road.prepare(name, profile=None))


def failure(place: Place, name: str = "gpu-01") -> MusterError:
    with pytest.raises(MusterError) as caught:
        make(place.road(), name)
    return caught.value


def state(place: Place, name: str = "gpu-01") -> State | None:
    node = place.store.get(name)
    return node.state if node else None
