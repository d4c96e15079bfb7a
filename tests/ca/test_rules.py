"""Who may have a name, a key and a ticket; and what is known of every certificate afterwards."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from ca.authority import Authority
from ca.ledger import Ledger
from ca.record import Standing
from ca.request import read_request
from ca.signer import KeySigner
from inventory.errors import BadInput, Damaged, Refused
from inventory.files import lock
from tests.ca.material import (
    NOW,
    OTHER_UUID,
    PASSPHRASE,
    UUID,
    BrokenToken,
    host_key,
    issue,
    kinds,
    new_authority,
    reopened,
    request,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "policy.yaml"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


def test_a_name_held_live_by_another_machine_is_refused(authority: Authority) -> None:
    first = issue(authority)

    with pytest.raises(Refused) as caught:
        issue(authority, vm_uuid=OTHER_UUID)
    assert UUID in caught.value.why
    assert "--replace" in caught.value.next_step
    with pytest.raises(Refused):
        issue(authority, vm_uuid=None)
    assert issue(authority, vm_uuid=UUID.upper()).serial
    assert authority.find(first.serial).live(NOW)


def test_replace_passes_a_name_on_and_revokes_the_former_holder(authority: Authority) -> None:
    first = issue(authority)

    second = issue(authority, vm_uuid=OTHER_UUID, replace=True)

    former = reopened(authority).find(first.serial)
    assert former.standing is Standing.REVOKED
    assert former.why == f"superseded: replaced by {second.serial}"
    assert authority.find(second.serial).live(NOW)


def test_a_name_is_free_once_its_last_certificate_has_expired(authority: Authority) -> None:
    issue(authority)
    later = NOW + timedelta(days=31)

    issue(authority, vm_uuid=OTHER_UUID, now=later)

    assert [record.state(later) for record in authority.records()] == ["expired", "issued"]


def test_a_key_of_another_node_is_refused(authority: Authority) -> None:
    csr = request()
    issue(authority, csr=csr)

    with pytest.raises(Refused, match="its key is that of gpu-01"):
        issue(authority, csr=csr, node="gpu-02", vm_uuid=OTHER_UUID)


@pytest.mark.parametrize("copied", ["host key", "machine-id"])
def test_a_copy_of_a_machine_is_refused_also_after_a_revocation(authority: Authority, copied: str) -> None:
    first = issue(authority, host_keys=(host_key(1), host_key(2)), machine_id="aa" * 16)
    authority.revoke(first.serial, reason="superseded", now=NOW, actor="tester")
    keys = (host_key(2),) if copied == "host key" else (host_key(3),)
    machine_id = ("aa" if copied == "machine-id" else "bb") * 16

    with pytest.raises(Refused, match=f"its (SSH )?{copied}"):
        issue(authority, node="gpu-02", vm_uuid=OTHER_UUID, host_keys=keys, machine_id=machine_id)
    with pytest.raises(Refused, match=f"its (SSH )?{copied}"):
        authority.use_ticket(
            "t1",
            node="gpu-02",
            vm_uuid=OTHER_UUID,
            node_key_sha256="00" * 32,
            actor="tester",
            now=NOW,
            host_keys=keys,
            machine_id=machine_id,
        )
    assert issue(authority, host_keys=(host_key(1),), machine_id="aa" * 16).serial


def use(
    authority: Authority, *, ticket: str = "t1", node: str = "gpu-01", uuid: str = UUID, key: str = "00"
) -> None:
    authority.use_ticket(ticket, node=node, vm_uuid=uuid, node_key_sha256=key * 32, actor="tester", now=NOW)


def test_a_ticket_is_used_once_and_may_go_on_for_the_same_key(authority: Authority) -> None:
    use(authority)
    use(authority)

    assert kinds(authority) == ["init", "ticket-used"]
    for other in ({"key": "11"}, {"node": "gpu-02"}, {"uuid": OTHER_UUID}):
        with pytest.raises(Refused) as caught:
            use(reopened(authority), **other)
        assert "--reissue-ticket" in caught.value.next_step
    use(authority, ticket="t2", key="11")


def test_issuing_with_a_ticket_binds_it_to_the_key(authority: Authority) -> None:
    csr = request()
    authority.use_ticket(
        "t1", node="gpu-01", vm_uuid=UUID, node_key_sha256=read_request(csr).sha256, actor="tester", now=NOW
    )

    first = issue(authority, csr=csr, ticket_id="t1")
    issue(authority, csr=csr, ticket_id="t1")
    issue(authority, ticket_id="t2")

    assert kinds(authority).count("ticket-used") == 2
    assert authority.find(first.serial).ticket_id == "t1"
    with pytest.raises(Refused, match="ticket t1 is refused"):
        issue(authority, ticket_id="t1")
    with pytest.raises(Refused, match="ticket t2 is refused"):
        issue(authority, csr=csr, ticket_id="t2")


def test_a_refused_request_burns_no_ticket(authority: Authority) -> None:
    with pytest.raises(Refused):
        issue(authority, address="192.0.2.1", ticket_id="t1")

    assert kinds(authority) == ["init"]


# What is known afterwards


def test_installing_is_recorded_once(authority: Authority) -> None:
    serial = issue(authority).serial

    record = authority.installed(serial, now=NOW, actor="tester")
    authority.installed(serial, now=NOW, actor="tester")

    assert (record.standing, record.installed_at) == (Standing.INSTALLED, NOW)
    assert kinds(authority).count("installed") == 1


def test_revoking_is_recorded_once_and_is_final(authority: Authority) -> None:
    serial = issue(authority).serial

    record = authority.revoke(serial, reason="key-compromise", now=NOW, actor="tester")
    authority.revoke(serial, reason="superseded", now=NOW, actor="tester")

    assert (record.standing, record.why, record.ended_at) == (Standing.REVOKED, "key-compromise", NOW)
    assert kinds(authority).count("revoked") == 1
    with pytest.raises(Refused, match="it is revoked"):
        authority.installed(serial, now=NOW, actor="tester")


def test_what_was_never_issued_is_neither_installed_nor_revoked(authority: Authority) -> None:
    right = authority.unlock(PASSPHRASE)
    assert isinstance(right, KeySigner)
    with pytest.raises(RuntimeError):
        issue(authority, signer=BrokenToken(right, fails=True))
    serial = authority.records()[0].serial

    with pytest.raises(Refused):
        authority.installed(serial, now=NOW, actor="tester")
    with pytest.raises(Refused, match="never issued"):
        authority.revoke(serial, reason="superseded", now=NOW, actor="tester")


def test_an_unknown_serial_number_is_said_so(authority: Authority) -> None:
    with pytest.raises(BadInput, match="no certificate 'ff'"):
        authority.find("ff")


def test_the_pin_is_that_of_the_newest_certificate(authority: Authority) -> None:
    assert authority.pinned("gpu-01") is None
    issue(authority, host_keys=(host_key(1),), machine_id="aa" * 16)
    signer = authority.unlock(PASSPHRASE)
    newest = authority.issue(
        request(),
        node="gpu-01",
        vm_uuid=UUID,
        static_address=None,
        signer=signer,
        now=NOW,
        actor="tester",
        host_keys=(host_key(2),),
        machine_id="aa" * 16,
        pin={"address": "10.0.0.7", "ssh_port": 2222},
    )
    pinned = reopened(authority).pinned("gpu-01")

    assert pinned is not None
    assert (pinned.serial, pinned.host_keys, pinned.vm_uuid) == (newest.serial, (host_key(2),), UUID)
    assert pinned.pin == {"address": "10.0.0.7", "ssh_port": 2222}
    authority.revoke(newest.serial, reason="superseded", now=NOW, actor="tester")
    former = authority.pinned("gpu-01")
    assert former is not None
    assert former.host_keys == (host_key(1),)


def test_a_rehearsal_says_what_would_be_certified_and_writes_nothing(authority: Authority) -> None:
    record = authority.rehearse(
        request(), node="gpu-01", vm_uuid=UUID, static_address="10.0.0.7", now=NOW, actor="tester"
    )

    assert record.names == ("gpu-01.nodes.lab.example",)
    assert kinds(authority) == ["init"]
    assert authority.records() == ()


def test_a_second_run_says_who_holds_the_lock(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ca.authority.LOCK_TIMEOUT_S", 0.1)

    with lock(authority.layout.lock, timeout_s=1), pytest.raises(Refused, match=f"process {os.getpid()}"):
        issue(authority)


def test_a_clock_that_was_set_back_signs_nothing(authority: Authority) -> None:
    issue(authority, now=NOW + timedelta(days=2))

    with pytest.raises(Refused, match="before the audit's last line"):
        issue(authority, now=NOW + timedelta(days=1))
    with pytest.raises(Refused, match="before the audit's last line"):
        authority.revoke(authority.records()[0].serial, reason="superseded", now=NOW, actor="tester")
    assert kinds(authority) == ["init", "intent", "issued"]
    assert issue(authority, now=NOW + timedelta(days=2, minutes=-10)).serial


def test_a_line_that_makes_no_sense_is_damage(authority: Authority) -> None:
    audit = Ledger(authority.layout.audit)
    audit.recover(now=NOW)
    audit.append("revoked", now=NOW, actor="tester", body={"serial": "ff", "why": "superseded"})

    with pytest.raises(Damaged, match="makes no sense"):
        reopened(authority)
