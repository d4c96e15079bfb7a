"""Which keys there are: P-256 and P-384 without a word, Ed25519 where it was asked for, and nothing else."""

import itertools
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ca.authority import Authority
from ca.keys import PrivateKey, generate, hash_of, is_ours, kind_of
from ca.kinds import KeyType
from ca.making import Plan, Secrets, make_authority
from ca.request import read_request
from ca.signer import KeySigner, sign_request
from inventory.errors import Refused
from tests.ca.judges import handshake, openssl_verify, pkilint_findings
from tests.ca.material import (
    CHEAP,
    NOW,
    OTHER_UUID,
    PASSPHRASE,
    UUID,
    issue,
    kinds,
    new_authority,
    policy_text,
)

ALL_KEYS = ["p256", "p384", "ed25519"]


def authority_of(
    folder: Path, *, root: KeyType, issuing: KeyType, now: datetime = NOW, node_keys: list[str] | None = None
) -> Authority:
    (folder / "policy.yaml").write_text(policy_text(node_keys=node_keys))
    plan = Plan(policy_file=folder / "policy.yaml", root_key=root, issuing_key=issuing)
    secrets = Secrets(PASSPHRASE, PASSPHRASE, CHEAP)
    make_authority(folder / "ca", plan, passphrases=secrets, actor="tester", now=now)
    return Authority.open(folder / "ca", now=now, kdf_floor=CHEAP)


def asked(key: PrivateKey) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return sign_request(builder, KeySigner(key)).public_bytes(Encoding.PEM)


@pytest.mark.parametrize(("root", "issuing"), [*itertools.product(KeyType, KeyType)])
def test_every_pair_of_keys_makes_an_authority_whose_certificates_count(
    tmp_path: Path, root: KeyType, issuing: KeyType
) -> None:
    authority = authority_of(tmp_path, root=root, issuing=issuing)

    issued = issue(authority)

    leaf = tmp_path / "leaf.pem"
    leaf.write_bytes(issued.certificate_pem)
    assert openssl_verify(authority.layout.folder, leaf, at=NOW) == ""
    assert (kind_of(authority.root.public_key()), kind_of(authority.issuing.public_key())) == (root, issuing)


def test_without_a_word_the_root_is_on_p384_and_the_authority_on_p256(tmp_path: Path) -> None:
    authority = new_authority(tmp_path)

    assert kind_of(authority.root.public_key()) is KeyType.P384
    assert kind_of(authority.issuing.public_key()) is KeyType.P256
    assert authority.policy.node_keys == (KeyType.P256, KeyType.P384)


def test_ed25519_from_root_to_node_passes_the_linter(tmp_path: Path) -> None:
    authority = authority_of(tmp_path, root=KeyType.ED25519, issuing=KeyType.ED25519, node_keys=["ed25519"])
    issued = issue(authority, csr=asked(generate(KeyType.ED25519)))
    leaf = tmp_path / "leaf.pem"
    leaf.write_bytes(issued.certificate_pem)

    for file in (authority.layout.root, authority.layout.issuing, leaf):
        assert pkilint_findings("lint_pkix_cert", file) == []
    assert issued.certificate_pem
    assert x509.load_pem_x509_certificate(issued.certificate_pem).signature_hash_algorithm is None


def test_two_nodes_with_ed25519_shake_hands_over_strict_mutual_tls(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = authority_of(
        tmp_path, root=KeyType.ED25519, issuing=KeyType.ED25519, now=now, node_keys=ALL_KEYS
    )
    pairs = []
    for node, uuid in (("gpu-01", UUID), ("gpu-02", OTHER_UUID)):
        key = generate(KeyType.ED25519)
        chain, key_file = tmp_path / f"{node}.pem", tmp_path / f"{node}.key"
        chain.write_bytes(issue(authority, csr=asked(key), node=node, vm_uuid=uuid, now=now).chain_pem)
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        pairs.append((chain, key_file))

    protocol, seen = handshake(pairs[0], pairs[1], authority.layout.root, name="gpu-01.nodes.lab.example")

    assert (protocol, seen) == ("TLSv1.3", "spiffe://lab.example/node/gpu-02")


def test_a_request_carries_only_a_kind_of_key_that_the_policy_names(tmp_path: Path) -> None:
    strict = authority_of(tmp_path, root=KeyType.P384, issuing=KeyType.P256, node_keys=["p384"])

    for kind in (KeyType.P256, KeyType.ED25519):
        with pytest.raises(Refused, match="its key is not one on P-384"):
            issue(strict, csr=asked(generate(kind)))
    assert kinds(strict) == ["init"]
    assert issue(strict, csr=asked(generate(KeyType.P384))).serial


def test_the_mend_names_a_key_that_would_be_taken() -> None:
    with pytest.raises(Refused) as caught:
        read_request(asked(generate(KeyType.P256)), allowed=[KeyType.ED25519])
    assert caught.value.next_step.endswith("-algorithm Ed25519")


def test_where_no_openssl_is_ed25519_is_not_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = authority_of(tmp_path, root=KeyType.P384, issuing=KeyType.P256, node_keys=ALL_KEYS)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(Refused, match="no openssl on this host"):
        issue(authority, csr=asked(generate(KeyType.ED25519)))
    assert issue(authority, csr=asked(generate(KeyType.P256))).serial


def test_other_curves_are_none_of_ours() -> None:
    key = ec.generate_private_key(ec.SECP521R1())

    assert not is_ours(key.public_key())
    assert kind_of("no key") is None
    assert hash_of(key.public_key()) is None
    with pytest.raises(TypeError, match="secp521r1"):
        KeySigner(key).sign(b"words")
    assert isinstance(hash_of(generate(KeyType.P384).public_key()), hashes.SHA384)
