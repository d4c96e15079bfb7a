"""An authority's revocation lists over months: announced, signed, due, superseded, dropped; and what verifiers say."""

import json
import subprocess
import sys
import uuid
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from ca.authority import Authority
from ca.census import Holder
from ca.issue import Issued
from ca.lists import SignedSet
from ca.signer import KeySigner
from inventory.errors import BadInput, Damaged, Refused
from tests.ca.judges import openssl_verify
from tests.ca.material import NOW, OTHER_UUID, PASSPHRASE, issue, kinds, new_authority, node_key, reopened

DAY = timedelta(days=1)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


def sign(
    authority: Authority, *, now: datetime = NOW, ahead: int | None = None, days: int | None = None
) -> SignedSet:
    return authority.sign_lists(
        signer=authority.unlock(PASSPHRASE), now=now, actor="tester", ahead_months=ahead, days=days
    )


def installed(authority: Authority, node: str) -> None:
    issued = issue(authority, node=node, vm_uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, node)))
    authority.installed(issued.serial, now=NOW, actor="tester")


def revoke(authority: Authority, serial: str, *, now: datetime = NOW) -> None:
    authority.revoke(serial, reason="key-compromise", now=now, actor="tester")


def named(authority: Authority, now: datetime) -> set[str]:
    """The serial numbers on the list that is due."""
    return {f"{entry.serial_number:x}" for entry in x509.load_pem_x509_crl(authority.due_list(now)[1])}


def on_disk(authority: Authority) -> list[str]:
    return sorted(file.name for file in authority.layout.crls.iterdir())


def test_a_list_is_announced_before_it_is_signed_and_told_after(authority: Authority) -> None:
    issued = issue(authority)
    revoke(authority, issued.serial)

    lists = sign(authority)

    assert kinds(authority)[-2:] == ["crl", "crl-signed"]
    announced, told = (json.loads(line) for line in authority.layout.audit.read_text().splitlines()[-2:])
    assert [item["sha256"] for item in announced["body"]["lists"]] == [None]
    assert [len(item["sha256"]) for item in told["body"]["lists"]] == [64]
    assert announced["body"]["revoked"] == 1
    assert on_disk(authority) == [f"{lists.last.number}-20261130T115000Z.pem"]
    assert named(authority, NOW) == {issued.serial}
    assert reopened(authority).lists == lists


def test_the_lists_ahead_become_due_one_by_one_without_a_passphrase(authority: Authority) -> None:
    lists = sign(authority, ahead=6)

    assert len(on_disk(authority)) == len(lists.slots) == 8
    for slot in lists.slots:
        due, data = reopened(authority, now=slot.due).due_list(slot.due)
        found = x509.load_pem_x509_crl(data)
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        assert (due, number) == (slot, slot.number)
        assert found.last_update_utc < slot.due
    with pytest.raises(Refused, match="it ended at"):
        authority.due_list(lists.last.next_update)


def test_a_revocation_signs_the_lists_ahead_anew_with_higher_numbers(authority: Authority) -> None:
    issued = issue(authority)
    first = sign(authority, ahead=6)
    later = NOW + 40 * DAY

    revoke(authority, issued.serial, now=NOW + DAY)
    assert authority.unlisted == 1
    second = sign(authority, now=later)

    assert authority.unlisted == 0
    assert second.slots[0].number > first.last.number
    assert second.last.next_update >= first.last.next_update
    assert second.days == first.days
    assert [name.partition("-")[0] for name in on_disk(authority)] == [str(s.number) for s in second.slots]
    # It expired between the two, so it is named once more and then no more.
    assert [named(authority, slot.due) for slot in second.slots] == [
        {issued.serial},
        *([set()] * (len(second.slots) - 1)),
    ]


def test_numbers_rise_also_within_a_minute_and_in_an_old_copy_of_the_folder(tmp_path: Path) -> None:
    authority = new_authority(tmp_path)
    numbers = [
        sign(authority).last.number,
        sign(authority).last.number,
        sign(authority, now=NOW + DAY).last.number,
    ]

    assert numbers == [202611301200, 202611301201, 202612011200]


def test_a_list_that_is_signed_alone_leaves_no_lists_ahead_with_lower_numbers(authority: Authority) -> None:
    first = sign(authority, ahead=3)

    second = sign(authority, now=NOW + DAY, days=60)

    assert min(slot.number for slot in second.slots) > first.last.number
    assert second.last.next_update >= first.last.next_update
    assert {slot.next_update - slot.due for slot in second.slots} == {60 * DAY}


def test_an_entry_stays_until_it_was_on_a_list_from_beyond_its_end(authority: Authority) -> None:
    issued = issue(authority)
    revoke(authority, issued.serial)
    end = issued.not_after

    sign(authority, now=end - DAY)
    sign(authority, now=end + DAY)
    assert named(authority, end + DAY) == {issued.serial}
    sign(authority, now=end + 2 * DAY)
    assert named(authority, end + 2 * DAY) == set()


def test_what_is_revoked_after_its_end_is_named_on_one_list(authority: Authority) -> None:
    issued = issue(authority)
    end = issued.not_after
    sign(authority, now=end + DAY)

    revoke(authority, issued.serial, now=end + 2 * DAY)
    sign(authority, now=end + 3 * DAY)

    assert named(authority, end + 3 * DAY) == {issued.serial}


