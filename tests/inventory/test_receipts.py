import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from inventory import show
from inventory.errors import BadInput, Refused
from inventory.lifecycle import MOVES
from inventory.model import HostKey, Node, State
from inventory.receipts import ROADS, Taken, signers_file, take
from inventory.store import Store
from inventory.ticket import RECEIPT_NAMESPACE, Receipt, sign_receipt, sign_ticket
from tests.inventory.kit import NOW, keygen, receipt, signers_line, ticket

LATER = NOW + timedelta(hours=1)


class Desk:
    """Infra's record with one node in it, and the holder's key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.holder, self.infra = keygen(folder, "holder"), keygen(folder, "infra")
        self.signers = folder / "receipt_signers"
        self.signers.write_text(
            signers_line(self.holder, name="holder@lab", options=f'namespaces="{RECEIPT_NAMESPACE}"')
        )
        self.url = f"sqlite:///{folder / 'record.db'}"
        self.store = Store.open(self.url)
        self.ticket = sign_ticket(ticket(), key_file=self.infra)

    def node(self, state: State, **other: object) -> Node:
        told = ticket()
        known = Node(
            told.node, state, uuid=told.vm_uuid, vmid=told.vmid, address=told.address, user=told.user,
            host_keys=told.host_keys, ticket=self.ticket,
        )  # fmt: skip
        return self.store.add(replace(known, **other), why="test")  # type: ignore[arg-type]  # tests vary it

    def signed(self, kind: str = "onboarded", **other: object) -> str:
        made: Receipt = replace(receipt(), **{"kind": kind, "made_at": LATER, **other})  # type: ignore[arg-type]
        return sign_receipt(made, key_file=self.holder)

    def take(self, text: str, *, dry_run: bool = False) -> Taken:
        return take(text, signers=self.signers, store=self.store, now=LATER, dry_run=dry_run)

    def now(self) -> Node:
        found = self.store.get("gpu-01")
        assert found is not None
        return found


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.mark.parametrize("kind", ROADS)
def test_every_road_is_in_the_life_of_a_node(kind: str) -> None:
    for start, road in ROADS[kind].items():
        for before, after in pairwise((start, *road)):
            assert after in MOVES[before]


def test_receipts_lead_a_node_through_its_life_and_name_who_signed_them(desk: Desk) -> None:
    desk.node(State.AWAITING_IDENTITY)
    states = []
    for hour, kind in enumerate(("onboarded", "verified", "decommissioned")):
        taken = take(
            desk.signed(kind, made_at=NOW + timedelta(hours=hour)),
            signers=desk.signers, store=desk.store, now=NOW + timedelta(hours=hour),
        )  # fmt: skip
        assert taken.changed
        states.append(taken.state)

    assert states == [State.AWAITING_VERIFICATION, State.IN_SERVICE, State.AWAITING_RETIREMENT]
    history = desk.store.history("gpu-01")
    assert [event.after for event in history[1:]] == [
        State.ONBOARDING, State.AWAITING_VERIFICATION, State.VERIFYING, State.IN_SERVICE,
        State.DECOMMISSIONING, State.AWAITING_RETIREMENT,
    ]  # fmt: skip
    assert all("receipt of holder@lab" in event.why for event in history[1:])


def test_the_same_receipt_again_changes_nothing(desk: Desk) -> None:
    desk.node(State.AWAITING_IDENTITY)
    text = desk.signed()
    desk.take(text)
    before = desk.now()
    again = desk.take(text)

    assert not again.changed
    assert again.why == "it is on record already"
    assert desk.now() == before


def test_an_older_receipt_moves_nothing_back(desk: Desk) -> None:
    desk.node(State.AWAITING_IDENTITY)
    desk.take(desk.signed("decommissioned"))
    before = desk.now()
    for kind in ("onboarded", "verified"):
        taken = desk.take(desk.signed(kind, made_at=LATER - timedelta(minutes=1)))
        assert not taken.changed
        assert "a later one is on record: decommissioned" in str(taken.why)

    assert desk.now() == before


def test_a_stopped_import_is_finished_by_the_same_command(desk: Desk) -> None:
    node = desk.node(State.AWAITING_IDENTITY)
    desk.store.save(replace(node, state=State.ONBOARDING), why="the first move, then the host lost power")

    assert desk.take(desk.signed("verified")).state is State.IN_SERVICE


def test_a_renewed_identity_leaves_a_node_in_service(desk: Desk) -> None:
    desk.node(State.IN_SERVICE)
    text = desk.signed(serial="0b")

    assert desk.take(text).state is State.IN_SERVICE
    assert desk.now().receipt == text
    assert "certificate 0b" in desk.store.history("gpu-01")[-1].why


def test_a_dry_run_tells_and_changes_nothing(desk: Desk) -> None:
    before = desk.node(State.AWAITING_IDENTITY)

    assert desk.take(desk.signed(), dry_run=True).state is State.AWAITING_VERIFICATION
    assert desk.now() == before


@pytest.mark.parametrize(
    ("state", "kind"),
    [(State.RETIRED, "onboarded"), (State.PLANNED, "verified"), (State.RETIRING, "decommissioned"),
     (State.AWAITING_RETIREMENT, "verified"), (State.PROVISIONING, "onboarded")],
)  # fmt: skip
def test_a_receipt_that_does_not_fit_the_nodes_state_is_refused(desk: Desk, state: State, kind: str) -> None:
    desk.node(state, ticket=None)
    with pytest.raises(Refused, match=f"the node is {state}"):
        desk.take(desk.signed(kind))


def test_a_receipt_for_another_machine_ticket_pin_or_time_is_refused(desk: Desk) -> None:
    desk.node(State.AWAITING_IDENTITY)
    before = desk.now()
    other = HostKey.from_line(desk.infra.with_suffix(".pub").read_text())
    cases: list[tuple[dict[str, object], str]] = [
        ({"vm_uuid": "0e1a2b3c-0000-4000-8000-000000000002"}, "it is for VM"),
        ({"ticket_id": "ff"}, "in whose place ab12 was made"),
        ({"host_keys": (other,)}, "pins another SSH host key"),
        ({"made_at": LATER + timedelta(minutes=6)}, "yet to come"),
    ]
    for claims, reason in cases:
        with pytest.raises(Refused, match=reason):
            desk.take(desk.signed("onboarded", **claims))

    assert desk.now() == before


def test_a_receipt_from_before_the_nodes_newest_ticket_changes_nothing(desk: Desk) -> None:
    desk.node(State.AWAITING_IDENTITY)
    taken = desk.take(desk.signed("decommissioned", ticket_id="ff", made_at=NOW - timedelta(hours=1)))

    assert not taken.changed
    assert "before the node's ticket" in str(taken.why)


def test_a_receipt_by_anybody_else_is_refused(desk: Desk) -> None:
    desk.node(State.AWAITING_IDENTITY)
    with pytest.raises(Refused, match="its signer is not in"):
        desk.take(sign_receipt(receipt(), key_file=desk.infra))
    with pytest.raises(Refused, match="not believed"):
        desk.take(desk.ticket)
    with pytest.raises(BadInput, match="is not on record"):
        desk.take(desk.signed(node="gpu-02"))


def test_whose_receipts_count_is_named_or_in_the_site_file(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("proxmox: {url: x}\nreceipt_signers: allowed\n")

    assert signers_file(None, site) == tmp_path / "allowed"
    assert signers_file(tmp_path / "other", site) == tmp_path / "other"
    site.write_text("proxmox: {url: x}\n")
    for given in (site, None):
        with pytest.raises(BadInput, match="nobody is named"):
            signers_file(None, given)


def test_the_command_takes_several_files_and_its_exit_code_is_that_of_the_worst(desk: Desk) -> None:
    desk.node(State.AWAITING_IDENTITY)
    now = datetime.now(UTC)
    good, bad = desk.folder / "good.receipt", desk.folder / "bad.receipt"
    good.write_text(desk.signed(made_at=now, not_after=now + timedelta(days=30)))
    bad.write_text(desk.signed(vm_uuid="0e1a2b3c-0000-4000-8000-000000000002", made_at=now))
    command = [
        sys.executable, "-c", "from inventory.cli import main; main()", "import", str(bad), str(good),
        "--receipt-signers", str(desk.signers), "--inventory", desk.url, "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)

    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout)
    assert [each["ok"] for each in told["receipts"]] == [False, True]
    assert told["receipts"][1]["signer"] == "holder@lab"
    assert desk.now().state is State.AWAITING_VERIFICATION


def test_what_is_on_record_cannot_steer_a_terminal_or_add_a_line(desk: Desk) -> None:
    evil = "x\x1b[2J\nin-service\tgpu-99\u202e"
    desk.node(State.PROVISION_FAILED, reason=evil, profile=evil)
    command = [
        sys.executable,
        "-c",
        "from inventory.cli import main; main()",
        "list",
        "--inventory",
        desk.url,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    texts = [
        done.stdout,
        *show.row(next(desk.store.summaries())),
        *(text for _, text in show.lines(desk.now())),
    ]

    assert len(done.stdout.splitlines()) == 2
    assert not [text for text in texts if "\x1b" in text or "\nin-service" in text or "\u202e" in text]
