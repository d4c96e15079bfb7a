"""A lab's API in this process, on which the recorded calls are replayed: `pve1` with a storage `local`."""

import asyncio
import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import requests

from lab.machines import Machines
from lab.nodes import Install, NodeSpec
from lab.proxmox_api import LabPve
from lab.tls import api_context

USER, TOKEN, SECRET = "prov@pve", "prov@pve!t1", "11111111-2222-4333-8444-555555555555"
SEPARATE = "prov@pve!sep"
ROLE = (
    *("VM.Allocate", "VM.Audit", "VM.Clone", "VM.PowerMgmt", "VM.GuestAgent.Audit", "VM.Config.Disk"),
    *("VM.Config.CPU", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Cloudinit", "VM.Config.Options"),
    *("VM.Config.HWType", "Datastore.AllocateSpace", "Datastore.Audit", "SDN.Use"),
)
PVE_VM_USER = ("VM.Audit", "VM.Config.Cloudinit", "VM.PowerMgmt", "VM.GuestAgent.Audit")
TIMEOUT_S = 120.0


@dataclass
class Switch:
    """A machine that is only a switch: whether the agent of the guest answers is all it tells."""

    spec: NodeSpec
    mute: threading.Event
    ssh_port: int = 22

    def read_file(self, path: str) -> bytes:
        raise FileNotFoundError(2, "No such file or directory", path)

    def interfaces(self) -> list[dict[str, Any]]:
        return []

    def osinfo(self) -> dict[str, str]:
        return {}

    def alive(self) -> bool:
        return not self.mute.is_set()

    def stop(self) -> None:
        """It is off when nobody asks it any more."""


@dataclass
class Switches:
    """The backend of such machines."""

    name: str = "switches"
    not_real: tuple[str, ...] = ()
    login_user: str = "deploy"
    ssh_port: int = 22
    cannot: dict[str, str] = field(default_factory=dict)
    install: Install = field(default_factory=lambda: Install("/etc/muster", "muster", "muster"))
    machine_uuid: Any = "optional"
    mute: threading.Event = field(default_factory=threading.Event)

    def boot(self, spec: NodeSpec) -> Switch:
        return Switch(spec, self.mute)

    def destroy(self, vmid: int) -> None:
        """Nothing of it is kept."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Answer:
    """An answer as it came."""

    status: int
    reason: str
    body: dict[str, Any] | None

    @property
    def data(self) -> Any:
        assert self.status == 200, f"{self.status} {self.reason}"
        assert self.body is not None
        return self.body["data"]


class World:
    """The lab's API, and everybody who calls it."""

    def __init__(
        self, pve: LabPve, backend: Switches, url: str, ca_file: Path, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.pve = pve
        self.backend = backend
        self.url = url
        self.loop = loop
        self._session = requests.Session()
        self._session.verify = str(ca_file)
        self._session.trust_env = False
        self._heads: dict[str, dict[str, str]] = {
            "nobody": {},
            "token": {"Authorization": f"PVEAPIToken={TOKEN}={SECRET}"},
            "sep": {"Authorization": f"PVEAPIToken={SEPARATE}={SECRET}"},
            "wrong": {"Authorization": f"PVEAPIToken={TOKEN}=wrong"},
            "stale": {"Cookie": "PVEAuthCookie=PVE:root@pam:00000000::old"},
        }
        ticket = self._send(
            {}, "POST", "/access/ticket", {"username": "root@pam", "password": pve.password}
        ).json()["data"]
        cookie = {"Cookie": f"PVEAuthCookie={ticket['ticket']}"}
        self._heads |= {
            "root": {**cookie, "CSRFPreventionToken": ticket["CSRFPreventionToken"]},
            "uncsrf": cookie,
        }

    def close(self) -> None:
        self._session.close()

    def call(self, who: str, method: str, path: str, params: dict[str, Any] | None = None) -> Answer:
        answer = self._send(self._heads[who], method, path, params)
        return Answer(answer.status_code, answer.reason, answer.json() if answer.content else None)

    def heads(self, who: str, path: str) -> Mapping[str, str]:
        """The headers of an answer."""
        return self._send(self._heads[who], "GET", path, None).headers

    def _send(
        self, head: dict[str, str], method: str, path: str, params: dict[str, Any] | None
    ) -> requests.Response:
        given = {key: int(v) if isinstance(v, bool) else v for key, v in (params or {}).items()}
        in_body = method in {"POST", "PUT"}
        # A cookie of the session's own would speak for whoever shows none.
        self._session.cookies.clear()
        return self._session.request(
            method,
            f"{self.url}/api2/json{path}",
            headers=head,
            data=given if in_body else None,
            params=None if in_body else given,
            timeout=TIMEOUT_S,
        )

    def do(self, call: Any) -> Any:
        """Run a function where the API runs."""

        async def run() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(TIMEOUT_S)

    def settled(self) -> None:
        """Wait until no task runs."""
        deadline = time.monotonic() + TIMEOUT_S
        while any(task["status"] == "running" for task in self.pve.tasks.values()):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@contextlib.contextmanager
def world(folder: Path) -> Iterator[World]:
    """The API of `pve1`, which ends with the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    host = ipaddress.IPv4Address("127.0.0.1")
    backend = Switches()
    machines = Machines(backend, ipaddress.IPv4Network("10.77.0.0/24"))
    context, ca = api_context(host, now=datetime.now(UTC))
    (folder / "ca.pem").write_bytes(ca)
    pve = LabPve(machines, host=str(host), node="pve1")
    pve.storages.clear()
    pve.storages["local"] = {
        "type": "dir", "active": 1, "path": "/var/lib/vz", "files": set(), "total": 270553174016,
        "content": "iso,backup,import,vztmpl,snippets,images,rootdir",
    }  # fmt: skip
    pve.add_token(TOKEN, SECRET, {}, separated=False)
    pve.copy_s = 0.05
    listening = socket.create_server((str(host), 0))
    try:
        asyncio.run_coroutine_threadsafe(pve.serve(listening, context), loop).result(TIMEOUT_S)
        found = World(
            pve, backend, f"https://127.0.0.1:{listening.getsockname()[1]}", folder / "ca.pem", loop
        )
        try:
            yield found
        finally:
            found.close()
            asyncio.run_coroutine_threadsafe(pve.stop(), loop).result(TIMEOUT_S)
    finally:
        machines.close()
        listening.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
