"""Revocation lists during a rotation: one for each authority whose certificates count, before they count."""

from datetime import timedelta
from pathlib import Path

import pytest

from ca.authority import Authority
from ca.crl import lists_in
from ca.signer import Keyring
from inventory.errors import Refused
from tests.ca.fleet import Node, onboarded, refused_by
from tests.ca.material import NOW, PASSPHRASE, issue, leaf_of, new_authority
from tests.ca.test_rotating import activated, prepared


def sign(authority: Authority, *, ahead: int | None = None) -> None:
    signer = authority.unlock(PASSPHRASE)
    authority.sign_lists(signer=signer, now=NOW, actor="tester", ahead_months=ahead)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = new_authority(tmp_path, now=NOW - timedelta(days=1))
    sign(made, ahead=2)
    return made


def accepts(holder: Node, shown: Node, authority: Authority, folder: Path) -> bool:
    """Whether openssl lets a node's chain pass under another node's bundle and the list that is due."""
    crl = folder / "crl.pem"
    crl.write_bytes(authority.due_list(NOW)[1])
    found = refused_by(
        holder, shown.chain.read_bytes(), folder / "judge", "-crl_check", "-CRLfile", str(crl), at=NOW
    )
    return "openssl" not in found


def test_each_list_speaks_for_the_successor_before_it_issues_anything(authority: Authority) -> None:
    assert [each.issuer for each in lists_in(authority.due_list(NOW)[1])] == [authority.issuing.subject]
    former = authority.issuing

    prepared(authority)

    successor = authority.rotation.next
    assert successor is not None
    coming = authority.certificates_of(successor)[0]
    lists = authority.lists
    assert lists is not None
    for slot in lists.slots:
        found = lists_in(authority.read_list(slot))
        assert [each.issuer for each in found] == [former.subject, coming.subject]
        assert all(each.next_update_utc == slot.next_update for each in found)
    assert len(lists.slots) > 2


def test_what_either_authority_revoked_stands_on_its_own_list_and_is_refused(
    authority: Authority, tmp_path: Path
) -> None:
    nodes = tmp_path / "nodes"
    old, old_bad = (onboarded(authority, nodes, name, NOW) for name in ("old", "old-bad"))
    former = authority.issuing
    activated(prepared(authority))
    new, new_bad = (onboarded(authority, nodes, name, NOW) for name in ("new", "new-bad"))
    assert all(accepts(new, node, authority, tmp_path) for node in (old, old_bad, new, new_bad))

    for node in (old_bad, new_bad):
        authority.revoke(node.serial, reason="key-compromise", now=NOW, actor="tester")
    sign(authority)

    by_issuer = {
        each.issuer: {f"{one.serial_number:x}" for one in each}
        for each in lists_in(authority.due_list(NOW)[1])
    }
    assert by_issuer == {former.subject: {old_bad.serial}, authority.issuing.subject: {new_bad.serial}}
    assert [accepts(new, node, authority, tmp_path) for node in (old, old_bad, new, new_bad)] == [
        True,
        False,
        True,
        False,
    ]


def test_a_former_authority_has_no_list_once_it_is_retired(authority: Authority) -> None:
    issue(authority)
    activated(prepared(authority))
    end = NOW + timedelta(days=40)
    authority.sign_lists(signer=authority.unlock(PASSPHRASE), now=end, actor="tester")
    assert len(lists_in(authority.due_list(end)[1])) == 2

    authority.retire(now=end, actor="tester")
    authority.sign_lists(signer=authority.unlock(PASSPHRASE), now=end, actor="tester")

    assert [each.issuer for each in lists_in(authority.due_list(end)[1])] == [authority.issuing.subject]


def test_nothing_is_activated_before_the_nodes_have_lists_that_speak_for_it(authority: Authority) -> None:
    issued = issue(authority)
    authority.installed(issued.serial, now=NOW, actor="tester")
    authority.crl_installed("gpu-01", authority.due_list(NOW)[0].number, now=NOW, actor="tester")
    prepared(authority)

    with pytest.raises(Refused, match="activate would leave nodes") as caught:
        activated(authority)
    assert "gpu-01" in caught.value.why
    assert "onboard-node --refresh gpu-01" in caught.value.next_step

    authority.crl_installed("gpu-01", authority.due_list(NOW)[0].number, now=NOW, actor="tester")
    activated(authority)


def test_lists_for_two_authorities_are_not_signed_with_one_key(authority: Authority) -> None:
    prepared(authority)
    signer = authority.unlock(PASSPHRASE)
    assert isinstance(signer, Keyring)

    with pytest.raises(Refused, match="no revocation list was signed") as caught:
        authority.sign_lists(signer=signer.own, now=NOW, actor="tester")

    assert "only one key was opened" in caught.value.why


def test_a_list_that_lacks_the_successor_blocks_its_activation(authority: Authority) -> None:
    leaf = leaf_of(issue(authority))
    stale = authority.lists
    assert stale is not None
    prepared(authority)
    assert authority.plan_rotation(NOW).blocks == ()

    # The line that the lists of before left, once more: as a kill before the new signing would leave it.
    authority._append("crl", stale.to_body(), now=NOW, actor="tester")  # noqa: SLF001 - no other way to such a past
    authority._append("crl-signed", stale.to_body(), now=NOW, actor="tester")  # noqa: SLF001

    assert [block.mend for block in authority.plan_rotation(NOW).blocks] == [
        "sign them anew: node-ca crl --out FILE"
    ]
    with pytest.raises(Refused, match="activate would leave nodes"):
        activated(authority)
    assert authority.issuer_of(leaf)[0] == authority.issuing
