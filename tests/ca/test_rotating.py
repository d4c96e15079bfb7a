"""Rotation on a real authority: what nodes trust and present at each phase, judged by verifiers that are not ours."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from ca.authority import Authority
from ca.layout import ROOT_KEY
from ca.phases import Phase
from ca.rotation import Stage
from inventory.errors import BadInput, Refused
from tests.ca.fleet import Node, deaf, onboarded, refused_by
from tests.ca.material import (
    CHEAP,
    NOW,
    PASSPHRASE,
    issue,
    leaf_of,
    new_authority,
    policy_text,
    reopened,
)


@pytest.fixture
def now() -> datetime:
    """Handshakes have no other clock than this host's."""
    return datetime.now(UTC)


def prepared(authority: Authority, *, now: datetime = NOW, new_root: bool = False) -> Authority:
    root_key = authority.layout.take_away / ROOT_KEY
    out = authority.layout.folder.parent / "new-root" if new_root else None
    authority.prepare(
        secret=PASSPHRASE,
        root_key=root_key,
        root_secret=PASSPHRASE,
        new_root=new_root,
        root_out=out,
        now=now,
        actor="tester",
        kdf=CHEAP,
    )
    return authority


def activated(authority: Authority, *, now: datetime = NOW, forced: tuple[str, ...] = ()) -> Authority:
    authority.activate(secret=PASSPHRASE, forced=forced, now=now, actor="tester")
    return authority


def test_a_new_issuing_authority_never_keeps_two_nodes_from_talking(tmp_path: Path, now: datetime) -> None:
    authority = new_authority(tmp_path, now=now)
    old = [onboarded(authority, tmp_path / "nodes", f"old-{n}", now) for n in range(2)]
    bundle, former = authority.bundle_pem, authority.issuing

    prepared(authority, now=now)
    before = onboarded(authority, tmp_path / "nodes", "prepared", now)
    assert authority.issuer_of(leaf_of(authority.load_issued(before.serial)))[0] == former
    assert deaf([*old, before]) == []

    activated(authority, now=now)
    new = onboarded(authority, tmp_path / "nodes", "new", now)
    assert authority.bundle_pem == bundle
    assert authority.issuing != former
    assert authority.issuer_of(leaf_of(authority.load_issued(new.serial)))[0] == authority.issuing
    everybody = [*old, before, new]
    assert deaf(everybody) == []
    for judge_node in everybody:
        for shown in everybody:
            assert refused_by(judge_node, shown.chain.read_bytes(), tmp_path / "judge", at=now) == []

    with pytest.raises(Refused, match="retire") as caught:
        authority.retire(now=now, actor="tester")
    assert (
        "3 nodes with a live certificate of the former authority: old-0, old-1, prepared" in caught.value.why
    )
    assert "onboard-node --renew old-0" in caught.value.next_step
    renewed = [node.renew(authority, now) for node in (*old, before)]
    assert deaf([*renewed, new]) == []


def test_an_issuing_authority_is_retired_once_all_of_its_certificates_have_ended(tmp_path: Path) -> None:
    authority = new_authority(tmp_path)
    first = issue(authority)
    key = authority.layout.issuing_key
    activated(prepared(authority))
    later = issue(authority)
    authority.revoke(first.serial, reason="superseded", now=NOW, actor="tester")

    with pytest.raises(Refused, match="retire") as caught:
        authority.retire(now=NOW, actor="tester")
    assert "1 revoked certificates of the former authority have not ended" in caught.value.why
    assert key.exists()

    end = first.not_after + timedelta(seconds=1)
    authority.retire(now=end, actor="tester")

    assert not key.exists()
    again = reopened(authority, now=end)
    assert again.rotation.stage is Stage.NONE
    assert issue(again, now=end).chain_pem.endswith(again.issuing_pem)
    assert again.load_issued(first.serial).certificate_pem == first.certificate_pem
    assert again.load_issued(first.serial).chain_pem == first.chain_pem
    assert again.load_issued(later.serial).chain_pem == later.chain_pem


def rooted(tmp_path: Path, now: datetime) -> tuple[Authority, dict[str, Node]]:
    """A fleet in the middle of a change of root: nodes with either bundle, and with either leaf."""
    authority = new_authority(tmp_path, now=now)
    names = ("old-old", "old-new", "both-old", "both-new")
    nodes = {name: onboarded(authority, tmp_path / "nodes", name, now) for name in names}
    prepared(authority, now=now, new_root=True)
    authority.distribute(now=now, actor="tester")
    for name in ("both-old", "both-new"):
        nodes[name].refresh(authority, now)
    return authority, nodes


def test_a_new_root_never_keeps_two_nodes_from_talking(tmp_path: Path, now: datetime) -> None:
    authority, nodes = rooted(tmp_path, now)
    assert deaf([*nodes.values()]) == []

    with pytest.raises(Refused, match="activate would leave nodes") as caught:
        authority.activate(secret=PASSPHRASE, now=now, actor="tester")
    assert (
        "2 nodes without the new root in the bundle, as far as is on record: old-new, old-old"
        in caught.value.why
    )
    with pytest.raises(Refused) as caught:
        activated(authority, now=now, forced=("old-old",))
    assert "1 node" in caught.value.why or "old-new" in caught.value.why
    assert "old-old" not in caught.value.why
    assert reopened(authority, now=now).rotation.stage is Stage.DISTRIBUTED

    activated(authority, now=now, forced=("old-old", "old-new"))
    for name in ("old-new", "both-new"):
        nodes[name] = nodes[name].renew(authority, now)

    assert len(x509.load_pem_x509_certificates(nodes["both-new"].chain.read_bytes())) == 4
    assert deaf([*nodes.values()]) == []
    for holder in nodes.values():
        for shown in nodes.values():
            assert refused_by(holder, shown.chain.read_bytes(), tmp_path / "judge", at=now) == [], (
                holder.name,
                shown.name,
            )


