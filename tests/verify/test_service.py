"""One node's verification as a whole: the receipt, the record, the reasons, and the report."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from inventory.console import Console
from inventory.errors import BadInput, ExitCode, OtherSide
from inventory.model import Address, HostKey, Node, State
from inventory.store import Store, whoami
from inventory.ticket import Receipt
from verify import report as reports
from verify.local import LocalExec
from verify.probe.tls import Identity
from verify.report import NodeReport
from verify.runner import Exec
from verify.scenarios import NAMES
from verify.service import Wish, verify_node

from .identities import Authority, identity, leaf_of, root_fingerprint
from .names import NODE, SPIFFE_ID
from .saying import Node as Saying
from .saying import said, whole

UUID = "11111111-2222-3333-4444-555555555555"
KEY = HostKey("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIJ2tGPdQyIGY4BCCDKGLFoQyZv0jMH0BkdkkLBHDhWnh")
SMALL = Wish(ranks=3)


@pytest.fixture(scope="module")
def installed(lab: Authority, tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """An identity where onboard-node puts it: INSTALL/current/."""
    return identity(tmp_path_factory.mktemp("install") / "current", by=lab)


@pytest.fixture
def receipt(lab: Authority, installed: Identity) -> Receipt:
    return receipt_for(installed, lab)


def receipt_for(installed: Identity, lab: Authority, **other: Any) -> Receipt:
    """What the security holder signed for this identity, with one fact varied."""
    facts: dict[str, Any] = {
        "kind": "onboarded",
        "node": NODE,
        "vm_uuid": UUID,
        "ticket_id": "ab12",
        "serial": f"{leaf_of(installed).serial_number:x}",
        "spiffe_id": SPIFFE_ID,
        "not_after": datetime(2027, 1, 1, tzinfo=UTC),
        "host_keys": (KEY,),
        "address": Address("127.0.0.1", None, "static"),
        "ssh_port": 22,
        "user": whoami(),
        "ca_fingerprint": root_fingerprint(lab),
        "install_dir": str(Path(installed.cert_file).parents[1]),
        "owner": whoami(),
        "made_by": "holder",
        "made_at": datetime(2026, 11, 30, tzinfo=UTC),
    }
    return Receipt(**{**facts, **other})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(f"sqlite:///{tmp_path / 'inventory.db'}")


def on_record(store: Store, state: State, **other: Any) -> Node:
    facts: dict[str, Any] = {"name": NODE, "state": state, "uuid": UUID}
    return store.add(Node(**{**facts, **other}), why="a test")


class Here(LocalExec):
    """This machine in the node's place, with this Python."""

    def start(self, command: str) -> Any:
        return super().start(command.replace(" python3 ", f" {sys.executable} "))


@contextmanager
def here(_receipt: Receipt, _ssh_key: Path) -> Iterator[Exec]:
    yield Here()


def saying(lines: list[bytes], **other: Any) -> Any:
    """A node that says these lines instead of running anything."""

    @contextmanager
    def reach(_receipt: Receipt, _ssh_key: Path) -> Iterator[Exec]:
        yield Saying(lines, **other)

    return reach


def shown(receipt: Receipt) -> dict[str, Any]:
    """The identity's facts that fit a receipt."""
    return {
        "serial": receipt.serial,
        "ca_fingerprints": [receipt.ca_fingerprint],
        "spiffe_id": receipt.spiffe_id,
        "not_after": "2026-12-30T12:00:00Z",
        "key_owner": "muster",
    }


@contextmanager
def unreachable(_receipt: Receipt, _ssh_key: Path) -> Iterator[Exec]:
    raise OtherSide("no SSH session", why="no answer within 20 s", next_step="look")
    yield Here()


lost = saying([], status=255)


def verify(
    receipt: Receipt,
    store: Store | None,
    *,
    reach: Any = None,
    wish: Wish = SMALL,
    failing: tuple[str, ...] = (),
    checks: tuple[dict[str, Any], ...] = (),
) -> NodeReport:
    """Verify a node that says what fits the receipt, with `failing` scenarios and `checks`; or what `reach` has."""
    console = Console(quiet=True, stdout=StringIO(), stderr=StringIO())
    report = whole(wish.scenarios, failing=failing, checks=checks, **shown(receipt))
    return verify_node(
        receipt,
        ssh_key=Path("unused"),
        store=store,
        console=console,
        wish=wish,
        reach=reach or saying(said(report)),
    )


