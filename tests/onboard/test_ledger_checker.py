"""The record against a real authority's ledger: each kind is found, without a key, and nothing is written."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ca.authority import Authority
from inventory.checking import Offer, Severity, run_checks
from inventory.errors import ExitCode
from inventory.model import Node, State
from inventory.ticket import peek_receipt
from onboard.ledger_checker import LedgerChecker
from tests.ca.material import BrokenToken, request
from tests.onboard.check_kit import asked, contents, copy_of, original, the_node, told, with_receipt
from tests.onboard.kit import KEY, PASSPHRASE, UUID, Bench

CHECKER = LedgerChecker()
OTHER_UUID = "0e1a2b3c-0000-4000-8000-0000000000ff"


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    yield from original(tmp_path_factory.mktemp("once"))


@pytest.fixture
def holder(once: Bench, tmp_path: Path) -> Bench:
    return copy_of(once, tmp_path)


def found(holder: Bench, *nodes: Node, names: Sequence[str] | None = None) -> list[tuple[str, str]]:
    disagreements, untold = told(CHECKER, asked(holder, nodes, names=names))
    assert untold == []
    return [(each.node, each.about) for each in disagreements]


def serial_of(holder: Bench) -> str:
    return holder.authority().records("gpu-01")[-1].serial


def kept(holder: Bench) -> Path:
    return holder.folder / "ca" / "receipts" / "gpu-01.receipt"


def revoke(holder: Bench) -> None:
    authority = holder.authority()
    authority.revoke(serial_of(holder), reason="key-compromise", now=datetime.now(UTC), actor="holder")
    authority.close()


def issue(holder: Bench, name: str, *, breaks: bool = False) -> None:
    """A certificate by `node-ca issue`; where it `breaks`, the process ends before it is signed."""
    authority = holder.authority()
    signer = authority.unlock(PASSPHRASE)
    try:
        authority.issue(
            request(),
            node=name,
            vm_uuid=None,
            static_address=None,
            signer=Killed(signer, fails=True) if breaks else signer,  # type: ignore[arg-type]  # it is unlocked
            now=datetime.now(UTC),
            actor="holder",
        )
    except Killed.Ended:
        assert breaks
    authority.close()


class Killed(BrokenToken):
    """A process that ends in the middle of its signing."""

    class Ended(BaseException):
        pass

    def sign(self, data: bytes) -> bytes:  # noqa: ARG002 - never signs
        raise Killed.Ended


def without_identity(holder: Bench, node: Node) -> list[Node]:
    revoke(holder)
    kept(holder).unlink()
    return [replace(node, receipt=None)]


def revoked(holder: Bench, node: Node) -> list[Node]:
    revoke(holder)
    return [node]


def with_an_older_receipt(_holder: Bench, node: Node) -> list[Node]:
    return [with_receipt(node, made_at=datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1))]


def renewed_without_a_receipt(holder: Bench, node: Node) -> list[Node]:
    """As a run leaves it that was killed before it signed the receipt; the former certificate is revoked."""
    authority, former, now = holder.authority(), serial_of(holder), datetime.now(UTC)
    issued = authority.issue(
        request(),
        node=node.name,
        vm_uuid=node.uuid,
        static_address=None,
        signer=authority.unlock(PASSPHRASE),
        now=now,
        actor="holder",
        host_keys=node.host_keys,
    )
    authority.installed(issued.serial, now=now, actor="holder")
    authority.revoke(former, reason="superseded", now=now, actor="holder")
    authority.close()
    return [node]


def without_the_kept_receipt(holder: Bench, node: Node) -> list[Node]:
    kept(holder).unlink()
    return [node]


def by_hand(holder: Bench, node: Node) -> list[Node]:
    issue(holder, "srv-01")
    return [node]


def announced(holder: Bench, node: Node) -> list[Node]:
    issue(holder, "gpu-02", breaks=True)
    return [node]


def another_end(_holder: Bench, node: Node) -> list[Node]:
    until = peek_receipt(str(node.receipt)).not_after
    return [with_receipt(node, not_after=until + timedelta(seconds=1))]


@dataclass(frozen=True)
class Case:
    """What is done to ledger or record, whose name it is told under, and what the mend has."""

    change: Callable[[Bench, Node], list[Node]]
    mend: str
    node: str = "gpu-01"


ANEW = "provision-node gpu-01 --reissue-ticket, then onboard-node gpu-01"
CASES: dict[str, Case] = {
    "receipt-of-another-ca": Case(lambda _, node: [with_receipt(node, ca_fingerprint="ab" * 32)], "--ca-dir"),
    "receipt-serial-unknown": Case(lambda _, node: [with_receipt(node, serial="abcdef")], ANEW),
    "audit-older-copy": Case(lambda _, node: [with_receipt(node, audit_head="ab" * 32)], "node-ca restore"),
    "identity-revoked": Case(revoked, ANEW),
    "identity-missing": Case(without_identity, ANEW),
    "expiry-differs": Case(another_end, "onboard-node gpu-01 --renew"),
    "machine-differs": Case(
        lambda _, node: [replace(node, uuid=OTHER_UUID)], "onboard-node gpu-01 --replace"
    ),
    "host-keys-differ": Case(lambda _, node: [replace(node, host_keys=(KEY,))], ANEW),
    "receipt-older": Case(with_an_older_receipt, "node-inventory import "),
    "receipt-behind": Case(renewed_without_a_receipt, "onboard-node gpu-01 --renew"),
    "receipt-lost": Case(without_the_kept_receipt, "onboard-node gpu-01 --renew"),
    "identity-of-retired": Case(
        lambda _, node: [replace(node, state=State.RETIRED)], "node-ca revoke {serial} --reason cessation"
    ),
    "identity-of-unknown": Case(lambda _holder, _node: [], "node-ca revoke {serial} --reason cessation"),
    "identity-by-hand": Case(by_hand, "nothing, if it is no node's", node="srv-01"),
    "intent-open": Case(announced, "onboard-node gpu-02", node="gpu-02"),
}


@pytest.mark.parametrize("about", CASES)
def test_each_kind_is_found_and_nothing_else(holder: Bench, about: str) -> None:
    case, node = CASES[about], the_node(holder)
    assert found(holder, node) == []

    nodes = case.change(holder, node)
    (disagreement,), untold = told(CHECKER, asked(holder, nodes))

    assert (disagreement.node, disagreement.about, disagreement.source) == (case.node, about, "ledger")
    assert case.mend.format(serial=serial_of(holder)) in disagreement.mend
    assert untold == []


def test_every_kind_has_its_case() -> None:
    assert [kind.about for kind in CHECKER.kinds] == list(CASES)


def test_what_may_be_meant_so_is_only_a_notice() -> None:
    notices = [kind.about for kind in CHECKER.kinds if kind.severity is Severity.NOTICE]

    assert notices == ["identity-by-hand", "intent-open"]


def test_the_mend_of_an_older_receipt_is_the_file_that_is_to_be_taken(holder: Bench) -> None:
    nodes = with_an_older_receipt(holder, the_node(holder))

    (told_of,), _ = told(CHECKER, asked(holder, nodes))

    assert told_of.mend == f"node-inventory import {kept(holder)}"
    assert "onboarded at" in told_of.found


def test_the_mend_of_a_certificate_that_still_counts_revokes_it(holder: Bench) -> None:
    nodes = [replace(the_node(holder), state=State.RETIRED)]
    (told_of,), _ = told(CHECKER, asked(holder, nodes))
    program = Path(sys.executable).with_name("node-ca")

    done = subprocess.run(
        [program, *told_of.mend.split()[1:], "--yes", "--later", "--ca-dir", holder.folder / "ca"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        stdin=subprocess.DEVNULL,
    )

    assert done.returncode == 0, done.stderr
    assert found(holder, *nodes) == []


def test_a_certificate_of_a_name_that_was_not_asked_for_is_left_alone(holder: Bench) -> None:
    issue(holder, "srv-01")
    issue(holder, "gpu-02", breaks=True)

    assert found(holder, the_node(holder), names=["gpu-01"]) == []


def test_a_node_that_awaits_its_identity_needs_no_certificate(holder: Bench) -> None:
    waiting = Node("gpu-02", State.AWAITING_IDENTITY, uuid=OTHER_UUID)

    assert found(holder, the_node(holder), waiting) == []


def test_a_receipt_whose_head_is_no_head_keeps_nothing_from_being_checked(holder: Bench) -> None:
    nodes = [with_receipt(the_node(holder), audit_head="ab")]

    assert found(holder, *nodes, Node("gpu-02", State.IN_SERVICE, uuid=UUID)) == [
        ("gpu-02", "identity-missing")
    ]


def test_a_host_without_an_authority_says_so_and_a_damaged_one_ends_with_6(
    holder: Bench, tmp_path: Path
) -> None:
    def outcome(folder: Path | None) -> tuple[ExitCode, str]:
        run = replace(asked(holder, [the_node(holder)]), ca_dir=folder)
        ended = run_checks([Offer("ledger", lambda: LedgerChecker)], run)
        (untold,) = ended.not_checked
        return ended.exit_code, f"{untold.why}; {untold.how}"

    code, words = outcome(tmp_path / "nowhere")
    assert code is ExitCode.USAGE
    assert "there is no authority in" in words
    assert "run it on the CA host" in words

    (holder.folder / "ca" / "audit.jsonl").write_text("no line of ours\n")
    code, words = outcome(holder.folder / "ca")
    assert code is ExitCode.DAMAGED
    assert "line 1 is not a line of the audit" in words


def test_nothing_of_the_authority_or_the_record_is_written(holder: Bench) -> None:
    revoke(holder)
    Authority.open(holder.folder / "ca", now=datetime.now(UTC)).close()
    before = contents(holder.folder, but="index")

    assert found(holder, the_node(holder)) == [("gpu-01", "identity-revoked")]
    assert contents(holder.folder, but="index") == before
