"""The profile: what root, issuing authority and leaf look like, and what judges that are not ours say of them."""

import ipaddress
import json
import os
import ssl
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID

from ca.authority import Authority
from ca.profile import constraints, fingerprint, node_validity, timestamp, whole_second
from inventory.errors import Refused
from tests.ca.judges import cryptography_verify, handshake, openssl_verify, pkilint_findings
from tests.ca.material import (
    NOW,
    OTHER_UUID,
    UUID,
    issue,
    key_pem,
    leaf_of,
    new_authority,
    node_key,
    policy,
    policy_text,
    request,
)
from tests.require import need_command

LONG = "n" * 60  # with its domain longer than a common name may be


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    text = policy_text(
        names=["{node}.nodes.lab.example", "{node}.gpu.lab.example"],
        addresses=["10.0.0.0/16", "fd00:20::/64"],
    )
    return new_authority(tmp_path_factory.mktemp("profile"), text=text)


def usages(certificate: x509.Certificate) -> set[str]:
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment")
    return {
        name for name in (*names, "key_agreement", "key_cert_sign", "crl_sign") if getattr(usage.value, name)
    }


def test_the_root_signs_certificates_with_p384_and_nothing_else(authority: Authority) -> None:
    root = authority.root
    basic = root.extensions.get_extension_for_class(x509.BasicConstraints)

    assert isinstance(root.public_key(), ec.EllipticCurvePublicKey)
    assert root.public_key().curve.name == "secp384r1"  # type: ignore[union-attr]  # as just asserted
    assert root.subject == root.issuer
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 1)
    assert usages(root) == {"key_cert_sign", "crl_sign"}
    assert root.not_valid_before_utc == NOW - timedelta(minutes=10)
    assert {type(extension.value).__name__ for extension in root.extensions} == {
        "BasicConstraints",
        "KeyUsage",
        "SubjectKeyIdentifier",
    }


def test_the_issuing_authority_is_bound_to_nodes_names_and_addresses(authority: Authority) -> None:
    issuing = authority.issuing
    basic = issuing.extensions.get_extension_for_class(x509.BasicConstraints)
    limits = issuing.extensions.get_extension_for_class(x509.NameConstraints)
    purposes = issuing.extensions.get_extension_for_class(x509.ExtendedKeyUsage)

    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)
    assert usages(issuing) == {"key_cert_sign", "crl_sign"}
    assert limits.critical
    assert [subtree.value for subtree in limits.value.permitted_subtrees or []] == [
        "nodes.lab.example",
        "gpu.lab.example",
        ipaddress.ip_network("10.0.0.0/16"),
        ipaddress.ip_network("fd00:20::/64"),
    ]
    assert set(purposes.value) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert issuing.not_valid_after_utc < authority.root.not_valid_after_utc
    assert issuing.subject != authority.root.subject


@pytest.mark.parametrize(
    ("addresses", "excluded"),
    [
        ([], ["0.0.0.0/0", "::/0"]),
        (["10.0.0.0/16"], ["::/0"]),
        (["fd00::/64"], ["0.0.0.0/0"]),
        (["10.0.0.0/16", "fd00::/64"], []),
    ],
)
def test_a_family_without_a_range_is_excluded_whole(addresses: list[str], excluded: list[str]) -> None:
    limits = constraints(policy(addresses=addresses))

    assert [str(subtree.value) for subtree in limits.excluded_subtrees or []] == excluded


@pytest.mark.parametrize(
    ("addresses", "address"), [([], None), (["10.0.0.0/16"], "10.0.0.7"), (["fd00::/64"], "fd00::7")]
)
def test_each_shape_of_constraints_verifies(
    tmp_path: Path, addresses: list[str], address: str | None
) -> None:
    authority = new_authority(tmp_path, text=policy_text(addresses=addresses))

    issued = issue(authority, address=address)

    cryptography_verify(issued.chain_pem, authority.bundle_pem, at=NOW)