def test_an_old_root_leaves_the_bundle_once_nobody_needs_it(tmp_path: Path, now: datetime) -> None:
    authority, nodes = rooted(tmp_path, now)
    old_root = authority.root
    activated(authority, now=now, forced=("old-old", "old-new"))
    nodes = {name: node.renew(authority, now) for name, node in nodes.items()}

    with pytest.raises(Refused, match="retire") as caught:
        authority.retire(now=now, actor="tester")
    assert "2 nodes without the new root in the bundle" in caught.value.why

    for name in ("old-old", "old-new"):
        nodes[name].refresh(authority, now)
    authority.retire(now=now, actor="tester")

    assert x509.load_pem_x509_certificates(authority.bundle_pem) == [authority.root]
    assert authority.root != old_root
    assert [holder.node for holder in authority.holding_older_bundle(now)] == sorted(nodes)
    nodes["both-new"].refresh(authority, now)
    newest = onboarded(authority, tmp_path / "nodes", "newest", now)
    assert deaf([*nodes.values(), newest]) == []
    assert refused_by(nodes["both-new"], newest.chain.read_bytes(), tmp_path / "judge", at=now) == []
    assert "both-new" not in [holder.node for holder in authority.holding_older_bundle(now)]


def test_a_node_that_trusts_the_new_root_alone_would_refuse_old_leaves(tmp_path: Path, now: datetime) -> None:
    authority, nodes = rooted(tmp_path, now)
    activated(authority, now=now, forced=("old-old", "old-new"))
    early = replace(nodes["both-new"].renew(authority, now), name="early")
    early.bundle.write_bytes(authority.layout.root.read_bytes())

    assert refused_by(early, nodes["both-old"].chain.read_bytes(), tmp_path / "judge", at=now) == [
        "openssl",
        "cryptography",
    ]


def test_the_wrong_passphrase_of_the_root_changes_nothing(tmp_path: Path) -> None:
    authority = new_authority(tmp_path)
    before = authority.head

    for secret, root_secret in ((PASSPHRASE, b"wrong"), (b"wrong", PASSPHRASE)):
        with pytest.raises(BadInput, match="stays locked"):
            authority.prepare(
                secret=secret,
                root_key=authority.layout.take_away / ROOT_KEY,
                root_secret=root_secret,
                now=NOW,
                actor="tester",
                kdf=CHEAP,
            )

    assert reopened(authority).head == before
    assert not authority.layout.successors.exists()


def test_a_wider_policy_gets_in_by_a_new_issuing_authority(tmp_path: Path) -> None:
    authority = new_authority(tmp_path)
    authority.layout.policy.write_text(policy_text(addresses=["10.0.0.0/16", "192.168.0.0/24"]))
    wide = reopened(authority)
    with pytest.raises(Refused, match="gets no certificate"):
        issue(wide, address="192.168.0.7")

    activated(prepared(wide))

    assert issue(wide, address="192.168.0.7").addresses == ("192.168.0.7",)


@pytest.mark.parametrize("distributed", [False, True])
def test_what_was_prepared_can_be_taken_back(tmp_path: Path, *, distributed: bool) -> None:
    authority = new_authority(tmp_path)
    bundle = authority.bundle_pem
    prepared(authority, new_root=True)
    if distributed:
        authority.distribute(now=NOW, actor="tester")
        assert authority.bundle_pem != bundle

    authority.undo_rotation(now=NOW, actor="tester")

    again = reopened(authority)
    assert again.rotation.stage is Stage.NONE
    assert again.bundle_pem == bundle
    assert [*again.layout.successors.iterdir()] == []
    assert issue(again).chain_pem.endswith(again.issuing_pem)
    assert activated(prepared(again)).rotation.stage is Stage.ACTIVATED
    with pytest.raises(Refused, match="nothing was taken back"):
        again.undo_rotation(now=NOW, actor="tester")


def test_an_authority_that_was_opened_before_activation_issues_nothing_after_it(tmp_path: Path) -> None:
    authority = new_authority(tmp_path)
    prepared(authority)
    other = reopened(authority)
    activated(authority)

    with pytest.raises(Refused, match="nothing was signed") as caught:
        issue(other)

    assert caught.value.next_step == "run the command again"
    assert issue(reopened(authority)).chain_pem.endswith(authority.issuing_pem)


def test_a_phase_is_refused_when_it_is_not_its_turn(tmp_path: Path) -> None:
    authority = new_authority(tmp_path)
    for phase in (Phase.DISTRIBUTE, Phase.ACTIVATE, Phase.RETIRE):
        with pytest.raises(Refused, match=f"not the turn of {phase}"):
            authority.refuse_phase(phase, NOW)

    prepared(authority)

    with pytest.raises(Refused, match="not the turn of prepare"):
        prepared(authority)
    with pytest.raises(Refused, match="the passphrase was not changed"):
        authority.change_passphrase(PASSPHRASE, b"another one", now=NOW, actor="tester", kdf=CHEAP)
