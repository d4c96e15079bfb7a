"""A client of the lab's API that hides nothing: status, reason phrase and body as they come."""

import contextlib
import socket
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from lab import running
from lab.places import Places
from lab.running import Lab
from tests.require import need_command

TIMEOUT_S = 120.0
NODE = "lab"
CONFIG_GONE = f"Configuration file 'nodes/{NODE}/qemu-server/{{}}.conf' does not exist"


@dataclass(frozen=True)
class Answer:
    """One answer, as it came."""

    status: int
    reason: str
    body: dict[str, Any]

    @property
    def data(self) -> Any:
        assert self.status == 200, f"{self.status} {self.reason}"
        return self.body["data"]


class Api:
    """The API as the lab's token, or with other headers."""

    def __init__(self, lab: Lab, headers: dict[str, str] | None = None) -> None:
        token = lab.places.token.read_text().strip()
        self.lab = lab
        self._session = requests.Session()
        self._session.verify = str(lab.places.api_ca)
        self._session.trust_env = False
        self._session.headers.update(
            {"Authorization": f"PVEAPIToken={token}"} if headers is None else headers
        )

    def call(self, method: str, path: str, **fields: Any) -> Answer:
        in_body = method in {"POST", "PUT"}
        answer = self._session.request(
            method,
            f"{self.lab.url}/api2/json{path}",
            data=fields if in_body else None,
            params=None if in_body else fields,
            timeout=TIMEOUT_S,
        )
        return Answer(answer.status_code, answer.reason, answer.json() if answer.content else {})

    def get(self, path: str, **fields: Any) -> Answer:
        return self.call("GET", path, **fields)

    def task(self, method: str, path: str, **fields: Any) -> str:
        """Start a task and follow it to its end; gives its exit status."""
        upid = self.call(method, path, **fields).data
        return self.follow(upid)

    def follow(self, upid: str) -> str:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            status = self.get(f"/nodes/{NODE}/tasks/{urllib.parse.quote(upid, safe='')}/status").data
            if status["status"] == "stopped":
                return str(status["exitstatus"])
            time.sleep(0.05)
        raise AssertionError(f"{upid} did not end")

    def clone(self, name: str) -> str:
        """A fresh clone of the lab's template; gives its path in the API."""
        vmid = self.get("/cluster/nextid").data
        assert self.task("POST", f"/nodes/{NODE}/qemu/9000/clone", newid=vmid, name=name, full=1) == "OK"
        return vm_path(vmid)

    def boot(self, name: str, host: int) -> str:
        """A clone that has been started on its static address, and is up."""
        vm = self.clone(name)
        self.configure(vm, host)
        assert self.task("POST", f"{vm}/status/start") == "OK"
        self.wait_for_agent(vm)
        return vm

    def configure(self, vm: str, host: int) -> None:
        fields = {
            "sshkeys": urllib.parse.quote(self.lab.places.login_keys.read_text().strip(), safe=""),
            "ipconfig0": f"ip={self.address(host)}/24,gw={self.address(1)}",
        }
        assert self.call("PUT", f"{vm}/config", **fields).data is None

    def address(self, host: int) -> str:
        return self.lab.prefix.replace("0/24", str(host))

    def wait_for_agent(self, vm: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while self.call("POST", f"{vm}/agent/ping").status != 200:
            assert time.monotonic() < deadline, "the guest agent never answered"


def vm_path(vmid: object) -> str:
    return f"/nodes/{NODE}/qemu/{vmid}"


def banner(address: str, port: int) -> bytes:
    """What an SSH server says first; nothing where none listens."""
    try:
        with socket.create_connection((address, port), timeout=600) as connection:
            return connection.recv(64)
    except OSError:
        return b""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Api]:
    """The API of a lab without an authority, which ends with the block."""
    need_command("ssh-keygen")
    lab, server = running.start(Places(folder / "state"), tied=True, ephemeral=True, authority=False)
    try:
        yield Api(lab)
    finally:
        running.end(server)
