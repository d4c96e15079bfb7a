"""The authority: made whole, opened with care, and certifying each node once it may."""

import ipaddress
import json
import os
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ca.authority import Authority
from ca.keystore import check_private, read_key
from ca.layout import ROOT_KEY
from ca.policy import Policy
from ca.record import Standing
from ca.request import read_request
from ca.signer import KeySigner
from inventory.document import load
from inventory.errors import BadInput, Damaged, MusterError, Refused
from inventory.files import lock
from tests.ca.material import (
    CHEAP,
    NOW,
    OTHER_UUID,
    PASSPHRASE,
    UUID,
    host_key,
    issue,
    leaf_of,
    new_authority,
    node_key,
    policy_text,
    reopened,
    request,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "policy.yaml"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


def kinds(authority: Authority) -> list[str]:
    lines = authority.layout.audit.read_text().splitlines()
    return [json.loads(line)["kind"] for line in lines]


# Making and opening


def test_an_authority_is_private_and_opens_again(authority: Authority) -> None:
    again = reopened(authority)

    assert again.fingerprint_sha256 == authority.fingerprint_sha256
    assert (again.entries, again.head) == (authority.entries, authority.head)
    assert kinds(again) == ["init"]
    folder = authority.layout.folder
    private = [folder, folder / "issued", folder / "receipts", folder / "root-take-away"]
    assert [path.stat().st_mode & 0o777 for path in private] == [0o700] * 4
    check_private(authority.layout.issuing_key)
    check_private(authority.layout.take_away / ROOT_KEY)
    assert sorted(path.name for path in folder.parent.iterdir() if path.name.startswith(".ca")) == []


def test_the_root_key_lies_apart_under_its_own_passphrase(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(policy_text())
    away = tmp_path / "usb" / "keys"

    authority = Authority.create(
        tmp_path / "ca",
        policy_file=tmp_path / "policy.yaml",
        passphrase=PASSPHRASE,
        root_passphrase=b"another",
        now=NOW,
        kdf=CHEAP,
        root_out=away,
        organisation="Lab",
        actor="holder@host",
    )

    signer = read_key(away / ROOT_KEY, certificate=authority.root, passphrase=b"another", floor=CHEAP)
    assert signer.public_key == authority.root.public_key()
    assert not authority.layout.take_away.exists()
    assert authority.root_key == away / ROOT_KEY
    assert "O=Lab" in authority.issuing.subject.rfc4514_string()
    assert any("still on this host" in text for text in authority.warnings(NOW))
    shutil.rmtree(away)
    assert authority.warnings(NOW) == ()


@pytest.mark.parametrize("place", ["ca", "usb"])
def test_nothing_of_an_authority_is_ever_overwritten(tmp_path: Path, place: str) -> None:
    (tmp_path / "policy.yaml").write_text(policy_text())
    (tmp_path / "ca" if place == "ca" else tmp_path / "usb" / ROOT_KEY).mkdir(parents=True)

    with pytest.raises(Refused, match="is ever overwritten"):
        Authority.create(
            tmp_path / "ca",
            policy_file=tmp_path / "policy.yaml",
            passphrase=PASSPHRASE,
            now=NOW,
            kdf=CHEAP,
            root_out=tmp_path / "usb",
        )


def test_an_authority_that_cannot_be_finished_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(policy_text())
    (tmp_path / "usb").write_text("a file where a folder should be")

    with pytest.raises(Refused, match="no authority was made"):
        Authority.create(
            tmp_path / "ca",
            policy_file=tmp_path / "policy.yaml",
            passphrase=PASSPHRASE,
            now=NOW,
            kdf=CHEAP,
            root_out=tmp_path / "usb",
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.yaml", "usb"]


@pytest.mark.parametrize("organisation", ["", "x" * 65, "ä" * 33, "a\nb"])
def test_an_organisation_must_fit_into_a_name(tmp_path: Path, organisation: str) -> None:
    (tmp_path / "policy.yaml").write_text(policy_text())

    with pytest.raises(BadInput, match="organisation"):
        Authority.create(
            tmp_path / "ca",
            policy_file=tmp_path / "policy.yaml",
            passphrase=PASSPHRASE,
            now=NOW,
            organisation=organisation,
        )


def test_the_policy_comes_along_with_its_comments_and_its_files(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(EXAMPLE, source)
    (source / "allowed_signers").write_text("infra@lab.example ssh-ed25519 AAAA\n")
    (source / "id_holder").write_text("not copied")

    Authority.create(
        tmp_path / "ca", policy_file=source / "policy.yaml", passphrase=PASSPHRASE, now=NOW, kdf=CHEAP
    )

    text = (tmp_path / "ca" / "policy.yaml").read_text()
    found = load(tmp_path / "ca" / "policy.yaml", Policy)
    assert found.ticket_signers == tmp_path / "ca" / "allowed_signers"
    assert found.ticket_signers.read_text() == "infra@lab.example ssh-ed25519 AAAA\n"
    assert found.ssh is not None
    assert found.ssh.key_file == source / "id_holder"
    assert not (tmp_path / "ca" / "id_holder").exists()
    assert "# OpenSSH format; without it there is no onboarding" in text
    same = load(EXAMPLE, Policy).model_copy(update={"ticket_signers": found.ticket_signers, "ssh": found.ssh})
    assert found == same


@pytest.mark.parametrize(
    "value",
    [
        "'keys/allowed signers'",
        '"policy.yaml"',
        "&anchor policy.yaml",
        "!!str policy.yaml",
        ">-\n  policy.yaml",
    ],
)
def test_a_path_in_any_form_of_yaml_still_points_to_the_copy(tmp_path: Path, value: str) -> None:
    source = tmp_path / "source"
    (source / "keys").mkdir(parents=True)
    (source / "keys" / "allowed signers").write_text("signers")
    (source / "policy.yaml").write_text(
        f"trust_domain: lab\nnames: ['{{node}}.lab']\nticket_signers: {value}\nssh:\n  key_file: 'a key'  # mine\n"
    )

    authority = Authority.create(
        tmp_path / "ca", policy_file=source / "policy.yaml", passphrase=PASSPHRASE, now=NOW, kdf=CHEAP
    )

    assert authority.policy.ticket_signers is not None
    assert authority.policy.ticket_signers.parent == tmp_path / "ca"
    assert authority.policy.ticket_signers.is_file()
    assert authority.policy.ticket_signers.name != "policy.yaml"
    assert authority.policy.ssh is not None
    assert authority.policy.ssh.key_file == source / "a key"


def test_a_policy_whose_signers_are_missing_makes_no_authority(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(policy_text(ticket_signers="nobody"))

    with pytest.raises(BadInput, match="names it as ticket_signers"):
        Authority.create(
            tmp_path / "ca", policy_file=tmp_path / "policy.yaml", passphrase=PASSPHRASE, now=NOW
        )
    assert not (tmp_path / "ca").exists()


def test_a_folder_without_an_authority_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        Authority.open(tmp_path / "none", now=NOW)
    assert "node-ca init" in caught.value.next_step


def test_a_folder_that_others_may_change_is_not_opened(authority: Authority) -> None:
    authority.layout.folder.chmod(0o770)

    with pytest.raises(Refused) as caught:
        reopened(authority)
    assert caught.value.next_step == f"chmod go-w {authority.layout.folder}"


def test_a_weakly_protected_authority_is_opened_but_not_unlocked(authority: Authority) -> None:
    strict = Authority.open(authority.layout.folder, now=NOW)

    with pytest.raises(Refused, match="protected too weakly"):
        strict.unlock(PASSPHRASE)


@pytest.mark.parametrize("name", ["root.pem", "issuing.pem", "issuing-key.json"])
def test_a_part_of_another_authority_is_noticed(authority: Authority, tmp_path: Path, name: str) -> None:
    (tmp_path / "other").mkdir()
    other = new_authority(tmp_path / "other")
    shutil.copy(other.layout.folder / name, authority.layout.folder / name)

    with pytest.raises(Damaged):
        reopened(authority)


@pytest.mark.parametrize("name", ["root.pem", "issuing.pem", "issuing-key.json", "audit.jsonl"])
def test_a_part_that_was_overwritten_is_noticed(authority: Authority, name: str) -> None:
    (authority.layout.folder / name).write_bytes(b"")

    with pytest.raises(Damaged):
        reopened(authority)


def test_a_clock_before_the_authoritys_birth_is_refused(authority: Authority) -> None:
    with pytest.raises(Refused, match="clock"):
        reopened(authority, now=NOW - timedelta(days=1))


def test_the_end_of_the_authority_is_told_long_before(authority: Authority) -> None:
    shutil.rmtree(authority.layout.take_away)
    end = authority.issuing.not_valid_after_utc

    assert authority.warnings(end - timedelta(days=250)) == ()
    assert "expires in 20 days" in authority.warnings(end - timedelta(days=20, hours=1))[0]
    assert "has expired" in authority.warnings(end)[0]


def test_a_policy_that_became_wider_is_told_and_grants_no_more(authority: Authority) -> None:
    authority.layout.policy.write_text(policy_text(names=["{node}.nodes.lab.example", "{node}.org"]))
    wide = reopened(authority)

    assert any("wider than this authority" in text for text in wide.warnings(NOW))
    with pytest.raises(Refused, match="outside the authority's own domains"):
        issue(wide)
    assert kinds(wide) == ["init"]


# Issuing


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


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


class BrokenToken:
    """A signer that fails, or signs something else, as a token may."""

    def __init__(self, right: KeySigner, *, fails: bool) -> None:
        self.right = right
        self.fails = fails

    @property
    def public_key(self) -> ec.EllipticCurvePublicKey:
        return self.right.public_key

    def sign(self, data: bytes) -> bytes:
        if self.fails:
            raise RuntimeError("token removed")
        return self.right.sign(data + b"!")


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


# Who may have a name, a key, a ticket


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


def test_a_line_that_makes_no_sense_is_damage(authority: Authority) -> None:
    authority._ledger.append("revoked", now=NOW, actor="tester", body={"serial": "ff"})  # noqa: SLF001

    with pytest.raises(Damaged, match="makes no sense"):
        reopened(authority)
