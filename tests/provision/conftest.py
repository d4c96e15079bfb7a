"""Each test's own Proxmox, served over TLS on loopback."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.provision.kit import SECRET, TOKEN_ID, Guests, Place, Requests, public_line


@pytest.fixture
def place(fakepve: Any, fakepve_cafile: str, tmp_path: Path) -> Iterator[Place]:
    """A Proxmox with one template, and the infra team's files for it."""
    site = Place(fakepve, tmp_path, Path(fakepve_cafile))
    fakepve.apitokens[TOKEN_ID] = SECRET
    fakepve.add_vm(
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
    fakepve.requests = Requests()
    fakepve.vms = Guests(fakepve.vms)
    fakepve.vms.agent_for = site.new_agent
    token = tmp_path / "pve.token"
    token.write_text(f"{TOKEN_ID}={SECRET}\n")
    token.chmod(0o600)
    (tmp_path / "login_keys.pub").write_text(
        f"{public_line('infra')}\n# the holder\n{public_line('holder')}\n"
    )
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "infra", "-f", tmp_path / "id_infra"],
        check=True,
    )
    public = (tmp_path / "id_infra.pub").read_text()
    (tmp_path / "allowed_signers").write_text(f'infra namespaces="muster-ticket" {public}')
    site.write_site()
    yield site
    for adapter in site.adapters:
        adapter.close()
    # The server's thread must see that its clients have gone, or it leaves their sockets to the collector.
    until = time.monotonic() + 5
    while fakepve.runner.server.connections and time.monotonic() < until:
        time.sleep(0.005)
