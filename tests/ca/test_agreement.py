"""Our own judge beside three that are not ours: all agree on what is right, and none knows of a fault we miss."""

import ipaddress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID

from ca.authority import Authority
from ca.judge import faults_of_chain
from ca.keys import generate
from ca.kinds import KeyType
from ca.making import Plan, Secrets, make_authority
from ca.profile import pem
from tests.ca.judges import cryptography_verify, openssl_verify, pkilint_here
from tests.ca.material import CHEAP, NOW, PASSPHRASE, issue, leaf_of, new_authority, node_key, policy_text
from tests.ca.test_judge import DNS, NAMES, SERIAL, key_usage, leaf, san, wanted
from tests.require import need_command

LONG = "n" * 60
JUDGES = ("pkilint", "openssl", "cryptography")


@dataclass(frozen=True, slots=True)
class Shape:
    """One shape that certificates of ours have."""

    node: str = "gpu-01"
    address: str | None = "10.0.0.7"
    node_key: KeyType = KeyType.P256
    root_key: KeyType = KeyType.P384
    issuing_key: KeyType = KeyType.P256
    names: tuple[str, ...] = ("{node}.nodes.lab.example",)
    addresses: tuple[str, ...] = ("10.0.0.0/16", "fd00:20::/64")


SHAPES = {
    "as it comes": Shape(),
    "a P-384 key": Shape(node_key=KeyType.P384),
    "a P-384 authority": Shape(issuing_key=KeyType.P384),
    "a P-256 root": Shape(root_key=KeyType.P256),
    "an Ed25519 key": Shape(node_key=KeyType.ED25519),
    "an Ed25519 authority": Shape(issuing_key=KeyType.ED25519, root_key=KeyType.ED25519),
    "no common name": Shape(node=LONG),
    "no address": Shape(address=None),
    "an IPv6 address": Shape(address="fd00:20::7"),
    "no ranges": Shape(address=None, addresses=()),
    "IPv6 alone": Shape(address="fd00:20::7", addresses=("fd00:20::/64",)),
    "two domains": Shape(names=("{node}.nodes.lab.example", "n-{node}.gpu.example")),
}


def request_of(kind: KeyType) -> bytes:
    key = generate(kind)
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    algorithm = None if kind is KeyType.ED25519 else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM)


def made(folder: Path, shape: Shape) -> Authority:
    file = folder / "policy.yaml"
    file.write_text(
        policy_text(names=shape.names, addresses=shape.addresses, node_keys=["p256", "p384", "ed25519"])
    )
    plan = Plan(policy_file=file, root_key=shape.root_key, issuing_key=shape.issuing_key)
    secrets = Secrets(PASSPHRASE, PASSPHRASE, CHEAP)
    make_authority(folder / "ca", plan, passphrases=secrets, actor="tester", now=NOW)
    return Authority.open(folder / "ca", now=NOW, kdf_floor=CHEAP)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_judge_accepts_every_shape_of_certificate(tmp_path: Path, shape: str) -> None:
    need_command("openssl")
    wanted_shape = SHAPES[shape]
    authority = made(tmp_path, wanted_shape)

    # our own judge has its say before it leaves
    issued = issue(
        authority,
        csr=request_of(wanted_shape.node_key),
        node=wanted_shape.node,
        address=wanted_shape.address,
    )

    layout, file = authority.layout, tmp_path / "leaf.pem"
    file.write_bytes(issued.certificate_pem)
    for lower, upper in (
        (authority.root, None),
        (authority.issuing, authority.root),
        (leaf_of(issued), authority.issuing),
    ):
        assert pkilint_here(lower, upper) == []
    for purpose in ("sslserver", "sslclient"):
        for name in issued.names:
            options = ("-purpose", purpose, "-verify_hostname", name)
            assert openssl_verify(layout.folder, file, *options, at=NOW) == ""
    if wanted_shape.issuing_key is KeyType.ED25519:  # on a leaf's own key this verifier has no rule
        with pytest.raises(verification.VerificationError, match="Forbidden"):
            cryptography_verify(issued.chain_pem, authority.bundle_pem, at=NOW)
    else:
        cryptography_verify(issued.chain_pem, authority.bundle_pem, at=NOW)


