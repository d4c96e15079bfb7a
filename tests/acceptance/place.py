"""A lab in this process whose token may do nothing until somebody grants it."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lab import world
from lab.machines import Machines
from lab.nodes import choose
from lab.places import Places
from lab.proxmox_api import LabPve
from lab.scenarios import templates
from lab.server import PORT, TRIAL_HOST, claim
from lab.ssh_server import new_host_keys
from lab.tls import api_context

_TIMEOUT_S = 30.0


@dataclass
class Ground:
    """The lab's API and the infra team's files for it."""

    pve: LabPve
    site: Path

    @property
    def temporary(self) -> Path:
        """Where the commands under test put what they throw away."""
        return self.site.parent / "tmp"

    def forget_rights(self) -> None:
        """Nobody may do anything."""
        self.pve.acl.clear()


@contextlib.contextmanager
def ground(folder: Path, *, backend: str) -> Iterator[Ground]:
    """A lab, which ends with the block."""
    places = Places(folder)
    folder.mkdir(parents=True, exist_ok=True)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    with contextlib.ExitStack() as stack:
        stack.callback(loop.close)
        stack.callback(thread.join)
        stack.callback(loop.call_soon_threadsafe, loop.stop)
        listening, prefix = stack.enter_context(claim())
        host = prefix.network_address + 1
        made_of = choose(places.nodes, wanted=backend, trial_address=str(prefix.network_address + TRIAL_HOST))
        stack.callback(made_of.close)
        now = datetime.now(UTC)
        known = templates((), now=now, machine_id="0" * 32, host_keys=new_host_keys("template"))
        machines = Machines(made_of, prefix, templates=known)
        stack.callback(machines.close)
        context, ca = api_context(host, now=now)
        url = f"https://{host}:{PORT}"
        secret = world.make_world(places, made_of, url=url, prefix=prefix, api_ca=ca, templates=known)
        pve = LabPve(machines, host=str(host))
        pve.add_token(world.TOKEN, secret, {})
        for vmid, template in known.items():
            pve.add_template(vmid, template.name, storage=world.STORAGE, disk_gib=world.TEMPLATE_DISK_GIB)
        asyncio.run_coroutine_threadsafe(pve.serve(listening, context), loop).result(_TIMEOUT_S)
        stack.callback(lambda: asyncio.run_coroutine_threadsafe(pve.stop(), loop).result(_TIMEOUT_S))
        yield Ground(pve, places.site)