def test_a_leaf_says_who_a_node_is_and_no_more(authority: Authority) -> None:
    issued = issue(authority, node="gpu-02", vm_uuid=OTHER_UUID, address="10.0.0.7")
    leaf = leaf_of(issued)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)

    assert leaf.subject.rfc4514_string() == "CN=gpu-02.nodes.lab.example"
    assert list(names.value) == [
        x509.DNSName("gpu-02.nodes.lab.example"),
        x509.DNSName("gpu-02.gpu.lab.example"),
        x509.IPAddress(ipaddress.ip_address("10.0.0.7")),
        x509.UniformResourceIdentifier("spiffe://lab.example/node/gpu-02"),
    ]
    assert not names.critical
    assert usages(leaf) == {"digital_signature"}
    assert (leaf.not_valid_before_utc, leaf.not_valid_after_utc) == (issued.not_before, issued.not_after)
    assert leaf.not_valid_after_utc == NOW + timedelta(days=30)
    assert leaf.serial_number == int(issued.serial, 16)
    assert leaf.serial_number.bit_length() > 64
    assert issued.fingerprint_sha256 == fingerprint(leaf)


def test_a_name_too_long_for_a_common_name_leaves_the_subject_empty(authority: Authority) -> None:
    leaf = leaf_of(issue(authority, node=LONG))

    assert list(leaf.subject) == []
    assert leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).critical


def test_a_chain_is_the_leaf_and_its_issuer_and_the_bundle_the_root(authority: Authority) -> None:
    issued = issue(authority)

    assert x509.load_pem_x509_certificates(issued.chain_pem) == [leaf_of(issued), authority.issuing]
    assert x509.load_pem_x509_certificates(authority.bundle_pem) == [authority.root]


@pytest.mark.parametrize("node", ["gpu-01", LONG])
def test_openssl_accepts_a_leaf_strictly(authority: Authority, node: str, tmp_path: Path) -> None:
    need_command("openssl")
    issued = issue(authority, node=node)
    leaf = tmp_path / "leaf.pem"
    leaf.write_bytes(issued.certificate_pem)
    names = ("-verify_hostname", f"{node}.nodes.lab.example")

    for purpose in ("sslserver", "sslclient"):
        assert openssl_verify(authority.layout.folder, leaf, "-purpose", purpose, *names, at=NOW) == ""
    assert openssl_verify(authority.layout.folder, leaf, "-verify_ip", "10.0.0.7", at=NOW) == ""
    assert "hostname mismatch" in openssl_verify(
        authority.layout.folder, leaf, "-verify_hostname", "gpu-99.nodes.lab.example", at=NOW
    )


@pytest.mark.parametrize("node", ["gpu-01", LONG])
def test_cryptography_accepts_a_leaf(authority: Authority, node: str) -> None:
    issued = issue(authority, node=node)

    cryptography_verify(issued.chain_pem, authority.bundle_pem, at=NOW)
    with pytest.raises(verification.VerificationError):
        cryptography_verify(issued.chain_pem, authority.bundle_pem, at=NOW + timedelta(days=31))


@pytest.mark.parametrize("node", ["gpu-01", LONG])
def test_pkilint_finds_nothing_in_a_leaf(authority: Authority, node: str, tmp_path: Path) -> None:
    leaf = tmp_path / "leaf.pem"
    leaf.write_bytes(issue(authority, node=node).certificate_pem)

    assert pkilint_findings("lint_pkix_cert", leaf) == []
    assert pkilint_findings("lint_pkix_signer_signee_cert_chain", authority.layout.issuing, leaf) == []


def test_pkilint_finds_nothing_in_the_authorities(authority: Authority) -> None:
    root, issuing = authority.layout.root, authority.layout.issuing

    assert pkilint_findings("lint_pkix_cert", root) == []
    assert pkilint_findings("lint_pkix_cert", issuing) == []
    assert pkilint_findings("lint_pkix_signer_signee_cert_chain", root, issuing) == []


def test_two_nodes_shake_hands_over_strict_mutual_tls(tmp_path: Path) -> None:
    authority = new_authority(tmp_path, now=datetime.now(UTC))
    pairs = []
    for node, uuid in (("gpu-01", UUID), ("gpu-02", OTHER_UUID)):
        key = node_key()
        issued = issue(authority, csr=request(key), node=node, vm_uuid=uuid, now=datetime.now(UTC))
        chain, key_file = tmp_path / f"{node}.pem", tmp_path / f"{node}.key"
        chain.write_bytes(issued.chain_pem)
        key_file.write_bytes(key_pem(key))
        pairs.append((chain, key_file))

    protocol, seen = handshake(pairs[0], pairs[1], authority.layout.root, name="gpu-01.nodes.lab.example")

    assert (protocol, seen) == ("TLSv1.3", "spiffe://lab.example/node/gpu-02")