# Faults: what our judge says, and who else objects


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("agreement"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("other"))


SAN, AKI, SKI = x509.SubjectAlternativeName, x509.AuthorityKeyIdentifier, x509.SubjectKeyIdentifier
BASIC, USAGE, PURPOSES = x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage
EC_PUBLIC = node_key().public_key()


def broken(authority: Authority, other: Authority, fault: str) -> x509.Certificate:
    """A leaf with one fault."""
    end = authority.issuing.not_valid_after_utc
    match fault:
        case "no SAN":
            return leaf(authority, without=[SAN])
        case "no AKI":
            return leaf(authority, without=[AKI])
        case "no SKI":
            return leaf(authority, without=[SKI])
        case "no BasicConstraints":
            return leaf(authority, without=[BASIC])
        case "no KeyUsage":
            return leaf(authority, without=[USAGE])
        case "no ExtendedKeyUsage":
            return leaf(authority, without=[PURPOSES])
        case "another AKI":
            return leaf(authority, AKI(b"x" * 20, None, None))
        case "another SKI":
            return leaf(authority, SKI(b"x" * 20))
        case "a CA":
            return leaf(authority, BASIC(ca=True, path_length=None))
        case "may sign":
            return leaf(authority, key_usage(key_cert_sign=True))
        case "enciphers":
            return leaf(authority, key_usage(key_encipherment=True))
        case "server only":
            return leaf(authority, PURPOSES([ExtendedKeyUsageOID.SERVER_AUTH]))
        case "name constraints":
            return leaf(authority, x509.NameConstraints([x509.DNSName("lab")], None))
        case "KeyUsage not critical":
            return leaf(authority, critical={USAGE: False})
        case "BasicConstraints not critical":
            return leaf(authority, critical={BASIC: False})
        case "AKI critical":
            return leaf(authority, critical={AKI: True})
        case "SKI critical":
            return leaf(authority, critical={SKI: True})
        case "ExtendedKeyUsage critical":
            return leaf(authority, critical={PURPOSES: True})
        case "no subject, SAN not critical":
            return leaf(authority, common_name=None)
        case "subject, SAN critical":
            return leaf(authority, critical={SAN: True})
        case "another common name":
            return leaf(authority, common_name="other.lab.example")
        case "no URI":
            return leaf(authority, san(*NAMES[:2]))
        case "two URIs":
            return leaf(authority, san(*NAMES, x509.UniformResourceIdentifier("spiffe://lab.example/x")))
        case "a malformed URI":
            return leaf(
                authority,
                san(*NAMES[:2], x509.UniformResourceIdentifier("spiffe://Lab.Internal/node/gpu 01")),
            )
        case "an underscore":
            return leaf(authority, san(*NAMES, x509.DNSName("gpu_01.nodes.lab.example")))
        case "an address as a name":
            return leaf(authority, san(*NAMES, x509.DNSName("10.0.0.7")))
        case "a trailing dot":
            return leaf(authority, san(*NAMES, x509.DNSName(f"{DNS}.")))
        case "a mail address":
            return leaf(authority, san(*NAMES, x509.RFC822Name("a@lab.example")))
        case "a name outside":
            return leaf(authority, san(*NAMES, x509.DNSName("gpu-01.other.example")))
        case "an address outside":
            return leaf(authority, san(*NAMES, x509.IPAddress(ipaddress.ip_address("192.0.2.1"))))
        case "an address of a barred family":
            return leaf(authority, san(*NAMES, x509.IPAddress(ipaddress.ip_address("fd00::1"))))
        case "serial number 1":
            return leaf(authority, serial=1)
        case "another serial number":
            return leaf(authority, serial=SERIAL + 1)
        case "another key":
            return leaf(authority, key=EC_PUBLIC)
        case "the year 9999":
            return leaf(authority, end=datetime(9999, 12, 31, 23, 59, 59, tzinfo=NOW.tzinfo))
        case "outlives its issuer":
            return leaf(authority, end=end + timedelta(days=1))
        case "begins before its issuer":
            return leaf(authority, begin=NOW - timedelta(days=1))
        case "begins later":
            return leaf(authority, begin=NOW + timedelta(seconds=1))
        case "ended":
            return leaf(authority, begin=NOW - timedelta(seconds=9), end=NOW - timedelta(seconds=1))
        case "another issuer":
            return leaf(authority, issuer=other.issuing.subject)
        case _:
            return leaf(other, issuer=authority.issuing.subject)


