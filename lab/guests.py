"""What the parts of the lab's API share: the record of a VM, and how a call or a task is refused."""

from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

NO_SUCH_KEY = "property is not defined in schema and the schema does not allow additional properties"


class Vm(Protocol):
    """What is used here of the API's record of a VM."""

    vmid: int
    name: str
    node: str
    status: str
    qmpstatus: str
    lock: str | None
    pool: str | None
    template: bool
    config: dict[str, Any]
    pending: dict[str, Any]
    snapshots: dict[str, dict[str, Any]]
    started_at: float | None
    lock_holder: str | None

    def apply_pending(self) -> None:
        """Make the pending changes the config's, as a start does."""

    def digest(self) -> str:
        """What tells one version of the config from another."""


class Refused(Exception):
    """A call that is answered with an error.

    Args:
        status: HTTP.
        text: Proxmox's words.
        errors: with 400, what is wrong with each parameter.
    """

    def __init__(self, status: int, text: str, errors: Mapping[str, str] | None = None) -> None:
        """The answer."""
        super().__init__(text)
        self.status = status
        self.errors = errors


class TaskFailed(Exception):
    """How a task ends instead of OK."""


def die(text: str) -> NoReturn:
    """What a plain `die` in Proxmox's Perl is to its client: status 500.

    Raises:
        Refused: always.
    """
    raise Refused(500, text)


def faulty(**errors: str) -> Refused:
    """Parameters that are refused, each with its fault."""
    return Refused(400, "Parameter verification failed.", errors)


def no_config(node: str, vmid: object) -> str:
    """Why there is no such VM, where Proxmox reads its config."""
    return f"Configuration file 'nodes/{node}/qemu-server/{vmid}.conf' does not exist"


def not_found(node: str, vmid: object) -> str:
    """Why there is no such VM, where Proxmox first looks whether it runs."""
    return f"unable to find configuration file for VM {vmid} on node '{node}'"


def set_lock(vm: Vm, lock: str | None) -> None:
    """Lock a VM's config, or unlock it."""
    vm.lock = lock
    if lock is None:
        vm.config.pop("lock", None)
    else:
        vm.config["lock"] = lock


def check_lock(vm: Vm) -> None:
    """Let nobody change a locked VM.

    Raises:
        Refused: it is locked.
    """
    if vm.lock:
        die(f"VM is locked ({vm.lock})")
