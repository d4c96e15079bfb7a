"""The judge on what no authority of ours makes: old versions, longer subjects, parts that lack their own parts."""

import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ca.authority import Authority
from ca.judge import faults_of_chain, outside, wider
from ca.kinds import KeyType
from ca.making import Plan, Secrets, make_authority
from ca.profile import pem
from ca.signer import KeySigner, sign_certificate
from inventory.errors import Refused
from tests.ca.material import (
    CHEAP,
    NOW,
    PASSPHRASE,
    issue,
    new_authority,
    policy,
    policy_text,
)
from tests.ca.test_judge import KEY, SERIAL, leaf, remade, verdict, wanted


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("corners"))


def tlv(tag: int, content: bytes) -> bytes:
    """A DER element (X.690, section 8.1)."""
    size = len(content)
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag]) + (length if size < 0x80 else bytes([0x80 | len(length)]) + length) + content


def elements(content: bytes) -> list[bytes]:
    """The DER elements that follow each other in a content."""
    found = []
    while content:
        head, size = 2, content[1]
        if size & 0x80:
            head += size & 0x7F
            size = int.from_bytes(content[2:head], "big")
        found.append(content[: head + size])
        content = content[head + size :]
    return found


def of_version_one(authority: Authority) -> x509.Certificate:
    """A right leaf without what version 1 has no room for: its version and its extensions."""
    tbs = elements(leaf(authority).tbs_certificate_bytes[4:])
    old = tlv(0x30, b"".join(part for part in tbs if part[0] not in {0xA0, 0xA3}))
    signature = b"\x00" + authority.unlock(PASSPHRASE).sign(old)
    return x509.load_der_x509_certificate(tlv(0x30, old + tbs[2] + tlv(0x03, signature)))


def test_a_certificate_of_version_one_is_held_back(authority: Authority) -> None:
    old = of_version_one(authority)

    chain = pem(old) + authority.issuing_pem
    faults = [
        *faults_of_chain(chain, issuing=authority.issuing, root=authority.root, wanted=wanted(), now=NOW)
    ]

    assert "it is not an X.509 version 3 certificate" in faults
    assert "it lacks SubjectAlternativeName" in faults


def with_subject(authority: Authority, *attributes: x509.NameAttribute[str]) -> x509.Certificate:
    """A right leaf, but for its subject."""
    right = leaf(authority)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(attributes))
        .issuer_name(right.issuer)
        .public_key(KEY.public_key())
        .serial_number(SERIAL)
        .not_valid_before(right.not_valid_before_utc)
        .not_valid_after(right.not_valid_after_utc)
    )
    for extension in right.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    return sign_certificate(builder, authority.unlock(PASSPHRASE))


def test_a_subject_of_more_than_a_common_name_is_held_back(authority: Authority) -> None:
    name = x509.NameAttribute(NameOID.COMMON_NAME, "gpu-01.nodes.lab.example")
    other = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:masters")

    assert verdict(authority, with_subject(authority, name)) == ""
    assert "more than a common name" in verdict(authority, with_subject(authority, name, other))
    assert "more than a common name" in verdict(authority, with_subject(authority, name, name))


def test_an_authority_without_a_key_identifier_has_no_leaf_that_fits(authority: Authority) -> None:
    root_key = KeySigner(ec.generate_private_key(ec.SECP384R1()))
    weak = remade(authority, root_key, without=x509.SubjectKeyIdentifier)

    assert "AuthorityKeyIdentifier is not its issuer's" in verdict(weak, leaf(authority))


def test_ranges_are_compared_within_their_own_family(tmp_path: Path) -> None:
    text = policy_text(addresses=["10.0.0.0/16", "fd00:20::/64"])
    authority = new_authority(tmp_path, text=text)
    asked = policy(addresses=["10.0.1.0/24", "fd00:20::/80", "fd00:20::/48", "fd00:21::/64", "11.0.0.0/16"])

    assert [said.split()[0] for said in wider(asked, authority.issuing)] == [
        "fd00:20::/48",
        "fd00:21::/64",
        "11.0.0.0/16",
    ]
    assert [*outside(authority.issuing, [], [ipaddress.ip_address("fd00:20::7")])] == []


def test_ed25519_is_not_let_go_without_a_verifier_that_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.yaml").write_text(policy_text())
    plan = Plan(policy_file=tmp_path / "policy.yaml", issuing_key=KeyType.ED25519)
    secrets = Secrets(PASSPHRASE, PASSPHRASE, CHEAP)
    make_authority(tmp_path / "ca", plan, passphrases=secrets, actor="tester", now=NOW)
    authority = Authority.open(tmp_path / "ca", now=NOW, kdf_floor=CHEAP)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(Refused, match="no openssl on this host"):
        issue(authority)
    assert list(authority.layout.issued.iterdir()) == []
