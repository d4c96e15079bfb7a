"""What the tests of VMs share: one lab of them, one VM made by provision-node, and the image of this machine."""

import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from inventory.model import HostKey
from inventory.reach import Session, open_session
from lab import running
from lab.image import has_subids, images_home
from lab.places import Places
from tests.lab.api import Api
from tests.require import need, need_command

CACHE = images_home().parents[
    1
]  # read at once: the tests' environment is scrubbed, and an image takes minutes
NODE = "gpu-01"
PATIENCE_S = 900.0  # of a test, on a machine that has other work too


@dataclass(slots=True)
class Vm:
    """A VM of a lab: `path` in its API."""

    lab: running.Lab
    api: Api
    path: str

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """One of the roles' commands."""
        return subprocess.run(
            [Path(sys.executable).with_name(words[0]), *words[1:]],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self.lab.places.environment()},
        )

    def ask(self, *words: str) -> Any:
        """The JSON document of a command that must succeed."""
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def agent(self, command: str, **fields: Any) -> Any:
        """What the guest agent answers through the API."""
        return self.api.get(f"{self.path}/agent/{command}", **fields).data

    def file(self, path: str) -> str:
        """A file of the guest, through its agent."""
        content: str = self.agent("file-read", file=path)["content"]
        return content

    def host_keys(self) -> tuple[HostKey, ...]:
        """The host keys as the agent tells them."""
        return tuple(
            HostKey.from_line(self.file(f"/etc/ssh/ssh_host_{kind}_key.pub")) for kind in ("ed25519", "ecdsa")
        )

    def log_in(self) -> Session:
        """A session as infra, under those host keys."""
        return open_session(
            host=self.api.address(10),
            port=next(row["node"]["ssh_port"] for row in running.vms(self.lab) if row["name"] == NODE),
            user="muster",
            host_keys=self.host_keys(),
            key_file=self.lab.places.holder_key,
            timeout_s=60.0,
        )

    def status(self) -> str:
        """Whether the API takes it for running or stopped."""
        status: str = self.api.get(f"{self.path}/status/current").data["status"]
        return status

    def task(self, method: str, path: str, **fields: Any) -> str:
        """How a task ended, which may take as long as a guest does."""
        upid = self.api.call(method, path, **fields).data
        return str(until(lambda: _exit_status(self.api, upid)))

    def wait_for_cloud_init(self) -> dict[str, Any]:
        """What it says once it is done with this boot."""
        answer = until(lambda: self._result())
        found: dict[str, Any] = json.loads(answer)["v1"]
        return found

    def _result(self) -> str | None:
        answer = self.api.get(f"{self.path}/agent/file-read", file="/run/cloud-init/result.json")
        return answer.data["content"] if answer.status == 200 else None


def need_vms() -> None:
    """Go on only where VMs can be made."""
    need_command("qemu-system-x86_64", "qemu-img", "mmdebstrap", "genisoimage", "mke2fs", "ssh-keygen")
    if os.geteuid() != 0:
        need_command("newuidmap")
        mine = pwd.getpwuid(os.geteuid()).pw_name
        need(has_subids(mine), "a range in /etc/subuid", f"usermod --add-subuids 100000-165535 {mine}")


@contextmanager
def vm_lab(folder: Path) -> Iterator[running.Lab]:
    """A lab of VMs with an authority, which ends with the block."""
    need_vms()
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(CACHE)
    try:
        lab, server = running.start(Places(folder / "lab"), backend="qemu", tied=True, ephemeral=True)
    finally:
        if before is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = before
    try:
        yield lab
    finally:
        running.end(server)


def until(found: Callable[[], Any], *, within_s: float = PATIENCE_S) -> Any:
    """What is found, as soon as it is."""
    deadline = time.monotonic() + within_s
    while not (answer := found()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.5)
    return answer


def _exit_status(api: Api, upid: str) -> str | None:
    status: dict[str, str] = api.get(f"/nodes/lab/tasks/{quote(upid, safe='')}/status").data
    return status.get("exitstatus")
