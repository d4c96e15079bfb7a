"""Whatever comes as a request: a sentence or a certificate within the policy.

MUSTER_FUZZ=20 makes twenty times as many attempts as there are in every run.
"""

import base64
import ipaddress
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import AttributeOID, ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from ca.authority import Authority
from ca.issue import Issued
from ca.request import MAX_BYTES, read_request
from inventory.errors import MusterError
from tests.ca.fuzz import ADDRESSES, NODES, attempts, mangled
from tests.ca.material import NOW, PASSPHRASE, leaf_of, new_authority, node_key

GREEDY: list[x509.ExtensionType] = [
    x509.BasicConstraints(ca=True, path_length=None),
    x509.SubjectAlternativeName(
        [
            x509.DNSName("*.lab.example"),
            x509.DNSName("gpu-02.nodes.lab.example"),
            x509.IPAddress(ipaddress.ip_address("192.0.2.1")),
            x509.UniformResourceIdentifier("spiffe://lab.example/node/gpu-02"),
            x509.UniformResourceIdentifier("spiffe://other.example/node/gpu-01"),
        ]
    ),
    x509.KeyUsage(True, True, True, True, True, True, True, True, True),  # noqa: FBT003 - its signature
    x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE, ExtendedKeyUsageOID.CODE_SIGNING]),
    x509.NameConstraints([x509.DNSName("")], None),
    x509.SubjectKeyIdentifier(b"x" * 20),
    x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x04\x00"),
]
Key = (
    ec.EllipticCurvePrivateKey
    | rsa.RSAPrivateKey
    | dsa.DSAPrivateKey
    | ed25519.Ed25519PrivateKey
    | ed448.Ed448PrivateKey
)
KEYS: list[Key] = [
    node_key(),
    ec.generate_private_key(ec.SECP384R1()),
    ec.generate_private_key(ec.SECP521R1()),
    ec.generate_private_key(ec.SECP256K1()),
    ec.generate_private_key(ec.BrainpoolP256R1()),
    rsa.generate_private_key(65537, 2048),
    ed25519.Ed25519PrivateKey.generate(),
    ed448.Ed448PrivateKey.generate(),
]


def request_der(
    key: Key, subject: str = "", extensions: list[x509.ExtensionType] | None = None, secret: bytes = b""
) -> bytes:
    name = [x509.NameAttribute(NameOID.COMMON_NAME, subject)] if subject else []
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(name))
    for extension in extensions or []:
        builder = builder.add_extension(extension, critical=True)
    if secret:
        builder = builder.add_attribute(AttributeOID.CHALLENGE_PASSWORD, secret)
    algorithm = (
        None if isinstance(key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey) else hashes.SHA256()
    )
    return builder.sign(key, algorithm).public_bytes(Encoding.DER)


def armoured(der: bytes, label: str = "CERTIFICATE REQUEST") -> bytes:
    text = base64.encodebytes(der)
    return b"-----BEGIN %b-----\n%b-----END %b-----\n" % (label.encode(), text, label.encode())


CORPUS = [
    *(request_der(key) for key in KEYS),
    *(request_der(KEYS[0], "gpu-02", GREEDY[:count], b"secret") for count in range(1, len(GREEDY))),
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("fuzz"))


def issued_or_refused(authority: Authority, csr: bytes, node: str, address: str | None) -> Issued | None:
    """What became of a request; anything but a certificate or an error of ours fails the test."""
    try:
        return authority.issue(
            csr,
            node=node,
            vm_uuid=node,
            static_address=address,
            signer=authority.unlock(PASSPHRASE),
            now=NOW,
            actor="tester",
        )
    except MusterError as error:
        told = (error.what, error.why, error.next_step)
        assert all(told)
        return None