def test_openssl_refuses_what_is_revoked_what_ended_and_what_lies_ahead(
    authority: Authority, tmp_path: Path
) -> None:
    kept, gone = issue(authority), issue(authority, node="gpu-02", vm_uuid=OTHER_UUID, address="10.0.0.8")
    revoke(authority, gone.serial)
    lists = sign(authority, days=10)
    file, folder = authority.list_file(lists.last), authority.layout.folder

    def said(issued: Issued, at: datetime, *options: str) -> str:
        leaf = tmp_path / "leaf.pem"
        leaf.write_bytes(issued.certificate_pem)
        return openssl_verify(folder, leaf, "-crl_check", *options, at=at)

    given = ("-CRLfile", str(file))
    assert said(kept, NOW, *given) == ""
    assert said(kept, NOW - timedelta(minutes=9), *given) == ""  # a node's clock that is late
    assert "error 23 at 0 depth" in said(gone, NOW, *given)
    assert "error 12 at 0 depth" in said(kept, lists.last.next_update + timedelta(seconds=1), *given)
    assert "error 11 at 0 depth" in said(kept, NOW - timedelta(minutes=11), *given)
    assert "error 3 at 0 depth" in said(kept, NOW)


def test_the_nodes_that_hold_an_older_list_are_known(authority: Authority) -> None:
    for node in ("gpu-01", "gpu-02", "gpu-03"):
        installed(authority, node)
    issue(authority, node="gpu-04", vm_uuid=OTHER_UUID)  # issued, and never brought to its node
    assert authority.holding_older_crl(NOW) == ()  # there is no list yet
    first = sign(authority, ahead=2)

    authority.crl_installed("gpu-01", first.slots[0].number, now=NOW, actor="tester")
    authority.crl_installed("gpu-02", first.slots[0].number, now=NOW, actor="tester")
    again = reopened(authority)

    assert again.holding_older_crl(NOW) == (Holder("gpu-03", None),)
    due = first.slots[1].due
    assert again.holding_older_crl(due) == (
        Holder("gpu-01", first.slots[0].number),
        Holder("gpu-02", first.slots[0].number),
        Holder("gpu-03", None),
    )
    authority.crl_installed("gpu-01", first.slots[1].number, now=due, actor="tester")
    revoke(authority, authority.records("gpu-02")[0].serial, now=due)
    assert authority.holding_older_crl(due) == (Holder("gpu-03", None),)


def test_the_same_list_twice_on_a_node_is_recorded_once_and_an_unknown_one_not_at_all(
    authority: Authority,
) -> None:
    number = sign(authority).last.number

    authority.crl_installed("gpu-01", number, now=NOW, actor="tester")
    authority.crl_installed("gpu-01", number, now=NOW, actor="tester")

    assert kinds(authority).count("crl-installed") == 1
    for wrong in (0, number + 1):
        with pytest.raises(BadInput, match="no list of that number"):
            authority.crl_installed("gpu-01", wrong, now=NOW, actor="tester")


def test_without_a_list_it_is_said_how_to_sign_one(authority: Authority) -> None:
    with pytest.raises(Refused, match="none was signed yet") as caught:
        authority.due_list(NOW)

    assert "node-ca crl --ahead 6" in caught.value.next_step


def test_a_list_that_was_changed_or_is_gone_is_not_handed_out(authority: Authority) -> None:
    file = authority.list_file(sign(authority).last)
    right = file.read_bytes()

    file.write_bytes(right.replace(b"\n", b"\r\n"))
    with pytest.raises(Damaged, match="not the list that was signed"):
        authority.due_list(NOW)
    file.unlink()
    with pytest.raises(Damaged, match="No such file"):
        authority.due_list(NOW)


def test_a_list_that_cannot_be_stored_leaves_the_former_ones_and_uses_its_numbers_up(
    authority: Authority,
) -> None:
    first = sign(authority)
    held = authority.due_list(NOW)
    aside = authority.layout.crls.rename(authority.layout.folder / "aside")
    authority.layout.crls.write_text("a file where the folder should be")

    with pytest.raises(Damaged, match="could not be stored"):
        sign(authority)
    authority.layout.crls.unlink()
    aside.rename(authority.layout.crls)

    assert authority.lists == first
    assert authority.due_list(NOW) == held
    assert authority.unfinished_lists is not None
    assert any("was not finished" in text for text in authority.warnings(NOW))
    again = sign(authority)
    assert again.last.number == first.last.number + 2
    assert authority.unfinished_lists is None
    assert authority.due_list(NOW)[0] == again.last


def test_another_key_signs_no_list(authority: Authority) -> None:
    before = authority.head

    with pytest.raises(Damaged, match="not that of the issuing authority"):
        authority.sign_lists(signer=KeySigner(node_key()), now=NOW, actor="tester")

    assert authority.head == before


@pytest.mark.parametrize("months", [0, 13, -1])
def test_lists_are_signed_for_a_year_at_most(authority: Authority, months: int) -> None:
    with pytest.raises(BadInput, match="1 to 12 months ahead"):
        sign(authority, ahead=months)

    assert kinds(authority) == ["init"]


def test_a_line_that_tells_of_lists_without_sense_is_damage(authority: Authority) -> None:
    authority._append("crl-signed", {"lists": []}, now=NOW, actor="tester")  # noqa: SLF001 - as a broken writer would

    with pytest.raises(Damaged, match="makes no sense"):
        authority.due_list(NOW)


def test_a_kill_at_any_step_leaves_lists_that_can_be_handed_out_and_no_number_twice(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.ca.killed_crl", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )

    kills = json.loads(done.stdout)
    assert len(kills) == 16  # announced, each of three lists and its folder, told: before and after
    assert [kill for kill in kills if kill["repeated"] or kill["left over"] or not kill["handed out"]] == []
    assert {kill["unfinished"] for kill in kills} == {True, False}
    assert all(kill["higher"] for kill in kills)
