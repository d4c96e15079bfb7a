"""What the tests of the authority are made of: policies, keys, requests and authorities, each with defaults."""

import base64
import json
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ca.authority import Authority, Issued
from ca.keys import PublicKey
from ca.keystore import Kdf
from ca.policy import Policy
from ca.signer import KeySigner, Signer
from inventory.document import loads
from inventory.model import HostKey

CHEAP = Kdf(memory_kib=64, iterations=1, lanes=1)
PASSPHRASE = b"correct horse battery staple"
NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
UUID = "8f7d0c9e-0000-4000-8000-000000000001"
OTHER_UUID = "8f7d0c9e-0000-4000-8000-000000000002"


def policy_text(**changes: object) -> str:
    """A policy as YAML (JSON is YAML); a key set to None is left out."""
    keys: dict[str, object] = {
        "trust_domain": "lab.example",
        "names": ["{node}.nodes.lab.example"],
        "addresses": ["10.0.0.0/16"],
        **changes,
    }
    return json.dumps({key: value for key, value in keys.items() if value is not None})


def policy(**changes: object) -> Policy:
    return loads(policy_text(**changes), Policy, name="policy.yaml", base=Path("/etc/ca"))


def new_authority(folder: Path, *, now: datetime = NOW, text: str | None = None) -> Authority:
    """An authority in folder/ca, made from a policy in folder."""
    file = folder / "policy.yaml"
    file.write_text(policy_text() if text is None else text)
    return Authority.create(folder / "ca", policy_file=file, passphrase=PASSPHRASE, now=now, kdf=CHEAP)


def reopened(authority: Authority, *, now: datetime = NOW) -> Authority:
    return Authority.open(authority.layout.folder, now=now, kdf_floor=CHEAP)


def node_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def request(key: ec.EllipticCurvePrivateKey | None = None, *extensions: x509.ExtensionType) -> bytes:
    """A certificate request in PEM form, asking for what it likes."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(key or node_key(), hashes.SHA256()).public_bytes(Encoding.PEM)


def issue(
    authority: Authority,
    *,
    csr: bytes | None = None,
    node: str = "gpu-01",
    vm_uuid: str | None = UUID,
    address: str | None = "10.0.0.7",
    now: datetime = NOW,
    ticket_id: str | None = None,
    host_keys: tuple[HostKey, ...] = (),
    machine_id: str | None = None,
    replace: bool = False,
    signer: Signer | None = None,
) -> Issued:
    return authority.issue(
        request() if csr is None else csr,
        node=node,
        vm_uuid=vm_uuid,
        static_address=address,
        signer=signer or authority.unlock(PASSPHRASE),
        now=now,
        actor="tester",
        ticket_id=ticket_id,
        host_keys=host_keys,
        machine_id=machine_id,
        replace=replace,
    )


def leaf_of(issued: Issued) -> x509.Certificate:
    return x509.load_pem_x509_certificate(issued.certificate_pem)


def host_key(number: int = 1) -> HostKey:
    kind = b"ssh-ed25519"
    blob = len(kind).to_bytes(4, "big") + kind + (32).to_bytes(4, "big") + bytes([number]) * 32
    return HostKey("ssh-ed25519", base64.b64encode(blob).decode())


def kinds(authority: Authority) -> list[str]:
    lines = authority.layout.audit.read_text().splitlines()
    return [json.loads(line)["kind"] for line in lines]


class BrokenToken:
    """A signer that fails, or signs something else, as a token may."""

    def __init__(self, right: KeySigner, *, fails: bool) -> None:
        self.right = right
        self.fails = fails

    @property
    def public_key(self) -> PublicKey:
        return self.right.public_key

    def sign(self, data: bytes) -> bytes:
        if self.fails:
            raise RuntimeError("token removed")
        return self.right.sign(data + b"!")
