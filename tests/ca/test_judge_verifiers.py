"""The verifiers that are not ours: which one is asked for which keys, and what comes of its word."""

import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

import ca.judge
from ca.authority import Authority
from ca.judge import faults_of_chain, judge
from ca.kinds import KeyType
from ca.making import Plan, Secrets, make_authority
from ca.profile import pem
from ca.signer import KeySigner
from inventory.errors import Refused
from tests.ca.material import CHEAP, NOW, PASSPHRASE, new_authority, policy_text
from tests.ca.test_judge import leaf, remade, verdict, wanted
from tests.require import need_command


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("verifiers"))


@pytest.fixture(scope="module")
def edwards(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority whose key is Ed25519, so that openssl is asked."""
    folder = tmp_path_factory.mktemp("edwards")
    (folder / "policy.yaml").write_text(policy_text())
    plan = Plan(policy_file=folder / "policy.yaml", issuing_key=KeyType.ED25519)
    make_authority(
        folder / "ca", plan, passphrases=Secrets(PASSPHRASE, PASSPHRASE, CHEAP), actor="tester", now=NOW
    )
    return Authority.open(folder / "ca", now=NOW, kdf_floor=CHEAP)


def test_a_verifier_that_is_not_ours_walks_the_chain_to_the_root(authority: Authority) -> None:
    root_key = KeySigner(ec.generate_private_key(ec.SECP384R1()))
    weak = remade(authority, root_key, without=x509.KeyUsage)
    right, chain = leaf(authority), pem(leaf(authority)) + weak.issuing_pem

    assert [*faults_of_chain(chain, issuing=weak.issuing, root=weak.root, wanted=wanted(), now=NOW)] == []
    assert "the verifier of cryptography refuses it" in verdict(weak, right)


def test_of_a_batch_each_leaf_is_verified_from_its_issuer(authority: Authority) -> None:
    root_key = KeySigner(ec.generate_private_key(ec.SECP384R1()))
    weak = remade(authority, root_key, without=x509.BasicConstraints)
    chain = pem(leaf(authority)) + weak.issuing_pem

    judge(
        pem(leaf(authority)) + authority.issuing_pem,
        issuing=authority.issuing, root=authority.root, wanted=wanted(), now=NOW, one_of_many=True,
    )  # fmt: skip
    with pytest.raises(Refused, match="the verifier of cryptography refuses it"):
        judge(chain, issuing=weak.issuing, root=weak.root, wanted=wanted(), now=NOW, one_of_many=False)
    with pytest.raises(Refused, match="was not signed by its issuer"):
        judge(chain, issuing=weak.issuing, root=authority.root, wanted=wanted(), now=NOW, one_of_many=True)


def test_openssl_judges_what_is_signed_with_ed25519(edwards: Authority) -> None:
    need_command("openssl")
    root_key = KeySigner(ec.generate_private_key(ec.SECP384R1()))
    weak = remade(edwards, root_key, without=x509.KeyUsage)

    said = verdict(weak, leaf(edwards))

    assert verdict(edwards, leaf(edwards)) == ""
    assert "openssl verify -purpose sslserver refuses it" in said
    assert "openssl verify -purpose sslclient refuses it" in said


def test_an_openssl_that_hangs_is_left(
    edwards: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "openssl"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ca.judge, "OPENSSL_TIMEOUT_S", 0.2)

    assert "no answer within" in verdict(edwards, leaf(edwards))


def test_an_openssl_that_refuses_holds_a_leaf_back(
    edwards: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "openssl"
    program.write_text("#!/bin/sh\necho 'error 47: permitted subtree violation' >&2\nexit 2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "openssl verify -purpose sslserver refuses it: error 47" in verdict(edwards, leaf(edwards))


def test_an_elliptic_curve_chain_needs_no_openssl(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert verdict(authority, leaf(authority)) == ""