def moves(store: Store) -> list[State]:
    return [event.after for event in store.history(NODE)][1:]


def state(store: Store) -> State:
    node = store.get(NODE)
    assert node is not None
    return node.state


def test_a_node_that_passes_goes_into_service(receipt: Receipt, store: Store) -> None:
    on_record(store, State.AWAITING_VERIFICATION, reason="an old reason")
    done = verify(receipt, store, reach=here)

    assert done.ok, done.error
    assert done.state == State.IN_SERVICE
    assert moves(store) == [State.VERIFYING, State.IN_SERVICE]
    assert "3 ranks assembled on loopback" in store.history(NODE)[-1].why
    assert getattr(store.get(NODE), "reason", "?") is None


def test_a_node_that_does_not_pass_is_kept_with_the_reason(receipt: Receipt, store: Store) -> None:
    on_record(store, State.AWAITING_VERIFICATION)
    done = verify(receipt, store, failing=("killed-rank",))
    node = store.get(NODE)

    assert done.exit_code == ExitCode.VERIFICATION
    assert moves(store) == [State.VERIFYING, State.VERIFY_FAILED]
    assert node is not None
    assert "killed-rank: killed-rank was seen" in (node.reason or "")
    assert done.error is not None
    assert "--scenario killed-rank" in done.error.next_step


def test_a_node_that_failed_can_be_verified_again(receipt: Receipt, store: Store) -> None:
    on_record(store, State.VERIFY_FAILED, reason="killed-rank")

    assert verify(receipt, store).state == State.IN_SERVICE


def test_an_interrupted_verification_goes_on(receipt: Receipt, store: Store) -> None:
    on_record(store, State.VERIFYING)

    assert verify(receipt, store).state == State.IN_SERVICE


def test_a_node_in_service_stays_there_when_it_passes_and_leaves_when_it_does_not(
    receipt: Receipt, store: Store
) -> None:
    on_record(store, State.IN_SERVICE)
    verify(receipt, store)
    verify(receipt, store, failing=("killed-rank",))

    assert moves(store) == [State.IN_SERVICE, State.VERIFY_FAILED]


def test_a_part_of_the_scenarios_lets_no_node_into_service(receipt: Receipt, store: Store) -> None:
    on_record(store, State.AWAITING_VERIFICATION)
    done = verify(receipt, store, wish=Wish(3, ("assemble",)))

    assert done.ok
    assert moves(store) == []
    assert "scenario gate" in (done.findings.not_checked if done.findings else ())


def test_a_part_of_the_scenarios_that_fails_is_recorded(receipt: Receipt, store: Store) -> None:
    on_record(store, State.AWAITING_VERIFICATION)
    verify(receipt, store, failing=("killed-rank",), wish=Wish(3, ("killed-rank",)))

    assert state(store) == State.VERIFY_FAILED


@pytest.mark.parametrize("before", [State.AWAITING_VERIFICATION, State.IN_SERVICE])
def test_a_node_out_of_reach_is_not_moved(receipt: Receipt, store: Store, before: State) -> None:
    on_record(store, before)
    done = verify(receipt, store, reach=unreachable)

    assert done.exit_code == ExitCode.OTHER_SIDE
    assert moves(store) == []


def test_a_node_that_could_not_be_judged_has_not_passed(receipt: Receipt, store: Store) -> None:
    on_record(store, State.AWAITING_VERIFICATION)
    done = verify(receipt, store, reach=lost)

    assert done.exit_code == ExitCode.OTHER_SIDE
    assert moves(store) == [State.VERIFYING, State.VERIFY_FAILED]


def test_a_node_in_service_that_could_not_be_judged_stays_with_an_event(
    receipt: Receipt, store: Store
) -> None:
    on_record(store, State.IN_SERVICE)
    verify(receipt, store, reach=lost)

    assert moves(store) == [State.IN_SERVICE]
    assert "could not be verified" in store.history(NODE)[-1].why


@pytest.mark.parametrize("before", [State.AWAITING_IDENTITY, State.ONBOARDING, State.RETIRED])
def test_a_node_that_is_not_ready_is_refused_and_not_moved(
    receipt: Receipt, store: Store, before: State
) -> None:
    on_record(store, before)
    done = verify(receipt, store, reach=unreachable)

    assert done.exit_code == ExitCode.REFUSED
    assert moves(store) == []