def objecting(authority: Authority, certificate: x509.Certificate, folder: Path) -> tuple[str, ...]:
    """The judges that are not ours and refuse a leaf."""
    file, said = folder / "leaf.pem", {}
    file.write_bytes(pem(certificate))
    said["pkilint"] = pkilint_here(certificate, authority.issuing)
    said["openssl"] = [
        complaint
        for purpose in ("sslserver", "sslclient")
        if (complaint := openssl_verify(authority.layout.folder, file, "-purpose", purpose, at=NOW))
    ]
    try:
        cryptography_verify(pem(certificate) + authority.issuing_pem, authority.bundle_pem, at=NOW)
    except (verification.VerificationError, x509.ExtensionNotFound) as error:
        said["cryptography"] = [str(error)]
    return tuple(judge for judge in JUDGES if said.get(judge))


FAULTS: dict[str, tuple[str, ...]] = {
    "no SAN": ("cryptography",),
    "no AKI": ("pkilint", "openssl", "cryptography"),
    "no SKI": ("pkilint",),
    "no BasicConstraints": (),
    "no KeyUsage": (),
    "no ExtendedKeyUsage": (),
    "another AKI": ("pkilint", "openssl"),
    "another SKI": (),
    "a CA": ("pkilint", "cryptography"),
    "may sign": ("pkilint", "openssl", "cryptography"),
    "enciphers": ("pkilint",),
    "server only": ("openssl", "cryptography"),
    "name constraints": ("pkilint", "cryptography"),
    "KeyUsage not critical": ("pkilint",),
    "BasicConstraints not critical": (),
    "AKI critical": ("pkilint", "openssl", "cryptography"),
    "SKI critical": ("pkilint", "openssl"),
    "ExtendedKeyUsage critical": ("cryptography",),
    "no subject, SAN not critical": ("pkilint", "openssl", "cryptography"),
    "subject, SAN critical": ("pkilint", "cryptography"),
    "another common name": (),
    "no URI": (),
    "two URIs": (),
    "a malformed URI": ("pkilint",),
    "an underscore": ("cryptography",),
    "an address as a name": ("pkilint", "openssl", "cryptography"),
    "a trailing dot": ("pkilint", "openssl", "cryptography"),
    "a mail address": (),
    "a name outside": ("openssl", "cryptography"),
    "an address outside": ("openssl", "cryptography"),
    "an address of a barred family": ("openssl", "cryptography"),
    "serial number 1": (),
    "another serial number": (),
    "another key": (),
    "the year 9999": (),
    "outlives its issuer": (),
    "begins before its issuer": (),
    "begins later": ("openssl", "cryptography"),
    "ended": ("openssl", "cryptography"),
    "another issuer": ("openssl", "cryptography"),
    "another signer": ("pkilint", "openssl", "cryptography"),
}
"""Which of the others find it as well; later versions of them may find more."""


@pytest.mark.parametrize("fault", FAULTS)
def test_our_judge_finds_each_fault_and_the_others_find_what_they_can(
    authority: Authority, other: Authority, tmp_path: Path, fault: str
) -> None:
    need_command("openssl")
    certificate = broken(authority, other, fault)
    want = replace(wanted(), serial=certificate.serial_number) if fault == "serial number 1" else wanted()
    chain = pem(certificate) + authority.issuing_pem

    ours = [*faults_of_chain(chain, issuing=authority.issuing, root=authority.root, wanted=want, now=NOW)]

    assert ours
    assert set(objecting(authority, certificate, tmp_path)) >= set(FAULTS[fault])
