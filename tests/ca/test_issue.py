"""Issuing: announced, signed, judged, stored, recorded, and only then returned."""

import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ca.authority import Authority
from ca.record import Standing
from ca.request import read_request
from ca.signer import KeySigner
from inventory.errors import BadInput, Damaged, MusterError, Refused
from tests.ca.material import (
    NOW,
    OTHER_UUID,
    PASSPHRASE,
    UUID,
    BrokenToken,
    issue,
    kinds,
    leaf_of,
    new_authority,
    node_key,
    reopened,
    request,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "policy.yaml"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


def test_a_certificate_is_announced_stored_and_recorded_before_it_leaves(authority: Authority) -> None:
    issued = issue(authority)

    assert kinds(authority) == ["init", "intent", "issued"]
    assert (authority.layout.issued / f"{issued.serial}.pem").read_bytes() == issued.chain_pem
    record = authority.find(issued.serial.upper())
    assert (record.node, record.vm_uuid, record.standing) == ("gpu-01", UUID, Standing.ISSUED)
    assert (record.actor, record.fingerprint_sha256) == ("tester", issued.fingerprint_sha256)
    assert authority.load_issued(issued.serial) == issued
    assert reopened(authority).records() == authority.records("gpu-01")


def test_only_the_key_is_taken_from_a_request(authority: Authority) -> None:
    key = node_key()
    greedy = request(
        key,
        x509.BasicConstraints(ca=True, path_length=None),
        x509.SubjectAlternativeName([x509.DNSName("*.lab"), x509.IPAddress(ipaddress.ip_address("1.1.1.1"))]),
        x509.KeyUsage(True, True, True, True, True, True, True, True, True),  # noqa: FBT003 - its signature
    )

    leaf = leaf_of(issue(authority, csr=greedy, address=None))

    assert leaf.public_key() == key.public_key()
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [
        x509.DNSName("gpu-01.nodes.lab.example"),
        x509.UniformResourceIdentifier("spiffe://lab.example/node/gpu-01"),
    ]


def test_a_node_that_is_named_like_an_address_gets_nothing(authority: Authority) -> None:
    with pytest.raises(Refused, match="cannot name a node"):
        issue(authority, node="10.20.0.11")
    assert kinds(authority) == ["init"]


def pem_of(key: rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM)


def test_keys_of_other_kinds_are_refused(authority: Authority) -> None:
    others = (
        rsa.generate_private_key(65537, 2048),
        ed25519.Ed25519PrivateKey.generate(),
        ec.generate_private_key(ec.SECP521R1()),
    )
    for key in others:
        with pytest.raises(Refused, match="P-256 or P-384"):
            issue(authority, csr=pem_of(key))
    assert issue(authority, csr=pem_of(ec.generate_private_key(ec.SECP384R1()))).serial


def test_a_request_whose_signature_is_wrong_proves_nothing() -> None:
    right = x509.load_pem_x509_csr(request())
    der = bytearray(right.public_bytes(Encoding.DER))
    der[-1] ^= 1
    tampered = x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM)

    with pytest.raises(Refused, match="does not prove"):
        read_request(tampered)


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"no request",
        b"x" * 20_000,
        b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
    ],
    ids=["empty", "words", "too long", "not DER"],
)
def test_what_is_no_request_is_said_so(pem: bytes) -> None:
    with pytest.raises(BadInput):
        read_request(pem)


def test_two_requests_in_one_file_are_refused() -> None:
    with pytest.raises(BadInput, match="one PEM block"):
        read_request(request() + request())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(at=st.integers(0, 400), byte=st.binary(min_size=1, max_size=3))
def test_no_request_whatsoever_ends_in_a_traceback(at: int, byte: bytes) -> None:
    whole = request()
    try:
        read_request(whole[:at] + byte + whole[at + len(byte) :])
    except MusterError as error:
        text = error.what

        assert "request" in text


def test_the_same_request_twice_gives_two_certificates_and_harms_neither(authority: Authority) -> None:
    csr = request()
    first, second = issue(authority, csr=csr), issue(authority, csr=csr)

    assert first.serial != second.serial
    assert authority.load_issued(first.serial).chain_pem == first.chain_pem
    assert [record.standing for record in authority.records()] == [Standing.ISSUED] * 2


def test_a_node_is_onboarded_revoked_and_onboarded_again(authority: Authority) -> None:
    first = issue(authority)
    authority.installed(first.serial, now=NOW, actor="tester")
    authority.revoke(first.serial, reason="key-compromise", now=NOW, actor="tester")

    again = issue(authority, vm_uuid=OTHER_UUID)

    assert [record.state(NOW) for record in authority.records("gpu-01")] == ["revoked", "issued"]
    assert again.serial == authority.records("gpu-01")[1].serial


def test_a_signer_of_another_key_signs_nothing(authority: Authority) -> None:
    with pytest.raises(Damaged, match="not that of the issuing authority"):
        issue(authority, signer=KeySigner(node_key()))
    assert kinds(authority) == ["init"]


@pytest.mark.parametrize("fails", [True, False])
def test_a_certificate_that_fails_is_recorded_and_does_not_leave(authority: Authority, fails: bool) -> None:  # noqa: FBT001
    right = authority.unlock(PASSPHRASE)
    assert isinstance(right, KeySigner)

    with pytest.raises((RuntimeError, Refused), match=r"token removed|not signed by its issuer"):
        issue(authority, signer=BrokenToken(right, fails=fails))

    assert kinds(authority) == ["init", "intent", "failed"]
    record = authority.records()[0]
    assert record.standing is Standing.FAILED
    assert record.why
    assert list(authority.layout.issued.iterdir()) == []
    with pytest.raises(BadInput, match="never issued"):
        authority.load_issued(record.serial)
    assert issue(authority).serial


def test_a_certificate_that_cannot_be_stored_does_not_leave(authority: Authority) -> None:
    authority.layout.issued.rmdir()

    with pytest.raises(Damaged, match="could not be stored"):
        issue(authority)
    assert kinds(authority) == ["init", "intent", "failed"]


def test_a_repeated_serial_number_is_never_used(authority: Authority) -> None:
    numbers = iter([1 << 100, 1 << 100, 1 << 101])
    signer = authority.unlock(PASSPHRASE)
    made = [
        authority.issue(
            request(),
            node="gpu-01",
            vm_uuid=UUID,
            static_address=None,
            signer=signer,
            now=NOW,
            actor="tester",
            serials=lambda: next(numbers),
        ).serial
        for _ in range(2)
    ]

    assert made == [f"{1 << 100:x}", f"{1 << 101:x}"]
    with pytest.raises(Damaged, match="randomness"):
        authority.issue(
            request(),
            node="gpu-01",
            vm_uuid=UUID,
            static_address=None,
            signer=signer,
            now=NOW,
            actor="tester",
            serials=lambda: 1 << 100,
        )


def test_a_changed_file_of_a_certificate_is_noticed(authority: Authority) -> None:
    first, second = issue(authority), issue(authority)
    (authority.layout.issued / f"{first.serial}.pem").write_bytes(second.chain_pem)

    with pytest.raises(Damaged, match="not the certificate that was recorded"):
        authority.load_issued(first.serial)
