"""What the holder works with, and how it went for one node."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ca.authority import Authority
from ca.record import Record
from ca.signer import Signer
from inventory import signature
from inventory.console import Console
from inventory.files import lock, write_whole
from inventory.jump import Jump
from inventory.model import Address, HostKey, State
from inventory.reach import Session, open_session
from inventory.store import Store
from inventory.ticket import Receipt, iso
from onboard.enroll import Held
from verify.report import NodeReport

SESSION_S = 20.0


@dataclass(frozen=True, slots=True)
class Shown:
    """What the holder reads before agreeing: `lines` where the node is alone, `row` where it is one of many.

    row: ticket or certificate, machine, clock, what is to be done; see `onboard.many`.
    """

    lines: tuple[str, ...]
    row: tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Desk:
    """What the holder works with: the authority, the record, the key for nodes and receipts, and the outside.

    agree: asks for the node's name on the terminal; raises where there is no agreement.
    signer: unlocks the issuing key, asking for its passphrase at the first call.
    show: takes what the holder reads before that; None says it on the console.
    verify: verifies a node in the course of its renewal; None leaves that for later.
    """

    authority: Authority
    store: Store
    console: Console
    key_file: Path
    actor: str
    clock: Callable[[], datetime]
    agree: Callable[[str], None]
    signer: Callable[[], Signer]
    dry_run: bool = False
    replace: bool = False
    jump: Jump | None = None
    show: Callable[[str, Shown], None] | None = None
    verify: Callable[[Receipt], NodeReport] | None = None

    @contextmanager
    def alone_with(self, name: str) -> Iterator[None]:
        """No other run acts on the node: none at this authority, and none of whoever shares the record.

        Raises:
            Refused: another run does.
        """
        with (
            lock(self.authority.layout.folder / f".onboarding-{name}.lock", timeout_s=1.0),
            self.store.lease(name, "onboard-node", say=self.console.warn),
        ):
            yield

    def put(self, name: str, shown: Shown) -> None:
        """Show the holder what is asked of them."""
        if self.show is not None:
            self.show(name, shown)
            return
        for line in shown.lines:
            self.console.say(line)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went for one node; `receipt` is there once a new identity is in force.

    what: in a few words, for the node's row. report: of a verification that was part of it.
    """

    name: str
    state: State | None
    changed: bool
    held: Held | None
    receipt: Receipt | None = None
    steps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default_factory=tuple)
    what: str = ""
    report: NodeReport | None = None

    def to_json(self) -> dict[str, Any]:
        """As --json shows it."""
        held = self.held
        identity = None
        if held is not None:
            identity = {
                "serial": held.serial,
                "spiffe_id": held.spiffe_id,
                "not_after": iso(held.not_after),
                "fingerprint_sha256": held.fingerprint_sha256,
            }
        return {
            "name": self.name,
            "ok": True,
            "state": None if self.state is None else str(self.state),
            "changed": self.changed,
            "identity": identity,
            "plan": list(self.steps),
            "warnings": list(self.warnings),
        }


def session_to(
    address: Address, desk: Desk, *, port: int, user: str, host_keys: tuple[HostKey, ...]
) -> Session:
    """A session to the machine that has one of these host keys, and to no other.

    Raises:
        OtherSide: it is out of reach, is another machine, or lets nobody in.
    """
    with desk.console.waiting(f"SSH on {address.ip}", timeout_s=SESSION_S):
        return open_session(
            host=address.ip,
            port=port,
            user=user,
            host_keys=host_keys,
            key_file=desk.key_file,
            timeout_s=SESSION_S,
            jump=desk.jump,
        )


def brief(time: timedelta) -> str:
    """A time in its largest fitting unit: 40 s, 5 min, 7 h, 3 d."""
    for unit, seconds, fewest in (("d", 86400, 2), ("h", 3600, 2), ("min", 60, 2)):
        if time >= timedelta(seconds=seconds * fewest):
            return f"{time.total_seconds() / seconds:.0f} {unit}"
    return f"{time.total_seconds():.0f} s"


def signer_of_receipts(desk: Desk) -> str:
    """Whom a receipt names as its maker: what the holder's key goes by, else the login name."""
    return " ".join(signature.public_key_line(desk.key_file).split()[2:]) or desk.actor


def onboarded(
    desk: Desk,
    *,
    node: str,
    vm_uuid: str,
    ticket_id: str,
    identity: Held | Record,
    host_keys: tuple[HostKey, ...],
    address: Address,
    ssh_port: int,
    user: str,
) -> Receipt:
    """What is said of a node whose identity is in force, not signed yet."""
    authority = desk.authority
    return Receipt(
        kind="onboarded",
        node=node,
        vm_uuid=vm_uuid,
        ticket_id=ticket_id,
        serial=identity.serial,
        spiffe_id=identity.spiffe_id,
        not_after=identity.not_after,
        host_keys=host_keys,
        address=address,
        ssh_port=ssh_port,
        user=user,
        ca_fingerprint=authority.fingerprint_sha256,
        install_dir=authority.policy.install.dir,
        owner=authority.policy.install.owner,
        made_by=signer_of_receipts(desk),
        made_at=desk.clock(),
        audit_head=authority.head,
    )


def keep_receipt(name: str, text: str, desk: Desk) -> None:
    """Keep a node's signed receipt beside the authority."""
    folder = desk.authority.layout.receipts
    folder.mkdir(mode=0o700, exist_ok=True)
    write_whole(folder / f"{name}.receipt", text.encode())
