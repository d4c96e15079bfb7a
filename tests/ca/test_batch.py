"""Many certificates in one go: all or none, as strictly as one by one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from ca.audit import audit
from ca.authority import Authority
from ca.batch import Asked, storing, sync_all
from ca.record import Standing
from ca.signer import KeySigner
from inventory.errors import BadInput, Damaged, Refused
from tests.ca.material import (
    NOW,
    OTHER_UUID,
    PASSPHRASE,
    UUID,
    BrokenToken,
    host_key,
    issue,
    kinds,
    leaf_of,
    new_authority,
    request,
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


def issued_of(authority: Authority, *asked: Asked, replace: bool = False) -> list[x509.Certificate]:
    signer = authority.unlock(PASSPHRASE)
    done = authority.issue_many(asked, signer=signer, now=NOW, actor="tester", replace=replace)
    assert all(authority.load_issued(each.serial).chain_pem == each.chain_pem for each in done)
    return [leaf_of(each) for each in done]


def test_many_are_announced_signed_stored_and_recorded(authority: Authority) -> None:
    asked = [Asked(request(), f"gpu-{number:02d}", addresses=("10.0.0.9",)) for number in range(5)]

    leaves = issued_of(authority, *asked)

    assert kinds(authority) == ["init", *["intent"] * 5, *["issued"] * 5]
    assert len({leaf.serial_number for leaf in leaves}) == 5
    assert [record.node for record in authority.records()] == [each.node for each in asked]
    assert {record.standing for record in authority.records()} == {Standing.ISSUED}
    assert audit(authority.layout).ok
    assert [file.name for file in authority.layout.issued.glob(".*")] == []
    assert {file.stat().st_mode & 0o777 for file in authority.layout.issued.iterdir()} == {0o644}


def test_a_batch_certifies_what_one_by_one_would(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    one, many = new_authority(tmp_path / "one"), new_authority(tmp_path / "many")
    csr = request()
    alone = leaf_of(issue(one, csr=csr))

    _, together = issued_of(many, Asked(request(), "gpu-00"), Asked(csr, "gpu-01", UUID.upper(), "10.0.0.7"))

    def said(leaf: x509.Certificate) -> list[object]:
        issuer = x509.AuthorityKeyIdentifier  # of another authority, so another one
        extensions = [each for each in leaf.extensions if not isinstance(each.value, issuer)]
        return [leaf.subject, leaf.not_valid_before_utc, leaf.not_valid_after_utc, *extensions]

    assert said(together) == said(alone)
    assert many.find(f"{together.serial_number:x}").vm_uuid == UUID


def test_every_fault_of_every_request_is_told_and_nothing_is_written(authority: Authority) -> None:
    asked = [
        Asked(request(), "gpu-01"),
        Asked(request(), "gpu-02", addresses=("192.0.2.1",)),
        Asked(b"no request", "gpu-03"),
    ]

    with pytest.raises(Refused) as caught:
        issued_of(authority, *asked)

    assert "2 of the requests" in caught.value.what
    assert [line.split(":")[0] for line in caught.value.why.splitlines()] == ["gpu-02", "gpu-03"]
    with pytest.raises(BadInput):
        issued_of(authority, asked[0], asked[2])
    assert kinds(authority) == ["init"]


SHARED: dict[str, tuple[Asked, Asked]] = {
    "its key": (Asked(csr := request(), "gpu-01"), Asked(csr, "gpu-02")),
    "its SSH host key": (
        Asked(request(), "gpu-01", host_keys=(host_key(1),)),
        Asked(request(), "gpu-02", host_keys=(host_key(2), host_key(1))),
    ),
    "its machine-id": (
        Asked(request(), "gpu-01", machine_id="aa" * 16),
        Asked(request(), "gpu-02", machine_id="aa" * 16),
    ),
    "the name is held": (Asked(request(), "gpu-01", UUID), Asked(request(), "gpu-01", OTHER_UUID)),
}


@pytest.mark.parametrize("why", SHARED)
def test_what_one_request_is_granted_the_next_must_respect(authority: Authority, why: str) -> None:
    with pytest.raises(Refused, match=why):
        issued_of(authority, *SHARED[why])

    assert kinds(authority) == ["init"]
    issued_of(authority, SHARED[why][0])
    with pytest.raises(Refused, match=why):
        issued_of(authority, SHARED[why][1])


def test_replace_revokes_the_former_holder_within_a_batch_and_before_it(authority: Authority) -> None:
    first = issue(authority)

    leaves = issued_of(
        authority,
        Asked(request(), "gpu-01", OTHER_UUID),
        Asked(request(), "gpu-01", "8f7d0c9e-0000-4000-8000-000000000003"),
        replace=True,
    )

    states = {record.serial: record.standing for record in authority.records()}
    numbers = [f"{leaf.serial_number:x}" for leaf in leaves]
    assert states == {first.serial: "revoked", numbers[0]: "revoked", numbers[1]: "issued"}


def test_a_failure_in_the_midst_leaves_no_certificate_and_says_so_of_each(authority: Authority) -> None:
    right = authority.unlock(PASSPHRASE)
    assert isinstance(right, KeySigner)
    asked = [Asked(request(), f"gpu-0{number}") for number in range(3)]

    with pytest.raises(RuntimeError):
        authority.issue_many(asked, signer=BrokenToken(right, fails=True), now=NOW, actor="tester")
    with pytest.raises(Refused, match="not signed by its issuer"):
        authority.issue_many(asked, signer=BrokenToken(right, fails=False), now=NOW, actor="tester")

    assert [record.standing for record in authority.records()] == [Standing.FAILED] * 6
    assert [*authority.layout.issued.iterdir()] == []
    assert len(issued_of(authority, *asked)) == 3


class LateFailure(BrokenToken):
    """Signs well, and wrongly from its third time on."""

    def __init__(self, right: KeySigner) -> None:
        super().__init__(right, fails=False)
        self._left = 2

    def sign(self, data: bytes) -> bytes:
        self._left -= 1
        return self.right.sign(data) if self._left >= 0 else super().sign(data)


def test_the_judges_look_at_each_certificate_not_at_the_first_alone(authority: Authority) -> None:
    right = authority.unlock(PASSPHRASE)
    assert isinstance(right, KeySigner)

    with pytest.raises(Refused, match="not signed by its issuer"):
        authority.issue_many(
            [Asked(request(), f"gpu-0{number}") for number in range(3)],
            signer=LateFailure(right),
            now=NOW,
            actor="tester",
        )
    assert [*authority.layout.issued.iterdir()] == []


def test_another_authoritys_key_signs_nothing(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    signer = new_authority(tmp_path / "other").unlock(PASSPHRASE)

    with pytest.raises(Damaged, match="signer's key"):
        authority.issue_many([Asked(request(), "gpu-01")], signer=signer, now=NOW, actor="tester")
    assert kinds(authority) == ["init"]


def test_a_rehearsal_of_many_writes_nothing(authority: Authority) -> None:
    asked = [Asked(request(), f"gpu-0{number}") for number in range(3)]

    records = authority.rehearse_many(asked, now=NOW, actor="tester")

    assert [record.node for record in records] == ["gpu-00", "gpu-01", "gpu-02"]
    assert authority.issue_many([], signer=authority.unlock(PASSPHRASE), now=NOW, actor="tester") == ()
    assert kinds(authority) == ["init"]


def test_a_serial_number_is_not_used_twice_within_a_batch(authority: Authority) -> None:
    numbers: Iterator[int] = iter([1 << 157, 1 << 157, (1 << 157) + 1])
    asked = [Asked(request(), f"gpu-0{number}") for number in range(2)]

    done = authority.issue_many(
        asked,
        signer=authority.unlock(PASSPHRASE),
        now=NOW,
        actor="tester",
        serials=lambda: next(numbers),
    )

    assert len({each.serial for each in done}) == 2


def test_files_that_cannot_all_be_stored_are_not_stored_at_all(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()

    def store(*names: str, fails: bool = False) -> None:
        with storing(tmp_path) as put:
            for name in names:
                put(name, b"data")
            if fails:
                raise KeyError

    with pytest.raises(Damaged):
        store("a", "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    with pytest.raises(KeyError):
        store("a", fails=True)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_folder_that_is_gone_cannot_be_waited_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync_all(tmp_path / "gone", [])
