"""What the holder is told at the end of every command, and what `node-ca status` looks at."""

import shutil
import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ca.authority import Authority
from ca.health import Check, Severity
from ca.layout import Layout
from ca.status import Examination, examine
from inventory.errors import BadInput, Damaged, MusterError, Refused
from tests.ca.material import (
    NOW,
    OTHER_UUID,
    PASSPHRASE,
    issue,
    new_authority,
    policy_text,
)

DAY = timedelta(days=1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """One whose root key was taken away, so that it has nothing to warn of."""
    made = new_authority(tmp_path)
    shutil.move(made.layout.take_away, tmp_path / "usb")
    return made


def sign(authority: Authority, *, now: datetime = NOW, ahead: int | None = None) -> None:
    signer = authority.unlock(PASSPHRASE)
    authority.sign_lists(signer=signer, now=now, actor="tester", ahead_months=ahead)


def revoke(authority: Authority, serial: str, *, now: datetime = NOW) -> None:
    authority.revoke(serial, reason="superseded", now=now, actor="tester")


def test_a_new_authority_whose_root_key_is_away_warns_of_nothing(authority: Authority) -> None:
    assert authority.warnings(NOW) == ()


def test_leaves_that_end_soon_are_one_line_with_their_number_and_the_first(authority: Authority) -> None:
    first = issue(authority, node="gpu-02")
    issue(authority, node="gpu-01", vm_uuid=OTHER_UUID, address="10.0.0.8", now=NOW + DAY)

    assert authority.warnings(first.not_after - 10 * DAY - timedelta(seconds=1)) == ()
    assert authority.warnings(first.not_after - 10 * DAY) == (
        "the certificate of gpu-02 ends soon (2026-12-30T12:00:00Z)",
    )
    assert authority.warnings(first.not_after - 8 * DAY) == (
        "2 certificates end soon, gpu-02 first (2026-12-30T12:00:00Z)",
    )


def test_a_leaf_with_a_successor_or_revoked_or_ended_is_not_warned_of(authority: Authority) -> None:
    old = issue(authority)
    revoke(authority, issue(authority, node="gpu-02", vm_uuid=OTHER_UUID).serial)
    issue(authority, now=old.not_after - DAY)
    sign(authority, now=old.not_after - DAY)

    assert authority.warnings(old.not_after - DAY) == ()


def test_something_revoked_without_a_list_is_warned_of_until_one_is_signed(authority: Authority) -> None:
    revoke(authority, issue(authority).serial)

    assert authority.warnings(NOW) == (
        "1 certificate is revoked, and no revocation list was signed: node-ca crl --out FILE",
    )
    sign(authority)
    assert authority.warnings(NOW) == ()


def test_a_revocation_after_the_lists_were_signed_is_warned_of(authority: Authority) -> None:
    sign(authority, ahead=2)
    revoke(authority, issue(authority).serial)

    assert authority.warnings(NOW) == (
        "the revocation lists lack 1 revocation: sign them anew: node-ca crl --out FILE",
    )


def test_the_last_list_is_warned_of_from_half_of_its_life_on(authority: Authority) -> None:
    sign(authority)

    assert authority.warnings(NOW + 15 * DAY) == ()
    assert authority.warnings(NOW + 15 * DAY + timedelta(seconds=1)) == (
        "revocation list 202611301200 is the last one, and ends in 14 days (2026-12-30T12:00:00Z)",
    )
    assert authority.warnings(NOW + 30 * DAY) == (
        (
            "revocation list 202611301200 ended at 2026-12-30T12:00:00Z: "
            "nodes that check it refuse every other node"
        ),
    )


def test_with_lists_ahead_only_the_last_one_is_warned_of(authority: Authority) -> None:
    sign(authority, ahead=2)
    assert authority.lists is not None
    last = authority.lists.last

    assert authority.warnings(last.due - timedelta(seconds=1)) == ()
    assert len(authority.warnings(last.next_update - DAY)) == 1


def test_an_issuer_that_ends_before_its_leaves_would_is_named_with_the_way_out(authority: Authority) -> None:
    end = authority.issuing.not_valid_after_utc

    told = [check for check in authority.checks(end - 20 * DAY) if check.name == "room"]

    assert [(str(check.severity), check.text) for check in told] == [
        (
            "warning",
            (
                "certificates of 30 days would outlive the issuing authority, which ends in 19 days: "
                "none can be issued"
            ),
        )
    ]
    assert "set lifetime_days in policy.yaml to 19 or less" in (told[0].next_step or "")
    with pytest.raises(Refused, match="would outlive"):
        issue(authority, now=end - 20 * DAY)


def examined(authority: Authority, *, now: datetime = NOW, expect: str | None = None) -> Examination:
    return examine(authority.layout.folder, now=now, expect=expect)


def check(found: Examination, name: str) -> Check:
    (one,) = (one for one in found.checks if one.name == name)
    return one


def severity(found: Examination, name: str) -> str:
    return str(check(found, name).severity)


def test_status_names_every_check_once(authority: Authority) -> None:
    authority.installed(issue(authority).serial, now=NOW, actor="tester")
    sign(authority)

    found = examined(authority)

    assert [one.name for one in found.checks] == [
        *("folder", "key", "chain", "policy", "audit", "authority", "certificates", "root-key", "root"),
        *(
            "issuing",
            "room",
            "crl",
            "crl-content",
            "leaves",
            "open",
            "constraints",
            "ticket-signers",
            "rotation",
            "clock",
        ),
        *("crl-files", "crl-nodes", "bundle-nodes", "audit-head", "index", "backup", "newest-certificate"),
    ]
    amiss = {one.name: str(one.severity) for one in found.checks if one.severity > Severity.INFO}
    assert amiss == {"backup": "warning"}
    found.refuse()


def test_a_head_that_was_kept_is_found_and_a_foreign_one_is_damage(authority: Authority) -> None:
    kept = authority.head
    issue(authority)

    assert severity(examined(authority), "audit-head") == "info"
    assert severity(examined(authority, expect=kept), "audit-head") == "ok"
    with pytest.raises(BadInput, match="is not the head of an audit"):
        examined(authority, expect=kept[:-1])
    foreign = examined(authority, expect="f" * 64)
    assert severity(foreign, "audit-head") == "critical"
    with pytest.raises(Damaged, match="the expected head is none of them"):
        foreign.refuse()


def test_an_old_copy_of_the_folder_is_told_from_the_head_that_was_kept(
    authority: Authority, tmp_path: Path
) -> None:
    shutil.copytree(authority.layout.folder, tmp_path / "old")
    revoke(authority, issue(authority).serial)
    shutil.rmtree(authority.layout.folder)
    shutil.move(tmp_path / "old", authority.layout.folder)

    assert severity(examined(authority, expect=authority.head), "audit-head") == "critical"


def _open_the_key(layout: Layout) -> None:
    layout.issuing_key.chmod(0o640)


def _open_the_folder(layout: Layout) -> None:
    layout.folder.chmod(0o777)


def _change_a_line(layout: Layout) -> None:
    layout.audit.write_bytes(layout.audit.read_bytes().replace(b"tester", b"nobody", 1))


def _misspell_the_policy(layout: Layout) -> None:
    layout.policy.write_text(policy_text().replace("names", "nmaes"))


def _take_another_key(layout: Layout) -> None:
    other = new_authority(layout.folder.parent / "other")
    shutil.copy(other.layout.issuing_key, layout.issuing_key)


def _take_another_root(layout: Layout) -> None:
    other = new_authority(layout.folder.parent / "other")
    shutil.copy(other.layout.root, layout.root)


@pytest.mark.parametrize(
    ("spoil", "names", "error"),
    [
        (_open_the_key, {"key"}, Refused),
        (_open_the_folder, {"folder", "key"}, Refused),
        (_change_a_line, {"audit"}, Damaged),
        (_misspell_the_policy, {"policy"}, BadInput),
        (_take_another_key, {"key"}, Damaged),
        (_take_another_root, {"chain"}, Damaged),
    ],
)
def test_what_is_broken_is_told_apart_from_what_is_not(
    tmp_path: Path, spoil: Callable[[Layout], None], names: set[str], error: type[MusterError]
) -> None:
    authority = new_authority(tmp_path)
    issue(authority)
    (tmp_path / "other").mkdir()

    spoil(authority.layout)
    found = examined(authority)

    assert {one.name for one in found.checks if one.severity is Severity.CRITICAL} == names
    assert {one.name for one in found.checks} >= {"folder", "key", "chain", "policy", "audit"}
    assert all(one.next_step for one in found.checks if one.severity is Severity.CRITICAL)
    with pytest.raises(error):
        found.refuse()


def test_a_line_without_sense_is_damage(authority: Authority) -> None:
    authority._ledger.write([("issued", {})], now=NOW, actor="tester")  # noqa: SLF001 - as a broken writer would

    found = examined(authority)

    assert severity(found, "audit") == "critical"
    with pytest.raises(Damaged, match="makes no sense"):
        found.refuse()


def test_where_there_is_no_authority_nothing_is_examined(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no authority"):
        examine(tmp_path / "ca", now=NOW)


def test_an_authority_that_has_expired_is_refused_and_not_called_damaged(authority: Authority) -> None:
    found = examined(authority, now=authority.issuing.not_valid_after_utc)

    assert severity(found, "issuing") == "critical"
    assert severity(found, "chain") == "ok"
    with pytest.raises(Refused, match="issuing: the issuing authority has expired"):
        found.refuse()


def test_damage_weighs_more_than_an_end(authority: Authority) -> None:
    issued = issue(authority)
    (authority.layout.issued / f"{issued.serial}.pem").write_bytes(authority.issuing_pem)

    with pytest.raises(Damaged, match="newest-certificate"):
        examined(authority, now=authority.issuing.not_valid_after_utc).refuse()


def test_the_newest_certificate_is_linted(authority: Authority) -> None:
    issued = issue(authority)
    file = authority.layout.issued / f"{issued.serial}.pem"

    assert severity(examined(authority), "newest-certificate") == "ok"
    file.unlink()
    assert severity(examined(authority), "newest-certificate") == "critical"


def test_a_clock_behind_the_audit_is_critical(authority: Authority) -> None:
    issue(authority, now=NOW + DAY)

    assert severity(examined(authority, now=NOW + DAY - timedelta(minutes=14)), "clock") == "ok"
    found = examined(authority, now=NOW)
    assert severity(found, "clock") == "critical"
    with pytest.raises(Refused, match="clock"):
        found.refuse()


def test_a_policy_wider_than_the_constraints_is_named(authority: Authority) -> None:
    authority.layout.policy.write_text(policy_text(addresses=["10.0.0.0/8"]))

    found = check(examined(authority), "constraints")

    assert str(found.severity) == "warning"
    assert "10.0.0.0/8" in found.text


def test_the_root_key_is_looked_for_where_it_was_written(tmp_path: Path) -> None:
    found = check(examined(new_authority(tmp_path)), "root-key")

    assert str(found.severity) == "warning"
    assert str(tmp_path / "ca" / "root-take-away") in found.text


def test_the_age_of_the_last_backup_counts_where_something_happened_since(authority: Authority) -> None:
    def backup() -> None:
        authority._append("backup", {"file": "b.tar", "manifest_sha256": "0"}, now=NOW, actor="tester")  # noqa: SLF001 - a line alone

    assert severity(examined(authority), "backup") == "warning"
    backup()
    assert severity(examined(authority, now=NOW + 90 * DAY), "backup") == "ok"
    issue(authority)
    assert severity(examined(authority, now=NOW + 30 * DAY), "backup") == "info"
    assert severity(examined(authority, now=NOW + 31 * DAY), "backup") == "warning"


def test_lists_that_were_changed_or_not_brought_to_nodes_are_told(authority: Authority) -> None:
    authority.installed(issue(authority).serial, now=NOW, actor="tester")
    sign(authority, ahead=1)
    assert authority.lists is not None

    assert severity(examined(authority), "crl-nodes") == "info"
    authority.crl_installed("gpu-01", authority.lists.last.number, now=NOW, actor="tester")
    assert severity(examined(authority), "crl-nodes") == "ok"
    sign(authority, now=NOW + DAY)
    assert severity(examined(authority, now=NOW + DAY), "crl-nodes") == "warning"
    authority.list_file(authority.lists.last).unlink()
    found = examined(authority, now=NOW + DAY)
    assert severity(found, "crl-files") == "critical"
    with pytest.raises(Damaged, match="crl-files"):
        found.refuse()


def test_an_index_out_of_step_with_the_audit_is_told(authority: Authority) -> None:
    issue(authority)
    authority.close()

    _say_in_the_index(authority.layout.index, "UPDATE certificates SET standing = 'revoked'")
    found = examined(authority)

    assert severity(found, "index") == "critical"
    assert "delete" in (check(found, "index").next_step or "")


def _say_in_the_index(file: Path, sql: str) -> None:
    db = sqlite3.connect(file)
    db.execute(sql)
    db.commit()
    db.close()
