"""An authority that has issued many certificates, as its audit tells it; made without signing any."""

import base64
import hashlib
import secrets
import uuid
from datetime import timedelta

from ca.authority import Authority
from ca.ledger import line_of
from ca.record import Record, Standing, intent
from inventory.model import HostKey
from tests.ca.material import NOW


def record_of(number: int) -> Record:
    """Node `number`, as onboarding announces it; one in ten ends within a month."""
    node = f"n-{number:06d}"
    life = timedelta(days=20 if number % 10 == 0 else 90)
    return Record(
        serial=f"{secrets.randbits(158) | 1 << 158:x}",
        node=node,
        vm_uuid=str(uuid.uuid4()),
        standing=Standing.OPEN,
        names=(f"{node}.nodes.lab.example",),
        addresses=(f"10.0.{number // 250 % 250}.{number % 250}",),
        spiffe_id=f"spiffe://lab.example/node/{node}",
        not_before=NOW - timedelta(minutes=10),
        not_after=NOW + life,
        key_sha256=secrets.token_hex(32),
        actor="tester",
        at=NOW,
        ticket_id=secrets.token_hex(8),
        host_keys=(_random_host_key(),),
        machine_id=secrets.token_hex(16),
        pin={"address": "10.0.0.7", "ssh_port": 22, "user": "muster"},
    )


def fill(authority: Authority, count: int) -> list[str]:
    """Append `count` certificates to the audit, through the lines' real form; their serial numbers come back."""
    ledger = authority._ledger  # noqa: SLF001 - nothing else may write without signing
    seq, head, serials = ledger.place.seq, ledger.head, []
    with authority.layout.audit.open("ab") as file:
        for number in range(count):
            record = record_of(number)
            issued = {"serial": record.serial, "fingerprint_sha256": secrets.token_hex(32), "replaces": []}
            for kind, body in (("intent", intent(record)), ("issued", issued)):
                seq += 1
                line = line_of(seq, head, kind, now=NOW, actor="tester", body=body)
                head = hashlib.sha256(line).hexdigest()
                file.write(line + b"\n")
            serials.append(record.serial)
    return serials


def _random_host_key() -> HostKey:
    kind = b"ssh-ed25519"
    blob = len(kind).to_bytes(4, "big") + kind + (32).to_bytes(4, "big") + secrets.token_bytes(32)
    return HostKey("ssh-ed25519", base64.b64encode(blob).decode())