def beyond_the_policy(issued: Issued, csr: bytes, node: str, address: str | None) -> list[str]:
    """What in a certificate was never granted, told without the authority's own judge."""
    leaf, proven = leaf_of(issued), x509.load_pem_x509_csr(csr)
    parts = {type(part.value): part.value for part in leaf.extensions}
    san = parts.pop(x509.SubjectAlternativeName)
    wanted = [x509.DNSName(f"{node}.nodes.lab.example")]
    addresses = [] if address is None else [x509.IPAddress(ipaddress.ip_address(address))]
    uri = [x509.UniformResourceIdentifier(f"spiffe://lab.example/node/{node}")]
    rules = {
        "names": isinstance(san, x509.SubjectAlternativeName) and [*san] == [*wanted, *addresses, *uri],
        "address": address is None or ipaddress.ip_address(address) in ipaddress.ip_network("10.0.0.0/16"),
        "kinds": set(parts)
        == {
            *(x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage),
            *(x509.SubjectKeyIdentifier, x509.AuthorityKeyIdentifier),
        },
        "no authority": parts[x509.BasicConstraints] == x509.BasicConstraints(ca=False, path_length=None),
        "purposes": parts[x509.ExtendedKeyUsage]
        == x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
        "key": leaf.public_key() == proven.public_key() and proven.is_signature_valid,
        "life": leaf.not_valid_after_utc == NOW + timedelta(days=30),
    }
    return [rule for rule, kept in rules.items() if not kept]


@attempts(400)
@given(st.sampled_from(CORPUS).flatmap(mangled), st.sampled_from(["CERTIFICATE REQUEST", "CERTIFICATE", "X"]))
def test_a_mangled_request_is_read_rightly_or_refused(der: bytes, label: str) -> None:
    pem = armoured(der, label)
    try:
        key = read_request(pem)
    except MusterError as error:
        assert "request" in error.what  # noqa: PT017 - both ends are right
    else:
        again = x509.load_pem_x509_csr(pem)
        assert again.is_signature_valid
        assert key.public == again.public_key()
        assert isinstance(key.public, ec.EllipticCurvePublicKey)
        assert isinstance(key.public.curve, ec.SECP256R1 | ec.SECP384R1)


@attempts(150)
@given(st.sampled_from([armoured(der) for der in CORPUS]).flatmap(mangled))
def test_a_request_mangled_in_its_armour_is_read_rightly_or_refused(pem: bytes) -> None:
    try:
        key = read_request(pem)
    except MusterError as error:
        assert "request" in error.what  # noqa: PT017 - both ends are right
    else:
        assert key.public == x509.load_pem_x509_csr(pem).public_key()


@pytest.mark.parametrize("size", [MAX_BYTES, MAX_BYTES + 1, 4 * 1024 * 1024])
def test_a_huge_request_is_refused_at_once(size: int) -> None:
    greedy = [x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), bytes(size))]

    with pytest.raises(MusterError, match="at most"):
        read_request(armoured(request_der(KEYS[0], extensions=[*greedy])))


@attempts(40)
@given(
    key=st.sampled_from(KEYS[:2]),
    subject=st.one_of(st.just(""), st.text(st.characters(codec="utf-8"), min_size=1, max_size=15)),
    extensions=st.lists(st.sampled_from(GREEDY), unique_by=type, max_size=5),
    secret=st.text(st.characters(codec="utf-8"), max_size=8).map(str.encode),
    node=NODES,
    address=ADDRESSES,
)
def test_no_request_gets_a_certificate_beyond_the_policy(
    authority: Authority,
    key: Key,
    subject: str,
    extensions: list[x509.ExtensionType],
    secret: bytes,
    node: str,
    address: str | None,
) -> None:
    csr = armoured(request_der(key, subject, extensions, secret))

    issued = issued_or_refused(authority, csr, node, address)

    assert issued is None or beyond_the_policy(issued, csr, node, address) == []
    open_ones = authority.open_intents
    assert open_ones == ()


def test_a_greedy_request_gets_what_the_policy_grants_and_no_more(authority: Authority) -> None:
    csr = armoured(request_der(node_key(), "*.lab.example", GREEDY, b"secret"))

    issued = issued_or_refused(authority, csr, "gpu-77", "10.0.0.77")

    assert issued is not None
    assert beyond_the_policy(issued, csr, "gpu-77", "10.0.0.77") == []
