"""What the authority offers to passports: the right certificate, and a judgement that can be no."""

from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from ca import passport
from ca.authority import Authority
from ca.keys import generate
from ca.kinds import KeyType
from ca.passport import certificate_of
from ca.profile import fingerprint
from inventory.errors import BadInput
from inventory.passport import openssl
from inventory.passport.identity import Identity, Judge, offered
from tests.ca.material import NOW, OTHER_UUID, UUID, issue, leaf_of, new_authority
from tests.ca.test_key_types import asked, authority_of
from tests.require import need_command


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


def test_the_newest_certificate_that_counts_is_found_or_the_one_that_is_asked_for(
    authority: Authority,
) -> None:
    first, second = issue(authority), issue(authority)

    newest = certificate_of(authority, "gpu-01", vm_uuid=UUID, serial=None, now=NOW)
    assert newest is not None
    assert (newest.serial, newest.sha256) == (second.serial, fingerprint(leaf_of(second)))
    assert (newest.audit_head, newest.audit_entries) == (authority.head, authority.entries)
    assert newest.spiffe_id == "spiffe://lab.example/node/gpu-01"
    older = certificate_of(authority, "gpu-01", vm_uuid=UUID, serial=first.serial.upper(), now=NOW)
    assert older is not None
    assert older.serial == first.serial
    assert certificate_of(authority, "gpu-01", vm_uuid=UUID, serial="ab12", now=NOW) is None
    assert certificate_of(authority, "gpu-02", vm_uuid=UUID, serial=None, now=NOW) is None


def test_a_former_machines_certificate_is_not_this_ones(authority: Authority) -> None:
    first = issue(authority)

    assert certificate_of(authority, "gpu-01", vm_uuid=OTHER_UUID, serial=None, now=NOW) is None
    second = issue(authority, vm_uuid=OTHER_UUID, replace=True)
    for uuid, issued in ((UUID, first), (OTHER_UUID, second)):
        found = certificate_of(authority, "gpu-01", vm_uuid=uuid, serial=None, now=NOW)
        assert found is not None
        assert found.serial == issued.serial
    assert certificate_of(authority, "gpu-01", vm_uuid=OTHER_UUID, serial=first.serial, now=NOW) is None


def test_a_found_certificate_is_judged_good_and_says_who_it_is(authority: Authority) -> None:
    issued = issue(authority, vm_uuid=UUID)
    found = certificate_of(authority, "gpu-01", vm_uuid=UUID, serial=None, now=NOW)
    assert found is not None
    roots = authority.bundle_pem.decode()

    assert passport.faults(found.chain, roots=roots, at=NOW) == ()
    leaf = passport.leaf(found.chain[0])
    assert (leaf.serial, leaf.uris) == (issued.serial, (found.spiffe_id,))
    assert leaf.names == found.names
    assert passport.faults(found.chain, roots=roots, at=NOW + timedelta(days=31))
    assert passport.faults(found.chain, roots=roots, at=NOW - timedelta(days=31))


def test_every_wrong_link_of_a_chain_is_named(authority: Authority, tmp_path: Path) -> None:
    issue(authority)
    found = certificate_of(authority, "gpu-01", vm_uuid=UUID, serial=None, now=NOW)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = new_authority(elsewhere)
    issue(other)
    strange = certificate_of(other, "gpu-01", vm_uuid=UUID, serial=None, now=NOW)
    assert found is not None
    assert strange is not None
    leaf, issuing, root = found.chain
    roots = root + strange.chain[2]

    for chain, words in (
        ((strange.chain[0], issuing, root), "the leaf was not signed by its issuer"),
        ((strange.chain[0], strange.chain[1], root), "the issuing authority was not signed by its issuer"),
        ((leaf, issuing, strange.chain[2]), "the issuing authority was not signed by its issuer"),
        ((leaf, issuing, issuing), "its root is not among those that are trusted"),
        ((issuing, root, root), "the verifier of cryptography refuses it"),
        (("junk", issuing, root), "a certificate cannot be read"),
    ):
        assert words in " ".join(passport.faults(chain, roots=roots, at=NOW)), words
    assert passport.faults(found.chain, roots=strange.chain[2], at=NOW)


def test_keys_that_the_library_does_not_take_are_judged_by_openssl(tmp_path: Path) -> None:
    need_command("openssl")
    authority = authority_of(
        tmp_path, root=KeyType.ED25519, issuing=KeyType.ED25519, node_keys=[str(KeyType.ED25519)]
    )
    issue(authority, csr=asked(generate(KeyType.ED25519)))
    found = certificate_of(authority, "gpu-01", vm_uuid=UUID, serial=None, now=NOW)
    assert found is not None

    judges: tuple[Judge, ...] = (passport, openssl)
    for judge in judges:
        assert judge.faults(found.chain, roots=found.chain[2], at=NOW) == ()
        (fault, _) = judge.faults(found.chain, roots=found.chain[2], at=NOW + timedelta(days=31))
        assert "expired" in fault


def test_the_offer_is_found_through_its_entry_point() -> None:
    offer: Identity = passport

    assert [point.value for point in entry_points(group="muster.passport")] == ["ca.passport"]
    assert offered() is offer


def test_a_folder_without_an_authority_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no authority"):
        passport.certificate("gpu-01", vm_uuid=UUID, serial=None, ca_dir=tmp_path, now=NOW)
    with pytest.raises(BadInput, match="there is no authority"):
        passport.roots(tmp_path, now=NOW)
