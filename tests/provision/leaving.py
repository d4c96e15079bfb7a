"""What the tests of nodes that go share: a node whose identity was ended, and a command that is killed at a write."""

import contextlib
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Literal

from inventory.model import Node, State
from inventory.store import utc_now
from inventory.ticket import Receipt, sign_receipt
from tests.provision.kit import Place, make

OTHER_UUID = "99999999-8888-7777-6666-555555555555"
STOP = ("POST", "/nodes/pve1/qemu/100/status/stop")
DESTROY = ("DELETE", "/nodes/pve1/qemu/100")
LEAVE_HA = ("DELETE", "/cluster/ha/resources/vm:100")
IN_SERVICE = (State.ONBOARDING, State.AWAITING_VERIFICATION, State.VERIFYING, State.IN_SERVICE)
ENDED = (*IN_SERVICE, State.DECOMMISSIONING, State.AWAITING_RETIREMENT)


def record(place: Place, name: str = "gpu-01") -> Node:
    node = place.store.get(name)
    assert node is not None
    return node


def made(place: Place, *states: State, name: str = "gpu-01") -> Node:
    """A node that was made, and moved on through these states."""
    make(place.road(), name)
    for state in states:
        place.store.save(replace(record(place, name), state=state), why="a test")
    return record(place, name)


def ended(place: Place, name: str = "gpu-01") -> Node:
    """A node whose identity the holder has ended, with the receipt for that."""
    made(place, *ENDED, name=name)
    trust_the_holder(place)
    return keep_receipt(place, "decommissioned", name=name)


def trust_the_holder(place: Place) -> None:
    place.write_site(receipt_signers="receipt_signers")
    public = (place.folder / "id_infra.pub").read_text()
    (place.folder / "receipt_signers").write_text(f'holder namespaces="muster-receipt" {public}')


def keep_receipt(
    place: Place,
    kind: Literal["onboarded", "verified", "decommissioned"],
    *,
    name: str = "gpu-01",
    vm_uuid: str | None = None,
) -> Node:
    node = record(place, name)
    assert node.address is not None
    now = utc_now()
    receipt = Receipt(
        kind=kind, node=name, vm_uuid=vm_uuid or str(node.uuid), ticket_id="0b", serial="0a",
        spiffe_id=f"spiffe://lab.example/node/{name}", not_after=now + timedelta(days=30),
        host_keys=node.host_keys, address=node.address, ssh_port=22, user="muster", ca_fingerprint="0c",
        install_dir="/etc/muster", owner="muster", made_by="holder", made_at=now,
    )  # fmt: skip
    return place.store.save(replace(node, receipt=sign_receipt(receipt, key_file=place.folder / "id_infra")))


def in_ha(place: Place) -> None:
    """The VM is an HA resource until somebody deletes that, or the VM is purged."""
    place.pve.vm(100).ha_state = "started"

    def deleted(method: str, path: str) -> None:
        if (method, path.removeprefix("/api2/json")) == LEAVE_HA:
            place.pve.vm(100).ha_state = None

    place.requests.on_next = deleted


def killed_at(place: Place, at: tuple[str, str], *arguments: str) -> None:
    """The command, killed as this write reaches Proxmox, which carries it out all the same."""
    process = subprocess.Popen(
        place.command(*arguments), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    before: Callable[[str, str], None] | None = place.requests.on_next

    def on_next(method: str, path: str) -> None:
        if before is not None:
            before(method, path)
        if (method, path.removeprefix("/api2/json")) == at:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    place.requests.on_next = on_next
    assert process.wait(60) == -signal.SIGKILL
    place.requests.on_next = before


def vmids(place: Place) -> list[int]:
    return [vm.vmid for vm in place.pve.vms]