def test_a_receipt_for_another_vm_is_refused(receipt: Receipt, store: Store) -> None:
    on_record(store, State.AWAITING_VERIFICATION, uuid=UUID.replace("1", "9"))

    assert verify(receipt, store, reach=unreachable).exit_code == ExitCode.REFUSED


def test_the_receipt_of_a_decommissioned_node_is_refused(receipt: Receipt, store: Store) -> None:
    on_record(store, State.AWAITING_VERIFICATION)

    assert verify(replace(receipt, kind="decommissioned"), store).exit_code == ExitCode.REFUSED


def test_a_node_that_is_not_on_record_is_verified_all_the_same(receipt: Receipt, store: Store) -> None:
    done = verify(receipt, store, wish=Wish(3, ("assemble",)))

    assert done.ok
    assert done.state is None
    assert store.all() == ()


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        ({"serial": "1234"}, "the receipt is for 1234"),
        ({"ca_fingerprint": "00" * 32}, "the receipt names the root 0000"),
        (
            {"spiffe_id": "spiffe://other.example/node/gpu-01"},
            "spiffe://other.example/node/gpu-01 is expected",
        ),
    ],
    ids=["serial", "root", "spiffe id"],
)
def test_an_identity_that_is_not_the_receipts_does_not_pass(
    lab: Authority, installed: Identity, fact: dict[str, str], why: str
) -> None:
    done = verify(receipt_for(installed, lab, **fact), None, reach=here, wish=Wish(3, ("assemble",)))

    assert done.exit_code == ExitCode.VERIFICATION
    assert done.error is not None
    assert why in done.error.why
    assert "provision-node gpu-01 --reissue-ticket" in done.error.next_step


@pytest.mark.parametrize(
    "wrong",
    [{"ranks": 1}, {"ranks": 1000}, {"scenarios": ()}, {"deadline_s": 1.0}],
    ids=["1", "1000", "none", "1 s"],
)
def test_what_could_never_be_judged_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        Wish(**wrong)


def test_the_report_says_first_whether_it_passed_and_what_that_does_not_cover(receipt: Receipt) -> None:
    done = verify(receipt, None)
    out = StringIO()
    reports.show(done, Console(stdout=out, stderr=StringIO()))
    first, *_ = lines = out.getvalue().splitlines()

    assert first.startswith(
        "gpu-01 passed: 3 ranks assembled on loopback; fabrics, GPUs, inference engine, between nodes not checked"
    )
    assert done.run_id in first
    assert lines[-1] == "not checked: fabrics, GPUs, inference engine, between nodes"
    assert len([line for line in lines if line.startswith("ok\t")]) == len(NAMES)


def test_a_failure_is_told_with_expected_found_and_next(receipt: Receipt) -> None:
    out = StringIO()
    reports.show(verify(receipt, None, failing=("killed-rank",)), Console(stdout=out, stderr=StringIO()))
    text = out.getvalue()

    assert text.startswith("gpu-01 did not pass: killed-rank failed")
    for line in (
        "killed-rank: expected: ",
        "killed-rank: found: killed-rank was seen",
        "killed-rank: next: verify-node",
    ):
        assert line in text


def test_the_document_has_the_agreed_shape(receipt: Receipt, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    reports.write([verify(receipt, None)], file)
    document = json.loads(file.read_text())
    (node,) = document["nodes"]

    assert (document["schema"], document["ok"], node["name"], node["ok"]) == (1, True, NODE, True)
    assert set(node) == {
        *("name", "ok", "outcome", "exit_code", "state", "run_id", "seconds", "probe_sha256", "identity"),
        "verification",
    }
    assert node["verification"]["ranks"] == document["ranks"] == 3
    assert set(node["verification"]) == {
        *("ranks", "phases", "time_line", "checks", "not_checked", "scenarios")
    }
    assert set(node["verification"]["scenarios"][0]) == {
        *("name", "kind", "ok", "seconds", "detail", "expected", "found", "next")
    }
    assert node["identity"]["spiffe_id"] == SPIFFE_ID


def test_the_document_of_a_node_out_of_reach_says_why(receipt: Receipt) -> None:
    (node,) = reports.document([verify(receipt, None, reach=unreachable)])["nodes"]

    assert node["error"] == {
        "what": "no SSH session",
        "why": "no answer within 20 s",
        "next": "look",
        "exit_code": 4,
    }


def test_no_report_is_no_pass() -> None:
    assert reports.document([])["ok"] is False
