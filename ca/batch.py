"""Many certificates in one go: all are looked at before the first is announced, and the disk is waited for once."""

import contextlib
import os
import secrets
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from ca.issue import Draft, draft
from ca.policy import Policy
from ca.record import Record, Standing
from ca.request import NodeKey, read_request
from ca.rules import Machine, refuse_foreign, replaced_by
from inventory.errors import BadInput, Damaged, MusterError, Refused
from inventory.files import sync_folder
from inventory.model import HostKey


@dataclass(frozen=True, slots=True)
class Asked:
    """One certificate that is asked for; as `Authority.issue` takes it."""

    csr_pem: bytes
    node: str
    vm_uuid: str | None = None
    static_address: str | None = None
    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    host_keys: tuple[HostKey, ...] = ()
    machine_id: str | None = None
    pin: Mapping[str, Any] = field(default_factory=dict)

    def machine(self, key: NodeKey) -> Machine:
        """Who asks, with the key that was proven."""
        uuid = self.vm_uuid.lower() if self.vm_uuid is not None else None
        return Machine(self.node, uuid, key.sha256, self.host_keys, self.machine_id)


Replaces = Callable[[Machine], tuple[str, ...]]
"""The serials that lose the name to a machine; raises Refused where it may not have it."""


class Batch:
    """Drafts that will be signed together: what one of them is granted, the next ones must respect."""

    def __init__(
        self,
        policy: Policy,
        issuing: x509.Certificate,
        *,
        replaces: Replaces,
        serials: Callable[[Container[int]], int],
        replace: bool,
        now: datetime,
        actor: str,
    ) -> None:
        """`replaces` asks the audit; `serials` gives a serial number that is none of some."""
        self.drafts: list[Draft] = []
        self.replaced: list[tuple[str, ...]] = []
        self._policy, self._issuing = policy, issuing
        self._replaces, self._serials, self._replace = replaces, serials, replace
        self._now, self._actor = now, actor
        self._numbers: set[int] = set()
        self._by_token: dict[tuple[str, str], list[Record]] = {}

    def add_all(self, requests: Iterable[Asked]) -> None:
        """Draft each request.

        Raises:
            BadInput: one cannot be read. Refused: one may not have what it asks for. Every fault of every
                request is told.
        """
        faults: list[tuple[Asked, MusterError]] = []
        for asked in requests:
            try:
                self._add(asked)
            except (BadInput, Refused) as error:
                faults.append((asked, error))
        if faults:
            kind = BadInput if all(isinstance(error, BadInput) for _, error in faults) else Refused
            raise kind(
                f"{len(faults)} of the requests cannot be granted, so nothing was signed",
                why="\n".join(
                    f"{asked.node}: {line}" for asked, error in faults for line in error.why.splitlines()
                ),
                next_step="mend those requests, or leave them out, and run the command again",
            )

    def _add(self, asked: Asked) -> None:
        key = read_request(asked.csr_pem, allowed=self._policy.node_keys)
        machine = asked.machine(key)
        tokens = [("node", machine.node), ("key", machine.key_sha256)]
        tokens += [("host key", key.line) for key in machine.host_keys]
        tokens += [("machine-id", machine.machine_id)] if machine.machine_id is not None else []
        mates = {record.serial: record for token in tokens for record in self._by_token.get(token, ())}
        refuse_foreign(mates.values(), machine, replace=self._replace)
        here = replaced_by(mates.values(), machine, now=self._now, replace=self._replace)
        before = self._replaces(machine)
        drafted = draft(
            key,
            machine,
            static_address=asked.static_address,
            names=asked.names,
            addresses=asked.addresses,
            policy=self._policy,
            issuing=self._issuing,
            serial=self._serials(self._numbers),
            now=self._now,
            actor=self._actor,
            pin=asked.pin,
        )
        self.drafts.append(drafted)
        self._numbers.add(drafted.serial)
        self.replaced.append((*before, *here))
        granted = replace(drafted.record, standing=Standing.ISSUED)
        for token in tokens:
            self._by_token.setdefault(token, []).append(granted)


@contextlib.contextmanager
def storing(folder: Path) -> Iterator[Callable[[str, bytes], None]]:
    """Take files by name; at the end all of them are durably in `folder`, or, after a failure, none.

    Raises:
        Damaged: the disk did not take them.
    """
    beside: dict[str, str] = {}  # plain text: of a thousand files a Path each is a tenth of the work

    def take(name: str, data: bytes) -> None:
        path = f"{folder}/.{name}.{secrets.token_hex(8)}"
        beside[name] = path
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "wb", buffering=0) as out:
            os.fchmod(descriptor, 0o644)
            rest = memoryview(data)
            while rest:
                rest = rest[out.write(rest) :]

    try:
        yield take
        sync_all(folder, beside.values())
        for name, path in beside.items():
            os.replace(path, f"{folder}/{name}")  # noqa: PTH105 - plain text, see above
        sync_folder(folder)
    except BaseException as error:
        for name, path in beside.items():
            for left in (path, f"{folder}/{name}"):
                with contextlib.suppress(OSError):
                    os.unlink(left)  # noqa: PTH108 - likewise
        if isinstance(error, OSError):
            raise Damaged(
                "the certificates were not issued",
                why=f"they could not be stored in {folder}: {error.strerror or error}",
                next_step="make room on that disk, then run the command again",
            ) from error
        raise


def sync_all(folder: Path, files: Iterable[Path | str]) -> None:
    """Wait until the files are on the disk: by one syncfs(2) where there is one, else by each."""
    import ctypes  # for this alone

    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    places = [str(folder)] if syncfs is not None else [*files]
    for place in places:
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if syncfs is None:
                os.fsync(descriptor)
            elif syncfs(descriptor) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
        finally:
            os.close(descriptor)
