"""A node's whole road for tests of passports: real keys, a real authority, a real record."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ca import passport as ca_passport
from inventory.model import Address, Node, State
from inventory.passport import dsse, making
from inventory.passport.judging import Trust, Verdict, judge
from inventory.passport.making import Maker
from inventory.passport.statement import Certificate, Passport, to_payload
from inventory.signature import public_key_line
from inventory.store import Store
from inventory.ticket import RECEIPT_NAMESPACE, Receipt, Ticket, sign_receipt, sign_ticket
from tests.ca.material import issue, new_authority
from tests.inventory.kit import KEY, NOW, keygen, receipt, signers_line, ticket
from tests.inventory.records import author
from tests.require import need_command
from tests.verify.reported import findings, report

NAME = "gpu-01"
UUID = "0e1a2b3c-0000-4000-8000-000000000001"
BOTH = f'namespaces="{dsse.NAMESPACE},{RECEIPT_NAMESPACE}"'
Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class World:
    """Two people, an authority and a record, all in one folder; the passport is made at `now`."""

    folder: Path
    now: datetime
    url: str
    infra: Path
    holder: Path
    ca_dir: Path
    certificate: Certificate
    ticket: Ticket
    receipt: Receipt

    @property
    def signers(self) -> Path:
        return self.folder / "holders"

    @property
    def ticket_signers(self) -> Path:
        return self.folder / "ticket_signers"

    @property
    def root(self) -> Path:
        return self.ca_dir / "root.pem"

    @property
    def trust(self) -> Trust:
        return Trust(self.signers, self.ticket_signers, self.root.read_text(), ca_passport)

    @property
    def maker(self) -> Maker:
        key = making.fingerprint_of(public_key_line(self.holder))
        return Maker("holder@ca-host", "passmuster test", key, self.now)

    def known(self) -> making.Known:
        return making.known(Store.open(self.url), NAME)

    def passport(self, **changes: Any) -> Passport:
        made = making.gather(self.known(), certificate=self.certificate, maker=self.maker)
        return replace(made, **changes)

    def signed(self, passport: Passport | None = None, *, key: Path | None = None) -> str:
        """A passport that is well signed, whatever it says."""
        payload = to_payload(passport or self.passport())
        return dsse.seal(payload, key_file=key or self.holder)

    def signed_anew(self, change: Callable[[dict[str, Any]], None]) -> str:
        """A statement that was changed by whoever holds the key, and signed again."""
        statement = json.loads(to_payload(self.passport()))
        change(statement)
        payload = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        return dsse.seal(payload, key_file=self.holder)

    def judge(self, text: str, **trust: Any) -> Verdict:
        return judge(text, trust=replace(self.trust, **trust), now=self.now + timedelta(minutes=1))


def world(folder: Path, *, now: datetime = NOW, urls: tuple[str, str] | None = None) -> World:
    """urls: of a record on a server, as infra's login and as the holder's; None: a record of its own."""
    need_command("ssh-keygen")
    began = now - timedelta(hours=2)
    authority = new_authority(folder, now=began)
    infra, holder = keygen(folder, "infra"), keygen(folder, "holder")
    made = replace(
        ticket(),
        made_by="operator@lab",
        made_at=began,
        expires=began + timedelta(hours=72),
        address=Address("10.0.0.7", 24, "static"),
    )
    issued = issue(authority, now=began, vm_uuid=UUID, ticket_id=made.id, host_keys=(KEY,))
    told = replace(
        receipt(),
        serial=issued.serial,
        spiffe_id=issued.spiffe_id,
        not_after=issued.not_after,
        ca_fingerprint=authority.fingerprint_sha256,
        address=made.address,
        made_at=began + timedelta(minutes=1),
        audit_head=authority.head,
    )
    certificate = ca_passport.certificate_of(authority, NAME, vm_uuid=UUID, serial=None, now=now)
    assert certificate is not None
    (folder / "holders").write_text(signers_line(holder, name="holder@lab", options=BOTH))
    (folder / "ticket_signers").write_text(signers_line(infra))
    found = World(
        folder=folder,
        now=now,
        url=f"sqlite:///{folder}/inventory.db" if urls is None else urls[1],
        infra=infra,
        holder=holder,
        ca_dir=authority.layout.folder,
        certificate=certificate,
        ticket=made,
        receipt=told,
    )
    authority.close()
    _walk(found, found.url if urls is None else urls[0])
    return found


def _walk(world: World, infra_url: str) -> None:
    """The road of the node in the record, one move a second."""
    seconds = iter(range(1000))

    def record(url: str) -> Store:
        return Store.open(
            url,
            clock=lambda: world.now - timedelta(minutes=30) + timedelta(seconds=next(seconds)),
            actor="anna",
            host="infra-host",
        )

    store, holder = record(infra_url), record(world.url)
    signed = world.ticket
    node = store.add(Node(NAME, State.PLANNED, profile="h100x8"), why="asked for by Zoë — two lines:\nyes")
    node = replace(
        node,
        uuid=signed.vm_uuid,
        vmid=signed.vmid,
        proxmox_node=signed.proxmox_node,
        site=signed.site,
        spec_hash=signed.profile_hash,
        address=signed.address,
        user=signed.user,
        macs=signed.macs,
        host_keys=signed.host_keys,
        machine_id=signed.machine_id,
        ticket=sign_ticket(signed, key_file=world.infra),
    )
    verified = replace(world.receipt, kind="verified", made_at=world.receipt.made_at + timedelta(minutes=1))
    receipts = {
        State.AWAITING_VERIFICATION: sign_receipt(world.receipt, key_file=world.holder),
        State.IN_SERVICE: sign_receipt(verified, key_file=world.holder),
    }
    for state in (
        State.PROVISIONING,
        State.AWAITING_IDENTITY,
        State.ONBOARDING,
        State.AWAITING_VERIFICATION,
        State.VERIFYING,
        State.IN_SERVICE,
    ):
        text = receipts.get(state, node.receipt)
        theirs = store if author(state) == "infra" else holder
        node = theirs.save(replace(node, state=state, receipt=text), why=f"moved to {state}")
    identity = findings().identity.model_copy(
        update={"serial": world.receipt.serial, "spiffe_id": world.receipt.spiffe_id}
    )
    document = report(name=NAME, identity=identity).to_json()
    holder.keep_report(NAME, document, passed=True)