@pytest.mark.parametrize("order", ["leaf alone", "reversed"])
def test_a_chain_in_another_shape_does_not_serve(tmp_path: Path, order: str) -> None:
    authority = new_authority(tmp_path, now=datetime.now(UTC))
    key = node_key()
    issued = issue(authority, csr=request(key), now=datetime.now(UTC))
    good, bad, key_file = tmp_path / "good.pem", tmp_path / "bad.pem", tmp_path / "key.pem"
    good.write_bytes(issued.chain_pem)
    bad.write_bytes(
        issued.certificate_pem if order == "leaf alone" else authority.issuing_pem + issued.certificate_pem
    )
    key_file.write_bytes(key_pem(key))

    with pytest.raises(ssl.SSLError):
        handshake((good, key_file), (bad, key_file), authority.layout.root, name="gpu-01.nodes.lab.example")


def test_a_certificate_made_in_tokyo_is_valid_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        now = datetime.now(UTC)
        authority = new_authority(tmp_path, now=now)

        cryptography_verify(issue(authority, now=now).chain_pem, authority.bundle_pem, at=datetime.now(UTC))
    finally:
        monkeypatch.undo()
        os.environ.pop("TZ", None)
        time.tzset()


def test_a_time_without_a_zone_is_a_bug_not_a_guess() -> None:
    with pytest.raises(ValueError, match="time zone"):
        whole_second(NOW.replace(tzinfo=None))


def test_times_print_as_utc() -> None:
    in_tokyo = NOW.replace(microsecond=7).astimezone(timezone(timedelta(hours=9)))

    assert timestamp(in_tokyo) == "2026-11-30T12:00:00Z"


@pytest.mark.parametrize(("skew_s", "late_s"), [(300, 90), (300, 240), (600, 600), (3600, 3600)])
def test_a_node_whose_clock_is_as_late_as_the_policy_bears_can_use_its_certificate(
    tmp_path: Path, skew_s: int, late_s: int
) -> None:
    authority = new_authority(tmp_path, text=policy_text(max_clock_skew_s=skew_s))

    issued = issue(authority)

    cryptography_verify(issued.chain_pem, authority.bundle_pem, at=NOW - timedelta(seconds=late_s))


def test_a_leaf_ends_at_the_latest_one_second_before_its_issuer(authority: Authority) -> None:
    end = authority.issuing.not_valid_after_utc
    month = timedelta(days=30)
    last = end - timedelta(seconds=1) - month

    assert node_validity(authority.issuing, month, now=last, backdate=timedelta(0))[1] == end - timedelta(
        seconds=1
    )
    with pytest.raises(Refused, match="would outlive the issuing authority"):
        node_validity(authority.issuing, month, now=last + timedelta(seconds=1), backdate=timedelta(0))


def test_a_leaf_for_thirty_days_is_refused_where_ten_are_left(authority: Authority) -> None:
    now = authority.issuing.not_valid_after_utc - timedelta(days=10, hours=1)

    with pytest.raises(Refused) as caught:
        issue(authority, now=now)

    assert "30 days would outlive the issuing authority, which ends in 10 days" in caught.value.why
    assert "lifetime_days" in caught.value.next_step


def test_nothing_is_issued_by_an_authority_that_expired_yesterday(authority: Authority) -> None:
    now = authority.issuing.not_valid_after_utc + timedelta(days=1)

    with pytest.raises(Refused, match="has expired"):
        issue(authority, now=now)


def test_nothing_is_issued_before_the_authority_began(authority: Authority) -> None:
    with pytest.raises(Refused, match="clock"):
        node_validity(
            authority.issuing, timedelta(days=1), now=NOW - timedelta(days=1), backdate=timedelta(0)
        )


def test_serial_numbers_are_long_and_never_repeat(authority: Authority) -> None:
    serials = [issue(authority).serial for _ in range(5)]

    assert len(set(serials)) == 5
    assert json.dumps(serials).islower()
